//! A table of token embeddings.

use burn::module::{Module, Param};
use burn::tensor::{DType, Int, Tensor, TensorData};

use super::entered::entered;
use super::linear::{matrix, product, whole};
use crate::Init;
use outsize_core::Streamed;
use outsize_kernels::{ActivationDtype, index_dtype};

/// A table with one row per token, kept as stored: `[vocabulary, hidden]` in bf16, f16, f32 or
/// blocks.
#[derive(Module, Debug)]
pub struct Embedding {
    /// `[vocabulary, hidden]`.
    pub weight: Param<Tensor<2>>,
    #[module(skip)]
    pub(crate) compute: ActivationDtype,
}

impl Embedding {
    /// A table without storage; unless loaded, it is drawn from a normal distribution of deviation
    /// 0.02.
    pub fn new(vocabulary: usize, hidden: usize, init: &Init) -> Self {
        Self { weight: matrix([vocabulary, hidden], &init.device), compute: init.compute }
    }

    /// Values of one row.
    pub fn width(&self) -> usize {
        self.weight.lazy_shape()[1]
    }

    /// The rows of the ids: `[1, tokens, hidden]` f32. Ids must be below the vocabulary's size.
    pub fn forward(&self, ids: &[u32]) -> Tensor<3> {
        match Streamed::of(&self.weight) {
            Some(streamed) => {
                let rows: Vec<usize> = ids.iter().map(|&id| id as usize).collect();
                let found = match streamed.is_resident() {
                    true => self.held_rows(ids),
                    false => streamed.rows(&rows).cast(DType::F32),
                };
                streamed.learning_rows(&rows, found).unsqueeze()
            }
            None => self.held_rows(ids).unsqueeze(),
        }
    }

    /// The rows of the ids of a table that is in memory: `[tokens, hidden]` f32.
    fn held_rows(&self, ids: &[u32]) -> Tensor<2> {
        let device = self.weight.lazy_device();
        let data = TensorData::new(ids.iter().map(|&id| i64::from(id)).collect(), [ids.len()]);
        let ids = Tensor::<1, Int>::from_data(data, (&device, index_dtype(&device)));
        outsize_kernels::embedding(whole(&self.weight), ids)
    }

    /// The table as an output head: `[.., hidden]` f32 to `[.., vocabulary]` f32.
    pub fn project<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        product(self.compute, entered(x, &self.weight), &self.weight)
    }
}
