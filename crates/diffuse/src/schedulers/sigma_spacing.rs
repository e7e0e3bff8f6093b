//! How noise levels are spread between two.

/// The exponent of Karras et al. 2022.
const RHO: f64 = 7.0;

/// How noise levels are spread between the largest and the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SigmaSpacing {
    /// Those of the timesteps.
    Timesteps,
    Karras,
    Exponential,
}

impl SigmaSpacing {
    /// The noise levels of `steps` steps between two, falling; `None` if they are those of the
    /// timesteps.
    pub fn spread(self, [least, greatest]: [f64; 2], steps: usize) -> Option<Vec<f64>> {
        let mix = |from: f64, to: f64, index: usize| {
            from + index as f64 / (steps.max(2) - 1) as f64 * (to - from)
        };
        let sigma = |index| match self {
            Self::Timesteps => None,
            Self::Karras => {
                Some(mix(greatest.powf(1.0 / RHO), least.powf(1.0 / RHO), index).powf(RHO))
            }
            Self::Exponential => Some(mix(greatest.ln(), least.ln(), index).exp()),
        };
        (0..steps).map(sigma).collect()
    }
}
