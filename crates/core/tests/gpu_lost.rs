//! A GPU that is lost is one error wherever it is met, and nothing waits for it for ever. One test:
//! the device is the process's.
#![cfg(feature = "wgpu")]

mod common;

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, DeviceKind};
use common::{Numbers, fill, folder, values, write};
use outsize_checkpoint::Dtype;
use outsize_core::{Dispatched, Error, Options, gpu, load_checkpoint_and_dispatch};
use outsize_plan::{Budget, Tier};

#[derive(Module, Debug)]
struct Stack {
    layers: Vec<Linear>,
}

const WIDTH: usize = 96;

impl Stack {
    fn new(device: &Device) -> Self {
        Self { layers: (0..6).map(|_| LinearConfig::new(WIDTH, WIDTH).init(device)).collect() }
    }
}

fn pass(model: &Dispatched<Stack>, device: &Device) -> Result<Vec<f32>, Error> {
    let x = Numbers(3).tensor::<2>([5, WIDTH]).to_device(device);
    model.run(|model| {
        let y = model.layers.iter().fold(x, |x, layer| layer.forward(x));
        y.into_data().try_into_vec().unwrap()
    })
}

#[test]
fn a_lost_gpu_is_an_error() {
    // A software adapter whose handles are at hand, which is then found as any other.
    let setup = Device::wgpu_options().device_kind(DeviceKind::Cpu).init_with_setup();
    let (Ok((_, setup)), Ok(gpu)) = (setup, gpu(0)) else {
        assert!(std::env::var_os("OUTSIZE_GPU_TESTS").is_none(), "no GPU");
        eprintln!("skipped: no GPU");
        return;
    };
    let (_dir, path) = folder();
    write(&path, &values(&fill(Stack::new(&Device::flex()))), Dtype::F32);
    let load = |budget: &str| {
        let budget = Budget::parse(budget).unwrap();
        let options = Options { budget, gpu: Some(0), ..Options::default() };
        load_checkpoint_and_dispatch(Stack::new(&gpu.device), &path, &options)
    };
    let resident = load("gpu0=64MiB,cpu=64MiB").unwrap();
    let streamed = load("gpu0=200KiB,cpu=64MiB").unwrap();
    let first = pass(&resident, &gpu.device).unwrap();
    assert_eq!(first, pass(&streamed, &gpu.device).unwrap());

    setup.device.destroy();
    for _ in 0..2 {
        for model in [&resident, &streamed] {
            let error = pass(model, &gpu.device).unwrap_err();
            println!("{error}");
            assert!(matches!(error, Error::Gpu { tier: Tier::Gpu(0), .. }), "{error:?}");
        }
        let error = load("gpu0=64MiB,cpu=64MiB").unwrap_err();
        println!("{error}");
        assert!(matches!(error, Error::Gpu { tier: Tier::Gpu(0), .. }), "{error:?}");
    }
}
