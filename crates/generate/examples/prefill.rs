//! How long the prompt takes of a model that is in memory, or in a budget, apart from loading it.
//!
//! ```text
//! cargo run --release -p outsize-generate --example prefill -- MODEL [f32|bf16] [TOKENS,TOKENS,…] [BUDGET]
//! ```
//!
//! Prints, for each number of tokens, the median and the least of five passes, after one that loads and warms up.

use std::path::Path;
use std::time::Instant;

use outsize_generate::{
    GenerationWorkload, LanguageModel, Pipeline, PipelineSettings, read_config,
};
use outsize_models::{ActivationDtype, CacheOptions};
use outsize_plan::Budget;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, rest @ ..] = arguments.as_slice() else {
        return Err("MODEL is missing: a folder with config.json and safetensors".into());
    };
    let compute = match rest.first().map(String::as_str) {
        None | Some("f32") => ActivationDtype::F32,
        Some("bf16") => ActivationDtype::Bf16,
        Some(other) => return Err(format!("compute is f32 or bf16, not {other}").into()),
    };
    let lengths = rest.get(1).map_or("8,32,128,512", String::as_str);
    let lengths: Vec<usize> = lengths.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let longest = lengths.iter().copied().max().unwrap_or(1);

    let folder = Path::new(model);
    let config = read_config(folder)?;
    let vocabulary = config.vocab_size().max(1);
    let max_memory = Budget::parse(rest.get(2).map_or("cpu=1TB", String::as_str))?;
    let settings = PipelineSettings {
        max_memory,
        workload: GenerationWorkload {
            compute,
            ..GenerationWorkload::new(CacheOptions::new(longest + 1), longest)
        },
        planning: Default::default(),
        stop: None,
    };
    let mut pipeline = Pipeline::open(folder, config, &settings, |_| {})?;
    for length in lengths {
        let ids: Vec<u32> = (1..=length).map(|id| (id % vocabulary) as u32).collect();
        let mut times = Vec::new();
        for _ in 0..6 {
            pipeline.clear();
            let start = Instant::now();
            pipeline.forward(&ids)?;
            times.push(start.elapsed().as_secs_f64());
        }
        let times = &mut times[1..];
        times.sort_by(f64::total_cmp);
        println!("{length} tokens: {:.3} s, least {:.3} s", times[2], times[0]);
    }
    Ok(())
}
