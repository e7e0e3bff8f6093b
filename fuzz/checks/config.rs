//! What must hold of any bytes taken for a model's `config.json`.

// By which path the crate comes is for the program to say that these checks are a part of.
use super::models::{CacheOptions, KvCache, Logits, ModelConfig};

/// Checks that a configuration is refused in plain words, or that no size that follows from it overflows.
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
    let heads = config.num_attention_heads;
    assert!(config.num_key_value_heads > 0 && config.hidden_size > 0 && config.vocab_size > 0);
    assert!(heads.is_multiple_of(config.num_key_value_heads));

    // Many layers are alike: the sizes are those of the first ones, some thousand times.
    let mut parameters = 0u64;
    for block in config.blocks() {
        for tensor in block.tensors {
            let elements = product(&tensor.shape);
            assert_eq!(tensor.elements(), elements, "{}", tensor.name);
            parameters = parameters.checked_add(elements).unwrap();
        }
    }
    assert_eq!(config.parameters(), parameters);
    assert!(parameters.checked_mul(8).is_some(), "bytes of f64");

    for context in [1, config.max_position_embeddings] {
        let cache = CacheOptions::new(context);
        let bytes = KvCache::bytes(config, &cache);
        let values = [
            2,
            config.num_hidden_layers,
            config.key_value_size(),
            context,
        ];
        let exact: u128 = values.iter().map(|&size| size as u128).product();
        // More than there is: no such cache is ever made.
        let most = u64::try_from(4 * exact).unwrap_or(u64::MAX);
        match config.windows.iter().all(Option::is_none) {
            true => assert_eq!(bytes, most),
            false => assert!(bytes <= most && bytes > 0),
        }
        for logits in [Logits::Last, Logits::All] {
            assert!(config.activation_bytes(context, &cache, logits) > 0);
        }
    }
}

fn product(sizes: &[usize]) -> u64 {
    let product = sizes
        .iter()
        .try_fold(1u64, |product, &size| product.checked_mul(size as u64));
    product.unwrap()
}
