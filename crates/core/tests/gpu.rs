//! Unmodified modules that a GPU computes, wherever their weights are kept.
// Linted without a GPU's feature too.
#![cfg(any(feature = "gpu", clippy))]

mod common;

use burn::module::Module;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use common::{Numbers, fill, folder, values, write};
use outsize_checkpoint::Dtype;
use outsize_core::{Options, gpu, load_checkpoint_and_dispatch};
use outsize_plan::{Budget, Tier};

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<(LayerNorm, Linear, Linear)>,
}

const WIDTH: usize = 96;

impl Stack {
    fn new(device: &Device) -> Self {
        let layer = |_| {
            let up = LinearConfig::new(WIDTH, 4 * WIDTH).init(device);
            let down = LinearConfig::new(4 * WIDTH, WIDTH).init(device);
            (LayerNormConfig::new(WIDTH).init(device), up, down)
        };
        Self { layers: (0..6).map(layer).collect() }
    }

    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for (norm, up, down) in &self.layers {
            x = x.clone() + down.forward(Gelu::new().forward(up.forward(norm.forward(x))));
        }
        x
    }
}

fn bits(y: Tensor<2>) -> Vec<u32> {
    y.into_data().try_to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

#[test]
fn the_bits_do_not_depend_on_where_weights_are_kept() {
    let Ok(gpu) = gpu(0) else {
        assert!(std::env::var_os("OUTSIZE_GPU_TESTS").is_none(), "no GPU");
        eprintln!("skipped: no GPU");
        return;
    };
    let (_dir, path) = folder();
    let flex = Device::flex();
    let model = fill(Stack::new(&flex));
    write(&path, &values(&model), Dtype::F32);
    let x = |device: &Device| Numbers(3).tensor::<2>([5, WIDTH]).to_device(device);
    let expected = model.forward(x(&flex)).into_data().try_to_vec::<f32>().unwrap();
    let mut first: Option<Vec<u32>> = None;
    let mut kept = Vec::new();
    for budget in ["gpu0=64MiB,cpu=64MiB", "gpu0=900KiB,cpu=64MiB", "gpu0=900KiB,cpu=33MiB"] {
        let options = Options {
            budget: Budget::parse(budget).unwrap(),
            gpu: Some(0),
            small_tensor_bytes: 0,
            ..Options::default()
        };
        let model = Stack::new(&gpu.device);
        let model = load_checkpoint_and_dispatch(model, &path, &options).unwrap();
        for _ in 0..2 {
            let y = model.run(|model| model.forward(x(&gpu.device))).unwrap();
            let found = bits(y);
            let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                let off = (f32::from_bits(*found) - expected).abs();
                assert!(off <= 1e-4 * largest, "{budget}: {} {expected}", f32::from_bits(*found));
            }
            assert_eq!(*first.get_or_insert_with(|| found.clone()), found, "{budget}");
        }
        let weights = |tier| {
            let tiers = model.device_map().tiers();
            tiers.iter().find(|held| held.tier == tier).map_or(0, |held| held.weights)
        };
        kept.push([Tier::Gpu(0), Tier::Cpu, Tier::Disk].map(|tier| weights(tier) > 0));
    }
    // Some of it on the GPU, and the rest elsewhere.
    assert!(kept[0][0] && kept[1][1] && kept[2][2], "{kept:?}");
}
