//! AdamW, value by value ([Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101)), as
//! `torch.optim.AdamW` computes it.

use crate::FinetuneOptions;

/// What a step of AdamW multiplies with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AdamWStep {
    /// What gradients are multiplied by first.
    pub scale: f32,
    decay: f32,
    first: f32,
    second: [f32; 2],
    epsilon: f32,
    rate: f32,
    second_root: f32,
}

/// Some values of a tensor, and what AdamW keeps of them.
pub(super) struct Values<'a> {
    pub weights: &'a mut [f32],
    pub first_moments: &'a mut [f32],
    pub second_moments: &'a mut [f32],
    pub gradients: &'a [f32],
}

impl AdamWStep {
    /// Step `step`, counted from 1.
    pub fn new(options: &FinetuneOptions, step: usize, rate: f64, scale: f64) -> Self {
        let [first, second] = options.betas.map(exact);
        let power = |beta: f64| 1.0 - beta.powf(step as f64);
        Self {
            scale: scale as f32,
            decay: (1.0 - rate * exact(options.weight_decay)) as f32,
            first: (1.0 - first) as f32,
            second: [second as f32, (1.0 - second) as f32],
            epsilon: options.epsilon,
            rate: (rate / power(first)) as f32,
            second_root: power(second).sqrt() as f32,
        }
    }

    /// Changes the values.
    pub fn apply(&self, values: Values<'_>) {
        let Values { weights, first_moments, second_moments, gradients } = values;
        let moments = first_moments.iter_mut().zip(second_moments);
        let values = weights.iter_mut().zip(moments).zip(gradients);
        for ((weight, (first, second)), gradient) in values {
            let gradient = gradient * self.scale;
            *weight *= self.decay;
            *first += (gradient - *first) * self.first;
            *second = *second * self.second[0] + gradient * gradient * self.second[1];
            let root = second.sqrt() / self.second_root + self.epsilon;
            *weight -= self.rate * (*first / root);
        }
    }
}

/// A setting as it was written in decimals, which torch computes with.
fn exact(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_torch() {
        // p = torch.tensor([0.5, -2.0, 3.0]); AdamW([p], lr=0.1, betas=(0.9, 0.95), eps=1e-8,
        // weight_decay=0.1); gradients [1, -4, 0.5] and [-2, 1, 0.25].
        let options =
            FinetuneOptions { betas: [0.9, 0.95], weight_decay: 0.1, ..FinetuneOptions::default() };
        let mut weights = [0.5, -2.0, 3.0];
        let (mut first_moments, mut second_moments) = ([0.0; 3], [0.0; 3]);
        for (step, gradients) in [(1, [2.0, -8.0, 1.0]), (2, [-4.0, 2.0, 0.5])] {
            AdamWStep::new(&options, step, 0.1, 0.5).apply(Values {
                weights: &mut weights,
                first_moments: &mut first_moments,
                second_moments: &mut second_moments,
                gradients: &gradients,
            });
        }
        let want = [0.427_387_4, -1.813_723_3, 2.747_371];
        for (found, want) in weights.iter().zip(want) {
            assert!((found - want).abs() <= 2e-7 * want.abs(), "{weights:?} for {want:?}");
        }
    }
}
