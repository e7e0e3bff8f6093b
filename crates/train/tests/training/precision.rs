//! Training in bf16 and fp16 with float32 weights.

use crate::common::{Classifier, SampleBatcher, cross_entropy, optimizer, samples};
use burn::module::{Module, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Linear};
use burn::tensor::{DType, Tensor};
use outsize_train::{Accelerator, DataLoaderBuilder, LossScaler, MixedPrecision};

/// The loss is then about a tenth of what it was.
const EPOCHS: usize = 40;

/// The mean loss over the data after `epochs` epochs, and the steps left out.
fn learn(precision: MixedPrecision, ranks: usize, epochs: usize) -> (f32, usize) {
    let run = |accelerator: Accelerator| {
        let mut model = Classifier::new(3, &accelerator.device());
        let mut optimizer = accelerator.prepare_optimizer(optimizer(true));
        let loader = DataLoaderBuilder::new(SampleBatcher).batch_size(32).shuffle(1);
        let loader = accelerator.prepare_data_loader(loader.build(samples(256))).unwrap();
        let mut skipped = 0;
        for _ in 0..epochs {
            for batch in loader.iter() {
                let batch = batch.unwrap();
                let output = accelerator.autocast(&model, batch.features, Classifier::forward);
                let loss = cross_entropy(output.unwrap(), batch.classes);
                let gradients = accelerator.backward(loss, &model).unwrap();
                skipped += usize::from(accelerator.optimizer_step_was_skipped());
                model = optimizer.step(0.02, model, gradients);
            }
        }
        assert_eq!(model.hidden.weight.val().dtype(), DType::F32);
        let all = DataLoaderBuilder::new(SampleBatcher).batch_size(256).build(samples(256));
        let all = accelerator.prepare_data_loader(all).unwrap().iter().next().unwrap().unwrap();
        let loss = cross_entropy(model.forward(all.features), all.classes);
        (loss.into_scalar::<f32>(), skipped)
    };
    Accelerator::builder()
        .mixed_precision(precision)
        .split_batches(true)
        .threads(ranks, run)
        .unwrap()
        .remove(0)
}

#[test]
fn lower_precision_learns_as_float32_does() {
    let (exact, _) = learn(MixedPrecision::No, 1, EPOCHS);
    assert!(exact < 0.2, "the task converges: {exact}");
    for precision in [MixedPrecision::Bf16, MixedPrecision::Fp16] {
        for ranks in [1, 2] {
            let (loss, skipped) = learn(precision, ranks, EPOCHS);
            println!("{precision:?}, {ranks} ranks: {loss} beside {exact}, {skipped} skipped");
            assert!((loss - exact).abs() < 0.02, "{precision:?}: {loss} beside {exact}");
        }
    }
}

#[test]
fn inputs_and_weights_are_cast_and_the_output_returns_to_float32() {
    let accelerator = Accelerator::builder().mixed_precision(MixedPrecision::Bf16).build().unwrap();
    let device = accelerator.device();
    let model = Classifier::new(0, &device);
    let input = Tensor::<2>::ones([1, crate::common::FEATURES], &device);
    let output = accelerator.autocast(&model, input, |model, input| {
        assert_eq!((input.dtype(), model.hidden.weight.val().dtype()), (DType::BF16, DType::BF16));
        model.forward(input)
    });
    assert_eq!(output.unwrap().dtype(), DType::F32);
    assert_eq!(model.hidden.weight.val().dtype(), DType::F32);
}

#[test]
fn an_overflow_skips_the_step_and_holds_the_schedule() {
    let accelerator = Accelerator::builder()
        .mixed_precision(MixedPrecision::Fp16)
        .loss_scaler(LossScaler::new(65536.0, 2.0, 0.5, 2))
        .build()
        .unwrap();
    let device = accelerator.device();
    let mut model = Classifier::new(0, &device);
    let mut optimizer = accelerator.prepare_optimizer(optimizer(false));
    let schedule = burn::lr_scheduler::linear::LinearLrSchedulerConfig::new(0.5, 0.1, 4);
    let mut scheduler = accelerator.prepare_scheduler(schedule.init().unwrap());
    let mut seen = Vec::new();
    for size in [1.0, 4000.0, 1.0, 1.0] {
        let input = Tensor::<2>::full([2, crate::common::FEATURES], 0.1, &device);
        let before = model.weights();
        let output = accelerator.autocast(&model, input, Classifier::forward).unwrap();
        let gradients = accelerator.backward(output.sum().mul_scalar(size), &model).unwrap();
        let rate = scheduler.step();
        let skipped = accelerator.optimizer_step_was_skipped();
        seen.push((skipped, accelerator.loss_scaler().unwrap().scale(), rate.base() as f32));
        model = optimizer.step(rate, model, gradients);
        assert_eq!(model.weights() == before, skipped);
        assert!(model.weights().iter().all(|weight| weight.is_finite()));
    }
    let expected =
        [(true, 32768.0, 0.5), (true, 16384.0, 0.5), (false, 16384.0, 0.5), (false, 32768.0, 0.4)];
    assert_eq!(seen, expected);
}

#[derive(Module, Debug)]
struct WithStatistics {
    linear: Linear,
    norm: BatchNorm,
}

#[derive(Module, Debug)]
struct Mixing {
    weight: Param<Tensor<2>>,
    dropout: Dropout,
}

#[test]
fn modules_that_mix_dtypes_are_refused_by_name() {
    let accelerator = Accelerator::builder().mixed_precision(MixedPrecision::Bf16).build().unwrap();
    let device = accelerator.device();
    let input = || Tensor::<2>::ones([2, 4], &device);
    let linear = burn::nn::LinearConfig::new(4, 4).init(&device);
    let model = WithStatistics { linear, norm: BatchNormConfig::new(4).init(&device) };
    let mean = || model.norm.running_mean.value();
    let fault = accelerator
        .autocast(&model, input(), |model, input| model.norm.forward(model.linear.forward(input)));
    let fault = fault.unwrap_err().to_string();
    assert!(fault.contains("norm") && fault.contains("BatchNorm"), "{fault}");
    assert!(fault.contains("cannot be computed in bf16"), "{fault}");
    assert_eq!(mean().dtype(), DType::F32);

    let weight = Param::from_tensor(Tensor::ones([4, 4], &device));
    let model = Mixing { weight, dropout: DropoutConfig::new(0.0).init() };
    let fault = accelerator.autocast(&model, input(), |model, input| {
        let float32 = Tensor::<2>::ones([4, 4], &model.weight.val().device());
        model.dropout.forward(input.matmul(float32 * 2))
    });
    let fault = fault.unwrap_err().to_string();
    assert!(fault.contains("Mixing") && fault.contains("mixes dtypes"), "{fault}");
}

#[test]
fn precisions_have_accelerates_names() {
    assert_eq!("bf16".parse::<MixedPrecision>().unwrap(), MixedPrecision::Bf16);
    let fault = "fp8".parse::<MixedPrecision>().unwrap_err().to_string();
    assert!(fault.contains("Burn has no such dtype"), "{fault}");
    assert!("fp4".parse::<MixedPrecision>().unwrap_err().to_string().contains("fp16 or bf16"));
}
