//! How long the prompt takes of a model that is in memory, or in budgets, apart from loading it.
//!
//! ```text
//! cargo run --release -p outsize-generate --example prefill -- MODEL [f32|bf16] [TOKENS,TOKENS,…] [BUDGET …]
//! ```
//!
//! Prints, for each number of tokens and each budget, the median and the least of five passes,
//! after one that loads and warms up. Budgets take turns pass by pass: what disturbs one disturbs
//! the others. If weights are read in these passes, it also prints how much of them a pass reads,
//! and how long it waits for that.

use std::path::Path;
use std::time::Instant;

use outsize_generate::{
    GenerationWorkload, LanguageModel, Pipeline, PipelineSettings, read_config,
};
use outsize_models::{ActivationDtype, CacheOptions};
use outsize_plan::Budget;

/// Passes that count.
const PASSES: usize = 5;

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
    let budgets = rest.get(2..).filter(|budgets| !budgets.is_empty());
    let budgets = budgets.map_or(vec!["cpu=1TB"], |all| all.iter().map(String::as_str).collect());
    let settings = |max_memory| PipelineSettings {
        max_memory,
        workload: GenerationWorkload {
            compute,
            ..GenerationWorkload::new(CacheOptions::new(longest + 1), longest)
        },
        planning: Default::default(),
        stop: None,
    };
    let mut pipelines = Vec::new();
    for budget in budgets {
        let settings = settings(Budget::parse(budget)?);
        pipelines.push((budget, Pipeline::open(folder, config.clone(), &settings, |_| {})?));
    }
    for length in lengths {
        let ids: Vec<u32> = (1..=length).map(|id| (id % vocabulary) as u32).collect();
        let mut times = vec![Vec::new(); pipelines.len()];
        let mut before = Vec::new();
        for pass in 0..=PASSES {
            if pass == 1 {
                before = pipelines.iter().map(|(_, pipeline)| pipeline.stats()).collect();
            }
            for ((_, pipeline), times) in pipelines.iter_mut().zip(&mut times) {
                pipeline.clear();
                let start = Instant::now();
                pipeline.forward(&ids)?;
                times.push(start.elapsed().as_secs_f64());
            }
        }
        for (at, (budget, pipeline)) in pipelines.iter().enumerate() {
            let times = &mut times[at][1..];
            times.sort_by(f64::total_cmp);
            let (median, least) = (times[PASSES / 2], times[0]);
            println!("{length} tokens in {budget}: {median:.3} s, least {least:.3} s");
            let stats = pipeline.stats().since(&before[at]);
            if stats.bytes_read > 0 {
                println!(
                    "    reads {:.3} GB a pass, waits {:.3} s for it",
                    stats.bytes_read as f64 / 1e9 / PASSES as f64,
                    stats.waiting_for_data.as_secs_f64() / PASSES as f64
                );
            }
        }
    }
    Ok(())
}
