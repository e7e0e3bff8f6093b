//! Gradients of all weights, block by block, against those that `transformers` and torch compute in
//! float32 (`scripts/fixtures/training.py`).

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use crate::fixtures::{ALL, folder, model};
use outsize_checkpoint::{Checkpoint, TensorInfo};
use outsize_core::GradientSink;
use outsize_models::{Batch, BatchLoss, DispatchedDecoder};

/// Greatest difference of a gradient over the greatest in its tensor.
const TOLERANCE: f32 = 1e-4;

#[derive(serde::Deserialize)]
struct Expected {
    ids: Vec<Vec<u32>>,
    loss: f64,
}

/// Sums gradients by the names of tensors.
struct Sums {
    checkpoint: Checkpoint,
    found: Mutex<BTreeMap<String, Vec<f32>>>,
}

impl GradientSink for Sums {
    fn add(&self, tensor: &TensorInfo, start: u64, gradient: &[f32]) -> io::Result<()> {
        let whole = self.checkpoint.get(&tensor.name).unwrap();
        let mut found = self.found.lock().unwrap();
        let values = found.entry(tensor.name.clone());
        let values = values.or_insert_with(|| vec![0.0; whole.len as usize / 4]);
        let start = ((tensor.offset - whole.offset) / 4 + start) as usize;
        let to = &mut values[start..start + gradient.len()];
        to.iter_mut().zip(gradient).for_each(|(to, more)| *to += more);
        Ok(())
    }
}

type Gradients = BTreeMap<String, Vec<f32>>;

fn gradients(name: &str, model: &DispatchedDecoder, expected: &Expected) -> (BatchLoss, Gradients) {
    let batch = Batch::left_padded(&expected.ids).unwrap();
    let rows = expected.ids.iter();
    let labels = rows.flat_map(|ids| ids[1..].iter().map(|id| Some(*id)).chain([None]));
    let labels: Vec<_> = labels.collect();
    let checkpoint = Checkpoint::open(folder(name)).unwrap();
    let sums = Arc::new(Sums { checkpoint, found: Mutex::default() });
    let sink: Arc<dyn GradientSink> = sums.clone();
    let loss = model.full_gradients(&batch, &labels, &sink).unwrap().unwrap();
    let found = std::mem::take(&mut *sums.found.lock().unwrap());
    (loss, found)
}

fn check(name: &str) {
    let text = std::fs::read_to_string(folder(name).join("expected.json")).unwrap();
    let expected: Expected = serde_json::from_str(&text).unwrap();
    let (resident, config, streamed) = model(name, "16MiB").unwrap();
    assert_eq!(streamed, 0);
    let (loss, found) = gradients(name, &resident, &expected);
    let mean = loss.loss / loss.targets as f64;
    assert!((mean - expected.loss).abs() <= 1e-5 * expected.loss, "{name}: {mean}");

    let checkpoint = Checkpoint::open(folder(name)).unwrap();
    let reference = Checkpoint::open(folder(name).join("gradients.safetensors")).unwrap();
    let mut learned = 0;
    for parameter in config.stored_parameters("", checkpoint.tensors()).unwrap() {
        let (path, part) = (parameter.path, parameter.weight.data());
        if !config.learns(&path) {
            assert!(!found.contains_key(&part.name) && reference.get(&path).is_none(), "{path}");
            continue;
        }
        learned += 1;
        let info = reference.get(&path).unwrap_or_else(|| panic!("{name}: {path}"));
        let want = reference.read(info).unwrap();
        let want: Vec<f32> =
            want.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let start = (part.offset - checkpoint.get(&part.name).unwrap().offset) as usize / 4;
        let found = &found[&part.name][start..start + want.len()];
        let largest = want.iter().fold(0.0f32, |largest, want| largest.max(want.abs()));
        for (found, want) in found.iter().zip(&want) {
            let found = found / loss.targets as f32;
            let near = (found - want).abs() <= TOLERANCE * largest;
            assert!(near, "{name}, {path}: {found} for {want} of {largest}");
        }
    }
    assert_eq!(learned, reference.tensors().len(), "{name}");

    let mut most = 0;
    for kibibytes in (40..=320).step_by(40) {
        let Some((model, _, streamed)) = model(name, &format!("{kibibytes}KiB")) else { continue };
        most = most.max(streamed);
        // What a pass asks for was learned from the one before.
        for _ in 0..2 {
            let (same_loss, same) = gradients(name, &model, &expected);
            assert_eq!(same_loss, loss, "{name} in {kibibytes} KiB");
            assert!(same == found, "{name} in {kibibytes} KiB");
        }
    }
    assert!(most > 10_000, "{name}: {most} bytes streamed");
}

#[test]
fn gradients_are_those_of_torch_wherever_weights_are() {
    ALL.into_iter().for_each(check);
}
