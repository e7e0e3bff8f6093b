//! What a GPU's pools hold for a picture of 256 x 256 stays below what the plan says. One test: the pools are the process's.

mod common;

use burn::tensor::{DType, Device, Tensor};
use common::gpu::{there_is_a_gpu, written};
use outsize_checkpoint::Dtype;
use outsize_core::{Options, gpu, gpu_overhead};
use outsize_models::arch::Unet2dConditionModel;
use outsize_models::{ComponentConfig, Init, PictureSize};
use outsize_plan::{Budget, ManualMap, Tier, from_assignment};

/// A narrow denoiser of the shape of Stable Diffusion's.
const CONFIG: &str = r#"{"_class_name": "UNet2DConditionModel", "block_out_channels": [64, 128, 128, 128],
    "layers_per_block": 1, "attention_head_dim": 8, "cross_attention_dim": 64}"#;

#[test]
fn a_gpu_holds_no_more_than_planned_for_a_picture() {
    if !there_is_a_gpu() {
        return;
    }
    let config = ComponentConfig::<Unet2dConditionModel>::from_json(CONFIG).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let checkpoint = written(&dir.path().join("unet"), config.tensors(Dtype::BF16));
    let size = PictureSize { batch: 1, rows: 32, columns: 32 };
    let activations = config.model().activation_bytes(size, 77, 1);
    let options = Options {
        budget: Budget::parse("gpu0=400MiB,cpu=400MiB").unwrap(),
        gpu: Some(0),
        gpu_activations: Some(gpu_overhead(activations)),
        ..config.options(checkpoint.tensors())
    };
    let (tree, plan) = (config.tree("unet", checkpoint.tensors()).unwrap(), options.plan());
    // All weights pass through the slots.
    let map = ManualMap::parse(r#"{"": "cpu"}"#).unwrap();
    let assignment = map.assign(&tree, &options.budget, &plan).unwrap();
    let map = from_assignment(&tree, &assignment, &options.budget, &plan).unwrap();
    assert!(map.blocks().iter().all(|block| block.decode_on == Tier::Gpu(0)));
    let planned = map.tiers().iter().find(|held| held.tier == Tier::Gpu(0)).unwrap();
    let model = config.dispatch(&Init::new(&Device::flex()), &checkpoint, &map, &options).unwrap();
    let input = |sides: [usize; 4]| Tensor::<4>::ones(sides, (&Device::flex(), DType::F32)) * 0.1;
    let latents = input([1, 32, 32, 4]);
    let context = input([1, 77, 64, 1]).squeeze_dim::<3>(3);
    let made = model.run(|model| model.forward(latents, 500.0, context).into_data()).unwrap();
    assert!(made.iter::<f32>().all(f32::is_finite));
    let held = gpu(0).unwrap().device.memory_pool_usage().unwrap();
    println!("{} bytes held at most, planned {planned:?}", held.bytes_reserved);
    let most = held.bytes_reserved;
    assert!(most <= planned.sum(), "{most} bytes, planned {}", planned.sum());
    assert!(most > activations / 2, "{most} bytes, activations of {activations}");
}
