//! Gradients of adapters, block by block, against those that PEFT and torch compute in float32
//! (`scripts/fixtures/lora_training.py`).

use std::collections::HashMap;

use crate::fixtures::{ALL, Expected, adapter, matrices, model};
use burn::tensor::Tensor;
use outsize_core::LowRank;
use outsize_models::{DispatchedDecoder, LowRankGradients};

/// Greatest difference of a gradient over the greatest in its matrix.
const TOLERANCE: f32 = 1e-4;

fn gradients(
    model: &DispatchedDecoder,
    expected: &Expected,
    adapter: &HashMap<String, LowRank>,
    kept: usize,
) -> LowRankGradients {
    let targets = expected.targets();
    model.low_rank_gradients(&expected.batch(), &targets, adapter, kept).unwrap().unwrap()
}

fn values(tensor: &Tensor<2>) -> Vec<f32> {
    tensor.clone().into_data().iter().collect()
}

fn check(name: &str) {
    let expected = Expected::read(name);
    let adapter = adapter(name, expected.scale);
    let (resident, _, streamed) = model(name, "16MiB").unwrap();
    assert_eq!(streamed, 0);
    let found = gradients(&resident, &expected, &adapter, 0);
    let loss = found.loss / found.targets as f64;
    assert!(
        (loss - expected.loss).abs() <= 2e-6 * expected.loss,
        "{name}: {loss} for {}",
        expected.loss
    );
    let wanted = matrices(name, "gradients.safetensors");
    assert_eq!(found.gradients.len(), wanted.len(), "{name}");
    for (path, matrices) in &wanted {
        for (found, (want, shape)) in found.gradients[path].iter().zip(matrices) {
            assert_eq!(found.dims(), *shape, "{name}, {path}");
            let largest = want.iter().fold(0.0f32, |largest, want| largest.max(want.abs()));
            for (found, want) in values(found).iter().zip(want) {
                let found = found / expected.targets().iter().flatten().count() as f32;
                let near = (found - want).abs() <= TOLERANCE * largest;
                assert!(near, "{name}, {path}: {found} for {want} of {largest}");
            }
        }
    }
    let mut most = 0;
    for kibibytes in (40..=320).step_by(40) {
        let Some((model, _, streamed)) = model(name, &format!("{kibibytes}KiB")) else { continue };
        most = most.max(streamed);
        // What a pass asks for was learned from the one before, which computed more or fewer blocks
        // twice.
        for kept in [0, 0, 1, 2] {
            let same = gradients(&model, &expected, &adapter, kept);
            assert_eq!(same.loss.to_bits(), found.loss.to_bits(), "{name} in {kibibytes} KiB");
            for (path, matrices) in &found.gradients {
                for (found, same) in matrices.iter().zip(&same.gradients[path]) {
                    assert_eq!(values(found), values(same), "{name} in {kibibytes} KiB: {path}");
                }
            }
        }
    }
    assert!(most > 10_000, "{name}: {most} bytes streamed");
}

#[test]
fn gradients_are_those_of_torch_wherever_weights_are() {
    ALL.into_iter().for_each(check);
}
