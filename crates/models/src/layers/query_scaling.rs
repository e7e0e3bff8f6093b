//! Queries that grow with the logarithm of their position, as it was learned.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor, TensorData};

use super::attention::query_positions::QueryPositions;
use super::linear::{ones, zeros};
use crate::Init;

/// Multiplies a head of queries by `scale · ln(position + 1) + bias` ([Nakanishi,
/// 2025](https://arxiv.org/abs/2501.19399)), of which each head has its own.
#[derive(Module, Debug)]
pub struct QueryScaling {
    /// `[heads]`.
    pub scale: Param<Tensor<1>>,
    /// `[heads]`.
    pub bias: Param<Tensor<1>>,
}

impl QueryScaling {
    /// A layer without storage.
    pub fn new(heads: usize, init: &Init) -> Self {
        Self { scale: ones(heads, &init.device), bias: zeros(heads, &init.device) }
    }

    /// `[batch, tokens, heads, width]` f32 to the same.
    pub(super) fn forward(&self, queries: Tensor<4>, positions: &QueryPositions<'_>) -> Tensor<4> {
        let ([_, tokens, heads, _], device) = (queries.dims(), queries.device());
        // Sequences without padding are scaled alike.
        let rows = match positions.padding.iter().any(|&padding| padding > 0) {
            true => positions.padding,
            false => &positions.padding[..1],
        };
        let columns = positions.start..positions.start + tokens;
        let logarithms: Vec<f32> = (rows.iter())
            .flat_map(|padding| columns.clone().map(|column| column.saturating_sub(*padding)))
            .map(|position| ((position + 1) as f32).ln())
            .collect();
        let logarithms = TensorData::new(logarithms, [rows.len(), tokens, 1, 1]);
        let logarithms: Tensor<4> = Tensor::from_data(logarithms, (&device, DType::F32));
        let [scale, bias] = [&self.scale, &self.bias].map(|parameter| {
            let of_heads = parameter.val().cast(DType::F32).to_device(&device);
            of_heads.reshape([1, 1, heads, 1])
        });
        queries * (logarithms * scale + bias)
    }
}
