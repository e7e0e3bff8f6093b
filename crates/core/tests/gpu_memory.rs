//! What a GPU's pools hold for an unmodified module stays below what the plan says. One test: the
//! pools are the process's.
// Linted without a GPU's feature too.
#![cfg(any(feature = "gpu", clippy))]

mod common;

use burn::module::Module;
use burn::nn::{Gelu, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use common::{folder, write_zeros};
use outsize_core::{Options, gpu, gpu_overhead, load_checkpoint_and_dispatch};
use outsize_plan::{Budget, Tier};

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<(Linear, Linear)>,
}

const WIDTH: usize = 1024;
const ROWS: usize = 2;

impl Stack {
    fn new(device: &Device) -> Self {
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        // Of several sizes: memory of the one is taken for the other.
        let layer = |wide| (linear(WIDTH, wide * WIDTH), linear(wide * WIDTH, WIDTH));
        Self { layers: [4, 1, 3, 2].map(layer).into() }
    }

    fn forward(&self, mut x: Tensor<2>) -> Tensor<2> {
        for (up, down) in &self.layers {
            x = down.forward(Gelu::new().forward(up.forward(x)));
        }
        x
    }
}

#[test]
fn a_gpu_holds_no_more_than_planned_for_an_unmodified_module() {
    let Ok(gpu) = gpu(0) else {
        assert!(std::env::var_os("OUTSIZE_GPU_TESTS").is_none(), "no GPU");
        eprintln!("skipped: no GPU");
        return;
    };
    let (_dir, path) = folder();
    let stored = write_zeros(&Stack::new(&Device::flex()), &path, "F32", 4);
    // Of an activation function: what goes in, what comes out, and one between.
    let activations = (ROWS * WIDTH * 4 * 4 * 3) as u64;
    // Streamed first: what a pool held once it may keep.
    for budget in ["gpu0=230MiB,cpu=80MiB", "gpu0=230MiB,cpu=400MiB", "gpu0=500MiB,cpu=400MiB"] {
        let options = Options {
            budget: Budget::parse(budget).unwrap(),
            gpu: Some(0),
            gpu_activations: Some(gpu_overhead(activations)),
            ..Options::default()
        };
        let model = load_checkpoint_and_dispatch(Stack::new(&gpu.device), &path, &options).unwrap();
        let tiers = model.device_map().tiers();
        let planned = tiers.iter().find(|held| held.tier == Tier::Gpu(0)).unwrap();
        for _ in 0..2 {
            let x = Tensor::<2>::ones([ROWS, WIDTH], &gpu.device);
            let y = model.run(|model| model.forward(x).into_data().try_to_vec::<f32>()).unwrap();
            assert_eq!(y.unwrap().len(), ROWS * WIDTH);
        }
        let most = gpu.device.memory_pool_usage().unwrap().bytes_reserved;
        println!("{budget}: {most} bytes held at most, of {stored}, planned {planned:?}");
        assert!(most <= planned.sum(), "{budget}: {most} bytes, planned {}", planned.sum());
        drop(model);
        gpu.device.memory_cleanup();
    }
}
