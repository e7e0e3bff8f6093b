//! Causal self-attention with grouped queries.

use burn::module::Module;
use burn::tensor::{DType, Device, Tensor, TensorData, activation::softmax};

use crate::{Error, KvCache, Linear, ModelConfig, Rotation};

/// Bound on a tensor of attention scores, in bytes: queries are processed in chunks that stay below it. A single query
/// whose scores alone are larger (`heads · context · 4` bytes) makes a chunk of its own.
pub const SCORE_BYTES: usize = 8 << 20;

/// Causal self-attention with grouped queries ([Ainslie et al., 2023](https://arxiv.org/abs/2305.13245)).
#[derive(Module, Debug)]
pub struct Attention {
    /// `[heads · head_dim, hidden]`.
    pub q_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`.
    pub k_proj: Linear,
    /// `[key_value_heads · head_dim, hidden]`.
    pub v_proj: Linear,
    /// `[hidden, heads · head_dim]`.
    pub o_proj: Linear,
    heads: usize,
    key_value_heads: usize,
    head_dim: usize,
}

impl Attention {
    /// A block without storage.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let (hidden, queries, keys) = (
            config.hidden_size,
            config.query_size(),
            config.key_value_size(),
        );
        Self {
            q_proj: Linear::new(hidden, queries, device),
            k_proj: Linear::new(hidden, keys, device),
            v_proj: Linear::new(hidden, keys, device),
            o_proj: Linear::new(queries, hidden, device),
            heads: config.num_attention_heads,
            key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    /// `[1, tokens, hidden]` f32 to the same. The tokens' keys and values are appended to layer `layer` of the cache.
    pub(crate) fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let [batch, tokens, _] = x.dims();
        let split = |y: Tensor<3>, heads| y.reshape([batch, tokens, heads, self.head_dim]);
        let queries = rotation.apply(split(self.q_proj.forward(x.clone()), self.heads));
        let keys = rotation.apply(split(self.k_proj.forward(x.clone()), self.key_value_heads));
        let values = split(self.v_proj.forward(x), self.key_value_heads);
        let (keys, values) = cache.append(layer, keys.swap_dims(1, 2), values.swap_dims(1, 2))?;
        let mixed = self.attend(queries, keys, values);
        Ok(self.o_proj.forward(mixed))
    }

    /// Queries `[1, tokens, heads, head_dim]` over keys and values `[1, key_value_heads, length, head_dim]`, of which the
    /// last `tokens` belong to the queries; gives `[1, tokens, heads · head_dim]`.
    fn attend(&self, queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<3> {
        let [batch, tokens, _, _] = queries.dims();
        let past = keys.dims()[2] - tokens;
        let chunk = chunk_tokens(self.heads, past + tokens);
        if tokens <= chunk {
            return self.attend_chunk(queries, keys, values);
        }
        let width = self.heads * self.head_dim;
        let mut mixed = Tensor::zeros([batch, tokens, width], (&queries.device(), DType::F32));
        for start in (0..tokens).step_by(chunk) {
            let count = chunk.min(tokens - start);
            let seen = past + start + count;
            let part = self.attend_chunk(
                queries.clone().narrow(1, start, count),
                keys.clone().narrow(2, 0, seen),
                values.clone().narrow(2, 0, seen),
            );
            mixed = mixed.slice_assign([0..batch, start..start + count, 0..width], part);
        }
        mixed
    }

    /// As [`attend`](Self::attend), with all scores at once.
    fn attend_chunk(&self, queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<3> {
        let [batch, tokens, heads, width] = queries.dims();
        let length = keys.dims()[2];
        // The queries that share a key head lie one behind the other: one product per key head, no copies of keys.
        let rows = heads / self.key_value_heads * tokens;
        let grouped = queries
            .swap_dims(1, 2)
            .reshape([batch, self.key_value_heads, rows, width]);
        let mut scores = (grouped * (width as f64).powf(-0.5)).matmul(keys.swap_dims(2, 3));
        if tokens > 1 {
            let bias = causal_bias(tokens, length, &scores.device());
            scores = (scores.reshape([batch, heads, tokens, length]) + bias).reshape([
                batch,
                self.key_value_heads,
                rows,
                length,
            ]);
        }
        let mixed = softmax(scores, 3).matmul(values);
        mixed
            .reshape([batch, heads, tokens, width])
            .swap_dims(1, 2)
            .reshape([batch, tokens, heads * width])
    }
}

/// How many queries are scored at once against `length` keys.
pub(crate) fn chunk_tokens(heads: usize, length: usize) -> usize {
    (SCORE_BYTES / (heads * length * size_of::<f32>())).max(1)
}

/// `[1, 1, tokens, length]`: 0 where the last `tokens` of `length` positions may look, minus infinity ahead of them.
fn causal_bias(tokens: usize, length: usize, device: &Device) -> Tensor<4> {
    let mut bias = vec![0.0f32; tokens * length];
    for (token, row) in bias.chunks_exact_mut(length).enumerate() {
        row[length - tokens + token + 1..].fill(f32::NEG_INFINITY);
    }
    Tensor::from_data(
        TensorData::new(bias, [1, 1, tokens, length]),
        (device, DType::F32),
    )
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::*;

    /// Attention as the formula has it, one query at a time, in f64.
    fn reference(queries: &[f32], keys: &[f32], values: &[f32], shape: [usize; 5]) -> Vec<f32> {
        let [tokens, heads, key_heads, length, width] = shape;
        let dot = |a: &[f32], b: &[f32]| {
            a.iter()
                .zip(b)
                .map(|(a, b)| f64::from(*a) * f64::from(*b))
                .sum::<f64>()
        };
        let mut mixed = Vec::new();
        for token in 0..tokens {
            for head in 0..heads {
                let query = &queries[(token * heads + head) * width..][..width];
                let row = |data: &'_ [f32], at| {
                    let start = (head / (heads / key_heads) * length + at) * width;
                    data[start..start + width].to_vec()
                };
                let seen = length - tokens + token + 1;
                let weights: Vec<f64> = (0..seen)
                    .map(|at| (dot(query, &row(keys, at)) / (width as f64).sqrt()).exp())
                    .collect();
                let sum: f64 = weights.iter().sum();
                for i in 0..width {
                    let value: f64 = weights
                        .iter()
                        .enumerate()
                        .map(|(at, w)| w * f64::from(row(values, at)[i]))
                        .sum();
                    mixed.push((value / sum) as f32);
                }
            }
        }
        mixed
    }

    #[test]
    fn in_chunks_or_at_once_it_follows_the_formula() {
        let device = Device::default();
        let (heads, key_heads, width) = (32, 4, 6);
        // The last has more scores than the bound: 32 · 300 · 500 · 4 bytes are 19 MB, three chunks.
        for (tokens, length) in [(1, 1), (1, 9), (5, 5), (3, 11), (300, 500usize)] {
            let chunks = usize::div_ceil(tokens, chunk_tokens(heads, length));
            assert_eq!(chunks, if tokens == 300 { 3 } else { 1 });
            let attention = Attention {
                q_proj: Linear::new(1, 1, &device),
                k_proj: Linear::new(1, 1, &device),
                v_proj: Linear::new(1, 1, &device),
                o_proj: Linear::new(1, 1, &device),
                heads,
                key_value_heads: key_heads,
                head_dim: width,
            };
            let random = |shape: [usize; 4]| {
                Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device)
            };
            let queries = random([1, tokens, heads, width]);
            let keys = random([1, key_heads, length, width]);
            let values = random([1, key_heads, length, width]);
            let data = |tensor: &Tensor<4>| tensor.to_data().try_to_vec::<f32>().unwrap();
            let expected = reference(
                &data(&queries),
                &data(&keys),
                &data(&values),
                [tokens, heads, key_heads, length, width],
            );
            let found = attention
                .attend(queries, keys, values)
                .into_data()
                .try_to_vec::<f32>()
                .unwrap();
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() < 1e-5,
                    "{tokens} of {length}: {found} {expected}"
                );
            }
            assert_eq!(found.len(), expected.len());
        }
    }

    #[test]
    fn chunks_keep_their_bound() {
        for (heads, length) in [(32, 2048), (32, 1 << 17), (1, 1), (4096, 1 << 24)] {
            let tokens = chunk_tokens(heads, length);
            assert!(tokens == 1 || tokens * heads * length * 4 <= SCORE_BYTES);
            assert!((tokens + 1) * heads * length * 4 > SCORE_BYTES);
        }
    }
}
