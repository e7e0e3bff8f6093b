//! Checkpoints: the reference fixtures of the models crate, and larger ones of random weights.

use std::path::{Path, PathBuf};

use outsize_checkpoint::{Dtype, ShardWriter, TensorSpec};
use outsize_generate::byte_level_tokenizer;
use outsize_models::{ModelConfig, RandomWeights};

/// Fixtures of each kind of architecture whose decoder reads the prompt.
pub const DECODERS: [&str; 12] = [
    "gqa",
    "mistral-window",
    "dynamic-rope",
    "qwen3-window-bias",
    "gemma3",
    "phi3-longrope",
    "gpt2",
    "gptj",
    "gpt_neox",
    "opt",
    "bloom",
    "falcon",
];

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/fixtures");

/// The folder of a fixture: a tiny checkpoint with what transformers computed.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name)
}

/// Those that see images.
pub fn vision_fixtures() -> Vec<String> {
    let names = std::fs::read_dir(FIXTURES).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("vision-") && !name.starts_with("vision-gguf-")).collect()
}

/// A checkpoint of random weights, `scale` times as large as usual so that logits are apart, in
/// shards of 20 MB.
pub fn random(folder: &Path, config: &str, dtype: Dtype, scale: f32) {
    let parsed = ModelConfig::from_json(config).unwrap();
    let tensors = parsed.weights();
    let specs = tensors
        .iter()
        .map(|tensor| TensorSpec::new(&tensor.name, dtype, tensor.shape.clone()))
        .collect();
    let mut writer = ShardWriter::create(folder, specs, 20_000_000).unwrap();
    writer.add_file("config.json", config.as_bytes()).unwrap();
    let random = RandomWeights::new(3);
    for tensor in &tensors {
        let mut values = vec![0.0; tensor.elements() as usize];
        random.fill(tensor, 0, &mut values);
        let values = values.iter().map(|value| scale * value);
        let bytes: Vec<u8> = match dtype {
            Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
            _ => values.flat_map(|value| half::bf16::from_f32(value).to_le_bytes()).collect(),
        };
        writer.write(&tensor.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// The same with a tokenizer of bytes, and a generation_config.json.
pub fn with_tokenizer(folder: &Path, config: &str, scale: f32, generation: &str) {
    random(folder, config, Dtype::BF16, scale);
    let vocabulary = ModelConfig::from_json(config).unwrap().vocab_size();
    super::write(folder, "tokenizer.json", &byte_level_tokenizer(vocabulary).unwrap());
    super::write(folder, "generation_config.json", generation);
}
