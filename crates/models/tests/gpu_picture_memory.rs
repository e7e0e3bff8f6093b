//! What a GPU's pools hold for pictures stays below what the plan says. One test: the pools are the
//! process's.
//!
//! On a device that computes nothing (`OUTSIZE_SOFTWARE_GPU=noop`), which allocates as any other,
//! also for a step and the decoding of Stable Diffusion 1.

mod common;

use burn::tensor::{DType, Device, Tensor};
use common::gpu::{computes_nothing, there_is_a_gpu, written};
use outsize_checkpoint::Dtype;
use outsize_core::{Options, gpu, gpu_overhead};
use outsize_models::arch::{
    AutoencoderKl, FluxTransformer2dConfig, FluxTransformer2dModel, Unet2dConditionModel,
};
use outsize_models::{Component, ComponentConfig, Init, PictureSize};
use outsize_plan::{Budget, ManualMap, Tier, from_assignment, infer};

/// A narrow denoiser of the shape of Stable Diffusion's.
const NARROW: &str = r#"{"_class_name": "UNet2DConditionModel", "block_out_channels": [64, 128, 128, 128],
    "layers_per_block": 1, "attention_head_dim": 8, "cross_attention_dim": 64}"#;

/// What diffusers has where a configuration says nothing is Stable Diffusion 1, but for this.
const UNET: &str = r#"{"_class_name": "UNet2DConditionModel", "attention_head_dim": 8, "cross_attention_dim": 768}"#;

const VAE: &str = r#"{"_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
    "down_block_types": ["DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D", "DownEncoderBlock2D"],
    "up_block_types": ["UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D", "UpDecoderBlock2D"]}"#;

/// A narrow transformer of the shape of FLUX.1's.
const FLUX: &str = r#"{"_class_name": "FluxTransformer2DModel", "num_layers": 2, "num_single_layers": 2,
    "num_attention_heads": 4, "attention_head_dim": 64, "axes_dims_rope": [16, 24, 24], "joint_attention_dim": 256,
    "pooled_projection_dim": 64, "guidance_embeds": true}"#;

/// The part within a budget, with weights where `map` says, or else where the planner does. `pass`
/// has what it makes of inputs looked at.
fn check<C: Component>(
    config: &ComponentConfig<C>,
    activations: u64,
    (budget, map): (&str, Option<&str>),
    pass: impl FnOnce(&C),
) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let checkpoint = written(&dir.path().join("part"), config.tensors(Dtype::BF16));
    let options = Options {
        budget: Budget::parse(budget).unwrap(),
        gpu: Some(0),
        gpu_activations: Some(gpu_overhead(activations)),
        ..config.options(checkpoint.tensors())
    };
    let (tree, plan) = (config.tree("part", checkpoint.tensors()).unwrap(), options.plan());
    let map = match map {
        Some(map) => {
            let assignment =
                ManualMap::parse(map).unwrap().assign(&tree, &options.budget, &plan).unwrap();
            from_assignment(&tree, &assignment, &options.budget, &plan).unwrap()
        }
        None => infer(&tree, &options.budget, &plan).unwrap(),
    };
    assert!(map.blocks().iter().all(|block| block.decode_on == Tier::Gpu(0)));
    let planned = map.tiers().iter().find(|held| held.tier == Tier::Gpu(0)).unwrap();
    let model = config.dispatch(&Init::new(&Device::flex()), &checkpoint, &map, &options).unwrap();
    model.run(pass).unwrap();
    let device = &gpu(0).unwrap().device;
    let most = device.memory_pool_usage().unwrap().bytes_reserved;
    println!("{most} bytes held at most, planned {planned:?}");
    assert!(most <= planned.sum(), "{most} bytes, planned {}", planned.sum());
    assert!(most > planned.weights + activations / 2, "{most} bytes, activations of {activations}");
    drop(model);
    device.memory_cleanup();
}

fn input(sides: [usize; 4]) -> Tensor<4> {
    Tensor::ones(sides, (&Device::flex(), DType::F32)) * 0.1
}

fn check_transformer(config: &str, size: PictureSize, placed: (&str, Option<&str>)) {
    let config = ComponentConfig::<FluxTransformer2dModel>::from_json(config).unwrap();
    let (tokens, sides) = (77, [size.rows, size.columns]);
    let FluxTransformer2dConfig { in_channels, joint_attention_dim, pooled_projection_dim, .. } =
        config.config;
    let latents = input([1, size.batch, sides[0] * sides[1], in_channels]).squeeze_dim(0);
    let context = input([1, size.batch, tokens, joint_attention_dim]).squeeze_dim(0);
    let pooled: Tensor<2> =
        input([1, 1, size.batch, pooled_projection_dim]).reshape([size.batch as i32, -1]);
    check(&config, config.model().activation_bytes(size, tokens, 1), placed, |model| {
        for step in [501.0, 251.0, 1.0] {
            let texts: (Tensor<2>, Tensor<3>) = (pooled.clone(), context.clone());
            let latents: Tensor<3> = latents.clone();
            let made = model.forward(latents, &[sides], step, Some(3.5), texts.0, texts.1);
            assert!(made.into_data().iter::<f32>().all(f32::is_finite));
        }
    });
}

fn check_denoiser(config: &str, size: PictureSize, placed: (&str, Option<&str>)) {
    let config = ComponentConfig::<Unet2dConditionModel>::from_json(config).unwrap();
    let latents = input([size.batch, size.rows, size.columns, 4]);
    let context = input([size.batch, 77, config.config.cross_attention_dim, 1]).squeeze_dim(3);
    check(&config, config.model().activation_bytes(size, 77, 1), placed, |model| {
        // Pools have grown to what they need after some steps.
        for step in [501.0, 251.0, 1.0] {
            let made =
                model.forward(latents.clone(), step, None, context.clone(), None).into_data();
            assert!(made.iter::<f32>().all(f32::is_finite));
        }
    });
}

#[test]
fn a_gpu_holds_no_more_than_planned_for_a_picture() {
    if !there_is_a_gpu() {
        return;
    }
    // All weights pass through the slots.
    let size = PictureSize { batch: 1, rows: 32, columns: 32 };
    check_denoiser(NARROW, size, ("gpu0=400MiB,cpu=400MiB", Some(r#"{"": "cpu"}"#)));
    check_transformer(FLUX, size, ("gpu0=400MiB,cpu=400MiB", Some(r#"{"": "cpu"}"#)));
    if !computes_nothing() {
        return;
    }
    // 512 x 512 pixels, with guidance.
    let (size, budget) = (PictureSize { batch: 2, rows: 64, columns: 64 }, "gpu0=800MB,cpu=2GB");
    check_denoiser(UNET, size, (budget, None));
    let config = ComponentConfig::<AutoencoderKl>::from_json(VAE).unwrap();
    let size = PictureSize { batch: 1, ..size };
    check(&config, config.model().band_activation_bytes(size), (budget, None), |model| {
        model.decode(input([1, 64, 64, 4]), |rows| drop(rows.into_data()));
    });
}
