//! What learning an adapter or all weights allocates, and scoring tokens, by a counting allocator.
//! One test: the counter sees all threads.

#[path = "low_rank/fixtures.rs"]
mod fixtures;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use burn::tensor::Device;
use fixtures::{ALL, Expected};
use outsize_checkpoint::TensorInfo;
use outsize_core::{GradientSink, LowRank};
use outsize_kernels::GRADIENT_PIECE;
use outsize_models::{Batch, CacheOptions, KvCache, Logits, MOST_TOP_TOKENS, Scoring};
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Takes what is needed to add gradients to those in a file.
struct Buffer;

impl GradientSink for Buffer {
    fn add(&self, _tensor: &TensorInfo, _start: u64, gradient: &[f32]) -> io::Result<()> {
        std::hint::black_box(gradient.to_vec());
        Ok(())
    }
}

#[test]
fn learning_takes_no_more_than_is_said() {
    let sink: Arc<dyn GradientSink> = Arc::new(Buffer);
    for name in ALL {
        let expected = Expected::read(name);
        let adapter: HashMap<String, LowRank> = fixtures::adapter(name, expected.scale);
        let (model, config, _) = fixtures::model(name, "16MiB").unwrap();
        for (rows, tokens) in [(1, 30), (8, 30), (2, 120), (8, 120)] {
            if tokens > config.cache().longest_context {
                continue;
            }
            let ids: Vec<Vec<u32>> = (0..rows)
                .map(|row| (0..tokens).map(|at| ((7 * row + 3 * at) % 60) as u32).collect())
                .collect();
            let batch = Batch::left_padded(&ids).unwrap();
            let targets: Vec<_> = batch.ids().iter().map(|id| Some(*id)).collect();
            let learn =
                |kept| model.low_rank_gradients(&batch, &targets, &adapter, kept).unwrap().unwrap();
            // What threads and buffers keep is there from then on.
            drop(learn(0));
            for kept in 0..=2 {
                ALLOCATOR.reset_peak_usage();
                let before = ALLOCATOR.current_usage();
                drop(learn(kept));
                let peak = ALLOCATOR.peak_usage().saturating_sub(before) as u64;
                let bound = config.learning_bytes(rows, tokens, kept).unwrap();
                assert!(peak <= bound, "{name}, {rows} x {tokens}, {kept}: {peak} of {bound}");
            }
            let learn = || model.full_gradients(&batch, &targets, &sink).unwrap().unwrap();
            learn();
            ALLOCATOR.reset_peak_usage();
            let before = ALLOCATOR.current_usage();
            learn();
            let peak = ALLOCATOR.peak_usage().saturating_sub(before) as u64;
            let bound = config.full_learning_bytes(rows, tokens).unwrap();
            // Pieces of gradients are larger than all of these models.
            let bound = bound - 2 * GRADIENT_PIECE;
            assert!(peak <= bound, "{name}, {rows} x {tokens}, all: {peak} of {bound}");
            let options = CacheOptions { batch: rows, ..CacheOptions::new(tokens) };
            let mut cache = KvCache::new(config.cache(), &options, &Device::flex()).unwrap();
            let scoring = Scoring { labels: &targets, top: MOST_TOP_TOKENS, last: true };
            let mut score = || {
                cache.clear();
                model.score_batch(&batch, &mut cache, scoring).unwrap().unwrap()
            };
            drop(score());
            ALLOCATOR.reset_peak_usage();
            let before = ALLOCATOR.current_usage();
            drop(score());
            let peak = ALLOCATOR.peak_usage().saturating_sub(before) as u64;
            let bound = config.activation_bytes(tokens, &options, Logits::Scored);
            assert!(peak <= bound, "{name}, {rows} x {tokens}, scores: {peak} of {bound}");
        }
    }
}
