//! Keys and values of the tokens seen so far.

use burn::tensor::{DType, Device, Tensor};

use crate::{CacheOptions, Error, ModelConfig};

/// The longest context that can be asked for, in tokens: positions beyond are not exact in f32.
pub const MAX_CONTEXT: usize = 1 << 24;

/// The most texts that run side by side.
pub const MAX_BATCH: usize = 1 << 16;

/// Keys and values of the tokens seen so far, for a fixed number of texts and of tokens.
///
/// Storage is allocated once; appending writes in place.
#[derive(Debug)]
pub struct KvCache {
    layers: Vec<Layer>,
    key_value_heads: usize,
    head_dim: usize,
    options: CacheOptions,
    position: usize,
}

/// One layer's keys and values, `[batch, key_value_heads, capacity, head_dim]` each; `None` only while being written.
///
/// A tensor is written in place as long as it is owned here alone. So it is moved out, written and moved back, and views
/// of it must be dropped before the next append.
#[derive(Debug)]
struct Layer {
    keys: Option<Tensor<4>>,
    values: Option<Tensor<4>>,
}

impl KvCache {
    /// An empty cache for a model.
    ///
    /// # Errors
    /// A context of 0 or beyond [`MAX_CONTEXT`], a batch of 0 or beyond [`MAX_BATCH`].
    pub fn new(
        config: &ModelConfig,
        options: &CacheOptions,
        device: &Device,
    ) -> Result<Self, Error> {
        let CacheOptions { context, batch, .. } = *options;
        if !(1..=MAX_CONTEXT).contains(&context) {
            return Err(Error::Context {
                context,
                max: MAX_CONTEXT,
            });
        }
        if !(1..=MAX_BATCH).contains(&batch) {
            return Err(Error::Batch {
                batch,
                max: MAX_BATCH,
            });
        }
        let shape = [batch, config.num_key_value_heads, context, config.head_dim];
        let zeros = || Some(Tensor::zeros(shape, (device, options.dtype.dtype())));
        Ok(Self {
            layers: (0..config.num_hidden_layers)
                .map(|_| Layer {
                    keys: zeros(),
                    values: zeros(),
                })
                .collect(),
            key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            options: *options,
            position: 0,
        })
    }

    /// Bytes that such a cache holds.
    pub fn bytes(config: &ModelConfig, options: &CacheOptions) -> u64 {
        let per_token = 2
            * config.num_hidden_layers as u64
            * config.key_value_size() as u64
            * options.dtype.bytes();
        per_token
            .saturating_mul(options.context as u64)
            .saturating_mul(options.batch as u64)
    }

    /// What it was made for.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// Tokens that it was made for.
    pub fn capacity(&self) -> usize {
        self.options.context
    }

    /// Tokens that it holds, which is the position of the next one.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Forgets all tokens: a new text begins.
    pub fn clear(&mut self) {
        self.position = 0;
    }

    /// Forgets the tokens from `position` on; nothing happens if it holds fewer. `truncate(0)` is [`clear`](Self::clear),
    /// and always works.
    ///
    /// # Errors
    /// A sliding window has gone on so far that tokens which `position` would need are forgotten.
    pub fn truncate(&mut self, position: usize) -> Result<(), Error> {
        self.position = self.position.min(position);
        Ok(())
    }

    /// Checks that the cache is of the model's shape and has room for `tokens` more.
    pub(crate) fn check(
        &self,
        layers: usize,
        key_value_heads: usize,
        head_dim: usize,
        tokens: usize,
    ) -> Result<(), Error> {
        if (self.layers.len(), self.key_value_heads, self.head_dim)
            != (layers, key_value_heads, head_dim)
        {
            let describe = |layers, heads, dim| {
                format!("{layers} layers of {heads} key-value heads of width {dim}")
            };
            return Err(Error::CacheShape {
                found: describe(self.layers.len(), self.key_value_heads, self.head_dim),
                needed: describe(layers, key_value_heads, head_dim),
            });
        }
        if tokens > self.options.context - self.position {
            return Err(Error::ContextFull {
                position: self.position,
                tokens,
                capacity: self.options.context,
            });
        }
        match self
            .layers
            .iter()
            .position(|layer| layer.keys.is_none() || layer.values.is_none())
        {
            Some(layer) => Err(Error::CacheLost { layer }),
            None => Ok(()),
        }
    }

    /// Writes a layer's keys and values, `[1, key_value_heads, tokens, head_dim]`, behind the tokens held, and returns
    /// views of all of them, `[1, key_value_heads, position + tokens, head_dim]`.
    ///
    /// The tokens count only after [`advance`](Self::advance), so that a pass that fails midway leaves no trace.
    pub(crate) fn append(
        &mut self,
        layer: usize,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> Result<(Tensor<4>, Tensor<4>), Error> {
        let position = self.position;
        let lost = || Error::CacheLost { layer };
        let slot = self.layers.get_mut(layer).ok_or_else(lost)?;
        let keys = write(&mut slot.keys, position, keys).ok_or_else(lost)?;
        let values = write(&mut slot.values, position, values).ok_or_else(lost)?;
        Ok((keys, values))
    }

    /// Counts `tokens` more tokens as held, once all layers have appended them.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.position += tokens;
    }
}

fn write(slot: &mut Option<Tensor<4>>, position: usize, new: Tensor<4>) -> Option<Tensor<4>> {
    let [batch, heads, tokens, width] = new.dims();
    let end = position + tokens;
    let storage = slot.take()?;
    let dtype = storage.dtype();
    let storage = storage.slice_assign(
        [0..batch, 0..heads, position..end, 0..width],
        new.cast(dtype),
    );
    let view = storage.clone().narrow(2, 0, end).cast(DType::F32);
    *slot = Some(storage);
    Some(view)
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

    use super::*;
    use crate::presets;

    fn config() -> ModelConfig {
        ModelConfig::from_json(
            r#"{"model_type": "llama", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2,
                "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8}"#,
        )
        .unwrap()
    }

    /// `[1, 2, tokens, 2]` filled with `base`, `base + 1`, …
    fn tensor(base: usize, tokens: usize) -> Tensor<4> {
        let values: Vec<f32> = (base..base + 4 * tokens).map(|i| i as f32).collect();
        Tensor::from_data(
            TensorData::new(values, [1, 2, tokens, 2]),
            (&Device::default(), DType::F32),
        )
    }

    fn values(tensor: Tensor<4>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn tokens_are_appended_per_head_and_layer() {
        let mut cache = KvCache::new(&config(), &CacheOptions::new(3), &Device::default()).unwrap();
        for layer in 0..2 {
            let (keys, seen) = cache
                .append(layer, tensor(100 * layer, 2), tensor(50, 2))
                .unwrap();
            assert_eq!(values(keys), values(tensor(100 * layer, 2)));
            assert_eq!(values(seen), values(tensor(50, 2)));
        }
        cache.advance(2);
        assert_eq!((cache.position(), cache.capacity()), (2, 3));
        let (keys, _) = cache.append(1, tensor(200, 1), tensor(0, 1)).unwrap();
        assert_eq!(keys.dims(), [1, 2, 3, 2]);
        assert_eq!(
            values(keys),
            [
                100., 101., 102., 103., 200., 201., 104., 105., 106., 107., 202., 203.
            ]
        );
    }

    #[test]
    fn bytes_are_counted() {
        let config = ModelConfig::from_json(presets::config("llama-1b").unwrap()).unwrap();
        assert_eq!(
            KvCache::bytes(&config, &CacheOptions::new(2048)),
            2 * 22 * 4 * 64 * 2048 * 4
        );
        assert_eq!(
            KvCache::bytes(&config, &CacheOptions::new(usize::MAX)),
            u64::MAX
        );
    }

    #[test]
    fn impossible_contexts_are_refused() {
        for context in [0, MAX_CONTEXT + 1, usize::MAX] {
            let error = KvCache::new(&config(), &CacheOptions::new(context), &Device::default())
                .unwrap_err();
            assert!(error.to_string().contains("--context"), "{error}");
        }
    }

    #[test]
    fn truncating_only_shortens() {
        let mut cache = KvCache::new(&config(), &CacheOptions::new(3), &Device::default()).unwrap();
        cache.advance(2);
        cache.truncate(9).unwrap();
        assert_eq!(cache.position(), 2);
        cache.truncate(1).unwrap();
        assert_eq!(cache.position(), 1);
    }
}
