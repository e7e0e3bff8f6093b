//! Gradients of adapters on weights that are stored in few bits, against differences of the loss;
//! the same bits wherever the weights are.

use std::collections::HashMap;

use crate::common::dispatched::{config, path};
use crate::common::reference::{PyTorchInBf16, relative_length};
use crate::fixtures::placed;
use burn::tensor::{Device, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::LowRank;
use outsize_models::{ActivationDtype, Batch, DispatchedDecoder, LowRankGradients, ModelConfig};

const RANK: usize = 2;

/// Numbers from -0.5 to 0.5 that look random.
fn values(count: usize, seed: usize) -> Vec<f32> {
    let value = |at| ((at * 7919 + seed * 104_729 + 12_345) % 1009) as f32 / 1009.0 - 0.5;
    (0..count).map(value).collect()
}

fn matrix(shape: [usize; 2], seed: usize) -> Tensor<2> {
    let data = TensorData::new(values(shape[0] * shape[1], seed), shape);
    Tensor::from_data(data, &Device::flex())
}

/// Adapters of the projections of attention.
fn adapter(config: &ModelConfig) -> HashMap<String, LowRank> {
    let weights = config.weights().into_iter().filter(|weight| {
        let is_projection = ["q_proj.weight", "o_proj.weight", "query_key_value.weight"];
        is_projection.iter().any(|name| weight.name.ends_with(name))
    });
    let parts = weights.enumerate().map(|(seed, weight)| {
        let &[out, inputs] = &weight.shape[..] else { panic!("{}: no matrix", weight.name) };
        let (down, up) = (matrix([RANK, inputs], seed), matrix([out, RANK], seed + 100));
        (weight.name, LowRank { down, up, scale: 0.5, in_out: false })
    });
    let parts: HashMap<_, _> = parts.collect();
    assert!(!parts.is_empty(), "no projection of attention");
    parts
}

fn batch(config: &ModelConfig) -> (Batch, Vec<Option<u32>>) {
    let ids: Vec<u32> = (0..9).map(|at| (at * 5 + 3) % config.vocab_size() as u32).collect();
    let labels = ids.iter().skip(1).map(|id| Some(*id)).chain([None]).collect();
    (Batch::left_padded(&[ids]).unwrap(), labels)
}

fn learn(model: &DispatchedDecoder, config: &ModelConfig) -> LowRankGradients {
    let (batch, labels) = batch(config);
    model.low_rank_gradients(&batch, &labels, &adapter(config), 0).unwrap().unwrap()
}

/// All gradients, by their paths.
fn floats(found: &LowRankGradients) -> Vec<f32> {
    let mut all: Vec<_> = found.gradients.iter().collect();
    all.sort_by_key(|(path, _)| *path);
    let elements = |tensor: &Tensor<2>| tensor.to_data().iter::<f32>().collect::<Vec<_>>();
    all.into_iter().flat_map(|(_, pair)| pair.iter().flat_map(elements)).collect()
}

fn bits(found: &LowRankGradients) -> Vec<u32> {
    floats(found).into_iter().map(f32::to_bits).collect()
}

#[test]
fn gradients_through_few_bits_are_what_the_loss_changes_by() {
    for name in [
        "llama-compressed-w4-bf16",
        "llama-compressed-int8-bf16",
        "llama-awq-f16",
        "llama-gptq-f16",
        "gguf-llama-k",
        "gguf-llama-q8_0",
        "gguf-gpt_oss-mxfp4",
    ] {
        let config = config(name);
        let (model, streamed) =
            placed(&config, &path(name), "16MiB", ActivationDtype::F32).unwrap();
        assert_eq!(streamed, 0);
        let found = learn(&model, &config);
        // Along the gradient the loss rises by its length.
        let length = found
            .gradients
            .values()
            .flatten()
            .map(|gradient| gradient.clone().square().sum().into_scalar::<f32>() as f64);
        let length = length.sum::<f64>().sqrt();
        assert!(length > 1e-3, "{name}: {length}");
        let (batch, labels) = batch(&config);
        let step = 0.02 / length;
        let loss = |by: f64| {
            let parts = adapter(&config).into_iter().map(|(path, part)| {
                let [down, up] = &found.gradients[&path];
                let down = part.down + down.clone() * by;
                let up = part.up + up.clone() * by;
                (path, LowRank { down, up, ..part })
            });
            model.low_rank_loss(&batch, &labels, &parts.collect()).unwrap().unwrap()
        };
        let rises = (loss(step) - loss(-step)) / (2.0 * step);
        let wanted = length * length;
        assert!((rises - wanted).abs() < 0.01 * wanted, "{name}: {rises} for {wanted}");

        assert_same_streamed(name, &found, ActivationDtype::F32);
    }
}

/// Compares gradients in many memories with those in enough, bit by bit.
fn assert_same_streamed(name: &str, found: &LowRankGradients, compute: ActivationDtype) {
    let (config, checkpoint) = (config(name), Checkpoint::open(path(name)).unwrap());
    // What readers take beside weights.
    let staging = config.tree(name, checkpoint.tensors()).unwrap().staging_bytes;
    let mut most = 0;
    for kibibytes in (40..=800).step_by(20) {
        let memory = format!("{}", staging + (kibibytes << 10));
        let placed = placed(&config, &path(name), &memory, compute);
        let Some((model, streamed)) = placed else { continue };
        most = most.max(streamed);
        let same = learn(&model, &config);
        assert_eq!(bits(&same), bits(found), "{name} in {memory}");
    }
    assert!(most > 0, "{name}: nothing is streamed");
}

#[test]
fn rounded_gradients_are_the_same_wherever_weights_are() {
    let pytorch = PyTorchInBf16::read();
    for name in ["qwen3-published-bf16", "olmo2-published-bf16", "llama-awq-f16"] {
        let config = config(name);
        let [exact, rounded] = [ActivationDtype::F32, ActivationDtype::Bf16].map(|compute| {
            let (model, streamed) = placed(&config, &path(name), "16MiB", compute).unwrap();
            assert_eq!(streamed, 0);
            learn(&model, &config)
        });
        let away = relative_length(floats(&rounded).into_iter().zip(floats(&exact)));
        let most = pytorch.gradients[name];
        println!("{name}: {away:.1e} of {most:.1e}");
        assert!(away > 1e-5, "{name}: nothing is rounded");
        assert!(away <= most, "{name}: {away} of the gradients away, PyTorch in bf16 {most}");
        assert_same_streamed(name, &rounded, ActivationDtype::Bf16);
    }
}
