//! A weight matrix as an operand over Burn tensors.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType};
use burn::tensor::{DType, Device, Tensor, TensorData};
use bytes::Bytes;

use crate::BlockWeight;

/// A weight `[out, in]` as it is stored: of floats as a tensor, or encoded in blocks.
#[derive(Clone, Debug)]
pub enum WeightTensor {
    /// bf16, f16, f32, or any floats on another device.
    Float(Tensor<2>),
    /// Encoded in blocks, in this process's memory.
    Blocks(BlockWeight<Bytes>),
}

impl From<Tensor<2>> for WeightTensor {
    fn from(weight: Tensor<2>) -> Self {
        Self::Float(weight)
    }
}

impl From<BlockWeight<Bytes>> for WeightTensor {
    fn from(weight: BlockWeight<Bytes>) -> Self {
        Self::Blocks(weight)
    }
}

impl WeightTensor {
    /// Rows and columns.
    pub fn dims(&self) -> [usize; 2] {
        match self {
            Self::Float(weight) => weight.dims(),
            Self::Blocks(weight) => weight.shape(),
        }
    }

    /// The weight as floats: f32 on `device`, made here, if it is encoded in blocks.
    pub fn into_float(self, device: &Device) -> Tensor<2> {
        match self {
            Self::Float(weight) => weight,
            Self::Blocks(weight) => {
                let [rows, columns] = weight.shape();
                let mut values = vec![0.0; rows * columns];
                weight.dequantize(0..rows, &mut values);
                let data = TensorData::new(values, [rows, columns]);
                Tensor::from_data(data, (device, DType::F32))
            }
        }
    }

    pub(crate) fn into_operand(self) -> WeightOperand<Dispatch> {
        match self {
            Self::Float(weight) => WeightOperand::Float(weight.into_dispatch()),
            Self::Blocks(weight) => WeightOperand::Blocks(weight),
        }
    }
}

/// The same over a backend's own tensors.
#[derive(ExtensionType)]
pub enum WeightOperand<B: Backend> {
    /// bf16, f16 or f32.
    Float(FloatTensor<B>),
    /// Encoded in blocks.
    Blocks(BlockWeight<Bytes>),
}
