//! `outsize perplexity`: how well a model predicts a text, under a memory budget.

use crate::args::PerplexityArgs;
use crate::error::Failure;
use crate::views::memory::MemoryHeld;
use crate::views::output::{print, print_json, say};
use crate::views::progress;
use crate::views::run::say_planned;
use crate::{cache, interrupt, model};
use outsize::checkpoint::shown;
use outsize::generate::{Perplexity, ScoreWindows, Tokenizer};
use outsize::machine::Machine;
use outsize::models::Logits;
use outsize::plan::{DeviceMap, Tier, format_size};
use serde::Serialize;
use std::io::Read;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Instant;

/// Tokens of a window if nothing is said, as far as the model has them.
const CONTEXT: usize = 2048;

/// What tokenizing takes at most, for each byte of the text.
const TOKENIZING: u64 = 256;

/// The result of `outsize perplexity --json`. All times in seconds, all sizes in bytes.
#[derive(Serialize, Debug)]
struct PerplexityOutput {
    /// e to the mean cross-entropy of a token.
    perplexity: f64,
    /// Its standard error, as if tokens were independent.
    standard_error: f64,
    /// The mean cross-entropy of a token, in nats.
    nats_per_token: f64,
    /// The cross-entropy of the text, in bits for each of its bytes.
    bits_per_byte: f64,
    /// Tokens that were predicted.
    scored_tokens: u64,
    /// Tokens of the text, special ones included.
    tokens: usize,
    /// Bytes of the text.
    text_bytes: usize,
    /// Tokens of a window.
    context: usize,
    /// Tokens from one window to the next.
    stride: usize,
    /// Windows that ran side by side.
    batch: usize,
    /// From the first pass to the last, what is read first included.
    seconds: f64,
    /// Read from the checkpoint.
    bytes_read: u64,
    #[serde(flatten)]
    memory: MemoryHeld,
    /// Where everything lived.
    placement: DeviceMap,
}

/// Refuses what has no token behind another.
fn at_least_two(what: &str, tokens: usize) -> Result<(), Failure> {
    match tokens {
        2.. => Ok(()),
        _ => Err(Failure::usage(format!(
            "{what} has one token at most: only a token behind another is predicted"
        ))),
    }
}

/// Runs the command.
pub fn perplexity(args: &PerplexityArgs) -> Result<(), Failure> {
    let machine = Machine::detect();
    let config = model::config(&args.model)?;
    if config.decoder_start().is_some() {
        return Err(Failure::usage(
            "the encoder of this model reads texts, and predicts none: perplexity is of models that go on with a text",
        ));
    }
    let folder = args.model.folder();
    let opened = model::opened(&args.model, config)?;
    let usual = CONTEXT.min(opened.config().cache().longest_context);
    let mut settings = model::settings(&args.model, opened.config(), [usual, usual], &machine)?;
    let asked = settings.workload.cache.context;
    at_least_two("--context: a window", asked)?;
    if let Some(stride) = args.stride.filter(|stride| *stride > asked) {
        return Err(Failure::usage(format!(
            "--stride {stride} is more than the {asked} tokens of a window: what is between would not be scored"
        )));
    }
    let most = settings.max_memory.get(Tier::Cpu);
    let text = text(&args.text, most)?;
    let tokenizer = Tokenizer::load(opened.tokenizer_file(folder, &mut settings)??)?;
    let ids = tokenizer.encode(&text, true)?;
    tokenizer.check(&ids, opened.config().vocab_size())?;
    // It is not needed any more.
    drop(tokenizer);
    opened.count_loaded_tokenizer(&mut settings);
    at_least_two("the text", ids.len())?;
    let context = asked.min(ids.len());
    let stride = args.stride.unwrap_or(context);
    let windows = ScoreWindows { context, stride, batch: args.batch };
    let count = windows.of(ids.len()).count();
    let batch = args.batch.min(count);
    let workload = &mut settings.workload;
    workload.logits = Logits::Scored;
    (workload.cache.context, workload.cache.batch) = (context, batch);
    (workload.prompt, workload.position) = (context, context);
    let (profile, figures) = cache::figures(&machine, folder);
    settings.planning.figures = profile;
    let mut pipeline = opened.dispatch(&settings, |_| {})?;
    let placement = pipeline.device_map().clone();
    if !args.json {
        say_planned(&placement, pipeline.prediction(), &figures);
    }
    let bar = progress::steps(count.div_ceil(batch) as u64);
    let began = Instant::now();
    let sum = pipeline.perplexity(&ids, windows, |sum| {
        bar.inc(1);
        bar.set_message(format!("perplexity {:.3}", sum.value()));
        ControlFlow::Continue(())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    bar.finish_and_clear();
    interrupt::check()?;
    let bytes_read = pipeline.stats().bytes_read;
    let memory = MemoryHeld::now(&placement);
    let output = PerplexityOutput {
        perplexity: sum.value(),
        standard_error: sum.standard_error(),
        nats_per_token: sum.loss(),
        bits_per_byte: bits_per_byte(&sum, text.len()),
        scored_tokens: sum.tokens,
        tokens: ids.len(),
        text_bytes: text.len(),
        context,
        stride,
        batch,
        seconds,
        bytes_read,
        memory,
        placement,
    };
    if args.json {
        return print_json(&output);
    }
    print(&format!(
        "perplexity {:.4} ± {:.4} · {:.4} nats per token · {:.4} bits per byte\n",
        output.perplexity, output.standard_error, output.nats_per_token, output.bits_per_byte
    ))?;
    say(format!(
        "{} tokens in {count} windows of {context} · {:.1} tokens/s · read {}{}",
        output.scored_tokens,
        ids.len() as f64 / seconds.max(1e-9),
        format_size(bytes_read),
        output.memory,
    ));
    Ok(())
}

fn bits_per_byte(sum: &Perplexity, bytes: usize) -> f64 {
    sum.nats / std::f64::consts::LN_2 / bytes as f64
}

/// The text of a file, if a process that may hold so many bytes can take it apart.
fn text(path: &Path, most: Option<u64>) -> Result<String, Failure> {
    let name = shown(&path.to_string_lossy(), 200);
    let failed = |error: std::io::Error| Failure::Failed(format!("{name}: {error}"));
    let longest = most.unwrap_or(u64::MAX) / TOKENIZING;
    let mut bytes = Vec::new();
    let reader: Box<dyn Read> = match path.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(std::fs::File::open(path).map_err(failed)?),
    };
    reader.take(longest.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > longest {
        return Err(Failure::Failed(format!(
            "{name}: the text has more than {}, which is the most that can be tokenized in this budget: raise --max-memory, or \
             give a part of it",
            format_size(longest)
        )));
    }
    String::from_utf8(bytes).map_err(|error| {
        Failure::Failed(format!(
            "{name}: it is not UTF-8 from byte {} on: convert it first",
            error.utf8_error().valid_up_to()
        ))
    })
}
