//! Latent attention in passes of any length.

use burn::tensor::{Device, Distribution};
use outsize_kernels::RotaryPairs;

use super::*;
use crate::{AttentionCache, Batch, CacheLayer, CacheOptions, CacheSpec, WhenFull};

#[test]
fn tokens_see_the_same_in_passes_of_any_length() {
    // Some of the tokens before, or all; and with a layer that looks at what the first one keeps,
    // with an indexer of its own or not.
    let own = KeyValueSource::OWN;
    let shares = KeyValueSource::Own { values_apart: false, is_shared: true };
    let looks = |choice| (KeyValueSource::Layer(0), choice);
    for top_k in [20, 200] {
        sees_the_same(top_k, &[(own, LatentChoice::Own)]);
        for choice in [LatentChoice::Own, LatentChoice::Layer(0)] {
            sees_the_same(top_k, &[(shares, LatentChoice::Own), looks(choice), looks(choice)]);
        }
    }
}

fn sees_the_same(top_k: usize, layers: &[(KeyValueSource, LatentChoice)]) {
    const TOKENS: usize = 120;
    let device = Device::default();
    let init = &Init::new(&device);
    let pairs = RotaryPairs::Halves;
    let indexer = IndexerConfig {
        heads: 4,
        head_dim: 8,
        top_k,
        pairs,
        plain: 0,
        epsilon: 1e-6,
        scales_queries: false,
    };
    let config = LatentAttentionConfig {
        query_rank: Some(16),
        rank: 24,
        plain: 8,
        rotated: 4,
        value: 8,
        apart: false,
        scale: 5.0,
        epsilon: 1e-6,
        latent_scale: None,
        norms_rotated: false,
        has_sinks: false,
        gate: LatentGate::None,
        scales_queries: false,
        source: KeyValueSource::OWN,
        indexer: Some(indexer),
    };
    let config_of = |source| LatentAttentionConfig { source, ..config };
    // So many that the queries of some tokens are made at a time.
    let heads = 40;
    let attention = |&(source, choice): &(_, _)| {
        let attention = LatentAttention::new(32, heads, config_of(source), false, init);
        attention.choosing(32, choice, init)
    };
    let attentions: Vec<_> = layers.iter().map(attention).collect();
    assert!(attentions[0].at_once([1, TOKENS])[0] < TOKENS / 2);
    let cache = |head_dim| AttentionCache {
        heads,
        key_value_heads: 1,
        head_dim,
        window: None,
        is_chunked: false,
        keys_are_values: true,
        chosen: Some(indexer.top_k),
        entries: None,
    };
    let kept = |&(source, choice): &(_, _)| match config_of(source).cached(choice) {
        0 => CacheLayer::Shared(cache(config.cached(LatentChoice::Own))),
        width => CacheLayer::Attention(cache(width)),
    };
    let layers = layers.iter().map(kept).collect();
    let spec = CacheSpec { layers, ..CacheSpec::uniform(0, 1, 1, 2, TOKENS) };
    let x = Tensor::<3>::random([1, TOKENS, 32], Distribution::Normal(0.0, 1.0), &device);
    let run = |options: &CacheOptions, step: usize| -> Vec<u32> {
        let mut cache = KvCache::new(&spec, options, &device).unwrap();
        let passes = (0..TOKENS).step_by(step).flat_map(|start| {
            let count = step.min(TOKENS - start);
            let batch = Batch::left_padded(&[vec![1; count]]).unwrap();
            cache.begin(&batch);
            let positions = QueryPositions { start, padding: &[0], ..Default::default() };
            let x = x.clone().narrow(1, start, count);
            let y = attentions.iter().enumerate().fold(x, |x, (layer, attention)| {
                attention.forward(x, None, &positions, &mut cache, layer).unwrap()
            });
            cache.keep_shared().unwrap();
            cache.advance(&batch);
            y.into_data().try_into_vec::<f32>().unwrap()
        });
        passes.map(f32::to_bits).collect()
    };
    // Of all tokens, or of the last 60.
    let sliding = CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(60) };
    for options in [CacheOptions::new(TOKENS), sliding] {
        let whole = run(&options, TOKENS);
        for step in [1, 7, 64] {
            assert_eq!(
                run(&options, step),
                whole,
                "passes of {step}, {top_k} chosen, {} layers, with {options:?}",
                attentions.len()
            );
        }
    }
}
