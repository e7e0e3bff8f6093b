//! Ranks that split a batch learn the same weights as one rank with the whole batch.

use crate::common::{Classifier, Run, SampleBatcher, cross_entropy, difference, samples, train};
use burn::data::dataloader::DataLoaderBuilder;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use outsize_train::Accelerator;

/// Adam divides by the root of a running mean of squares, so that differences in the order of
/// sums grow where gradients are near zero.
const ADAM: f32 = 1e-5;
const SGD: f32 = 1e-6;

fn check(run: Run) {
    let builder = || {
        Accelerator::builder()
            .split_batches(true)
            .gradient_accumulation_steps(run.accumulation)
            .debug(true)
    };
    let alone = train(&builder().build().unwrap(), &run).unwrap();
    for ranks in 1..=4 {
        let results = builder().threads(ranks, |accelerator| train(&accelerator, &run)).unwrap();
        let results: Vec<_> = results.into_iter().map(Result::unwrap).collect();
        assert!(results.iter().all(|weights| *weights == results[0]), "{run:?}: ranks differ");
        let difference = difference(&alone, &results[0]);
        let bound = if run.adam { ADAM } else { SGD };
        println!("{ranks} ranks, {run:?}: {difference:e}");
        assert!(difference <= bound, "{ranks} ranks, {run:?}: {difference:e} > {bound:e}");
        assert!(ranks > 1 || difference == 0.0, "one rank must give the same bits");
    }
}

#[test]
fn one_rank_is_burns_own_loop() {
    let device = Device::default().autodiff();
    let mut model = Classifier::new(0, &device);
    let mut optimizer = crate::common::optimizer(true);
    let loader =
        DataLoaderBuilder::new(SampleBatcher).batch_size(10).set_device(device).build(samples(44));
    for batch in loader.iter() {
        let batch = batch.unwrap();
        let loss = cross_entropy(model.forward(batch.features), batch.classes);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.01, model, gradients);
    }

    let accelerator = Accelerator::builder().build().unwrap();
    let mut own = Classifier::new(0, &accelerator.device());
    let mut optimizer = accelerator.prepare_optimizer(crate::common::optimizer(true));
    let loader = outsize_train::DataLoaderBuilder::new(SampleBatcher).batch_size(10);
    let loader = accelerator.prepare_data_loader(loader.build(samples(44))).unwrap();
    for batch in loader.iter() {
        let batch = batch.unwrap();
        let loss = cross_entropy(own.forward(batch.features), batch.classes);
        let gradients = accelerator.backward(loss, &own).unwrap();
        own = optimizer.step(0.01, own, gradients);
    }
    assert_eq!(own.weights(), model.weights());
}

#[test]
fn sgd() {
    check(Run::PLAIN);
}

#[test]
fn sgd_with_accumulation() {
    check(Run { accumulation: 4, ..Run::PLAIN });
}

#[test]
fn sgd_with_uneven_last_batches() {
    check(Run { items: 41, ..Run::PLAIN });
    // One item is left: the other ranks repeat it.
    check(Run { items: 37, ..Run::PLAIN });
}

#[test]
fn sgd_with_uneven_last_batches_accumulation_and_clipping() {
    check(Run { items: 41, accumulation: 4, clip: Some(0.05), ..Run::PLAIN });
}

#[test]
fn adam() {
    check(Run { adam: true, ..Run::PLAIN });
    check(Run { adam: true, items: 41, accumulation: 4, clip: Some(0.05), ..Run::PLAIN });
}
