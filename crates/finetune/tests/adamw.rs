//! Steps of AdamW on adapters against those of PEFT and torch in float32
//! (`scripts/fixtures/lora_training.py`).

#[path = "../../models/tests/low_rank/fixtures.rs"]
mod fixtures;

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use fixtures::{ALL, Expected, adapter, model};
use outsize_finetune::LearningAdapter;
use outsize_lora::LoraTarget;
use outsize_train::Accelerator;

/// Greatest difference of a loss, of the loss.
const TOLERANCE: f64 = 1e-4;

#[test]
fn losses_of_steps_are_those_of_torch() {
    for name in ALL {
        let expected = Expected::read(name);
        let parts = adapter(name, expected.scale);
        let targets = parts.iter().map(|(path, part)| LoraTarget {
            module: path.trim_end_matches(".weight").to_owned(),
            path: path.clone(),
            shape: [part.up.dims()[0], part.down.dims()[1]],
            rank: part.down.dims()[0],
            scale: part.scale,
            in_out: part.in_out,
        });
        let mut adapter = LearningAdapter::from_parts(targets.collect(), &parts).unwrap();
        let (model, _, _) = model(name, "16MiB").unwrap();
        let device = Device::flex().autodiff();
        // Each step is of two batches, with other numbers of targets.
        let accelerator = Accelerator::builder().device(device).gradient_accumulation_steps(2);
        let accelerator = accelerator.build().unwrap();
        let settings = &expected.adamw;
        let mut adamw = accelerator.prepare_optimizer(
            AdamWConfig::new()
                .with_beta_1(settings.betas[0])
                .with_beta_2(settings.betas[1])
                .with_epsilon(settings.eps)
                .with_weight_decay(settings.weight_decay)
                .init(),
        );
        let mut losses = Vec::new();
        for _ in &expected.losses {
            let (mut loss, mut count) = (0.0, 0);
            for (batch, targets) in expected.parts() {
                accelerator.accumulate();
                let found = model.low_rank_gradients(&batch, &targets, &adapter.parts(), 1);
                let found = found.unwrap().unwrap();
                loss += found.loss;
                count += found.targets;
                let targets = found.targets;
                let gradients = adapter.gradients(found);
                let gradients = accelerator.with_gradients(gradients, targets, &adapter).unwrap();
                adapter = adamw.step(settings.lr, adapter, gradients);
            }
            losses.push(loss / count as f64);
        }
        assert!((losses[0] - losses[losses.len() - 1]) > 0.01, "{name} learns nothing: {losses:?}");
        for (found, want) in losses.iter().zip(&expected.losses) {
            let near = (found - want).abs() <= TOLERANCE * want;
            assert!(near, "{name}: {losses:?} for {:?}", expected.losses);
        }
    }
}
