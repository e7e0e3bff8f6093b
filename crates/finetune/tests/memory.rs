//! What a training allocates, by a counting allocator. One test: the counter sees all threads.

#[path = "../../models/tests/low_rank/fixtures.rs"]
mod fixtures;

use burn::optim::AdamWConfig;
use burn::tensor::Device;
use fixtures::{Expected, adapter, model};
use outsize_finetune::LearningAdapter;
use outsize_lora::LoraTarget;
use outsize_train::Accelerator;
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

#[test]
fn an_adapter_takes_no_more_than_is_said() {
    let name = "llama";
    let expected = Expected::read(name);
    let parts = adapter(name, expected.scale);
    // Of such a rank that all else is small.
    let targets = parts.iter().map(|(path, part)| LoraTarget {
        module: path.trim_end_matches(".weight").to_owned(),
        path: path.clone(),
        shape: [part.up.dims()[0], part.down.dims()[1]],
        rank: 4_000,
        scale: part.scale,
        in_out: part.in_out,
    });
    let targets: Vec<_> = targets.collect();
    let bound = LearningAdapter::learning_bytes(&targets);
    let (model, _, _) = model(name, "16MiB").unwrap();
    for accumulate in [1, 2] {
        ALLOCATOR.reset_peak_usage();
        let before = ALLOCATOR.current_usage();
        let mut adapter = LearningAdapter::new(targets.clone(), 0);
        let accelerator = Accelerator::builder().device(Device::flex().autodiff());
        let accelerator = accelerator.gradient_accumulation_steps(accumulate).build().unwrap();
        let mut adamw = accelerator.prepare_optimizer(AdamWConfig::new().init());
        for _ in 0..2 {
            for (batch, targets) in expected.parts() {
                accelerator.accumulate();
                let found = model.low_rank_gradients(&batch, &targets, &adapter.parts(), 0);
                let found = found.unwrap().unwrap();
                let count = found.targets;
                let gradients = adapter.gradients(found);
                let mut gradients = accelerator.with_gradients(gradients, count, &adapter).unwrap();
                accelerator.clip_grad_norm(&adapter, &mut gradients, 1.0);
                adapter = adamw.step(1e-3, adapter.clone(), gradients);
            }
        }
        let peak = (ALLOCATOR.peak_usage() - before) as u64;
        assert!(peak <= bound, "{accumulate}: {peak} of {bound}");
        // A bound that is far off refuses what would do.
        assert!(peak >= bound / 2, "{accumulate}: {peak} of {bound}");
    }
}
