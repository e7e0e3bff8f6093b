//! Where tokens are: those of a text nowhere, those of a picture in a row and a column.

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::config::AXES;
use crate::layers::Rotation;

/// Base of the frequencies.
const THETA: f64 = 10_000.0;

/// The rotations of so many tokens of a text and, behind them, of a picture of that many rows and columns; each coordinate
/// rotates as many elements of a head as `axes` says, in pairs of neighbours. In 64 bits, as `diffusers`.
pub(super) fn rotation(
    axes: [usize; AXES],
    tokens: usize,
    [rows, columns]: [usize; 2],
    device: &Device,
) -> Rotation {
    let frequencies = axes.iter().enumerate().flat_map(|(axis, &width)| {
        let frequency = move |pair| THETA.powf(-((2 * pair) as f64) / width as f64);
        (0..width / 2).map(move |pair| (axis, frequency(pair)))
    });
    let frequencies: Vec<(usize, f64)> = frequencies.collect();
    let text = (0..tokens).map(|_| [0; AXES]);
    let picture = (0..rows).flat_map(|row| (0..columns).map(move |column| [0, row, column]));
    let angles: Vec<f64> = (text.chain(picture))
        .flat_map(|at| frequencies.iter().map(move |&(axis, rate)| at[axis] as f64 * rate))
        .collect();
    let shape = [1, tokens + rows * columns, 1, frequencies.len()];
    let tensor = |function: fn(f64) -> f64| {
        let values: Vec<f32> = angles.iter().map(|angle| function(*angle) as f32).collect();
        Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
    };
    Rotation::interleaved([tensor(f64::cos), tensor(f64::sin)])
}
