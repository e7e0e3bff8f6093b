//! Prompts split over ranks, each with a model of its own within its share of the memory:
//!
//! ```text
//! OUTSIZE_NUM_PROCESSES=2 cargo run --release -p outsize --example split_prompts -- MODEL 600MB "Once" "Twice"
//! cargo build --release --workspace --features outsize/mpi --example split_prompts
//! mpirun -n 2 target/release/examples/split_prompts MODEL 600MB "Once" "Twice"
//! ```
//!
//! The memory is that of one rank. Prints the texts in the order of the prompts, which are those of
//! one rank with all of the prompts.

use outsize::train::Accelerator;
use outsize::{Budget, GenerateOptions, Task, pipeline};

type Fault = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Fault> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, memory, prompts @ ..] = &arguments[..] else {
        return Err("give MODEL, the memory of a rank such as 600MB, and prompts".into());
    };
    Accelerator::builder().run(|accelerator| -> Result<(), Fault> {
        let budget = Budget::parse(&format!("cpu={memory}"))?;
        let mut pipe = pipeline(Task::TextGeneration, folder).max_memory(budget).build()?;
        let options = GenerateOptions { max_new_tokens: Some(20), ..GenerateOptions::default() };
        let mut texts = Vec::new();
        for prompt in accelerator.split_between_processes(prompts, false) {
            texts.push(prompt.clone() + &pipe.generate(&prompt, &options)?.text);
        }
        let texts = accelerator.gather_object(&texts)?.concat();
        accelerator.print(texts.join("\n"));
        Ok(())
    })
}
