use crate::Error;
use burn::tensor::{DType, Tensor};
use std::ops::Range;

/// What LoRA adds to a weight `[out, in]`, or to one of a convolution `[out, ..]`, all of whose
/// other values count as `in`: `scale · up · down`, two small matrices ([Hu et al.,
/// 2021](https://arxiv.org/abs/2106.09685)).
#[derive(Debug, Clone)]
pub struct LowRank {
    /// `[rank, in]` in bf16, f16 or f32.
    pub down: Tensor<2>,
    /// `[out, rank]`, likewise.
    pub up: Tensor<2>,
    /// What the product is multiplied by.
    pub scale: f64,
    /// Whether the weight is stored the other way round, as GPT-2's are: `[in, out]`.
    pub in_out: bool,
}

impl LowRank {
    /// Checks it against the weight that it is for, of this shape as it is stored.
    pub(crate) fn check(&self, path: &str, stored: [usize; 2]) -> Result<(), Error> {
        let [out, inputs] = if self.in_out { [stored[1], stored[0]] } else { stored };
        let ([rank, width], [height, also_rank]) = (self.down.dims(), self.up.dims());
        if [height, width, also_rank] == [out, inputs, rank] && rank > 0 {
            return Ok(());
        }
        let reason = format!(
            "its matrices are {:?} and {:?}, and a weight [{out}, {inputs}] takes [rank, {inputs}] and [{out}, rank]",
            self.down.dims(),
            self.up.dims(),
        );
        Err(Error::Adapter { path: path.into(), reason })
    }

    /// All of it, as the weight is stored, in f32.
    pub(crate) fn product(&self) -> Tensor<2> {
        self.rows(0..self.stored_rows())
    }

    /// How many rows the weight has as it is stored.
    pub(crate) fn stored_rows(&self) -> usize {
        if self.in_out { self.down.dims()[1] } else { self.up.dims()[0] }
    }

    /// Some rows of it.
    pub(crate) fn rows(&self, rows: Range<usize>) -> Tensor<2> {
        let [down, up] = [&self.down, &self.up].map(|part| part.clone().cast(DType::F32));
        match self.in_out {
            true => {
                (down.narrow(1, rows.start, rows.len()).transpose()).matmul(up.transpose())
                    * self.scale
            }
            false => up.narrow(0, rows.start, rows.len()).matmul(down) * self.scale,
        }
    }
}
