//! What a step is: accumulation, token counts, schedules, uneven ranks, local SGD.

use crate::common::{
    Classifier, FEATURES, SampleBatcher, cross_entropy, difference, noise, optimizer, samples,
};
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::GradientsParams;
use burn::tensor::{Tensor, TensorData};
use outsize_train::{Accelerator, DataLoaderBuilder, Error, LocalSgd, MixedPrecision, threads};

/// Sequences of different lengths, as rows of features.
fn sequence(index: usize, device: &burn::tensor::Device) -> (Tensor<2>, usize) {
    let tokens = [1, 7, 2, 5, 3, 9, 4, 6][index];
    let features = noise(50 + index as u64, tokens * FEATURES, 1.0);
    (Tensor::from_data(TensorData::new(features, [tokens, FEATURES]), device), tokens)
}

#[test]
fn tokens_of_all_ranks_and_micro_batches_count_the_same() {
    // All sequences at once, on one rank, with Burn's own loop.
    let device = Accelerator::builder().build().unwrap().device();
    let model = Classifier::new(0, &device);
    let all: Vec<_> = (0..8).map(|index| sequence(index, &device).0).collect();
    let loss = model.forward(Tensor::cat(all, 0)).square().sum_dim(1).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let expected = optimizer(false).step(0.1, model, gradients).weights();

    for ranks in [1, 2, 4] {
        let builder = Accelerator::builder().gradient_accumulation_steps(8 / ranks);
        let results = builder.threads(ranks, |accelerator| {
            let mut model = Classifier::new(0, &accelerator.device());
            let mut optimizer = accelerator.prepare_optimizer(optimizer(false));
            let own: Vec<_> = (0..8).collect();
            for index in accelerator.split_between_processes(&own, false) {
                accelerator.accumulate();
                let (features, tokens) = sequence(index, &accelerator.device());
                let loss = model.forward(features).square().sum();
                let gradients = accelerator.backward_tokens(loss, tokens, &model).unwrap();
                model = optimizer.step(0.1, model, gradients);
            }
            model.weights()
        });
        let difference = difference(&results.unwrap()[0], &expected);
        assert!(difference < 1e-6, "{ranks} ranks: {difference:e}");
    }
}

#[test]
fn a_step_without_tokens_is_refused() {
    let accelerator = Accelerator::builder().build().unwrap();
    let model = Classifier::new(0, &accelerator.device());
    let loss = model.forward(Tensor::ones([1, FEATURES], &accelerator.device())).sum();
    let fault = accelerator.backward_tokens(loss, 0, &model).unwrap_err().to_string();
    assert!(fault.contains("no token of this step counts"), "{fault}");
}

/// The learning rates of the micro-batches of one rank, and whether each was a step.
fn rates(builder: outsize_train::AcceleratorBuilder, ranks: usize) -> Vec<(f32, bool)> {
    let results = builder.threads(ranks, |accelerator| {
        let schedule = LinearLrSchedulerConfig::new(1.0, 0.0, 10).init().unwrap();
        let loader = DataLoaderBuilder::new(SampleBatcher).batch_size(2);
        let loader = accelerator.prepare_data_loader(loader.build(samples(10))).unwrap();
        let mut scheduler = accelerator.prepare_scheduler(schedule);
        let model = Classifier::new(0, &accelerator.device());
        let mut rates = Vec::new();
        for batch in loader.iter() {
            accelerator.accumulate();
            let batch = batch.unwrap();
            let loss = cross_entropy(model.forward(batch.features), batch.classes);
            let step = accelerator.backward(loss, &model).unwrap();
            rates.push((scheduler.step().base() as f32, step.into_inner().is_some()));
        }
        rates
    });
    results.unwrap().remove(0)
}

#[test]
fn the_schedule_moves_as_accelerates_does() {
    let builder = Accelerator::builder;
    let alone = [(1.0, true), (0.9, true), (0.8, true), (0.7, true), (0.6, true)];
    assert_eq!(rates(builder(), 1), alone);
    // Two ranks: two steps of the schedule for one of the optimizer.
    assert_eq!(rates(builder(), 2), [(1.0, true), (0.8, true), (0.6, true)]);
    assert_eq!(rates(builder().split_batches(true), 2), alone);
    // Two micro-batches a step; the epoch's last ends one early.
    let accumulating = [(1.0, false), (1.0, true), (0.9, false), (0.9, true), (0.8, true)];
    assert_eq!(rates(builder().gradient_accumulation_steps(2), 1), accumulating);
    let free = builder().gradient_accumulation_steps(2).step_scheduler_with_optimizer(false);
    assert_eq!(
        rates(free, 1).iter().map(|rate| rate.0).collect::<Vec<_>>(),
        [1.0, 0.9, 0.8, 0.7, 0.6]
    );
}

#[test]
fn no_sync_keeps_gradients_until_it_ends() {
    let accelerator = Accelerator::builder().build().unwrap();
    let model = Classifier::new(0, &accelerator.device());
    let loss = |row: f32| {
        model.forward(Tensor::full([1, FEATURES], row, &accelerator.device())).square().sum()
    };
    let held = accelerator.no_sync();
    assert!(accelerator.backward(loss(0.3), &model).unwrap().as_ref().is_none());
    drop(held);
    let both = accelerator.backward(loss(0.7), &model).unwrap().into_inner().unwrap();
    let sum = GradientsParams::from_grads((loss(0.3) + loss(0.7)).backward(), &model);
    let weight = model.hidden.weight.id;
    let [both, sum] = [both, sum].map(|all| all.get::<2>(weight).unwrap().into_data());
    let [both, sum] = [both, sum].map(|data| data.iter::<f32>().collect::<Vec<_>>());
    assert!(difference(&both, &sum) < 1e-6);
}

#[test]
fn freeing_memory_keeps_what_seeds_and_guards_depend_on() {
    let accelerator = Accelerator::builder().build().unwrap();
    accelerator.set_batches_taken(3);
    let held = accelerator.no_sync();
    accelerator.free_memory();
    assert!(!accelerator.sync_gradients());
    drop(held);
    assert!(accelerator.sync_gradients());
    assert_eq!(accelerator.batches_taken(), 3);
}

#[test]
fn gradients_are_clipped_by_norm_and_by_value() {
    let accelerator = Accelerator::builder().build().unwrap();
    let model = Classifier::new(0, &accelerator.device());
    let backward = || {
        let output = model.forward(Tensor::ones([4, FEATURES], &accelerator.device()));
        accelerator.backward(output.sum(), &model).unwrap()
    };
    let mut gradients = backward();
    let norm = accelerator.clip_grad_norm(&model, &mut gradients, 0.5).unwrap();
    assert!(norm > 1.0, "{norm}");
    let clipped = accelerator.clip_grad_norm(&model, &mut gradients, 0.5).unwrap();
    assert!((clipped - 0.5).abs() < 1e-5, "{clipped}");
    let mut gradients = backward();
    accelerator.clip_grad_value(&model, &mut gradients, 0.01);
    let bias = gradients.as_ref().unwrap().get::<1>(model.output.bias.as_ref().unwrap().id);
    assert_eq!(bias.unwrap().into_data().iter::<f32>().collect::<Vec<_>>(), [0.01; 3]);
}

#[test]
fn ranks_that_run_out_of_batches_help_the_others() {
    let train = |even: bool, ranks: usize, accumulation: usize, tokens: bool| {
        let builder = Accelerator::builder()
            .even_batches(even)
            .split_batches(true)
            .gradient_accumulation_steps(accumulation)
            .debug(true);
        let results = builder.threads(ranks, |accelerator| -> Result<Vec<f32>, Error> {
            let mut model = Classifier::new(0, &accelerator.device());
            let mut optimizer = accelerator.prepare_optimizer(optimizer(false));
            let loader = DataLoaderBuilder::new(SampleBatcher).batch_size(6);
            let loader = accelerator.prepare_data_loader(loader.build(samples(38)))?;
            for _epoch in 0..2 {
                let uneven = accelerator.join_uneven_inputs();
                for batch in loader.iter() {
                    accelerator.accumulate();
                    let batch = batch.unwrap();
                    let items = batch.features.dims()[0];
                    let loss = cross_entropy(model.forward(batch.features), batch.classes);
                    let gradients = match tokens {
                        true => {
                            let sum = loss.mul_scalar(items as f32);
                            accelerator.backward_tokens(sum, items, &model)?
                        }
                        false => accelerator.backward(loss, &model)?,
                    };
                    model = optimizer.step(0.2, model, gradients);
                }
                model = uneven.finish(model)?;
            }
            Ok(model.weights())
        });
        results.unwrap().into_iter().map(Result::unwrap).collect::<Vec<_>>()
    };
    for (accumulation, tokens) in [(1, false), (3, false), (1, true), (3, true)] {
        let alone = train(true, 1, accumulation, tokens).remove(0);
        // 38 items: the last batch has two, which rank 0 takes.
        for weights in train(false, 3, accumulation, tokens) {
            let difference = difference(&alone, &weights);
            let what = format!("{accumulation} micro-batches a step, by tokens: {tokens}");
            assert!(difference < 1e-6, "{what}: {difference:e}");
        }
    }
}

#[test]
fn ranks_that_stepped_apart_scale_alike_again() {
    let builder = Accelerator::builder().mixed_precision(MixedPrecision::Fp16);
    let scales = builder.threads(2, |accelerator| {
        let mut model = Classifier::new(0, &accelerator.device());
        let mut optimizer = accelerator.prepare_optimizer(optimizer(false));
        let mut local = LocalSgd::new(&accelerator, 100);
        // Rank 1 overflows.
        let value = [1.0, f32::INFINITY][accelerator.process_index()];
        let input = Tensor::full([1, FEATURES], value, &accelerator.device());
        let gradients = accelerator.backward(model.forward(input).sum(), &model).unwrap();
        model = optimizer.step(0.1, model, gradients);
        model = local.step(model).unwrap();
        let scale = || accelerator.loss_scaler().unwrap().scale();
        let apart = scale();
        local.finish(model).unwrap();
        [apart, scale()]
    });
    assert_eq!(scales.unwrap(), [[65536.0, 65536.0], [32768.0, 65536.0]]);
}

#[test]
fn local_sgd_averages_weights_now_and_then() {
    let results = threads(2, |accelerator| {
        let mut model = Classifier::new(0, &accelerator.device());
        let mut optimizer = accelerator.prepare_optimizer(optimizer(false));
        let mut local = LocalSgd::new(&accelerator, 2);
        let mut seen = Vec::new();
        for step in 0..4 {
            let value = 0.1 * (accelerator.process_index() + step) as f32;
            let input = Tensor::full([1, FEATURES], value, &accelerator.device());
            let loss = model.forward(input).square().sum();
            let gradients = accelerator.backward(loss, &model).unwrap();
            model = optimizer.step(0.1, model, gradients);
            model = local.step(model).unwrap();
            seen.push(model.weights());
        }
        drop(local);
        seen
    });
    let [left, right] = <[_; 2]>::try_from(results.unwrap()).unwrap();
    let same: Vec<_> = left.iter().zip(&right).map(|(left, right)| left == right).collect();
    assert_eq!(same, [false, true, false, true]);
}

#[test]
fn a_profile_names_backward_and_reduction() {
    let folder = tempfile::tempdir().unwrap();
    threads(2, |accelerator| {
        let model = Classifier::new(0, &accelerator.device());
        let train = || {
            let input = Tensor::ones([1, FEATURES], &accelerator.device());
            let loss = accelerator.record("forward", || model.forward(input).sum());
            accelerator.backward(loss, &model).unwrap()
        };
        drop(accelerator.profile(folder.path(), train).unwrap());
    })
    .unwrap();
    let text = std::fs::read_to_string(folder.path().join("profile_1.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let names: Vec<_> =
        trace["traceEvents"].as_array().unwrap().iter().map(|event| &event["name"]).collect();
    assert_eq!(names, ["forward", "backward", "all_reduce"]);
}
