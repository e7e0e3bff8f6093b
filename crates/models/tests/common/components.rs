//! The fixtures of modules of Stable Diffusion, FLUX.1, FLUX.2, Z-Image and Qwen-Image
//! (`scripts/fixtures/diffusion.py`, `flux.py`, `flux2.py`, `z_image.py` and `qwen_image.py`), and
//! how each is run.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use outsize_core::{Dispatched, Options};
use outsize_models::arch::{
    AddedConditions, AutoencoderKl, AutoencoderKlEncoder, ClipTextModel, DecoderTextEncoder,
    Flux2Transformer2dModel, FluxTransformer2dModel, QwenImageTransformer2dModel, QwenVisionModel,
    Sd3Transformer2dModel, T5EncoderModel, TIME_IDS, TextFilling, Unet2dConditionModel,
    ZImageTransformer2dModel,
};
use outsize_models::{
    ActivationDtype, Component, ComponentConfig, Error, FIRST_IMAGE_ID, ImageFeatures, Init,
    VisionModel,
};
use outsize_plan::Budget;

use super::dispatched::placed_in;
use super::reference::{ROUNDED_TOLERANCE, assert_within};
use super::time_embedder::complete;

pub const CLIPS: [&str; 4] = ["clip-text-v1", "clip-text-v2", "clip-text-xl", "clip-text-eos"];
pub const UNETS: [&str; 5] = ["unet-v1", "unet-v2", "unet-deep", "unet-xl", "unet-lcm"];
pub const VAES: [&str; 5] = ["vae", "vae-old", "vae-flux", "vae-qwen-image", "vae-qwen-image-wide"];
pub const T5_ENCODERS: [&str; 2] = ["t5-encoder", "t5-encoder-whole"];
pub const FLUXES: [&str; 3] = ["flux-dev", "flux-schnell", "flux-kontext"];
pub const QWEN3_ENCODERS: [&str; 3] =
    ["qwen3-encoder", "qwen3-encoder-untied", "qwen3-encoder-base"];
/// Of which several hidden states are taken, those of padding too, which stands behind texts or
/// before them.
pub const STATES: [&str; 2] = ["qwen3-states", MISTRAL3_STATES];
const MISTRAL3_STATES: &str = "mistral3-states";
pub const FLUX2S: [&str; 3] = ["flux2", "flux2-references", "flux2-guided"];
pub const FLUX2_VAES: [&str; 2] = ["vae-flux2", "vae-flux2-small"];
pub const QWEN_IMAGES: [&str; 4] =
    ["qwen-image", "qwen-image-alone", "qwen-image-edit", "qwen-image-edit-zero"];
pub const QWEN_VL_ENCODERS: [&str; 2] = ["qwen-vl-encoder", "qwen-vl-newer"];
pub const QWEN_VL_SEEING: &str = "qwen-vl-seeing";
pub const Z_IMAGES: [&str; 2] = ["z-image", "z-image-even"];

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

/// Token ids, and how many texts they are of.
fn ids(name: &str) -> (Vec<u32>, usize) {
    let (ids, shape) = expected(name, "ids");
    (ids.iter().map(|id| *id as u32).collect(), shape[0])
}

/// Last states, those before them, and texts as a whole.
pub fn encode_all(name: &str, model: &ClipTextModel) -> [Vec<f32>; 3] {
    let (ids, rows) = ids(name);
    let states = model.forward(&ids, rows).unwrap();
    let pooled = model.pool(&ids, &states.last);
    [values(states.last), values(states.penultimate), values(pooled)]
}

pub fn encode(name: &str, model: &ClipTextModel) -> Vec<f32> {
    let [last, ..] = encode_all(name, model);
    last
}

pub fn encode_t5(name: &str, model: &T5EncoderModel) -> Vec<f32> {
    let (ids, rows) = ids(name);
    values(model.forward(&ids, rows).unwrap())
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
    let guidance = name.ends_with("-lcm").then(|| expected(name, "guidance").0[0]);
    values(model.forward(latents, timestep, guidance, context, added.as_ref()))
}

pub fn decode(name: &str, model: &AutoencoderKl) -> Vec<f32> {
    let mut picture = Vec::new();
    model.decode(tensor(name, "latents", &Device::flex()), |rows| picture.extend(values(rows)));
    picture
}

pub fn encode_picture(name: &str, model: &AutoencoderKlEncoder) -> Vec<f32> {
    values(model.encode(tensor(name, "picture", &Device::flex())))
}

pub fn denoise_packed(name: &str, model: &FluxTransformer2dModel) -> Vec<f32> {
    let device = Device::flex();
    let [timestep, guidance] = ["timestep", "guidance"].map(|what| expected(name, what).0[0]);
    let latents = tensor(name, "latents", &device);
    let (pooled, context) = (tensor(name, "pooled", &device), tensor(name, "context", &device));
    values(model.forward(latents, &sizes(name, "size"), timestep, Some(guidance), pooled, context))
}

pub const SD3S: [&str; 3] = ["sd3", "sd3-normed", "sd3-dual"];

pub fn denoise_sd3(name: &str, model: &Sd3Transformer2dModel) -> Vec<f32> {
    let device = Device::flex();
    let (size, time) = (sizes(name, "size")[0], expected(name, "timestep").0[0]);
    let [latents, context] = ["latents", "context"].map(|what| tensor(name, what, &device));
    values(model.forward(latents, size, time, tensor(name, "pooled", &device), context))
}

/// Rows and columns of pictures in tokens.
fn sizes(name: &str, what: &str) -> Vec<[usize; 2]> {
    let sizes = expected(name, what).0;
    sizes.chunks(2).map(|size| [size[0] as usize, size[1] as usize]).collect()
}

/// The texts of a fixture, those that are shorter without what stands behind them.
pub fn texts(name: &str) -> Vec<Vec<u32>> {
    let ((ids, rows), lengths) = (ids(name), expected(name, "lengths").0);
    let texts = ids.chunks(ids.len() / rows).zip(&lengths);
    texts.map(|(text, length)| text[..*length as usize].to_vec()).collect()
}

/// The states of several texts with zeros where a text has no token, as the reference has them.
pub fn encode_qwen3(name: &str, model: &DecoderTextEncoder) -> Vec<f32> {
    let texts = texts(name);
    let states = model.forward(&texts).unwrap();
    let [_, longest, hidden] = states.dims();
    let mut found = values(states);
    for (text, states) in texts.iter().zip(found.chunks_mut(longest * hidden)) {
        states[..(longest - text.len()) * hidden].fill(0.0);
    }
    found
}

/// The images of [`QWEN_VL_SEEING`], as its text has them.
pub fn see(name: &str, model: &QwenVisionModel) -> Vec<ImageFeatures> {
    let (patches, shape) = expected(name, "patches");
    let width = shape[1];
    let (mut rest, mut seen) = (&patches[..], Vec::new());
    for grid in sizes(name, "grids") {
        let (own, behind) = rest.split_at(grid[0] * grid[1] * width);
        rest = behind;
        let data = TensorData::new(own.to_vec(), [own.len() / width, width]);
        let pixels = Tensor::from_data(data, (&Device::flex(), DType::F32));
        seen.push(model.see(pixels, grid));
    }
    seen
}

/// The states of a text whose tokens `image` stand for images.
pub fn encode_seeing(
    name: &str,
    model: &DecoderTextEncoder,
    image: u32,
    images: &[ImageFeatures],
) -> Result<Vec<f32>, outsize_models::Error> {
    let mut ids = Vec::new();
    let mut next = images.iter();
    let mut placed = Vec::new();
    let mut first = FIRST_IMAGE_ID;
    for id in expected(name, "ids").0.into_iter().map(|id| id as u32) {
        match (id == image).then(|| next.next()).flatten() {
            Some(image) => {
                let end = first + image.tokens() as u32;
                ids.extend(first..end);
                placed.push((first, image.clone()));
                first = end;
            }
            None => ids.push(id),
        }
    }
    model.forward_seeing(&ids, &placed).map(values)
}

/// The configuration of one of [`STATES`].
pub fn config_of_states(name: &str) -> ComponentConfig<DecoderTextEncoder> {
    let states = expected(name, "states").0;
    let states: Vec<_> = states.into_iter().map(|state| state as usize).collect();
    config::<DecoderTextEncoder>(name)
        .changed(|config| *config = config.clone().with_states(&states).unwrap())
}

/// What fills up the texts of one of [`STATES`].
pub fn filling(name: &str, tokens: usize) -> TextFilling {
    TextFilling { token: 7, tokens, before: name == MISTRAL3_STATES }
}

/// The states of several texts and of the padding behind them.
pub fn encode_filled(name: &str, model: &DecoderTextEncoder) -> Vec<f32> {
    let (ids, rows) = ids(name);
    let texts = texts(name);
    values(model.forward_filled(&texts, filling(name, ids.len() / rows)).unwrap())
}

pub fn denoise_flux2(name: &str, model: &Flux2Transformer2dModel) -> Vec<f32> {
    let device = Device::flex();
    let [timestep, guidance] = ["timestep", "guidance"].map(|what| expected(name, what).0[0]);
    let [latents, context] = ["latents", "context"].map(|what| tensor(name, what, &device));
    values(model.forward(latents, &sizes(name, "sizes"), timestep, Some(guidance), context))
}

/// The inputs of a pass of the transformer of Z-Image or Qwen-Image: tokens, rows and columns of
/// each picture, a time, texts and their lengths.
pub struct PackedInputs {
    pub latents: Tensor<3>,
    pub sizes: Vec<[usize; 2]>,
    pub time: f32,
    pub context: Tensor<3>,
    pub lengths: Vec<usize>,
}

impl PackedInputs {
    /// `time` is what the fixture calls the time.
    pub fn of(name: &str, time: &str) -> Self {
        let device = Device::flex();
        Self {
            latents: tensor(name, "latents", &device),
            sizes: sizes(name, "size"),
            time: expected(name, time).0[0],
            context: tensor(name, "context", &device),
            lengths: expected(name, "lengths").0.into_iter().map(|n| n as usize).collect(),
        }
    }

    pub fn run(self, model: &ZImageTransformer2dModel) -> Vec<f32> {
        let [size] = self.sizes[..] else { panic!("of one picture") };
        values(model.forward(self.latents, size, self.time, self.context, &self.lengths))
    }

    pub fn run_qwen_image(self, model: &QwenImageTransformer2dModel) -> Vec<f32> {
        values(model.forward(self.latents, &self.sizes, self.time, self.context, &self.lengths))
    }
}

pub fn denoise_z_image(name: &str, model: &ZImageTransformer2dModel) -> Vec<f32> {
    PackedInputs::of(name, "time").run(model)
}

pub fn denoise_qwen_image(name: &str, model: &QwenImageTransformer2dModel) -> Vec<f32> {
    PackedInputs::of(name, "timestep").run_qwen_image(model)
}

/// The fixture's weights.
pub fn checkpoint(name: &str) -> Checkpoint {
    let file = folder(name).join("model.safetensors");
    if !Z_IMAGES.contains(&name) {
        return Checkpoint::open(file).unwrap();
    }
    let whole = tempfile::tempdir().unwrap();
    complete(&file, &whole.path().join("whole"));
    // Its files stay open.
    Checkpoint::open(whole.path().join("whole")).unwrap()
}

/// The fixture's module in as much memory, if that is enough, and what of it is streamed.
pub fn load_in<C: Component>(
    name: &str,
    config: &ComponentConfig<C>,
    memory: &str,
    compute: ActivationDtype,
) -> Option<(Dispatched<C>, u64)> {
    assert_eq!(config.unknown_fields, [""; 0], "{name}");
    let checkpoint = checkpoint(name);
    let tree = config.tree(name, checkpoint.tensors()).unwrap();
    let options = config.options(checkpoint.tensors());
    let (map, options) = placed_in(&tree, options, 600, memory)?;
    let init = Init { device: Device::flex(), compute };
    let model = config.dispatch(&init, &checkpoint, &map, &options).unwrap();
    Some((model, map.streamed_bytes()))
}

pub fn load<C: Component>(name: &str) -> Dispatched<C> {
    load_of(name, &config(name))
}

/// The same with another configuration.
pub fn load_of<C: Component>(name: &str, config: &ComponentConfig<C>) -> Dispatched<C> {
    let (model, streamed) = load_in(name, config, "16MiB", ActivationDtype::F32).unwrap();
    assert_eq!(streamed, 0);
    model
}

/// In many budgets: the bits of what stays in memory.
pub fn placed<C: Component>(name: &str, run: impl Fn(&str, &C) -> Vec<f32>) {
    placed_of(name, &config(name), run);
}

/// The same with another configuration.
pub fn placed_of<C: Component>(
    name: &str,
    config: &ComponentConfig<C>,
    run: impl Fn(&str, &C) -> Vec<f32>,
) {
    let resident = load_of(name, config).run(|model| run(name, model)).unwrap();
    let (mut most, mut maps) = (0, 0);
    // Beside what conversions need.
    let staged = config.tree(name, checkpoint(name).tensors()).unwrap().staging_bytes >> 10;
    // The less memory, the more differ.
    for kibibytes in (4..=112).step_by(12).chain((148..=400).step_by(84)) {
        let memory = format!("{}KiB", staged + kibibytes);
        let Some((model, streamed)) = load_in(name, config, &memory, ActivationDtype::F32) else {
            continue;
        };
        (most, maps) = (most.max(streamed), maps + 1);
        // The second pass finds a stream that has learned what the first one asked for.
        for _ in 0..2 {
            let found = model.run(|model| run(name, model)).unwrap();
            let same = found.iter().zip(&resident).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && found.len() == resident.len(), "{name} in {memory}");
        }
    }
    println!("{name}: {maps} maps, up to {most} bytes streamed");
    // Of convolutions of films a third is held.
    let least = if name.starts_with("vae-qwen-image") { 5_000 } else { 10_000 };
    assert!(most > least, "{name}: {most} bytes streamed");
}

/// With activations rounded to bf16.
pub fn rounded<C: Component>(name: &str, run: impl Fn(&str, &C) -> Vec<f32>) {
    rounded_of(name, &config(name), run);
}

/// The same with another configuration.
pub fn rounded_of<C: Component>(
    name: &str,
    config: &ComponentConfig<C>,
    run: impl Fn(&str, &C) -> Vec<f32>,
) {
    let (model, _) = load_in(name, config, "16MiB", ActivationDtype::Bf16).unwrap();
    let found = model.run(|model| run(name, model)).unwrap();
    let (output, _) = expected(name, "output");
    assert_within(2.0 * ROUNDED_TOLERANCE, &found, &output, &format!("{name} in bf16"));
}

/// In too little memory for all weights, those that are streamed are read once in each pass.
pub fn assert_reads_once<C: Component>(text: &str, pass: impl Fn(&C)) {
    let config = ComponentConfig::<C>::from_json(text).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tensors = config.tensors(Dtype::F16).into_iter();
    let specs: Vec<TensorSpec> =
        tensors.map(|(name, dtype, shape)| TensorSpec::new(name, dtype, shape)).collect();
    let mut writer = ShardWriter::create(dir.path().join("part"), specs.clone(), u64::MAX).unwrap();
    for spec in &specs {
        writer.write(&spec.name, &vec![0; 2 * spec.shape.iter().product::<usize>()]).unwrap();
    }
    writer.finish().unwrap();
    let checkpoint = Checkpoint::open(dir.path().join("part")).unwrap();
    let tree = config.tree("part", checkpoint.tensors()).unwrap();
    let options = Options {
        budget: Budget::parse("cpu=24MiB").unwrap(),
        ..config.options(checkpoint.tensors())
    };
    let map = outsize_plan::infer(&tree, &options.budget, &options.plan()).unwrap();
    let model = config.dispatch(&Init::new(&Device::flex()), &checkpoint, &map, &options).unwrap();
    let weights = 2 * config.parameter_count();
    let streamed = map.streamed_bytes();
    assert!(weights > streamed + 2_000_000 && streamed > 5_000_000, "{streamed} of {weights}");
    // Reads begin and end with pages.
    let pages = 2 * 4096 * specs.len() as u64;
    // The first pass also loads what stays. What is read ahead for a pass is read while the one
    // before it ends.
    let (first, later) = (weights + map.ring_bytes(), 8);
    for (passes, most) in [(1, first), (later, first + later * streamed)] {
        for _ in 0..passes {
            model.run(&pass).unwrap();
        }
        let read = model.stats().bytes_read;
        println!("{read} of {most} bytes");
        assert!(read <= most + (1 + later) * pages, "{read} of {most} bytes");
    }
}

/// A checkpoint that is written has the names and shapes of the one that is saved in a fixture.
pub fn assert_writes_saved_names<C: Component>(name: &str) {
    let tensors = config::<C>(name).tensors(Dtype::F32);
    let mut written: Vec<_> = tensors.into_iter().map(|(name, _, shape)| (name, shape)).collect();
    let saved = checkpoint(name);
    let saved = saved.tensors().iter();
    let mut saved: Vec<_> =
        saved.map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
    written.sort();
    saved.sort();
    assert_eq!(written, saved);
}

/// A fixture's configuration with another value of a field is refused by its name.
pub fn refused<C: Component>(name: &str, field: &str, value: serde_json::Value) {
    let text = fs::read_to_string(folder(name).join("config.json")).unwrap();
    let mut fields: serde_json::Value = serde_json::from_str(&text).unwrap();
    fields[field] = value.clone();
    let error = ComponentConfig::<C>::from_json(&fields.to_string()).unwrap_err();
    match &error {
        Error::Field { field: found, .. } => assert_eq!(found, field, "{error}"),
        Error::ModelType { .. } => assert!(field.ends_with("_name"), "{error}"),
        _ => panic!("{field} {value}: {error}"),
    }
}
