//! All weights learn: losses of steps of AdamW against those of `transformers` and torch in float32
//! (`scripts/fixtures/training.py`), and what goes on after an interruption.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, StoredWeight, TensorInfo, TensorSpec};
use outsize_core::Rewrite;
use outsize_finetune::{
    Example, Examples, FinetuneError, FinetuneOptions, FullFinetuner, LearningRateSchedule,
    finetune,
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

/// A model in one of 16 bits learns in f32, and what is written is that rounded.
#[test]
fn narrow_weights_learn_in_f32() {
    let (dir, folder, expected) = model("llama-tied");
    let (narrow, wide) = (dir.path().join("bf16"), dir.path().join("f32"));
    cast(&folder, &narrow, Dtype::BF16);
    cast(&narrow, &wide, Dtype::F32);
    // Updates that are lost if they are rounded in each step.
    let options = FinetuneOptions { learning_rate: 1e-5, epochs: 200, ..expected.options() };
    let learn = |model: &Path, name: &str| {
        let mut tuner = tuner(model, &dir.path().join(format!("{name}.states")), 2);
        let mut losses = Vec::new();
        tuner.train(&expected.examples(), &options, |step| losses.push(step.loss)).unwrap();
        tuner.save(dir.path().join(name)).unwrap();
        (losses, tensors(&dir.path().join(name)))
    };
    let (losses, found) = learn(&narrow, "of-bf16");
    let (exact, want) = learn(&wide, "of-f32");
    let learned = |losses: &[f64]| losses[0] - losses[losses.len() - 1];
    let [learned, exact] = [&losses, &exact].map(|losses| learned(losses));
    assert!((learned - exact).abs() <= 0.2 * exact && exact > 0.1, "{learned} for {exact}");
    let value = |bytes: &[u8]| f32::from_le_bytes([0, 0, bytes[0], bytes[1]]);
    let (mut changed, mut near, mut all) = (0, 0, 0);
    for ((found, want), before) in found.iter().zip(&want).zip(tensors(&narrow)) {
        assert_eq!(found.1.len() * 2, want.1.len(), "{}", found.0);
        changed += usize::from(found.1 != before.1);
        let pairs = found.1.chunks_exact(2).zip(want.1.as_chunks().0);
        for (found, want) in pairs.map(|(found, want)| (value(found), f32::from_le_bytes(*want))) {
            // Half of the distance that a value can go, and its rounding.
            near += usize::from((found - want).abs() <= 1e-3 + want.abs() / 512.0);
            all += 1;
        }
    }
    assert!(near * 100 >= all * 95, "{near} of {all}");
    assert!(changed > 10, "{changed} tensors have changed");
}

/// Writes a checkpoint in another type.
fn cast(from: &Path, to: &Path, dtype: Dtype) {
    let checkpoint = Checkpoint::open(from).unwrap();
    let rewrites = checkpoint.tensors().iter();
    let rewrites: Vec<_> = rewrites
        .map(|it| Rewrite::new(StoredWeight::plain(it.clone()), dtype, None).unwrap())
        .collect();
    let specs = rewrites.iter().flat_map(Rewrite::specs).collect();
    let mut writer = ShardWriter::create(to, specs, u64::MAX).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        writer.add_file(file, &std::fs::read(from.join(file)).unwrap()).unwrap();
    }
    for rewrite in rewrites {
        rewrite.write(&checkpoint, &mut writer, |_| true).unwrap();
    }
    writer.finish().unwrap();
}

/// Of a stored head that is the table once more, both are what was learned.
#[test]
fn a_tied_head_that_is_stored_too_is_written_as_its_table() {
    let (dir, folder, expected) = model("llama-tied");
    let both = dir.path().join("both");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let spec =
        |name: &str, info: &TensorInfo| TensorSpec::new(name, info.dtype, info.shape.clone());
    let table = checkpoint.get("model.embed_tokens.weight").unwrap();
    let specs = checkpoint.tensors().iter().map(|it| spec(&it.name, it));
    let specs = specs.chain([spec("lm_head.weight", table)]).collect();
    let mut writer = ShardWriter::create(&both, specs, u64::MAX).unwrap();
    for file in ["config.json", "tokenizer.json"] {
        writer.add_file(file, &std::fs::read(folder.join(file)).unwrap()).unwrap();
    }
    for tensor in checkpoint.tensors() {
        writer.write(&tensor.name, &checkpoint.read(tensor).unwrap()).unwrap();
    }
    writer.write("lm_head.weight", &checkpoint.read(table).unwrap()).unwrap();
    writer.finish().unwrap();

    let mut tuner = tuner(&both, &dir.path().join("states"), 2);
    let options = FinetuneOptions { max_steps: Some(1), ..expected.options() };
    tuner.train(&expected.examples(), &options, |_| {}).unwrap();
    tuner.save(dir.path().join("out")).unwrap();
    let written = tensors(&dir.path().join("out"));
    let of = |name: &str| &written.iter().find(|(it, _)| it == name).unwrap().1;
    assert_eq!(of("lm_head.weight"), of("model.embed_tokens.weight"));
    assert_ne!(of("lm_head.weight"), &checkpoint.read(table).unwrap());
}

#[test]
fn models_that_cannot_learn_are_refused_before_anything_is_written() {
    let said = |name: &str| {
        let (dir, folder, _) = model(name);
        let states = dir.path().join("states");
        let error = finetune(&folder).context(20).full(&states).build().unwrap_err();
        assert!(!states.exists(), "{name}");
        error
    };
    for name in ["gemma3n", "gemma4"] {
        let error = said(name);
        assert!(matches!(error, FinetuneError::Unsupported { .. }), "{name}: {error}");
    }
    // Integers of 4 bits.
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures/llama-awq-f16");
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture.join(file), dir.path().join(file)).unwrap();
    }
    std::fs::write(dir.path().join("tokenizer.json"), byte_level_tokenizer(400).unwrap()).unwrap();
    let states = dir.path().join("states");
    let error = finetune(dir.path()).context(20).full(&states).build().unwrap_err();
    assert!(error.to_string().contains("q_proj.qweight in U4"), "{error}");
    assert!(!states.exists());
}
