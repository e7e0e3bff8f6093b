//! Rotary position embedding.

use std::borrow::Cow;
use std::f64::consts::PI;

use burn::tensor::{DType, Device, Tensor, TensorData};

use outsize_kernels::RotaryPairs;

use super::rotation::Rotation;
use crate::config::{RopeConfig, RopeScaling};

/// The frequencies of a rotary position embedding ([Su et al.,
/// 2021](https://arxiv.org/abs/2104.09864)), in the half-split layout of `transformers`: dimension
/// `i` is rotated together with dimension `i + head_dim / 2`.
#[derive(Debug, Clone)]
pub struct Rope {
    config: RopeConfig,
    head_dim: usize,
    /// Radians per position of each pair of dimensions, `[head_dim / 2]`; with dynamic scaling
    /// those of short texts.
    frequencies: Vec<f32>,
    /// What rotated vectors are multiplied with.
    magnitude: f64,
    pairs: RotaryPairs,
    /// Whether vectors are turned the other way.
    is_reversed: bool,
    growth: Option<QueryGrowth>,
    /// What frequencies are multiplied by, `[head_dim / 2]`, if by anything.
    factors: Option<Vec<f32>>,
}

/// How queries grow with their position, by steps:
/// `1 + rate · ln(1 + ⌊(position + first) / every⌋)` ([Nakanishi,
/// 2025](https://arxiv.org/abs/2501.19399), as Llama 4 has it).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryGrowth {
    /// How fast.
    pub rate: f64,
    /// Positions of a step.
    pub every: usize,
    /// What the first position counts as: 0 or 1.
    pub first: usize,
}

impl QueryGrowth {
    fn at(&self, position: usize) -> f32 {
        let steps = (position + self.first) / self.every;
        (1.0 + self.rate * (steps as f64).ln_1p()) as f32
    }
}

impl Rope {
    /// The frequencies of a model of whose heads `head_dim` elements are rotated, the first ones.
    pub fn new(config: &RopeConfig, head_dim: usize) -> Self {
        let magnitude = match config.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::LongRope { attention_factor, .. } => attention_factor,
            _ => 1.0,
        };
        Self {
            config: config.clone(),
            head_dim,
            frequencies: frequencies(config, head_dim, 0),
            magnitude,
            pairs: RotaryPairs::Halves,
            is_reversed: false,
            growth: None,
            factors: None,
        }
    }

    /// The same with frequencies multiplied, each by one of `[head_dim / 2]`.
    pub(crate) fn multiplied(self, factors: Vec<f32>) -> Self {
        Self { factors: Some(factors), ..self }
    }

    /// The same that turns vectors the other way.
    pub fn reversed(self) -> Self {
        Self { is_reversed: true, ..self }
    }

    /// The same for neighbouring dimensions rotated together, as in GPT-J.
    pub fn interleaved(self) -> Self {
        let pairs = RotaryPairs::Interleaved;
        Self { pairs, ..self }
    }

    /// The same for queries that grow with their position, if they do.
    pub fn growing(self, growth: Option<QueryGrowth>) -> Self {
        Self { growth, ..self }
    }

    /// One that rotates nothing, for queries that grow with their position.
    pub fn still(growth: QueryGrowth) -> Self {
        let config = RopeConfig { theta: 1.0, scaling: RopeScaling::Default };
        Self::new(&config, 0).growing(Some(growth))
    }

    /// Elements of a head that are rotated.
    pub fn width(&self) -> usize {
        self.head_dim
    }

    /// The rotations of `tokens` columns from `start` on, for texts that are `length` columns long
    /// and begin after `padding` columns. All layers share them.
    ///
    /// With dynamic scaling the frequencies are those for a text's length, its padding not counted.
    /// As in `transformers`, keys in a cache keep the rotation they got.
    pub(crate) fn at(
        &self,
        start: usize,
        tokens: usize,
        length: usize,
        padding: &[usize],
        device: &Device,
    ) -> Rotation {
        let half = self.frequencies.len();
        // Texts without padding have the same rotations.
        let rows = match padding.iter().any(|&padding| padding > 0) {
            true => padding,
            false => &padding[..1],
        };
        let mut angles = self.angles(rows.len() * tokens * half);
        for &padding in rows {
            let scaled = self.for_length(length.saturating_sub(padding));
            for column in start..start + tokens {
                let position = column.saturating_sub(padding);
                scaled.iter().for_each(|frequency| angles.push(position, *frequency));
            }
        }
        // Nothing grows within the first step.
        let growth = self.growth.filter(|growth| start + tokens + growth.first > growth.every);
        let growth = growth.map(|growth| {
            let positions = rows.iter().flat_map(|padding| {
                (start..start + tokens).map(|column| column.saturating_sub(*padding))
            });
            let scales: Vec<f32> = positions.map(|position| growth.at(position)).collect();
            let scales = TensorData::new(scales, [rows.len(), tokens, 1, 1]);
            Tensor::from_data(scales, (device, DType::F32))
        });
        let angles = (half > 0).then(|| angles.tensors([rows.len(), tokens, 1, half], device));
        Rotation::new(self.pairs, angles).growing(growth)
    }

    /// The rotations of a text's columns, of whose pairs of dimensions each has a position of its
    /// own: those of each column. Queries do not grow.
    pub(crate) fn at_positions(
        &self,
        columns: &[Box<[usize]>],
        length: usize,
        device: &Device,
    ) -> Rotation {
        let scaled = self.for_length(length);
        let shape = [1, columns.len(), 1, scaled.len()];
        let mut angles = self.angles(columns.len() * scaled.len());
        for (position, frequency) in
            columns.iter().flat_map(|pairs| pairs.iter().zip(scaled.iter()))
        {
            angles.push(*position, *frequency);
        }
        Rotation::new(self.pairs, Some(angles.tensors(shape, device)))
    }

    /// Whether all frequencies are numbers.
    #[cfg(test)]
    pub(crate) fn is_finite(&self) -> bool {
        self.frequencies.iter().all(|f| f.is_finite()) && self.magnitude.is_finite()
    }

    /// So many angles, none of them yet.
    fn angles(&self, count: usize) -> Angles {
        let sin = if self.is_reversed { -self.magnitude } else { self.magnitude };
        Angles::new([self.magnitude, sin], count)
    }

    fn for_length(&self, length: usize) -> Cow<'_, [f32]> {
        let frequencies = self.unmultiplied(length);
        match &self.factors {
            Some(factors) => frequencies.iter().zip(factors).map(|(one, by)| one * by).collect(),
            None => frequencies,
        }
    }

    fn unmultiplied(&self, length: usize) -> Cow<'_, [f32]> {
        match self.config.scaling {
            RopeScaling::Dynamic { max_position_embeddings, .. }
                if length > max_position_embeddings =>
            {
                Cow::Owned(frequencies(&self.config, self.head_dim, length))
            }
            RopeScaling::LongRope { original_max_position_embeddings, .. }
                if length > original_max_position_embeddings =>
            {
                Cow::Owned(frequencies(&self.config, self.head_dim, length))
            }
            _ => Cow::Borrowed(&self.frequencies),
        }
    }
}

/// Cosines and sines of positions.
struct Angles {
    cos: Vec<f32>,
    sin: Vec<f32>,
    /// What cosines and sines are multiplied with.
    magnitudes: [f64; 2],
}

impl Angles {
    fn new(magnitudes: [f64; 2], count: usize) -> Self {
        Self { cos: Vec::with_capacity(count), sin: Vec::with_capacity(count), magnitudes }
    }

    fn push(&mut self, position: usize, frequency: f32) {
        // The angle is an f32 as in the reference; its sine is not worth less than the full
        // accuracy.
        let angle = f64::from(position as f32 * frequency);
        let [cos, sin] = self.magnitudes;
        self.cos.push((angle.cos() * cos) as f32);
        self.sin.push((angle.sin() * sin) as f32);
    }

    fn tensors(self, shape: [usize; 4], device: &Device) -> [Tensor<4>; 2] {
        [self.cos, self.sin]
            .map(|values| Tensor::from_data(TensorData::new(values, shape), (device, DType::F32)))
    }
}

/// Radians per position of each pair of dimensions, in a text of `length` tokens.
fn frequencies(config: &RopeConfig, head_dim: usize, length: usize) -> Vec<f32> {
    let width = head_dim as f64;
    let plain = |theta: f64, pair: usize| theta.powf(-(2.0 * pair as f64) / width);
    let frequency = |pair: usize| {
        let frequency = plain(config.theta, pair);
        match &config.scaling {
            RopeScaling::Default => frequency,
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                ..
            } => {
                let long = length > *original_max_position_embeddings;
                frequency / if long { long_factor } else { short_factor }[pair]
            }
            &RopeScaling::Linear { factor } => frequency / factor,
            &RopeScaling::Proportional { factor, pairs } => match pair < pairs {
                true => frequency / factor,
                false => 0.0,
            },
            &RopeScaling::Dynamic { factor, max_position_embeddings } => {
                let trained = max_position_embeddings as f64;
                let growth = factor * (length as f64).max(trained) / trained - (factor - 1.0);
                plain(config.theta * growth.powf(width / (width - 2.0)), pair)
            }
            &RopeScaling::Yarn { factor, .. } => {
                let kept = 1.0 - yarn_ramp(config, width, pair);
                frequency / factor * (1.0 - kept) + frequency * kept
            }
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                // How many times the wave fits into the context first trained for.
                let waves = original_max_position_embeddings as f64 * frequency / (2.0 * PI);
                if waves < low_freq_factor {
                    frequency / factor
                } else if waves >= high_freq_factor {
                    frequency
                } else {
                    let smooth = (waves - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            }
        }
    };
    (0..head_dim / 2).map(|pair| frequency(pair) as f32).collect()
}

/// How far YaRN stretches a pair of dimensions: from 0, kept, to 1, in full.
fn yarn_ramp(config: &RopeConfig, width: f64, pair: usize) -> f64 {
    let RopeScaling::Yarn {
        beta_fast, beta_slow, original_max_position_embeddings, truncate, ..
    } = config.scaling
    else {
        return 0.0;
    };
    // The dimension whose wave fits so often into the context first trained for.
    let dimension = |waves: f64| {
        let trained = original_max_position_embeddings as f64;
        width * (trained / (waves * 2.0 * PI)).ln() / (2.0 * config.theta.ln())
    };
    let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
    if truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(width - 1.0));
    if low == high {
        high += 0.001;
    }
    ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use crate::arch::LlamaForCausalLm;

    fn rope(fields: &str) -> Rope {
        let config = ModelConfig::from_json(&format!(
            r#"{{"model_type": "llama", "hidden_size": 128, "intermediate_size": 8, "num_hidden_layers": 1,
                "vocab_size": 8, {fields}}}"#
        ));
        let config = config.unwrap();
        let config = config.of::<LlamaForCausalLm>().unwrap();
        Rope::new(&config.rope, config.head_dim)
    }

    /// With heads of 64.
    fn scaled(scaling: &str) -> Rope {
        rope(&format!(
            r#""num_attention_heads": 2, "rope_theta": 500000.0, "rope_scaling": {scaling}"#
        ))
    }

    #[test]
    fn rotates_pairs_by_position_times_frequency() {
        let device = Device::default();
        let rope = scaled("null");
        let x: Vec<f32> = (0..2 * 64).map(|i| (i as f32 * 0.7).sin()).collect();
        let input =
            Tensor::from_data(TensorData::new(x.clone(), [1, 2, 1, 64]), (&device, DType::F32));
        let found = rope
            .at(1000, 2, 1002, &[0], &device)
            .apply(input)
            .into_data()
            .try_to_vec::<f32>()
            .unwrap();
        for token in 0..2 {
            for i in 0..32 {
                let angle = (1000 + token) as f64 * 500_000f64.powf(-(i as f64) / 32.0);
                let (a, b) = (f64::from(x[token * 64 + i]), f64::from(x[token * 64 + i + 32]));
                let expected =
                    [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()];
                let found = [found[token * 64 + i], found[token * 64 + i + 32]];
                for (found, expected) in found.into_iter().zip(expected) {
                    // An f32 angle of 1000 radians is off by up to 2⁻¹⁵·2.
                    assert!((f64::from(found) - expected).abs() < 1e-4, "{found} {expected}");
                }
            }
        }
    }

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let plain = scaled("null").frequencies;
        let scaled = scaled(
            r#"{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}"#,
        )
        .frequencies;
        assert_eq!(plain[0], scaled[0]);
        assert_eq!(plain[31] / 8.0, scaled[31]);
        let blended = plain.iter().zip(&scaled).filter(|(p, s)| s < p && **s > *p / 8.0).count();
        assert!((1..32).contains(&blended));
        assert!(scaled.windows(2).all(|pair| pair[1] < pair[0]));
    }

    #[test]
    fn frequencies_are_those_of_transformers() {
        // `ROPE_INIT_FUNCTIONS[type](LlamaConfig(..), "cpu",
        // seq_len=length)` of transformers 5.23: what is multiplied, and the frequencies, with
        // heads of 16.
        let cases = [
            (
                r#"{"rope_type": "linear", "rope_theta": 500000.0, "factor": 4.0}"#,
                8192,
                1,
                1.0,
                [
                    0.25,
                    0.04848068952560425,
                    0.009401507675647736,
                    0.001823166268877685,
                    0.0003535533614922315,
                    6.856204709038138e-05,
                    1.3295739336172119e-05,
                    2.578346311565838e-06,
                ],
            ),
            (
                r#"{"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}"#,
                2048,
                6000,
                1.0,
                [
                    1.0,
                    0.2522999048233032,
                    0.06365524232387543,
                    0.01606021076440811,
                    0.004051989410072565,
                    0.001022316631861031,
                    0.0002579303691163659,
                    6.507580837933347e-05,
                ],
            ),
            (
                r#"{"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768}"#,
                131072,
                1,
                1.138629436111989,
                [
                    1.0,
                    0.17782793939113617,
                    0.03162277862429619,
                    0.004217559937387705,
                    0.0005000000237487257,
                    4.4456985051510856e-05,
                    7.905693564680405e-06,
                    1.405853367941745e-06,
                ],
            ),
            (
                r#"{"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 4.0, "original_max_position_embeddings": 32768, "truncate": false, "beta_fast": 16.0, "beta_slow": 2.0}"#,
                131072,
                1,
                1.138629436111989,
                [
                    1.0,
                    0.17782793939113617,
                    0.03162277862429619,
                    0.005623413249850273,
                    0.0005956799723207951,
                    4.4456985051510856e-05,
                    7.905693564680405e-06,
                    1.405853367941745e-06,
                ],
            ),
            (
                r#"{"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#,
                131072,
                1,
                1.0,
                [
                    1.0,
                    0.193922758102417,
                    0.03760603070259094,
                    0.00729266507551074,
                    0.0005248460220173001,
                    3.428102354519069e-05,
                    6.647869668086059e-06,
                    1.289173155782919e-06,
                ],
            ),
        ];
        for (parameters, trained, length, magnitude, expected) in cases {
            let rope = rope(&format!(
                r#""num_attention_heads": 8, "max_position_embeddings": {trained},
                    "rope_parameters": {parameters}"#
            ));
            assert!((rope.magnitude - magnitude).abs() < 1e-12, "{parameters}");
            let found = rope.for_length(length);
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(expected) {
                let off = (f64::from(*found) - expected).abs() / expected;
                // Theirs are computed in f32.
                assert!(off < 2e-6, "{parameters}: {found} {expected}");
            }
        }
    }

    #[test]
    fn positions_count_from_the_end_of_the_padding() {
        let device = Device::default();
        let values = |x: &Tensor<4>| x.to_data().try_to_vec::<f32>().unwrap();
        for (scaling, trained) in
            [("null", 2048), (r#"{"rope_type": "dynamic", "factor": 2.0}"#, 8)]
        {
            let rope = rope(&format!(
                r#""num_attention_heads": 2, "max_position_embeddings": {trained}, "rope_scaling": {scaling}"#
            ));
            let padded = rope.at(10, 3, 13, &[0, 4], &device);
            let padded = padded.angles.unwrap();
            assert_eq!(padded[0].dims(), [2, 3, 1, 32]);
            for (row, padding) in [(0, 0), (1, 4)] {
                let alone = rope.at(10 - padding, 3, 13 - padding, &[0], &device);
                for (padded, alone) in padded.iter().zip(alone.angles.unwrap()) {
                    assert_eq!(values(&padded.clone().narrow(0, row, 1)), values(&alone));
                }
            }
        }
    }
}
