//! Ending a pass from outside of it.

use crate::common::{Numbers, bits, fill, flat, folder, options, values, write};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Dtype;
use outsize_core::{Error, Options, load_checkpoint_and_dispatch};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const WIDTH: usize = 64;

#[derive(Module, Debug)]
struct Model {
    first: Linear,
    second: Linear,
}

impl Model {
    fn new() -> Self {
        let layer = || LinearConfig::new(WIDTH, WIDTH).init(&Device::flex());
        Self { first: layer(), second: layer() }
    }

    fn forward(&self, between: impl FnOnce()) -> Vec<u32> {
        let x: Tensor<2> = Numbers(3).tensor([2, WIDTH]);
        let x = self.first.forward(x);
        between();
        bits(flat(self.second.forward(x)))
    }
}

#[test]
fn a_pass_ends_at_the_next_weight_and_the_next_one_works() {
    let (_dir, path) = folder();
    let module = fill(Model::new());
    write(&path, &values(&module), Dtype::F32);
    let expected = module.forward(|| ());
    // Streamed, and with all weights in memory.
    for budget in [Some(100 << 10), None] {
        let stop = Arc::new(AtomicBool::new(false));
        let options = Options { stop: Some(stop.clone()), ..options(budget) };
        let model = load_checkpoint_and_dispatch(Model::new(), &path, &options).unwrap();
        assert_eq!(model.run(|model| model.forward(|| ())).unwrap(), expected);

        let mut reached = false;
        let stopped = model.run(|model| {
            model.forward(|| {
                reached = true;
                stop.store(true, Ordering::Relaxed);
            })
        });
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
        assert!(reached);
        // It stays so until it is cleared.
        let stopped = model.run(|model| model.forward(|| unreachable!()));
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");

        stop.store(false, Ordering::Relaxed);
        assert_eq!(model.run(|model| model.forward(|| ())).unwrap(), expected);
    }
}
