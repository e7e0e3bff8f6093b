//! Rotary positions of tokens that lie along several axes.

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_kernels::RotaryPairs;

use super::Rotation;
use crate::Error;
use crate::config::Fields;

/// Rotations by the `AXES` coordinates of a token, each of which rotates some elements of a head. Angles are computed in 64
/// bits, as in `diffusers`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AxialRope<const AXES: usize> {
    /// Base of the frequencies.
    pub theta: f64,
    /// Elements of a head that each coordinate rotates.
    pub widths: [usize; AXES],
    /// Which elements are rotated together: neighbours, or of the first half of all and of the second.
    pub pairs: RotaryPairs,
    /// Whether angles are rounded to 32 bits before their sine and cosine are taken.
    pub rounds_angles: bool,
}

impl<const AXES: usize> AxialRope<AXES> {
    /// The rotations of tokens at these places, one behind the other.
    pub fn at(&self, places: &[[usize; AXES]], device: &Device) -> Rotation {
        let frequencies = self.widths.iter().enumerate().flat_map(|(axis, &width)| {
            let frequency = move |pair| self.theta.powf(-((2 * pair) as f64) / width as f64);
            (0..width / 2).map(move |pair| (axis, frequency(pair)))
        });
        let frequencies: Vec<(usize, f64)> = frequencies.collect();
        let shape = [1, places.len(), 1, frequencies.len()];
        let tensor = |function: fn(f64) -> f64| {
            let angles = places.iter().flat_map(|at| {
                frequencies.iter().map(|&(axis, rate)| match (at[axis] as f64 * rate, self) {
                    (angle, Self { rounds_angles: true, .. }) => f64::from(angle as f32),
                    (angle, _) => angle,
                })
            });
            let values: Vec<f32> = angles.map(|angle| function(angle) as f32).collect();
            Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
        };
        Rotation::of(self.pairs, [tensor(f64::cos), tensor(f64::sin)])
    }
}

/// How a configuration's field divides a head of that width among the coordinates; messages name the width.
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
