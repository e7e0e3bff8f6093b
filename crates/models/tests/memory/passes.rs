//! What passes allocate.

use burn::tensor::Device;
use outsize_kernels::BufferReuse;
use outsize_models::arch::LlamaForCausalLm;
use outsize_models::{
    Batch, CacheOptions, Decoder, DecoderArchitecture, KvCache, KvDtype, Logits, ModelConfig,
    RowPrefix, WhenFull,
};

use super::{ALLOCATOR, allocated, config, filled};

/// Passes that end at the end of the context; the weights are there, and the threads have run,
/// before measuring. With nothing kept of the buffers of earlier passes, and with as much as is
/// said to be safe.
pub fn activations_stay_below_their_bound<D: DecoderArchitecture>(
    config: &ModelConfig,
    options: &CacheOptions,
) {
    let device = Device::default();
    let model: D = filled(config, &device);
    let (mut cache, _, held) =
        allocated(|| KvCache::new(config.cache(), options, &device).unwrap());
    let kv_bytes = KvCache::bytes(config.cache(), options);
    // Tensors' shapes and the like take a little for each layer, of cross-attention too.
    let entries = config.cache().layers.iter().filter(|layer| layer.entries().is_some());
    let layers = config.cache().layers.len() + config.cache().cross.len() + entries.count();
    let most = kv_bytes + 2048 * layers as u64;
    assert!(
        (kv_bytes..most).contains(&held),
        "the cache holds {held} bytes, but {kv_bytes} were foreseen, of {config:?}"
    );
    let context = options.context;
    let ids: Vec<u32> = (0..context as u32).map(|i| i * 7 % 500).collect();
    // The second text is shorter by a third.
    let text = |row: usize| &ids[if row == 1 { context / 3 } else { 1 }..];
    let texts: Vec<_> = (0..options.batch).map(text).collect();
    let prompt = Batch::left_padded(&texts).unwrap();
    if !config.cache().cross.is_empty() {
        let rows: Vec<_> = (0..options.batch).map(|row| vec![7; options.prompt - row]).collect();
        let rows = Batch::left_padded(&rows).unwrap();
        model.encode_batch(&rows, &mut cache).unwrap();
        let (_, peak, left) = allocated(|| model.encode_batch(&rows, &mut cache).unwrap());
        let bound = config.activation_bytes(1, options, Logits::Last);
        println!("a prompt of {options:?}: {peak} of {bound} bytes");
        assert!(peak <= bound, "a prompt of {options:?}: {peak} bytes allocated, {bound} foreseen");
        assert!(peak >= bound / 3 || options.prompt < 100, "{options:?}: {peak} of {bound}");
        assert!(left < 4096, "{left} bytes left allocated");
    }
    let run_until = |column, cache: &mut KvCache| {
        if cache.position() > column && cache.truncate(column).is_err() {
            // A window or a state cannot be wound back, but that it holds other columns changes
            // nothing here.
            cache.clear();
            cache.begin_at(column, &prompt);
        }
        if cache.position() < column {
            let before = prompt.columns(cache.position()..column);
            model.forward_batch(&before, cache, Logits::Last).unwrap();
        }
    };
    // No more than a measured pass: what threads keep of a longer one would be left out.
    let first = context - 257;
    cache.begin_at(first, &prompt);
    run_until(context - 1, &mut cache);
    for (tokens, logits) in
        [(1, Logits::Last), (7, Logits::Last), (256, Logits::Last), (64, Logits::All)]
    {
        let start = context - tokens;
        run_until(start, &mut cache);
        let rows: Vec<_> = texts.iter().map(|text| &text[text.len() - tokens..]).collect();
        let pass = Batch::left_padded(&rows).unwrap();
        let bound = config.activation_bytes(tokens, options, logits);
        let unpooled = config.unpooled_activation_bytes(tokens, options, logits);
        let before = ALLOCATOR.current_usage();
        for reused in [0, bound - unpooled] {
            // With buffers kept of a pass before, too.
            let _reuse = BufferReuse::up_to(reused as usize);
            if reused > 0 {
                run_until(start, &mut cache);
                model.forward_batch(&pass, &mut cache, logits).unwrap();
            }
            run_until(start, &mut cache);
            let (_logits, ..) =
                allocated(|| model.forward_batch(&pass, &mut cache, logits).unwrap());
            let peak = (ALLOCATOR.peak_usage() - before) as u64;
            println!(
                "{tokens} tokens of {options:?}, {logits:?}, {reused} bytes in buffers: {peak} of {bound}"
            );
            assert!(
                peak <= bound,
                "{tokens} tokens of {options:?}, {reused} bytes in buffers: {peak} bytes allocated, {bound} foreseen, of {config:?}"
            );
            // Honest also means not far above; what threads keep does not depend on the tokens.
            let fixed = config.activation_bytes(1, options, Logits::Last);
            assert!(
                peak >= (bound - fixed) / 3,
                "{tokens} tokens of {options:?}: {peak} bytes allocated, {bound} foreseen"
            );
        }
    }
}

/// Passes that take a snapshot, and such that go on from one.
pub fn a_snapshot_is_counted<D: DecoderArchitecture>(config: &ModelConfig) {
    let device = Device::default();
    let model: D = filled(config, &device);
    let options = CacheOptions { snapshot: true, ..CacheOptions::new(900) };
    let kept = KvCache::bytes(config.cache(), &options);
    let ids: Vec<u32> = (0..900).map(|i| i * 7 % 500).collect();
    let run_until = |end: usize, cache: &mut KvCache| {
        if cache.position() < end {
            model.forward(&ids[cache.position()..end], cache, Logits::Last).unwrap();
        }
    };
    // The weights are there, and the threads have run.
    run_until(600, &mut KvCache::new(config.cache(), &options, &device).unwrap());
    for ends in [&[600, 900][..], &[400, 800, 801, 802], &[899, 900]] {
        let bound = kept + config.activation_bytes(ends[0], &options, Logits::Last);
        let (_cache, peak, left) = allocated(|| {
            let mut cache = KvCache::new(config.cache(), &options, &device).unwrap();
            for at in [500, 700] {
                cache.snapshot_at(at);
                for &end in ends {
                    run_until(end, &mut cache);
                }
                assert_eq!(cache.go_back(at + 1), at);
                run_until(at + 1, &mut cache);
            }
            cache
        });
        assert!(peak <= bound, "{ends:?}: {peak} bytes allocated, {bound} foreseen");
        assert!(
            (kept..kept + 64 * 1024).contains(&left),
            "{ends:?}: {left} bytes held, {kept} foreseen"
        );
    }
}

pub fn a_token_costs_no_copy_of_the_cache() {
    let config = config(256, 256, 8, 8, 512);
    let device = Device::default();
    let model: LlamaForCausalLm = filled(&config, &device);
    let options = CacheOptions::new(8192);
    let mut cache = KvCache::new(config.cache(), &options, &device).unwrap();
    let layer = KvCache::bytes(config.cache(), &options) / 2;
    for tokens in [1, 3, 1] {
        let ids = vec![5; tokens];
        model.forward(&ids, &mut cache, Logits::Last).unwrap();
        let (_, peak, left) = allocated(|| model.forward(&ids, &mut cache, Logits::Last).unwrap());
        assert!(
            peak < layer / 16,
            "{peak} bytes allocated beside a cache of {layer} bytes a layer"
        );
        assert!(left < 64 << 10, "{left} bytes left allocated");
    }
}

pub fn texts_are_moved_in_the_memory_of_one() {
    let config = config(256, 256, 8, 8, 512);
    let device = Device::default();
    let model: LlamaForCausalLm = filled(&config, &device);
    for dtype in [KvDtype::F32, KvDtype::Bf16] {
        let options = CacheOptions {
            batch: 3,
            dtype,
            when_full: WhenFull::Replace,
            ..CacheOptions::new(4096)
        };
        let mut cache = KvCache::new(config.cache(), &options, &device).unwrap();
        let begin = |cache: &mut KvCache, prefix, tokens| {
            let batch = Batch::left_padded(&[vec![5; tokens]]).unwrap();
            let (begun, peak, left) = allocated(|| cache.begin_behind(&[prefix], &batch));
            begun.unwrap();
            model.forward_batch(&batch, cache, Logits::Last).unwrap();
            cache.join();
            (peak, left)
        };
        let row = KvCache::row_bytes(config.cache(), &options);
        let bound = row + (64 << 10);
        begin(&mut cache, None, 3000);
        begin(&mut cache, None, 40);
        cache.rest(0);
        let (_, peak, left) = allocated(|| cache.swap_rows(0, 1).unwrap());
        assert!(peak <= bound && left < 4096, "{peak}, {left} bytes, {row} of a row");
        // To another place, and within its own.
        for tokens in [100, 50] {
            let prefix = Some(RowPrefix { place: 1, tokens: 2900 });
            let (peak, left) = begin(&mut cache, prefix, tokens);
            assert!(peak > row / 2, "{peak} bytes: nothing was moved");
            assert!(peak <= bound && left < 4096, "{peak}, {left} bytes, {row} of a row");
        }
    }
}
