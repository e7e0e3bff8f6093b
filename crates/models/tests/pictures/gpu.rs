//! The modules of Stable Diffusion, FLUX.1 and Z-Image on a GPU, or on a software adapter that acts
//! as one, against what `transformers` and `diffusers` compute in float32, and against themselves
//! with weights elsewhere.

use crate::common::components::{
    CLIPS, FLUXES, QWEN3_ENCODERS, T5_ENCODERS, UNETS, VAES, Z_IMAGES, checkpoint, config, decode,
    denoise, denoise_packed, denoise_z_image, encode, encode_qwen3, encode_t5, expected,
};
use crate::common::gpu::there_is_a_gpu;
use crate::common::reference::assert_close;
use burn::tensor::Device;
use outsize_core::{Dispatched, Options};
use outsize_models::arch::AutoencoderKl;
use outsize_models::{Component, Init};
use outsize_plan::{Budget, ManualMap, Tier, from_assignment};

/// Several tiles for each matrix and convolution.
const TILE: u64 = 300;

/// The fixture's module, computed on the GPU with weights where `map` says.
fn load_on<C: Component>(name: &str, map: &str) -> Dispatched<C> {
    let config = config::<C>(name);
    let checkpoint = checkpoint(name);
    let tree = config.tree(name, checkpoint.tensors()).unwrap();
    let options = Options {
        budget: Budget::parse("gpu0=64MiB,cpu=64MiB").unwrap(),
        gpu: Some(0),
        tile_bytes: TILE,
        read_bytes: 4096,
        min_ring_bytes: 0,
        ..config.options(checkpoint.tensors())
    };
    let plan = outsize_plan::Options { small_tensor: 0, ..options.plan() };
    let assignment = ManualMap::parse(map).unwrap().assign(&tree, &options.budget, &plan).unwrap();
    let map = from_assignment(&tree, &assignment, &options.budget, &plan).unwrap();
    assert!(map.blocks().iter().all(|block| block.decode_on == Tier::Gpu(0)));
    config.dispatch(&Init::new(&Device::flex()), &checkpoint, &map, &options).unwrap()
}

fn same_everywhere<C: Component>(names: &[&str], run: impl Fn(&str, &C) -> Vec<f32>) {
    if !there_is_a_gpu() {
        return;
    }
    for name in names {
        let (reference, _) = expected(name, "output");
        let mut first: Option<Vec<f32>> = None;
        for map in [r#"{"": "gpu0"}"#, r#"{"": "cpu"}"#, r#"{"": "disk"}"#] {
            let model = load_on::<C>(name, map);
            for _ in 0..2 {
                let found = model.run(|model| run(name, model)).unwrap();
                assert_close(&found, &reference, &format!("{name} with {map}"));
                let first = first.get_or_insert_with(|| found.clone());
                let same = found.iter().zip(first.iter()).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same && found.len() == first.len(), "{name}: other bits with {map}");
            }
        }
    }
}

#[test]
fn denoisers_give_the_reference_wherever_weights_are_kept() {
    same_everywhere(&UNETS, denoise);
    same_everywhere(&FLUXES, denoise_packed);
    same_everywhere(&Z_IMAGES, denoise_z_image);
}

#[test]
fn text_encoders_give_the_reference_wherever_weights_are_kept() {
    same_everywhere(&CLIPS, encode);
    same_everywhere(&T5_ENCODERS, encode_t5);
    same_everywhere(&QWEN3_ENCODERS, encode_qwen3);
}

#[test]
fn autoencoders_give_the_reference_wherever_weights_are_kept() {
    same_everywhere(&VAES, decode);
    // In bands, too.
    same_everywhere(&VAES, |name, model: &AutoencoderKl| {
        decode(name, &model.clone().with_band_bytes(600))
    });
}
