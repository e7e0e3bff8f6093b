//! `outsize run`: a prompt in, text out, under a budget.

use crate::args::RunArgs;
use crate::error::Failure;
use crate::generation::{self, Opened};
use crate::{interrupt, model, progress};
use outsize::generate::{Request, Sampling, Step, Tokenizer, eos_ids};
use outsize::models::Logits;
use std::io::{IsTerminal, Write};
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
    let pipeline = model::open(
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
    let opened = Opened {
        began,
        load: loading.elapsed(),
    };
    let mut reading = Some(progress::Following::new(
        pipeline.device_map().resident_bytes() + pipeline.device_map().streamed_bytes(),
        "reading",
        {
            let watched = pipeline.watch();
            move || watched().bytes_read
        },
    ));
    let report = generation::run(pipeline, &request, tokenizer.as_ref(), opened, |part| {
        let first = reading.take().is_some(); // clears the bar before the text begins
        match &args.prompt {
            _ if args.json => Ok(()),
            // On a terminal the prompt comes first, so that the text reads on from it.
            Some(prompt) if first && std::io::stdout().is_terminal() => {
                print(&format!("{prompt}{part}"))
            }
            _ => print(part),
        }
    })?;
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print("\n")?;
        eprintln!("{}", report.summary());
    }
    interrupt::check()
}

/// Writes to standard output at once.
pub fn print(part: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    out.write_all(part.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::writing("the text", error))
}

/// One line that shows where the weights are, as wide as the terminal.
pub fn picture(map: &outsize::plan::DeviceMap) -> String {
    map.picture(console::Term::stderr().size().1.into())
}
