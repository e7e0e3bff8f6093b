//! `outsize run`: a prompt in, text out, under a budget.

use crate::args::RunArgs;
use crate::error::Failure;
use crate::report::{Report, Timing};
use crate::{interrupt, model, progress};
use outsize::generate::{Request, Sampling, Step, Tokenizer, eos_ids, generate};
use outsize::models::Logits;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::time::Instant;

/// Runs the command; `began` is when the process did.
pub fn run(args: &RunArgs, began: Instant) -> Result<(), Failure> {
    let config = model::config(&args.model)?;
    let (tokenizer, ids) = match (&args.prompt, &args.ids) {
        (Some(prompt), _) => {
            let tokenizer = model::tokenizer(&args.model)?;
            let ids = tokenizer.encode(prompt)?;
            (Some(tokenizer), ids)
        }
        // With ids, text is a bonus: it needs no tokenizer.
        (None, Some(ids)) => (
            Tokenizer::open(&args.model.model).ok(),
            model::ids(ids, &config)?,
        ),
        (None, None) => return Err(Failure::usage("give --prompt or --ids")),
    };
    let request = Request {
        max_new_tokens: args.max_new_tokens,
        eos: if args.ignore_eos {
            Vec::new()
        } else {
            eos_ids(&args.model.model)?
        },
        sampling: Sampling {
            temperature: args.temperature,
            top_k: args.top_k,
            top_p: args.top_p,
            seed: args.seed,
        },
        ids,
    };
    let context = (request.ids.len() + args.max_new_tokens).min(config.max_position_embeddings);
    let loading = Instant::now();
    let mut pipeline = model::open(
        &args.model,
        config,
        request.ids.len(),
        context,
        Logits::Last,
        |step| {
            if let (Step::Planned { map }, false) = (step, args.json) {
                eprintln!("{}", picture(map));
            }
        },
    )?;
    let load = loading.elapsed();

    let mut timing = Timing {
        load,
        first_token: load,
        at_first_token: pipeline.stats(),
    };
    let mut printer = Printer::new(tokenizer.as_ref(), args);
    let mut failure = None;
    let mut first = true;
    let watched = pipeline.watch();
    let mut reading = Some(progress::Following::new(
        pipeline.device_map().resident_bytes() + pipeline.device_map().streamed_bytes(),
        "reading",
        {
            let watched = pipeline.watch();
            move || watched().bytes_read
        },
    ));
    let outcome = generate(&mut pipeline, &request, |token| {
        let mut begun = Ok(());
        if std::mem::take(&mut first) {
            reading.take(); // clears the bar before the text begins
            begun = printer.start();
            timing.first_token = began.elapsed();
            timing.at_first_token = watched();
        }
        match begun.and_then(|()| printer.push(token)) {
            Ok(()) if interrupt::asked() => ControlFlow::Break(()),
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failure = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    let text = printer.finish()?;
    let report = Report::new(pipeline, &outcome, text, timing);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        eprintln!("{}", report.summary());
    }
    interrupt::check()
}

/// One line that shows where the weights are, as wide as the terminal.
pub fn picture(map: &outsize::plan::DeviceMap) -> String {
    map.picture(console::Term::stderr().size().1.into())
}

/// Streams the text to standard output as it comes.
struct Printer<'a> {
    stream: Option<outsize::generate::TextStream<'a>>,
    prompt: Option<&'a str>,
    text: String,
    tokens: usize,
    quiet: bool,
}

impl<'a> Printer<'a> {
    fn new(tokenizer: Option<&'a Tokenizer>, args: &'a RunArgs) -> Self {
        Self {
            stream: tokenizer.map(Tokenizer::stream),
            prompt: args.prompt.as_deref(),
            text: String::new(),
            tokens: 0,
            quiet: args.json,
        }
    }

    /// On a terminal the prompt comes first, so that the text reads on from it.
    fn start(&mut self) -> Result<(), Failure> {
        match self.prompt {
            Some(prompt) if std::io::stdout().is_terminal() => self.print(prompt),
            _ => Ok(()),
        }
    }

    fn print(&self, part: &str) -> Result<(), Failure> {
        if self.quiet {
            return Ok(());
        }
        let mut out = std::io::stdout().lock();
        out.write_all(part.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|error| Failure::writing("the text", error))
    }

    fn push(&mut self, token: u32) -> Result<(), Failure> {
        let part = match &mut self.stream {
            Some(stream) => stream.push(token)?,
            // Without a tokenizer the tokens themselves are the text.
            None if self.tokens == 0 => Some(token.to_string()),
            None => Some(format!(",{token}")),
        };
        self.tokens += 1;
        if let Some(part) = part {
            self.print(&part)?;
            self.text.push_str(&part);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<String, Failure> {
        if let Some(stream) = self.stream.take()
            && let Some(part) = stream.finish()?
        {
            self.print(&part)?;
            self.text.push_str(&part);
        }
        self.print("\n")?;
        Ok(self.text)
    }
}
