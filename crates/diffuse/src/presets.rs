//! Built-in pipelines, for checkpoints of random weights.

use outsize_checkpoint::{Dtype, TensorSpec};
use outsize_models::arch::{AutoencoderKl, ClipTextModel, Unet2dConditionModel};
use outsize_models::{Component, ComponentConfig, Error, WeightSpec};
use serde_json::{Map, Value, json};

/// The names of the built-in pipelines.
///
/// | name | parameters | fp16 | shape of |
/// |---|---|---|---|
/// | `stable-diffusion-v1` | 1.03 B | 2.06 GB | Stable Diffusion 1.5, without the encoder of its autoencoder and its safety checker |
/// | `stable-diffusion-tiny` | 40 M | 80 MB | the same levels, narrower, for pictures of 64 x 64 |
pub const PIPELINE_PRESETS: [&str; 2] = ["stable-diffusion-v1", "stable-diffusion-tiny"];

/// A part of a pipeline to be written: its folder, its files and the tensors of its weights.
#[derive(Debug)]
pub struct PresetPart {
    /// The name of its folder.
    pub folder: &'static str,
    /// The text of its `config.json`.
    pub config: String,
    /// The name of its file of weights.
    pub file: &'static str,
    /// The weights, in the order of use.
    pub weights: Vec<WeightSpec>,
    /// The tensors that they are stored as, in the same order.
    pub tensors: Vec<TensorSpec>,
}

/// A pipeline to be written.
#[derive(Debug)]
pub struct PipelinePreset {
    /// Its parts.
    pub parts: Vec<PresetPart>,
    /// Its other files, by their path, with their text.
    pub files: Vec<(&'static str, String)>,
}

impl PipelinePreset {
    /// The built-in pipeline of that name, with weights of `dtype`; `None` if there is none.
    ///
    /// # Errors
    /// None for the built-in ones.
    pub fn named(name: &str, dtype: Dtype) -> Option<Result<Self, Error>> {
        let tiny = name == PIPELINE_PRESETS[1];
        PIPELINE_PRESETS.contains(&name).then(|| Self::new(tiny, dtype))
    }

    fn new(tiny: bool, dtype: Dtype) -> Result<Self, Error> {
        let texts = [
            include_str!("presets/text_encoder.json"),
            include_str!("presets/unet.json"),
            include_str!("presets/vae.json"),
        ];
        let changes = match tiny {
            false => [json!({}), json!({}), json!({})],
            true => [
                json!({ "hidden_size": 96, "intermediate_size": 384, "num_attention_heads": 4, "num_hidden_layers": 4 }),
                json!({
                    "attention_head_dim": 4, "block_out_channels": [64, 128, 256, 256],
                    "cross_attention_dim": 96, "sample_size": 8,
                }),
                json!({ "block_out_channels": [32, 64, 64, 64], "layers_per_block": 1, "sample_size": 64 }),
            ],
        };
        let [text_encoder, unet, vae] = [0, 1, 2].map(|part| merged(texts[part], &changes[part]));
        const WEIGHTS: &str = "diffusion_pytorch_model.safetensors";
        Ok(Self {
            parts: vec![
                part::<ClipTextModel>("text_encoder", "model.safetensors", text_encoder?, dtype)?,
                part::<Unet2dConditionModel>("unet", WEIGHTS, unet?, dtype)?,
                part::<AutoencoderKl>("vae", WEIGHTS, vae?, dtype)?,
            ],
            files: vec![
                (
                    "scheduler/scheduler_config.json",
                    include_str!("presets/scheduler.json").to_owned(),
                ),
                ("tokenizer/vocab.json", vocabulary()),
                ("tokenizer/merges.txt", "#version: 0.2\n".to_owned()),
                ("tokenizer/tokenizer_config.json", json!({ "model_max_length": 77 }).to_string()),
                ("model_index.json", include_str!("presets/model_index.json").to_owned()),
            ],
        })
    }
}

fn merged(text: &str, changes: &Value) -> Result<String, Error> {
    let parsed: Result<Map<String, Value>, _> = serde_json::from_str(text);
    let mut fields = parsed.map_err(|error| Error::Json { message: error.to_string() })?;
    fields.extend(changes.as_object().cloned().unwrap_or_default());
    Ok(format!("{:#}\n", Value::Object(fields)))
}

fn part<C: Component>(
    folder: &'static str,
    file: &'static str,
    config: String,
    dtype: Dtype,
) -> Result<PresetPart, Error> {
    let component = ComponentConfig::<C>::from_json(&config)?;
    let tensors = component.tensors(dtype).into_iter();
    let tensors = tensors.map(|(name, dtype, shape)| TensorSpec::new(name, dtype, shape)).collect();
    Ok(PresetPart { folder, config, file, weights: component.weights(), tensors })
}

/// A vocabulary of single bytes, with the special tokens where CLIP has them.
fn vocabulary() -> String {
    let plain = (33..=126).chain(161..=172).chain(174..=255).map(char::from_u32);
    // GPT-2's letters for bytes that cannot be seen.
    let others = (256..256 + 68).map(char::from_u32);
    let letters: Vec<char> = plain.chain(others).flatten().collect();
    let alone = letters.iter().map(char::to_string);
    let last = letters.iter().map(|letter| format!("{letter}</w>"));
    let mut ids: Map<String, Value> =
        alone.chain(last).enumerate().map(|(id, token)| (token, id.into())).collect();
    ids.insert("<|startoftext|>".to_owned(), 49406.into());
    ids.insert("<|endoftext|>".to_owned(), 49407.into());
    Value::Object(ids).to_string()
}
