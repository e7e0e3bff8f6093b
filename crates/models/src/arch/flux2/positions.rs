//! Where tokens are: those of a text in their order, those of a picture in a row and a column, and
//! each picture at a time of its own.

use burn::tensor::Device;

use super::Flux2Transformer2dConfig;
use super::config::AXES;
use crate::layers::{AxialRope, Rotation};

/// How far pictures are from each other.
const PICTURE_STEP: usize = 10;

/// The rotations of so many tokens of a text and, behind them, of pictures of that many rows and
/// columns.
pub(super) fn rotation(
    config: &Flux2Transformer2dConfig,
    tokens: usize,
    sizes: &[[usize; 2]],
    device: &Device,
) -> Rotation {
    let text = (0..tokens).map(|place| [0, 0, 0, place]);
    let pictures = sizes.iter().enumerate().flat_map(|(index, &[rows, columns])| {
        let places = (0..rows).flat_map(move |row| (0..columns).map(move |column| (row, column)));
        places.map(move |(row, column)| [PICTURE_STEP * index, row, column, 0])
    });
    let places: Vec<[usize; AXES]> = text.chain(pictures).collect();
    let Flux2Transformer2dConfig { rope_theta: theta, axes_dims_rope: widths, .. } = *config;
    AxialRope::new(theta, widths).at(&places, device)
}
