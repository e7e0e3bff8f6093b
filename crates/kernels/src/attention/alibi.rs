//! Attention with linear biases.

use std::ops::Range;

use half::bf16;

use super::lanes::MOST_LANES;

/// Linear biases ([Press et al., 2021](https://arxiv.org/abs/2108.12409)): the farther back a key
/// is, the lower its score, by a slope of each head of queries.
#[derive(Clone, Debug, PartialEq)]
pub struct Alibi {
    slopes: Vec<f32>,
    /// Whether biases are rounded to bf16 and scaled with the score.
    falcon: bool,
}

impl Alibi {
    /// Biases that are added to scaled scores, as BLOOM has them. The slopes of the paper, also for
    /// a number of heads that is no power of two.
    pub fn new(heads: usize) -> Self {
        let even = match heads.is_power_of_two() {
            true => heads,
            false => heads.next_power_of_two() / 2,
        };
        let slopes = |heads: usize, count: usize, step: usize| {
            let base = (-8.0 / heads as f64).exp2() as f32;
            (0..count).map(move |head| f64::from(base).powi((1 + head * step) as i32) as f32)
        };
        // The heads beyond have slopes between those of the others.
        let slopes = slopes(even, even, 1).chain(slopes(2 * even, heads - even, 2)).collect();
        Self { slopes, falcon: false }
    }

    /// Biases as Falcon has them: slopes, positions and their products rounded to bf16, which is
    /// scaled with the score.
    pub fn falcon(heads: usize) -> Self {
        let Self { mut slopes, .. } = Self::new(heads);
        slopes.iter_mut().for_each(|slope| *slope = rounded(*slope));
        Self { slopes, falcon: true }
    }

    /// Heads of queries.
    pub fn heads(&self) -> usize {
        self.slopes.len()
    }

    /// What is added to a score of that head that is multiplied by `scale`. Positions count from a
    /// sequence's first token.
    pub fn bias(&self, head: usize, query: usize, key: usize, scale: f32) -> f32 {
        let slope = self.slopes[head];
        match self.falcon {
            true => (rounded_product(slope, key) - rounded_product(slope, query)) * scale,
            false => slope * (key as f32 - query as f32),
        }
    }

    /// Adds biases to the scores of `columns`, of as many rows as lanes one behind the other for
    /// each column, that are not scaled yet. `rows` are the heads and the positions of the first of
    /// them; the block's first column is at `start`.
    #[inline(always)]
    pub(super) fn add(
        &self,
        scores: &mut [f32],
        lanes: usize,
        columns: Range<usize>,
        start: usize,
        rows: impl Iterator<Item = (usize, usize)>,
        scale: f32,
    ) {
        let (mut slopes, mut queries) = ([0.0; MOST_LANES], [0.0; MOST_LANES]);
        for ((slope, query), (head, position)) in slopes.iter_mut().zip(&mut queries).zip(rows) {
            (*slope, *query) = match self.falcon {
                true => (self.slopes[head], rounded_product(self.slopes[head], position)),
                false => (self.slopes[head] / scale, position as f32),
            };
        }
        let bias = slopes.iter().zip(&queries);
        for column in columns {
            let scores = scores[column * lanes..][..lanes].iter_mut().zip(bias.clone());
            match self.falcon {
                true => {
                    for (score, (slope, query)) in scores {
                        *score += rounded_product(*slope, start + column) - query;
                    }
                }
                false => {
                    let key = (start + column) as f32;
                    for (score, (slope, query)) in scores {
                        *score += slope * (key - query);
                    }
                }
            }
        }
    }
}

fn rounded(x: f32) -> f32 {
    bf16::from_f32(x).to_f32()
}

fn rounded_product(slope: f32, position: usize) -> f32 {
    rounded(slope * rounded(position as f32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_those_of_transformers() {
        assert_eq!(Alibi::new(8).slopes, (1..=8).map(|n| 0.5f32.powi(n)).collect::<Vec<_>>());
        // `_get_alibi_slopes(6)` of transformers 5.23.
        let six = [0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125];
        assert_eq!(Alibi::new(6).slopes, six);
        assert_eq!(Alibi::new(1).slopes, [0.00390625]);
        let twelve = Alibi::new(12).slopes;
        assert_eq!(twelve[..8], Alibi::new(8).slopes);
        for (found, power) in twelve[8..].iter().zip([0.5, 1.5, 2.5, 3.5]) {
            assert!((found - (-power as f32).exp2()).abs() < 1e-7, "{found}");
        }
    }

    #[test]
    fn falcon_rounds_as_pytorch_does() {
        // `(torch.tensor([2 ** -0.5]).bfloat16() * torch.tensor(positions)).float()`
        for (position, expected) in TORCH {
            assert_eq!(rounded_product(Alibi::falcon(12).slopes[8], position), expected);
        }
    }

    const TORCH: [(usize, f32); 4] = [(3, 2.125), (257, 181.0), (259, 184.0), (1001, 708.0)];
}
