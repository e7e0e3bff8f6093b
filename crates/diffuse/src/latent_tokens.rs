//! Latents as the tokens of a transformer, each of two by two.

use burn::tensor::Tensor;

use crate::denoiser::PACKING;

/// In which order a token has the values of its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TokenOrder {
    /// Channel by channel, in each row by row.
    Channels,
    /// Row by row, all channels of a pixel side by side.
    Pixels,
}

use TokenOrder::{Channels, Pixels};

/// Latents `[batch, rows, columns, channels]` as tokens `[batch, rows · columns / 4, 4 · channels]`.
pub(crate) fn packed(latents: Tensor<4>, order: TokenOrder) -> Tensor<3> {
    let [batch, rows, columns, channels] = latents.dims();
    let (rows, columns) = (rows / PACKING, columns / PACKING);
    let pixels = latents.reshape([batch, rows, PACKING, columns, PACKING, channels]);
    let tokens = match order {
        Channels => pixels.permute([0, 1, 3, 5, 2, 4]),
        Pixels => pixels.permute([0, 1, 3, 2, 4, 5]),
    };
    tokens.reshape([batch, rows * columns, channels * PACKING * PACKING])
}

/// Values of so many rows and columns of tokens, in the order of channels, as those of latents `[rows, columns, channels]`.
pub(crate) fn latents_of(tokens: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let values = tokens.len() / (rows * columns);
    let channels = values / (PACKING * PACKING);
    let pixels =
        (0..PACKING * rows).flat_map(|row| (0..PACKING * columns).map(move |column| (row, column)));
    let values = pixels.flat_map(|(row, column)| {
        let token = row / PACKING * columns + column / PACKING;
        let within = row % PACKING * PACKING + column % PACKING;
        (0..channels)
            .map(move |channel| tokens[token * values + channel * PACKING * PACKING + within])
    });
    values.collect()
}

/// The latents of so many rows and columns of tokens.
pub(crate) fn unpacked(
    tokens: Tensor<3>,
    [rows, columns]: [usize; 2],
    order: TokenOrder,
) -> Tensor<4> {
    let [batch, _, values] = tokens.dims();
    let channels = values / (PACKING * PACKING);
    let latents = match order {
        Channels => {
            let pixels = tokens.reshape([batch, rows, columns, channels, PACKING, PACKING]);
            pixels.permute([0, 1, 4, 2, 5, 3])
        }
        Pixels => {
            let pixels = tokens.reshape([batch, rows, columns, PACKING, PACKING, channels]);
            pixels.permute([0, 1, 3, 2, 4, 5])
        }
    };
    latents.reshape([batch, PACKING * rows, PACKING * columns, channels])
}
