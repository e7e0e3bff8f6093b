//! Rotary positions of tokens that lie along several axes.

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_kernels::RotaryPairs;

use super::Rotation;
use crate::Error;
use crate::config::Fields;

/// Rotations by the `AXES` coordinates of a token, each of which rotates some elements of a head.
/// Angles are computed in 64 bits, as in `diffusers`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AxialRope<const AXES: usize> {
    theta: f64,
    widths: [usize; AXES],
    pairs: RotaryPairs,
    rounds_angles: bool,
    takes_turns: bool,
    alternates: bool,
}

impl<const AXES: usize> AxialRope<AXES> {
    /// Rotations of so many elements of a head for each coordinate, by frequencies of that base;
    /// neighbours are rotated together.
    pub fn new(theta: f64, widths: [usize; AXES]) -> Self {
        Self {
            theta,
            widths,
            pairs: RotaryPairs::Interleaved,
            rounds_angles: false,
            takes_turns: false,
            alternates: false,
        }
    }

    /// The same of elements of the first half of a head with those of the second.
    pub fn halves(self) -> Self {
        Self { pairs: RotaryPairs::Halves, ..self }
    }

    /// The same with angles rounded to 32 bits before their sine and cosine are taken.
    pub fn rounding_angles(self) -> Self {
        Self { rounds_angles: true, ..self }
    }

    /// The same with coordinates that take turns in one series of frequencies; each rotates as many
    /// elements.
    pub fn taking_turns(self) -> Self {
        Self { takes_turns: true, ..self }
    }

    /// The same with pairs of elements that follow the coordinates in turns; each rotates as many.
    pub fn alternating(self) -> Self {
        Self { alternates: true, ..self }
    }

    /// The rotations of tokens at these places, one behind the other.
    pub fn at(&self, places: &[[usize; AXES]], device: &Device) -> Rotation {
        self.of(places.iter().map(|at| at.map(|n| n as f64)), device)
    }

    /// The same of places on either side of a middle.
    pub fn around(&self, places: &[[isize; AXES]], device: &Device) -> Rotation {
        self.of(places.iter().map(|at| at.map(|n| n as f64)), device)
    }

    fn of(
        &self,
        places: impl ExactSizeIterator<Item = [f64; AXES]> + Clone,
        device: &Device,
    ) -> Rotation {
        let frequencies = self.widths.iter().enumerate().flat_map(|(axis, &width)| {
            let frequency = move |pair: usize| {
                let step = match self.takes_turns {
                    true => (2 * (pair * AXES + axis)) as f64 / (AXES * width) as f64,
                    false => (2 * pair) as f64 / width as f64,
                };
                self.theta.powf(-step)
            };
            (0..width / 2).map(move |pair| (axis, frequency(pair)))
        });
        let mut frequencies: Vec<(usize, f64)> = frequencies.collect();
        if self.alternates {
            let of_axis = frequencies.len() / AXES;
            let place = |at: usize| frequencies[at % AXES * of_axis + at / AXES];
            frequencies = (0..frequencies.len()).map(place).collect();
        }
        let shape = [1, places.len(), 1, frequencies.len()];
        let tensor = |function: fn(f64) -> f64| {
            let angles = places.clone().flat_map(|at| {
                frequencies.iter().map(move |&(axis, rate)| match (at[axis] * rate, self) {
                    (angle, Self { rounds_angles: true, .. }) => f64::from(angle as f32),
                    (angle, _) => angle,
                })
            });
            let values: Vec<f32> = angles.map(|angle| function(angle) as f32).collect();
            Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
        };
        Rotation::new(self.pairs, Some([tensor(f64::cos), tensor(f64::sin)]))
    }
}

/// How a configuration's field divides a head of that width among the coordinates; messages name
/// the width.
pub(crate) fn axis_widths<const AXES: usize>(
    fields: &Fields<'_>,
    field: &str,
    default: [usize; AXES],
    (name, head_dim): (&str, usize),
) -> Result<[usize; AXES], Error> {
    let widths = match fields.get(field) {
        None => Some(default),
        Some(value) => value.as_array().and_then(|list| {
            let size = |value: &serde_json::Value| usize::try_from(value.as_u64()?).ok();
            let sizes: Option<Vec<_>> = list.iter().map(size).collect();
            sizes?.try_into().ok()
        }),
    };
    let fits = |widths: &[usize; AXES]| {
        let sum = widths.iter().try_fold(0usize, |sum, width| sum.checked_add(*width));
        sum == Some(head_dim) && widths.iter().all(|width| width.is_multiple_of(2))
    };
    widths.filter(fits).ok_or_else(|| {
        let expected =
            format!("it must be a list of {AXES} even numbers whose sum is {name}, {head_dim}");
        fields.refuse(field, expected)
    })
}
