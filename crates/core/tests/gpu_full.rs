//! A GPU whose memory is full says how much to leave to others. One test: it narrows its own
//! process, in which a software adapter takes the GPU's memory from.
// Linted without a GPU's feature too.
#![cfg(all(target_os = "linux", any(feature = "gpu", clippy)))]

mod common;

use std::process::Command;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use common::{folder, write_zeros};
use outsize_core::{Dispatched, Error, Options, gpu, load_checkpoint_and_dispatch};
use outsize_plan::{Budget, Tier};

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

/// Bytes of a layer: 16 MiB.
const LAYER: u64 = 4 * (WIDTH * WIDTH) as u64;
const WIDTH: usize = 2048;

impl Stack {
    fn new(layers: usize, device: &Device) -> Self {
        let layer = |_| LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(device);
        Self { layers: (0..layers).map(layer).collect() }
    }
}

fn load(layers: usize, device: &Device) -> Result<Dispatched<Stack>, Error> {
    let (_dir, path) = folder();
    write_zeros(&Stack::new(layers, &Device::flex()), &path, "F32", 4);
    let budget = Budget::parse("gpu0=2GiB,cpu=256MiB").unwrap();
    let options = Options { budget, gpu: Some(0), ..Options::default() };
    load_checkpoint_and_dispatch(Stack::new(layers, device), &path, &options)
}

fn pass(model: &Dispatched<Stack>, device: &Device) -> Result<Vec<f32>, Error> {
    let x = Tensor::<2>::ones([1, WIDTH], device);
    model.run(|model| {
        let y = model.layers.iter().fold(x, |x, layer| layer.forward(x));
        y.into_data().try_into_vec().unwrap()
    })
}

#[test]
fn a_full_gpu_says_how_much_to_reserve() {
    let gpu = match gpu(0) {
        // Memory of a card is elsewhere.
        Ok(gpu) if gpu.is_software => gpu,
        _ => {
            assert!(std::env::var_os("OUTSIZE_GPU_TESTS").is_none(), "no software adapter");
            eprintln!("skipped: no software adapter");
            return;
        }
    };
    // Compiles what is needed.
    let small = load(2, &gpu.device).unwrap();
    pass(&small, &gpu.device).unwrap();
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split(' ').next().unwrap().parse().unwrap();
    let most = pages * 4096 + 8 * LAYER;
    let process = std::process::id().to_string();
    let narrowed =
        Command::new("prlimit").args(["--pid", &process, &format!("--as={most}")]).status();
    assert!(narrowed.unwrap().success());

    let error = load(24, &gpu.device).unwrap_err();
    println!("{error}");
    let told = error.to_string();
    let Error::GpuFull { tier: Tier::Gpu(0), planned, held, reserve, .. } = error else {
        panic!("{told}");
    };
    assert!(planned >= 24 * LAYER && held < planned && reserve > planned - held, "{told}");
    assert!(told.contains("--reserve"), "{told}");
    // The rest goes on.
    pass(&small, &gpu.device).unwrap();
}
