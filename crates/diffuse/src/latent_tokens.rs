//! Latents as the tokens of a transformer, each of two by two.

use std::ops::Range;

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

/// Latents `[batch, rows, columns, channels]` as tokens
/// `[batch, rows · columns / 4, 4 · channels]`.
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

/// Values of so many rows and columns of tokens, in the order of channels, as those of latents
/// `[rows, columns, channels]`.
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

/// Multiplies each token of latents `[rows, columns, channels]` so that it is as long as that of
/// others.
pub(crate) fn scale_tokens(
    latents: &mut [f32],
    others: &[f32],
    [rows, columns, channels]: [usize; 3],
) {
    for (row, column) in (0..rows)
        .step_by(PACKING)
        .flat_map(|row| (0..columns).step_by(PACKING).map(move |column| (row, column)))
    {
        // The pixels of a row of a token lie side by side.
        let parts: [Range<usize>; PACKING] = std::array::from_fn(|below| {
            let start = ((row + below) * columns + column) * channels;
            start..start + PACKING * channels
        });
        let length = |values: &[f32]| {
            let values = parts.iter().flat_map(|part| &values[part.clone()]);
            values.map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
        };
        let scale = (length(others) / length(latents)) as f32;
        for part in parts.clone() {
            latents[part].iter_mut().for_each(|value| *value *= scale);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_is_as_long_as_that_of_others() {
        // Of two tokens the first is doubled, and the second not changed.
        let mut latents = [3.0, 0.0, 5.0, 1.0, 0.0, 4.0, 1.0, 0.0];
        let others = [0.0, 10.0, 0.0, 5.0, 0.0, 0.0, 0.0, 2.0];
        scale_tokens(&mut latents, &others, [2, 4, 1]);
        let lengths = |values: &[f32]| {
            [[0, 1, 4, 5], [2, 3, 6, 7]]
                .map(|token| token.map(|at| values[at].powi(2)).iter().sum::<f32>().sqrt())
        };
        let (found, expected) = (lengths(&latents), lengths(&others));
        assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}");
        assert_eq!(latents[..2], [6.0, 0.0]);
    }
}
