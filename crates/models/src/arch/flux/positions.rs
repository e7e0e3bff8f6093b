//! Where tokens are: those of a text nowhere, those of a picture in a row and a column, and each
//! picture at a place of its own.

use burn::tensor::Device;

use super::config::AXES;
use crate::layers::{AxialRope, Rotation};

/// Base of the frequencies.
const THETA: f64 = 10_000.0;

/// The rotations of so many tokens of a text and, behind them, of pictures of that many rows and
/// columns.
pub(super) fn rotation(
    widths: [usize; AXES],
    tokens: usize,
    sizes: &[[usize; 2]],
    device: &Device,
) -> Rotation {
    let text = (0..tokens).map(|_| [0; AXES]);
    let pictures = sizes.iter().enumerate().flat_map(|(index, &[rows, columns])| {
        (0..rows).flat_map(move |row| (0..columns).map(move |column| [index, row, column]))
    });
    let places: Vec<_> = text.chain(pictures).collect();
    AxialRope::new(THETA, widths).at(&places, device)
}
