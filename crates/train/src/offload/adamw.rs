//! AdamW, value by value ([Loshchilov and Hutter, 2017](https://arxiv.org/abs/1711.05101)), as
//! `torch.optim.AdamW` computes it.

use crate::Error;

/// How weights learn whose states are on the disk: the settings of AdamW, as `torch.optim.AdamW`
/// has them but for the decay, which is none unless said.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OffloadedAdamW {
    /// The betas.
    pub betas: [f32; 2],
    /// The epsilon.
    pub epsilon: f32,
    /// What a weight loses of itself in a step, times the learning rate.
    pub weight_decay: f32,
    /// The greatest norm of the gradients of a step; none for any.
    pub max_grad_norm: Option<f64>,
}

impl Default for OffloadedAdamW {
    fn default() -> Self {
        Self { betas: [0.9, 0.999], epsilon: 1e-8, weight_decay: 0.0, max_grad_norm: None }
    }
}

impl OffloadedAdamW {
    /// Whether all settings are in range.
    ///
    /// # Errors
    /// One that is not.
    pub fn check(&self) -> Result<(), Error> {
        let refused = |what: &str, value: &dyn std::fmt::Display, expected: &str| {
            Err(Error::Setting(format!("{what} is {value}, but it must be {expected}")))
        };
        for (name, share) in [
            ("the first beta", self.betas[0]),
            ("the second beta", self.betas[1]),
            ("the weight decay", self.weight_decay),
        ] {
            if !(0.0..1.0).contains(&share) {
                return refused(name, &share, "from 0 to below 1");
            }
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return refused("epsilon", &self.epsilon, "a number above 0");
        }
        match self.max_grad_norm {
            Some(most) if !(most.is_finite() && most > 0.0) => {
                refused("the greatest norm of gradients", &most, "a number above 0")
            }
            _ => Ok(()),
        }
    }
}

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
    pub fn new(options: &OffloadedAdamW, step: usize, rate: f64, scale: f64) -> Self {
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
            OffloadedAdamW { betas: [0.9, 0.95], weight_decay: 0.1, ..OffloadedAdamW::default() };
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
