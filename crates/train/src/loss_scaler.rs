//! Dynamic scaling of the loss for fp16.

/// Keeps small fp16 gradients from vanishing: the loss is multiplied by a scale and gradients are
/// divided by it. After an overflow the scale shrinks, after many good steps it grows.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct LossScaler {
    scale: f64,
    growth_factor: f64,
    backoff_factor: f64,
    growth_interval: usize,
    good_steps: usize,
}

impl Default for LossScaler {
    /// As PyTorch: 65536, times 2 after 2000 good steps, times 0.5 after an overflow.
    fn default() -> Self {
        Self::new(65536.0, 2.0, 0.5, 2000)
    }
}

impl LossScaler {
    /// Starts with `scale`; multiplies it by `growth_factor` after `growth_interval` good steps
    /// in a row and by `backoff_factor` after an overflow.
    #[must_use]
    pub fn new(
        scale: f64,
        growth_factor: f64,
        backoff_factor: f64,
        growth_interval: usize,
    ) -> Self {
        Self { scale, growth_factor, backoff_factor, growth_interval, good_steps: 0 }
    }

    /// What the next loss is multiplied by.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Takes note of a step, and whether its gradients were finite.
    pub(crate) fn update(&mut self, is_finite: bool) {
        if !is_finite {
            self.scale *= self.backoff_factor;
            self.good_steps = 0;
            return;
        }
        self.good_steps += 1;
        if self.good_steps == self.growth_interval {
            self.scale *= self.growth_factor;
            self.good_steps = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LossScaler;

    #[test]
    fn the_scale_halves_at_once_and_doubles_after_the_interval() {
        let mut scaler = LossScaler::new(8.0, 2.0, 0.5, 3);
        let scales: Vec<_> = [false, true, true, false, true, true, true, true]
            .map(|is_finite| {
                scaler.update(is_finite);
                scaler.scale()
            })
            .into();
        assert_eq!(scales, [4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 4.0, 4.0]);
    }
}
