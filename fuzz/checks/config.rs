//! What must hold of any bytes taken for a model's `config.json`.

// By which path the crate comes is for the program to say that these checks are a part of.
use super::models::{CacheOptions, KvCache, Logits, ModelConfig};

/// Checks that a configuration is refused in plain words, or that no size that follows from it
/// overflows.
pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match ModelConfig::from_json(text) {
        Ok(config) => prove(&config),
        Err(error) => {
            let said = error.to_string();
            assert!(!said.contains(char::is_control), "{said:?}");
            assert!(said.len() < 10_000, "{} bytes", said.len());
        }
    }
}

fn prove(config: &ModelConfig) {
    assert!(config.vocab_size() > 0);
    let mut parameters = 0u64;
    for weight in config.weights() {
        let elements = product(&weight.shape);
        assert_eq!(weight.elements(), elements, "{}", weight.name);
        parameters = parameters.checked_add(elements).unwrap();
    }
    assert_eq!(config.parameter_count(), parameters);
    assert!(parameters.checked_mul(8).is_some(), "bytes of f64");

    let spec = config.cache();
    assert!(spec.longest_context >= spec.trained_context);
    for context in [1, spec.trained_context] {
        let cache = CacheOptions::new(context);
        let bytes = KvCache::bytes(spec, &cache);
        let exact: u128 = (spec.layers.iter())
            .map(|layer| {
                let keys = layer.kept_attention().map_or(0, |layer| {
                    let kept = if layer.keys_are_values { 1 } else { 2 };
                    kept * (layer.key_value_heads * layer.head_dim * context) as u128
                });
                let state = layer.recurrent().map_or(0, |layer| {
                    let state = layer.heads.map(|heads| heads.state());
                    let matrices = state.map(|state| state.iter().map(|&n| n as u128).product());
                    matrices.unwrap_or(0u128) + ((layer.taps - 1) * layer.channels) as u128
                });
                keys + state
            })
            .sum();
        // More than there is: no such cache is ever made.
        let most = u64::try_from(4 * exact).unwrap_or(u64::MAX);
        match spec.layers.iter().all(|layer| layer.window().is_none()) {
            true => assert_eq!(bytes, most),
            false => assert!(bytes <= most && bytes > 0),
        }
        for logits in [Logits::Last, Logits::All] {
            assert!(config.activation_bytes(context, &cache, logits) > 0);
        }
    }
}

fn product(sizes: &[usize]) -> u64 {
    let product = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size as u64));
    product.unwrap()
}
