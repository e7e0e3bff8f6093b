//! Rotary position embedding.

use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::{ModelConfig, RopeConfig, RopeScaling};

/// The frequencies of a rotary position embedding ([Su et al., 2021](https://arxiv.org/abs/2104.09864)), in the half-split
/// layout of `transformers`: dimension `i` is rotated together with dimension `i + head_dim / 2`.
#[derive(Debug, Clone)]
pub struct Rope {
    /// Radians per position of each pair of dimensions, `[head_dim / 2]`.
    frequencies: Vec<f32>,
}

impl Rope {
    /// The frequencies of a model.
    pub fn new(config: &ModelConfig) -> Self {
        let width = config.head_dim;
        let frequencies = (0..width / 2)
            .map(|i| {
                let frequency = config.rope.theta.powf(-(2.0 * i as f64) / width as f64);
                scale(frequency, &config.rope) as f32
            })
            .collect();
        Self { frequencies }
    }

    /// The rotations of `tokens` positions from `start` on. All layers share them.
    pub fn at(&self, start: usize, tokens: usize, device: &Device) -> Rotation {
        let half = self.frequencies.len();
        let mut cos = Vec::with_capacity(tokens * half);
        let mut sin = Vec::with_capacity(tokens * half);
        for position in start..start + tokens {
            for &frequency in &self.frequencies {
                // The angle is an f32 as in the reference; its sine is not worth less than the full accuracy.
                let angle = f64::from(position as f32 * frequency);
                cos.push(angle.cos() as f32);
                sin.push(angle.sin() as f32);
            }
        }
        let tensor = |values| {
            Tensor::from_data(
                TensorData::new(values, [1, tokens, 1, half]),
                (device, DType::F32),
            )
        };
        Rotation {
            cos: tensor(cos),
            sin: tensor(sin),
        }
    }
}

/// A frequency after scaling for long contexts.
fn scale(frequency: f64, config: &RopeConfig) -> f64 {
    let RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings,
    } = config.scaling
    else {
        return frequency;
    };
    // How many times the wave fits into the context first trained for.
    let waves = original_max_position_embeddings as f64 * frequency / (2.0 * std::f64::consts::PI);
    if waves < low_freq_factor {
        frequency / factor
    } else if waves > high_freq_factor {
        frequency
    } else {
        let smooth = (waves - low_freq_factor) / (high_freq_factor - low_freq_factor);
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

/// The rotations of some consecutive positions.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// `[1, tokens, 1, head_dim / 2]`.
    cos: Tensor<4>,
    /// `[1, tokens, 1, head_dim / 2]`.
    sin: Tensor<4>,
}

impl Rotation {
    /// Rotates `[batch, tokens, heads, head_dim]`.
    pub fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, _, _, width] = x.dims();
        let half = width / 2;
        let left = x.clone().narrow(3, 0, half);
        let right = x.narrow(3, half, half);
        let turned_left = left.clone() * self.cos.clone() - right.clone() * self.sin.clone();
        let turned_right = right * self.cos.clone() + left * self.sin.clone();
        Tensor::cat(vec![turned_left, turned_right], 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(scaling: &str) -> ModelConfig {
        ModelConfig::from_json(&format!(
            r#"{{"model_type": "llama", "hidden_size": 128, "intermediate_size": 8, "num_hidden_layers": 1,
                "num_attention_heads": 2, "vocab_size": 8, "rope_theta": 500000.0, "rope_scaling": {scaling}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn rotates_pairs_by_position_times_frequency() {
        let device = Device::default();
        let rope = Rope::new(&config("null"));
        let x: Vec<f32> = (0..2 * 64).map(|i| (i as f32 * 0.7).sin()).collect();
        let input = Tensor::from_data(
            TensorData::new(x.clone(), [1, 2, 1, 64]),
            (&device, DType::F32),
        );
        let found = rope
            .at(1000, 2, &device)
            .apply(input)
            .into_data()
            .try_to_vec::<f32>()
            .unwrap();
        for token in 0..2 {
            for i in 0..32 {
                let angle = (1000 + token) as f64 * 500_000f64.powf(-(i as f64) / 32.0);
                let (a, b) = (
                    f64::from(x[token * 64 + i]),
                    f64::from(x[token * 64 + i + 32]),
                );
                let expected = [
                    a * angle.cos() - b * angle.sin(),
                    b * angle.cos() + a * angle.sin(),
                ];
                let found = [found[token * 64 + i], found[token * 64 + i + 32]];
                for (found, expected) in found.into_iter().zip(expected) {
                    // An f32 angle of 1000 radians is off by up to 2⁻¹⁵·2.
                    assert!(
                        (f64::from(found) - expected).abs() < 1e-4,
                        "{found} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let plain = Rope::new(&config("null")).frequencies;
        let scaled = Rope::new(&config(
            r#"{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}"#,
        ))
        .frequencies;
        assert_eq!(plain[0], scaled[0]);
        assert_eq!(plain[31] / 8.0, scaled[31]);
        let blended = plain
            .iter()
            .zip(&scaled)
            .filter(|(p, s)| s < p && **s > *p / 8.0)
            .count();
        assert!((1..32).contains(&blended));
        assert!(scaled.windows(2).all(|pair| pair[1] < pair[0]));
    }
}
