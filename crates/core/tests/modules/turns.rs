//! Modules take turns in memory.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use burn::nn::LinearConfig;
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::{Dtype, ShardWriter, TensorSpec};
use outsize_core::{Error, Options, Turns, load_checkpoint_and_dispatch};

#[test]
fn at_most_one_module_is_in_memory() {
    let (place, device) = (tempfile::tempdir().unwrap(), Device::flex());
    for (name, value) in [("double", 2.0f32), ("triple", 3.0)] {
        let spec = TensorSpec::new("weight", Dtype::F32, [1, 1]);
        let mut writer = ShardWriter::create(place.path().join(name), vec![spec], 1000).unwrap();
        writer.write("weight", &value.to_le_bytes()).unwrap();
        writer.finish().unwrap();
    }
    let turns = Turns::default();
    let dispatched = Cell::new(0);
    let module = |name: &str| {
        let (folder, dispatched, device) = (place.path().join(name), &dispatched, &device);
        turns.module(move || {
            dispatched.set(dispatched.get() + 1);
            let module = LinearConfig::new(1, 1).with_bias(false).init(device);
            load_checkpoint_and_dispatch(module, &folder, &Options::default())
        })
    };
    let (double, triple) = (module("double"), module("triple"));
    let x = || Tensor::<2>::ones([1, 1], &device);
    let value = |x: Tensor<2>| x.into_scalar::<f32>();
    let run = |module: &outsize_core::InTurn<'_, _>, x: Tensor<2>| {
        module
            .run(|module| module.run(|module: &burn::nn::Linear| module.forward(x)))
            .unwrap()
            .unwrap()
    };
    assert_eq!(value(run(&triple, run(&double, x()))), 6.0);
    assert_eq!(dispatched.get(), 2);
    // Its own turn again.
    assert_eq!(value(run(&triple, x())), 3.0);
    assert_eq!(dispatched.get(), 2);
    assert_eq!(value(run(&double, x())), 2.0);
    assert_eq!(dispatched.get(), 3);
    let within = double.run(|_| (triple.run(|_| ()), turns.clear())).unwrap();
    assert!(matches!(within, (Err(Error::Nested), Err(Error::Nested))));
    turns.clear().unwrap();
    assert_eq!(value(run(&double, x())), 2.0);
    assert_eq!(dispatched.get(), 4);
}

#[test]
fn threads_wait_for_their_turn() {
    let turns = Turns::default();
    let nothing = tempfile::tempdir().unwrap();
    let running = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                // Dispatching takes a while, and then fails: turns are what matters here.
                let module = turns.module(|| {
                    assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::sleep(Duration::from_millis(20));
                    running.fetch_sub(1, Ordering::SeqCst);
                    let module = LinearConfig::new(1, 1).init(&Device::flex());
                    load_checkpoint_and_dispatch(module, nothing.path(), &Options::default())
                });
                for _ in 0..3 {
                    let result = module.run(|_| ());
                    assert!(!matches!(result, Ok(()) | Err(Error::Nested)), "{result:?}");
                }
            });
        }
    });
}
