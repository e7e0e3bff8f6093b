//! All weights learn: losses of steps of AdamW against those of `transformers` and torch in float32
//! (`scripts/fixtures/training.py`), and what goes on after an interruption.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outsize_checkpoint::Checkpoint;
use outsize_finetune::{
    Example, Examples, FinetuneError, FinetuneOptions, Finetuned, FullFinetuner,
    LearningRateSchedule, finetune,
};
use outsize_generate::byte_level_tokenizer;
use tempfile::TempDir;

#[path = "../../models/tests/low_rank/fixtures.rs"]
mod fixtures;

/// Greatest difference of a loss, of the loss.
const TOLERANCE: f64 = 1e-4;

#[derive(serde::Deserialize)]
struct Expected {
    ids: Vec<Vec<u32>>,
    losses: Vec<f64>,
    adamw: fixtures::AdamW,
}

/// A checkpoint of the fixtures with a tokenizer, in a folder, and what is expected of it.
fn model(name: &str) -> (TempDir, PathBuf, Expected) {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("model");
    std::fs::create_dir(&model).unwrap();
    let from = fixtures::folder(name);
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), model.join(file)).unwrap();
    }
    std::fs::write(model.join("tokenizer.json"), byte_level_tokenizer(400).unwrap()).unwrap();
    let expected = std::fs::read_to_string(from.join("expected.json")).unwrap();
    (dir, model, serde_json::from_str(&expected).unwrap())
}

impl Expected {
    /// All rows, each all to be learned.
    fn examples(&self) -> Examples {
        let example = |ids: &Vec<u32>| Example {
            tokens: ids.clone(),
            is_target: (0..ids.len()).map(|at| at > 0).collect(),
        };
        let examples = self.ids.iter().map(example).collect();
        Examples { examples: Arc::new(examples), ..Examples::default() }
    }

    fn options(&self) -> FinetuneOptions {
        FinetuneOptions {
            epochs: self.losses.len(),
            learning_rate: self.adamw.lr,
            schedule: LearningRateSchedule::Constant,
            betas: self.adamw.betas,
            epsilon: self.adamw.eps,
            weight_decay: self.adamw.weight_decay,
            max_grad_norm: None,
            shuffle: None,
            ..FinetuneOptions::default()
        }
    }
}

fn tuner(model: &Path, states: &Path, batch: usize) -> FullFinetuner {
    finetune(model).batch_size(batch).context(20).full(states).build().unwrap()
}

/// The bytes of all tensors of a checkpoint, by name.
fn tensors(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let checkpoint = Checkpoint::open(folder).unwrap();
    let tensors = checkpoint.tensors().iter();
    let mut tensors: Vec<_> =
        tensors.map(|it| (it.name.clone(), checkpoint.read(it).unwrap())).collect();
    tensors.sort();
    tensors
}

#[test]
fn losses_of_steps_are_those_of_torch() {
    for name in fixtures::ALL {
        let (dir, folder, expected) = model(name);
        for (batch, accumulate) in [(2, 1), (1, 2)] {
            let states = dir.path().join("states");
            let mut tuner = tuner(&folder, &states, batch);
            let options = FinetuneOptions { accumulate, ..expected.options() };
            let mut losses = Vec::new();
            tuner.train(&expected.examples(), &options, |step| losses.push(step.loss)).unwrap();
            assert_eq!(losses.len(), expected.losses.len());
            for (found, want) in losses.iter().zip(&expected.losses) {
                let near = (found - want).abs() <= TOLERANCE * want;
                assert!(near, "{name}: {losses:?} for {:?}", expected.losses);
            }
            tuner.remove_states();
            assert!(!states.exists());
        }
    }
}
