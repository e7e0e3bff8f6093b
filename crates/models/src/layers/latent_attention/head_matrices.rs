//! What latent attention makes keys and values with.

use std::ops::Range;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, Tensor};
use outsize_core::{LowRank, Streamed};
use outsize_kernels::{
    ActivationDtype, WeightTensor, add_linear_in_out, fetched_linear, is_gpu, linear_with,
};

use super::LatentAttentionConfig;
use crate::Init;
use crate::layers::linear::{adapted, differentiated, matrix, whole};

/// Matrices of all heads, those of one below those of the other: in one, or apart as in GGUF files.
/// They are small beside the other matrices, and a pass holds them all.
#[derive(Module, Debug)]
pub struct HeadMatrices {
    /// `[heads · (plain + value), rank]`: of each head, what makes keys, then what makes values.
    pub weight: Option<Param<Tensor<2>>>,
    /// `[heads · rank, plain]`: of each head what makes keys, the other way round.
    pub keys: Option<Param<Tensor<2>>>,
    /// `[heads · value, rank]`: of each head what makes values.
    pub values: Option<Param<Tensor<2>>>,
}

impl HeadMatrices {
    pub(super) fn new(heads: usize, config: &LatentAttentionConfig, init: &Init) -> Self {
        let LatentAttentionConfig { rank, plain, value, apart, .. } = *config;
        let new = |rows, columns| matrix([heads * rows, columns], &init.device);
        Self {
            weight: (!apart).then(|| new(plain + value, rank)),
            keys: apart.then(|| new(rank, plain)),
            values: apart.then(|| new(value, rank)),
        }
    }

    /// As they are multiplied with what is made of `x`.
    pub(super) fn held(&self, config: LatentAttentionConfig, x: &Tensor<4>) -> HeldMatrices<'_> {
        let held = |matrix| HeadMatrix::new(matrix, x);
        match (&self.weight, &self.keys, &self.values) {
            (Some(both), ..) => {
                let adapter = Streamed::of(both).and_then(Streamed::low_rank);
                HeldMatrices { config, keys: held(both), values: None, adapter }
            }
            (None, Some(keys), Some(values)) => {
                let values = Some(held(values));
                HeldMatrices { config, keys: held(keys), values, adapter: None }
            }
            _ => unreachable!("they are made as one or apart"),
        }
    }
}

/// A matrix of all heads.
enum HeadMatrix<'a> {
    /// All of it, as it is held.
    Held(Box<WeightTensor>),
    /// Fetched for each product, as gradients flow through it, so that none of it is held until
    /// they do.
    Fetched(&'a Streamed),
}

impl<'a> HeadMatrix<'a> {
    fn new(matrix: &'a Param<Tensor<2>>, x: &Tensor<4>) -> Self {
        match differentiated(x, matrix) {
            Some(streamed) => Self::Fetched(streamed),
            None => Self::Held(Box::new(held(matrix, &x.device()))),
        }
    }

    /// `x · Wᵀ` of some of its rows.
    fn product<const D: usize>(
        &self,
        compute: ActivationDtype,
        x: Tensor<D>,
        rows: Range<usize>,
    ) -> Tensor<D> {
        match self {
            Self::Held(weight) => linear_with(compute, x, weight.slice(rows)),
            Self::Fetched(matrix) => fetched_linear(compute, x, matrix.operand_rows(rows, false)),
        }
    }

    /// `x · W` of some of its rows.
    fn transposed(&self, compute: ActivationDtype, x: Tensor<2>, rows: Range<usize>) -> Tensor<2> {
        match self {
            Self::Held(weight) => transposed(compute, x, weight.slice(rows)),
            Self::Fetched(matrix) => fetched_linear(compute, x, matrix.operand_rows(rows, true)),
        }
    }
}

/// All of a matrix, as it is held.
fn held(matrix: &Param<Tensor<2>>, device: &Device) -> WeightTensor {
    match Streamed::of(matrix).filter(|_| is_gpu(device)) {
        Some(streamed) => {
            let tiles = streamed.tiles_on(device);
            let tiles = tiles.map(|(_, tile)| tile.into_float(device)).collect();
            Tensor::cat(tiles, 0).into()
        }
        None => whole(matrix),
    }
}

/// What makes keys and values of all heads, as it is held in a pass.
pub(super) struct HeldMatrices<'a> {
    config: LatentAttentionConfig,
    /// What makes keys; and values, if these have none apart.
    keys: HeadMatrix<'a>,
    values: Option<HeadMatrix<'a>>,
    /// What an adapter adds to both.
    adapter: Option<LowRank>,
}

impl HeldMatrices<'_> {
    /// What a head's queries `[rows, plain]` are over what the cache has: `[rows, rank]`.
    pub(super) fn over_latent(
        &self,
        compute: ActivationDtype,
        head: usize,
        query: Tensor<2>,
    ) -> Tensor<2> {
        let LatentAttentionConfig { rank, plain, value, .. } = self.config;
        if self.values.is_some() {
            return self.keys.product(compute, query, head * rank..(head + 1) * rank);
        }
        let first = head * (plain + value);
        let keys = first..first + plain;
        let y = self.keys.transposed(compute, query.clone(), keys.clone());
        match self.adapter_rows(keys) {
            Some(LowRank { down, up, scale, in_out }) => {
                let (down, up) = (up.transpose(), down.transpose());
                adapted(compute, y, query, LowRank { down, up, scale, in_out })
            }
            None => y,
        }
    }

    /// A head's values of what attention gives over latents: `[batch, tokens, rank]` to
    /// `[batch, tokens, value]`.
    pub(super) fn head_values(
        &self,
        compute: ActivationDtype,
        head: usize,
        sum: Tensor<3>,
    ) -> Tensor<3> {
        let LatentAttentionConfig { plain, value, .. } = self.config;
        if let Some(values) = &self.values {
            return values.product(compute, sum, head * value..(head + 1) * value);
        }
        let end = (head + 1) * (plain + value);
        let values = end - value..end;
        let y = self.keys.product(compute, sum.clone(), values.clone());
        match self.adapter_rows(values) {
            Some(adapter) => adapted(compute, y, sum, adapter),
            None => y,
        }
    }

    /// What an adapter adds to some rows.
    fn adapter_rows(&self, rows: Range<usize>) -> Option<LowRank> {
        let adapter = self.adapter.clone()?;
        Some(LowRank { up: adapter.up.narrow(0, rows.start, rows.len()), ..adapter })
    }
}

/// `x · W`: `[rows, in]` and a weight `[in, out]` to `[rows, out]`.
fn transposed(compute: ActivationDtype, x: Tensor<2>, weight: WeightTensor) -> Tensor<2> {
    let device = x.device();
    // The kernel takes no blocks this way round.
    let weight = WeightTensor::from(weight.into_float(&device));
    let [_, out] = weight.dims();
    let zeros = Tensor::zeros([x.dims()[0], out], (&device, DType::F32));
    add_linear_in_out(compute, zeros, x, 0, weight)
}
