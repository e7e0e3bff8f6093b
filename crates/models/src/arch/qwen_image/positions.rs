//! Where tokens are: those of a picture in rows and columns around its middle, those of a text behind the picture on all axes.

use burn::tensor::Device;

use super::QwenImageTransformer2dConfig;
use super::config::{AXES, THETA};
use crate::layers::{AxialRope, Rotation};

/// The rotations of each text, of so many tokens, and of its picture of that many rows and columns behind it.
pub(super) fn rotation(
    config: &QwenImageTransformer2dConfig,
    texts: &[usize],
    [rows, columns]: [usize; 2],
    device: &Device,
) -> Rotation {
    let first = (rows.max(columns) / 2) as isize;
    let around = |side: usize| {
        let before = side.div_ceil(2) as isize;
        -before..side as isize - before
    };
    let picture = around(rows).flat_map(|row| around(columns).map(move |column| [0, row, column]));
    let picture: Vec<_> = picture.collect();
    let text = |tokens: usize| (0..tokens as isize).map(move |place| [first + place; AXES]);
    let places: Vec<[isize; AXES]> =
        texts.iter().flat_map(|tokens| text(*tokens).chain(picture.iter().copied())).collect();
    AxialRope::new(THETA, config.axes_dims_rope).around(&places, device)
}
