//! Where tokens are: those of a picture in rows and columns around its middle, each picture on a
//! plane of its own, and those of a text behind the pictures on all axes.

use burn::tensor::Device;

use super::QwenImageTransformer2dConfig;
use super::config::{AXES, THETA};
use crate::layers::{AxialRope, Rotation};

/// The rotations of each text, of so many tokens, and of its pictures of that many rows and columns
/// behind it.
pub(super) fn rotation(
    config: &QwenImageTransformer2dConfig,
    texts: &[usize],
    sizes: &[[usize; 2]],
    device: &Device,
) -> Rotation {
    let longest = sizes.iter().flatten().max().copied().unwrap_or_default();
    let first = (longest / 2) as isize;
    let around = |side: usize| {
        let before = side.div_ceil(2) as isize;
        -before..side as isize - before
    };
    let picture = |(index, &[rows, columns]): (usize, &[usize; 2])| {
        around(rows)
            .flat_map(move |row| around(columns).map(move |column| [index as isize, row, column]))
    };
    let pictures: Vec<_> = sizes.iter().enumerate().flat_map(picture).collect();
    let text = |tokens: usize| (0..tokens as isize).map(move |place| [first + place; AXES]);
    let places: Vec<[isize; AXES]> =
        texts.iter().flat_map(|tokens| text(*tokens).chain(pictures.iter().copied())).collect();
    AxialRope::new(THETA, config.axes_dims_rope).around(&places, device)
}
