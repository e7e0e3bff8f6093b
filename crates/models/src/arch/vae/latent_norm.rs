//! What the autoencoder of FLUX.2 has between its two halves: latents that are normalised, two by
//! two pixels with one mean and one variance for each of their values, as a batch norm found them
//! in training. Ioffe and Szegedy 2015 (arXiv:1502.03167).

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};

use crate::architecture::Init;
use crate::layers::{ones, zeros};

/// Rows of latents, and columns, that are normalised together.
const PATCH: usize = 2;

/// The statistics of a batch norm, `[channels · 2 · 2]` each.
#[derive(Module, Debug)]
pub(super) struct LatentNorm {
    running_mean: Param<Tensor<1>>,
    running_var: Param<Tensor<1>>,
    /// Added to variances.
    epsilon: f64,
}

impl LatentNorm {
    pub fn new(channels: usize, epsilon: f64, init: &Init) -> Self {
        let values = channels * PATCH * PATCH;
        Self {
            running_mean: zeros(values, &init.device),
            running_var: ones(values, &init.device),
            epsilon,
        }
    }

    /// Latents `[1, rows, columns, channels]` f32 of normalised ones. The sides are even.
    pub fn restored(&self, latents: Tensor<4>) -> Tensor<4> {
        let [mean, deviation] = self.statistics(&latents.device());
        patched(latents, |x| x * deviation + mean)
    }

    /// The other way round.
    pub fn normalized(&self, latents: Tensor<4>) -> Tensor<4> {
        let [mean, deviation] = self.statistics(&latents.device());
        patched(latents, |x| (x - mean) / deviation)
    }

    /// Means and deviations, `[1, 2, 1, 2, channels]` f32.
    fn statistics(&self, device: &Device) -> [Tensor<5>; 2] {
        let [mean, variance] = [&self.running_mean, &self.running_var]
            .map(|values| values.val().cast(DType::F32).to_device(device));
        [mean, (variance + self.epsilon).sqrt()].map(|values| {
            let channels = values.dims()[0] / (PATCH * PATCH);
            // They are stored channel by channel, in each row by row.
            let values = values.reshape([channels, PATCH, PATCH]).permute([1, 2, 0]);
            values.reshape([1, PATCH, 1, PATCH, channels])
        })
    }
}

/// What becomes of latents as `[rows / 2, 2, columns / 2, 2, channels]`.
fn patched(latents: Tensor<4>, change: impl FnOnce(Tensor<5>) -> Tensor<5>) -> Tensor<4> {
    let dims @ [_, rows, columns, channels] = latents.dims();
    change(latents.reshape([rows / PATCH, PATCH, columns / PATCH, PATCH, channels])).reshape(dims)
}
