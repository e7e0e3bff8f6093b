//! The fixtures of modules of Stable Diffusion (`scripts/fixtures/diffusion.py`), and how each is run.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_models::arch::{
    AddedConditions, AutoencoderKl, AutoencoderKlEncoder, ClipTextModel, TIME_IDS,
    Unet2dConditionModel,
};
use outsize_models::{Component, ComponentConfig};

pub const CLIPS: [&str; 4] = ["clip-text-v1", "clip-text-v2", "clip-text-xl", "clip-text-eos"];
pub const UNETS: [&str; 4] = ["unet-v1", "unet-v2", "unet-deep", "unet-xl"];
pub const VAES: [&str; 2] = ["vae", "vae-old"];

pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/components").join(name)
}

pub fn config<C: Component>(name: &str) -> ComponentConfig<C> {
    let text = fs::read_to_string(folder(name).join("config.json")).unwrap();
    ComponentConfig::from_json(&text).unwrap()
}

/// A tensor of what is expected, and its shape.
pub fn expected(name: &str, tensor: &str) -> (Vec<f32>, Vec<usize>) {
    let file = Checkpoint::open(folder(name).join("expected.safetensors")).unwrap();
    let info = file.get(tensor).unwrap();
    let bytes = file.read(info).unwrap();
    let values = match info.dtype {
        Dtype::I64 => bytes.as_chunks().0.iter().map(|&id| i64::from_le_bytes(id) as f32).collect(),
        _ => bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect(),
    };
    (values, info.shape.clone())
}

pub fn tensor<const D: usize>(name: &str, tensor: &str, device: &Device) -> Tensor<D> {
    let (values, shape) = expected(name, tensor);
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

/// Last states, those before them, and texts as a whole.
pub fn encode_all(name: &str, model: &ClipTextModel) -> [Vec<f32>; 3] {
    let (ids, shape) = expected(name, "ids");
    let ids: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
    let states = model.forward(&ids, shape[0]).unwrap();
    let pooled = model.pool(&ids, &states.last);
    [values(states.last), values(states.penultimate), values(pooled)]
}

pub fn encode(name: &str, model: &ClipTextModel) -> Vec<f32> {
    let [last, ..] = encode_all(name, model);
    last
}

pub fn denoise(name: &str, model: &Unet2dConditionModel) -> Vec<f32> {
    let device = Device::flex();
    let timestep = expected(name, "timestep").0[0];
    let [latents, context] = ["latents", "context"].map(|what| expected(name, what));
    let latents = Tensor::from_data(TensorData::new(latents.0, latents.1), (&device, DType::F32));
    let context = Tensor::from_data(TensorData::new(context.0, context.1), (&device, DType::F32));
    let added = name.ends_with("-xl").then(|| AddedConditions {
        text_embeds: tensor(name, "text_embeds", &device),
        time_ids: expected(name, "time_ids").0[..TIME_IDS].try_into().unwrap(),
    });
    values(model.forward(latents, timestep, context, added.as_ref()))
}

pub fn decode(name: &str, model: &AutoencoderKl) -> Vec<f32> {
    let mut picture = Vec::new();
    model.decode(tensor(name, "latents", &Device::flex()), |rows| picture.extend(values(rows)));
    picture
}

pub fn encode_picture(name: &str, model: &AutoencoderKlEncoder) -> Vec<f32> {
    values(model.encode(tensor(name, "picture", &Device::flex())))
}
