//! One file a command: its arguments become calls of the libraries, and results become views.

mod bench;
mod calibrate;
mod chat;
pub mod config;
mod demo;
mod embed;
mod env;
mod estimate;
mod fetch;
mod finetune;
mod image;
mod launch;
mod list;
mod logits;
mod manual;
mod perplexity;
mod plan;
mod quantize;
mod random_values;
mod rewritten;
mod run;
mod run_many;
mod serve;
mod shard;
mod synth;
mod synth_pipeline;
mod test;
mod tuner;

use crate::args::{
    ChatArgs, Command, EmbedArgs, FinetuneArgs, LogitsArgs, ModelArgs, PerplexityArgs,
    QuantizeArgs, RewriteArgs, RunArgs, ServeArgs, SessionArgs, ShardArgs,
};
use crate::error::Failure;
use crate::hub::Wanted;
use crate::model;
use std::path::PathBuf;
use std::time::Instant;

/// Runs a command; `began` is when the process did.
pub fn run(mut command: Command, began: Instant) -> Result<(), Failure> {
    if let Command::Serve(ServeArgs { name, session, .. }) = &mut command {
        // As MODEL is called, before it is where it lies.
        name.get_or_insert_with(|| serve::name(&session.model.model));
    }
    let called = match &command {
        Command::Finetune(FinetuneArgs { model, .. }) => model.clone(),
        _ => PathBuf::new(),
    };
    if let Command::Run(RunArgs { model: ModelArgs { model, .. }, .. })
    | Command::Chat(ChatArgs {
        session: SessionArgs { model: ModelArgs { model, .. }, .. },
        ..
    })
    | Command::Serve(ServeArgs {
        session: SessionArgs { model: ModelArgs { model, .. }, .. },
        ..
    })
    | Command::Embed(EmbedArgs { model: ModelArgs { model, .. }, .. })
    | Command::Finetune(FinetuneArgs { model, .. })
    | Command::Logits(LogitsArgs { model: ModelArgs { model, .. }, .. })
    | Command::Perplexity(PerplexityArgs { model: ModelArgs { model, .. }, .. })
    | Command::Quantize(QuantizeArgs { model, .. })
    | Command::Shard(ShardArgs { rewrite: RewriteArgs { model, .. }, .. })
    | Command::Merge(RewriteArgs { model, .. }) = &mut command
    {
        *model = model::located(model, Wanted::Text)?;
    }
    match &command {
        Command::Run(args) => run::run(args, began),
        Command::Chat(args) => chat::chat(args),
        Command::Serve(args) => serve::serve(args),
        Command::Embed(args) => embed::embed(args),
        Command::Finetune(args) => finetune::finetune(args, &called, began),
        Command::Image(args) => image::image(args, began),
        Command::Plan(args) => plan::plan(args),
        Command::Logits(args) => logits::logits(args),
        Command::Perplexity(args) => perplexity::perplexity(args),
        Command::Shard(args) => shard::shard(&args.rewrite, args.max_shard_size),
        Command::Quantize(args) => quantize::quantize(args, began),
        Command::Merge(args) => shard::shard(args, u64::MAX),
        Command::Synth(args) => synth::synth(args),
        Command::Estimate(args) => estimate::estimate(args),
        Command::Fetch(args) => fetch::fetch(args),
        Command::List(args) => list::list(args),
        Command::Demo(args) => demo::demo(args, began),
        Command::Env(args) => env::env(args),
        Command::Bench(args) => bench::bench(args),
        Command::Launch(args) => launch::launch(args),
        Command::Test(args) => test::test(args),
        Command::Config(args) => config::config(args),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::pages(args),
    }
}
