//! A weight matrix as an operand over Burn tensors.

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, ExtensionType, Flex, TensorMetadata};
use burn::tensor::{DType, Device, Tensor, TensorData};
use bytes::Bytes;
use outsize_checkpoint::StorageFormat;

use crate::BlockWeight;
#[cfg(feature = "gpu")]
use crate::device::is_gpu;
#[cfg(feature = "gpu")]
use crate::gpu::PackedWeight;
use crate::loops::{self, share_size};

/// A weight `[out, in]` as it is stored: of floats as a tensor, or encoded in blocks.
#[derive(Clone, Debug)]
pub enum WeightTensor {
    /// bf16, f16, f32, or any floats on another device.
    Float(Tensor<2>),
    /// Encoded in blocks, in this process's memory.
    Blocks(BlockWeight<Bytes>),
    /// On a GPU, in words: as stored.
    #[cfg(feature = "gpu")]
    Packed(PackedWeight),
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
            #[cfg(feature = "gpu")]
            Self::Packed(weight) => weight.dims(),
        }
    }

    /// Copies a matrix of bf16, f16 or f32 to a GPU, or to whatever device it is. The copy may
    /// still be under way when this returns; it keeps `bytes` for as long.
    ///
    /// # Errors
    /// Bytes that are not those of such a matrix.
    pub fn upload(
        bytes: burn::tensor::Bytes,
        dtype: DType,
        shape: [usize; 2],
        device: &Device,
    ) -> Result<Self, String> {
        #[cfg(feature = "gpu")]
        if is_gpu(device) {
            return PackedWeight::upload(bytes, dtype, shape, device).map(Self::Packed);
        }
        let data = TensorData::try_from_bytes(bytes, shape, dtype);
        let data = data.map_err(|error| error.to_string())?;
        Ok(Self::Float(Tensor::from_data(data, (device, dtype))))
    }

    /// The same of a matrix in blocks.
    ///
    /// # Errors
    /// A format that a GPU does not know, or a device that is none.
    pub fn upload_blocks(weight: &BlockWeight<Bytes>, device: &Device) -> Result<Self, String> {
        #[cfg(feature = "gpu")]
        if is_gpu(device) {
            return PackedWeight::upload_blocks(weight, device).map(Self::Packed);
        }
        let _ = device;
        Ok(Self::Blocks(weight.clone()))
    }

    /// Memory on a GPU for a matrix in blocks, whose scales are known; its first row of scales is
    /// also for `skipped` rows that are not here.
    ///
    /// # Errors
    /// As [`upload_blocks`](Self::upload_blocks).
    pub fn empty_blocks(
        format: StorageFormat,
        shape: [usize; 2],
        scales: &[u8],
        skipped: usize,
        device: &Device,
    ) -> Result<Self, String> {
        #[cfg(feature = "gpu")]
        if is_gpu(device) {
            let packed = PackedWeight::empty_blocks(format, shape, scales, skipped, device);
            return packed.map(Self::Packed);
        }
        let _ = (format, shape, scales, skipped, device);
        Err("no GPU".into())
    }

    /// Memory on a GPU for a matrix; none for other types and devices.
    pub fn empty(dtype: DType, shape: [usize; 2], device: &Device) -> Option<Self> {
        #[cfg(feature = "gpu")]
        if is_gpu(device) {
            return PackedWeight::empty(dtype, shape, device).map(Self::Packed);
        }
        let _ = (dtype, shape, device);
        None
    }

    /// The same with other rows from `start` on, which begin with a whole word; in place where it
    /// has no other owner. Nothing happens to what is on no GPU.
    pub fn with_rows(self, start: usize, rows: Self) -> Self {
        match (self, rows) {
            #[cfg(feature = "gpu")]
            (Self::Packed(weight), Self::Packed(rows)) => {
                Self::Packed(weight.with_rows(start, rows))
            }
            (weight, _) => {
                let _ = start;
                weight
            }
        }
    }

    /// Some of its rows: the same memory.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        match self {
            Self::Float(weight) => Self::Float(weight.clone().narrow(0, rows.start, rows.len())),
            Self::Blocks(weight) => Self::Blocks(weight.rows(rows)),
            #[cfg(feature = "gpu")]
            Self::Packed(weight) => Self::Packed(weight.slice(rows)),
        }
    }

    /// Whether nobody else holds its memory on a GPU.
    pub fn is_alone(self) -> (Self, bool) {
        match self {
            #[cfg(feature = "gpu")]
            Self::Packed(weight) => {
                let (weight, alone) = weight.is_alone();
                (Self::Packed(weight), alone)
            }
            Self::Float(weight) => {
                let weight = weight.into_dispatch();
                let alone = weight.can_mut();
                (Self::Float(Tensor::from_dispatch(weight)), alone)
            }
            blocks => (blocks, true),
        }
    }

    /// The weight as floats: f32 on `device`, made here, if it is encoded in blocks.
    pub fn into_float(self, device: &Device) -> Tensor<2> {
        match self {
            Self::Float(weight) => weight,
            Self::Blocks(weight) => {
                let [rows, columns] = weight.shape();
                let mut values = vec![0.0; rows * columns];
                let share = share_size(values.len(), columns);
                let parts = (0..).step_by(share / columns.max(1)).zip(values.chunks_mut(share));
                loops::share(parts, |(row, to)| {
                    weight.dequantize(row..row + to.len() / columns, to);
                });
                let data = TensorData::new(values, [rows, columns]);
                Tensor::from_data(data, (device, DType::F32))
            }
            #[cfg(feature = "gpu")]
            Self::Packed(weight) => weight.floats(),
        }
    }

    /// The same of one that is on Flex.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub(crate) fn into_flex(self) -> WeightOperand<Flex> {
        let on_flex = |weight: Tensor<2>| {
            let weight = weight.try_into_primitive::<Flex>();
            WeightOperand::Float(weight.expect("activations and weights must be on one device"))
        };
        match self {
            Self::Float(weight) => on_flex(weight),
            Self::Blocks(weight) => WeightOperand::Blocks(weight),
            #[cfg(feature = "gpu")]
            Self::Packed(weight) => on_flex(weight.floats()),
        }
    }

    pub(crate) fn into_operand(self) -> WeightOperand<Dispatch> {
        match self {
            Self::Float(weight) => WeightOperand::Float(weight.into_dispatch()),
            Self::Blocks(weight) => WeightOperand::Blocks(weight),
            #[cfg(feature = "gpu")]
            Self::Packed(weight) => WeightOperand::Float(weight.floats().into_dispatch()),
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
