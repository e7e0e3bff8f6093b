//! Going back to a snapshot: what follows has the bits of a text that never went further.

use crate::common::dispatched::load;
use crate::common::reference::values;
use burn::tensor::Device;
use outsize_models::{Batch, CacheOptions, DispatchedDecoder, KvCache, Logits, WhenFull};

const TILE: u64 = 700;

/// States; windows beside full attention; states in one that was made for images, and beside keys
/// and values.
const MODELS: [&str; 8] =
    ["qwen3_next", "qwen3_5", "gemma3", "gpt_oss", "falcon_h1", "nemotron_h", "jamba", "mamba"];

/// The logits behind some columns of the texts.
fn run(
    model: &DispatchedDecoder,
    batch: &Batch,
    columns: std::ops::Range<usize>,
    cache: &mut KvCache,
) -> Vec<f32> {
    let logits = model.forward_batch(&batch.columns(columns), cache, Logits::Last);
    values(logits.unwrap().unwrap())
}

fn options(batch: usize) -> CacheOptions {
    CacheOptions { batch, snapshot: true, ..CacheOptions::new(40) }
}

#[test]
fn a_text_goes_on_from_a_snapshot_as_if_it_had_ended_there() {
    let texts: [Vec<u32>; 2] = [(3..29).collect(), (30..50).collect()];
    let others: [Vec<u32>; 2] =
        texts.clone().map(|text| text.iter().map(|id| (id * 7 + 5) % 64).collect());
    let columns = texts[0].len();
    let both = |at: usize| {
        // The same columns up to the snapshot, others from there on.
        let rows = [0, 1].map(|row| {
            let cut = at - (columns - texts[row].len());
            [&texts[row][..cut], &others[row][cut..]].concat()
        });
        (Batch::left_padded(&texts).unwrap(), Batch::left_padded(&rows).unwrap())
    };
    for name in MODELS {
        let (config, model) = load(name, TILE);
        let new = || KvCache::new(config.cache(), &options(2), &Device::default()).unwrap();
        for at in [7, 8, 13, 20] {
            let (batch, other) = both(at);
            let mut cache = new();
            let expected = run(&model, &other, 0..columns, &mut cache);
            // A pass across the snapshot, one that ends at it, one that begins at it, one token
            // before and one behind.
            for ends in [&[26][..], &[6, 26], &[at, 26], &[at - 1, 26], &[at - 1, at + 1, 26]] {
                let mut cache = new();
                cache.snapshot_at(at);
                let mut from = 0;
                let mut last = Vec::new();
                for &end in ends {
                    last = run(&model, &batch, from..end, &mut cache);
                    from = end;
                }
                // The snapshot changed nothing.
                assert_eq!(last, run(&model, &batch, 0..columns, &mut new()), "{name}, {ends:?}");
                // Again and again.
                for back in [at, at + 2, columns - 2] {
                    assert_eq!(cache.go_back(back), at, "{name}, {ends:?}");
                    let next = run(&model, &other, at..columns, &mut cache);
                    assert_eq!(next, expected, "{name}, {ends:?}: back to {at}");
                }
                assert_eq!(cache.go_back(at - 1), 0, "{name}: before the snapshot");
            }
        }
    }
}

#[test]
fn a_snapshot_ends_with_its_text() {
    let ids: Vec<u32> = (3..33).collect();
    let batch = Batch::left_padded(&[&ids]).unwrap();
    for name in MODELS {
        let (config, model) = load(name, TILE);
        let begin = |options: &CacheOptions| {
            let mut cache = KvCache::new(config.cache(), options, &Device::default()).unwrap();
            cache.snapshot_at(10);
            run(&model, &batch, 0..30, &mut cache);
            cache
        };
        assert_eq!(begin(&options(1)).go_back(12), 10, "{name}");
        let without = CacheOptions { snapshot: false, ..options(1) };
        assert_eq!(begin(&without).go_back(12), 0, "{name}");

        let mut cleared = begin(&options(1));
        cleared.clear();
        run(&model, &batch, 0..30, &mut cleared);
        assert_eq!(cleared.go_back(12), 0, "{name}");

        let mut copied = begin(&options(1));
        copied.copy_rows(&[], 1).unwrap();
        assert_eq!(copied.go_back(12), 0, "{name}");

        // A new one takes its place.
        let mut moved = begin(&options(1));
        moved.snapshot_at(31);
        assert_eq!(moved.go_back(12), 10, "{name}: it is not taken yet");
        run(&model, &batch, 10..30, &mut moved);
        run(&model, &batch, 0..8, &mut moved);
        assert_eq!(moved.go_back(33), 31, "{name}");
        assert_eq!(moved.go_back(12), 0, "{name}");
    }
}

#[test]
fn windows_go_back_further_than_their_snapshot_only_where_nothing_is_lost() {
    // Two layers of attention with a window of 6 tokens.
    let (config, model) = load("gemma3", TILE);
    let mut cache = KvCache::new(config.cache(), &options(1), &Device::default()).unwrap();
    let ids: Vec<u32> = (3..33).collect();
    let batch = Batch::left_padded(&[&ids]).unwrap();
    cache.snapshot_at(4);
    run(&model, &batch, 0..5, &mut cache);
    // All is there still, and the snapshot would be of columns that are written anew.
    assert_eq!(cache.go_back(3), 3);
    run(&model, &batch, 3..20, &mut cache);
    assert_eq!(cache.go_back(10), 0);
}

#[test]
fn a_snapshot_is_worth_its_memory_where_little_forgets() {
    let pays = |preset, context| {
        let config = outsize_models::presets::config(preset).unwrap();
        let config = outsize_models::ModelConfig::from_json(config).unwrap();
        config.cache().snapshot_pays(&CacheOptions::new(context))
    };
    // States always; 12 windows of 128 tokens; none of 4096 tokens that are all of the cache;
    // nothing forgets.
    assert!(pays("qwen3.5-9b", 64));
    assert!(pays("gpt-oss-20b", 4096));
    assert!(!pays("mistral-7b", 8192));
    assert!(!pays("mistral-7b", 512));
    assert!(!pays("llama-7b", 4096));
    let slide = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(64) };
    let config = outsize_models::presets::config("llama-7b").unwrap();
    let config = outsize_models::ModelConfig::from_json(config).unwrap();
    assert!(!config.cache().snapshot_pays(&slide), "it would be as large as the cache");
}
