//! Running statistics are saved and loaded as they are after the last batch.

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_core::{Names, Options, load, save};

const FEATURES: usize = 3;

fn norm() -> BatchNorm {
    BatchNormConfig::new(FEATURES).init(&Device::flex().autodiff())
}

/// A batch of training.
fn train(norm: &BatchNorm, shift: f32) {
    let device = Device::flex().autodiff();
    let x = Tensor::<1>::from_floats([shift, 2.0, 1.0, 3.0, 4.0, 6.0], &device);
    norm.forward(x.reshape([2, FEATURES]));
}

/// The values that evaluation takes.
fn statistics(norm: &BatchNorm) -> [Vec<f32>; 2] {
    let norm = norm.valid();
    [norm.running_mean, norm.running_var]
        .map(|value| value.value().into_data().try_to_vec().unwrap())
}

#[test]
fn the_last_batch_counts() {
    let (place, trained) = (tempfile::tempdir().unwrap(), norm());
    let folder = place.path().join("out");
    (0..2).for_each(|shift| train(&trained, shift as f32));
    save(&trained, &folder, &Names::default(), 1 << 20).unwrap();
    let wanted = statistics(&trained);
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let fresh = load(norm(), &checkpoint, &Options::default()).unwrap();
    assert_eq!(statistics(&fresh), wanted);
    // One that went on goes back.
    (0..3).for_each(|_| train(&trained, 100.0));
    let back = load(trained, &checkpoint, &Options::default()).unwrap();
    assert_eq!(statistics(&back), wanted);
}
