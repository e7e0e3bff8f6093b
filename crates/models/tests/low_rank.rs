//! Gradients of adapters, block by block, against those that PEFT and torch compute in float32
//! (`scripts/fixtures/lora_training.py`).

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::{LowRank, Options};
use outsize_models::{
    ActivationDtype, Batch, DispatchedDecoder, Init, LowRankGradients, ModelConfig,
};
use outsize_plan::{Budget, infer};

/// All checkpoints of `training.rs`, but those whose layers share keys and values.
const ALL: [&str; 25] = [
    "apertus",
    "arcee",
    "cohere",
    "deepseek_v3",
    "ernie4_5_moe",
    "gemma2",
    "gemma3",
    "gpt2",
    "gpt_oss",
    "granite",
    "granitemoeshared",
    "lfm2_moe",
    "llama",
    "llama-tied",
    "llama4",
    "minimax_m2",
    "mistral-window",
    "mixtral",
    "nemotron",
    "olmo",
    "phi",
    "qwen2_moe",
    "qwen3-tied",
    "qwen3_next",
    "starcoder2",
];

/// Greatest difference of a gradient over the greatest in its matrix.
const TOLERANCE: f32 = 1e-4;

#[derive(serde::Deserialize)]
struct Expected {
    ids: Vec<Vec<u32>>,
    padding: Vec<usize>,
    prompts: Vec<usize>,
    scale: f64,
    loss: f64,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/training").join(name)
}

fn expected(name: &str) -> Expected {
    let text = std::fs::read_to_string(folder(name).join("lora/expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

impl Expected {
    fn batch(&self) -> Batch {
        let rows = self.ids.iter().zip(&self.padding).map(|(ids, padding)| &ids[*padding..]);
        Batch::left_padded(&rows.collect::<Vec<_>>()).unwrap()
    }

    /// What each position is to predict.
    fn targets(&self) -> Vec<Option<u32>> {
        let rows = self.ids.iter().zip(self.padding.iter().zip(&self.prompts));
        rows.flat_map(|(ids, (padding, prompt))| {
            let next = ids
                .iter()
                .enumerate()
                .skip(1)
                .map(move |(at, id)| (at >= padding + (*prompt).max(1)).then_some(*id));
            next.chain([None])
        })
        .collect()
    }
}

/// The matrices of a file, by path of the weight.
fn matrices(name: &str, file: &str) -> BTreeMap<String, [(Vec<f32>, [usize; 2]); 2]> {
    let file = Checkpoint::open(folder(name).join("lora").join(file)).unwrap();
    let mut found = BTreeMap::new();
    for info in file.tensors() {
        let Some(module) = info.name.strip_suffix(".down") else { continue };
        let read = |part: &str| {
            let info = file.get(&format!("{module}.{part}")).unwrap();
            let bytes = file.read(info).unwrap();
            let values = bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes));
            (values.collect(), info.shape.clone().try_into().unwrap())
        };
        found.insert(format!("{module}.weight"), [read("down"), read("up")]);
    }
    found
}

fn adapter(name: &str, scale: f64) -> HashMap<String, LowRank> {
    let matrices = matrices(name, "adapter.safetensors").into_iter();
    let parts = matrices.map(|(path, matrices)| {
        let [down, up] = matrices.map(|(values, shape)| {
            Tensor::from_data(TensorData::new(values, shape), &Device::flex())
        });
        (path, LowRank { down, up, scale, in_out: name == "gpt2" })
    });
    parts.collect()
}

/// The model in as much memory, if that is enough, and how many bytes are streamed.
fn model(name: &str, memory: &str) -> Option<(Box<dyn DispatchedDecoder>, u64)> {
    let text = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
    let config = ModelConfig::from_json(&text).unwrap();
    let checkpoint = Checkpoint::open(folder(name)).unwrap();
    let tree = config.tree(name, checkpoint.tensors()).unwrap();
    let options = Options {
        budget: Budget::parse(&format!("cpu={memory}")).unwrap(),
        tile_bytes: 1400,
        read_bytes: 4096,
        min_ring_bytes: 0,
        // What a backward pass holds of a block, such as weights of norms, is never streamed.
        small_tensor_bytes: 600,
        ..config.options(checkpoint.tensors())
    };
    let map = infer(&tree, &options.budget, &options.plan()).ok()?;
    let init = Init { device: Device::flex(), compute: ActivationDtype::F32 };
    let model = config.dispatch(&init, &checkpoint, &map, &options).unwrap();
    Some((model, map.streamed_bytes()))
}

fn gradients(
    model: &dyn DispatchedDecoder,
    expected: &Expected,
    adapter: &HashMap<String, LowRank>,
) -> LowRankGradients {
    let targets = expected.targets();
    model.low_rank_gradients(&expected.batch(), &targets, adapter).unwrap().unwrap()
}

fn values(tensor: &Tensor<2>) -> Vec<f32> {
    tensor.clone().into_data().iter().collect()
}

fn check(name: &str) {
    let expected = expected(name);
    let adapter = adapter(name, expected.scale);
    let (resident, streamed) = model(name, "16MiB").unwrap();
    assert_eq!(streamed, 0);
    let found = gradients(&*resident, &expected, &adapter);
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
    for kibibytes in (40..=320).step_by(20) {
        let Some((model, streamed)) = model(name, &format!("{kibibytes}KiB")) else { continue };
        most = most.max(streamed);
        // What the second pass asks for was learned from the first.
        for _ in 0..2 {
            let same = gradients(&*model, &expected, &adapter);
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
