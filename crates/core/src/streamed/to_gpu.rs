//! Weights on their way to a GPU, tile by tile.

use super::{Chunks, Inner, Streamed};
use crate::Error;
use burn::tensor::{AllocationProperty, Bytes, DataError, Device, Tensor, TensorData};
use bytes::Bytes as SharedBytes;
use outsize_kernels::gpu::{BACKENDS, download};
use outsize_kernels::{WeightTensor, is_gpu};
use std::ops::Range;

/// The bytes of a value from which it goes through a slot: two of one layer that are held at once
/// leave none free.
const LEAST_IN_SLOT: usize = 1 << 20;

impl Streamed {
    /// Activations where the parameter's block computes in this pass.
    ///
    /// # Unwinds
    /// To [`Dispatched::run`](crate::Dispatched::run) with what a GPU says that they are read from.
    pub fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.moved(x, self.device())
    }

    /// Activations in main memory.
    ///
    /// # Unwinds
    /// As [`entered`](Self::entered).
    pub fn fetched<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        match is_gpu(&x.device()) {
            true => self.moved(x, &Device::flex()),
            false => x,
        }
    }

    fn moved<const D: usize>(&self, x: Tensor<D>, to: &Device) -> Tensor<D> {
        // Without backends for GPUs there is one device.
        if BACKENDS.is_empty() {
            return x;
        }
        let from = x.device();
        if from.clone().inner() == *to {
            return x;
        }
        if is_gpu(to) {
            return x.to_device(to);
        }
        let dtype = x.dtype();
        let data = download(x).map_err(|reason| self.inner.failed(&from, reason));
        let data = self.inner.or_raise(data);
        Tensor::from_data(data, (to, dtype))
    }

    /// A matrix that is kept on a GPU: no tiles are needed of it where each output depends on its
    /// own row alone.
    pub fn on_gpu(&self) -> Option<WeightTensor> {
        self.inner.on_gpu().cloned()
    }

    /// The rows of a matrix on a GPU, tile after tile, wherever it is kept: the range of rows and
    /// these rows. Hold one at a time: its memory is another's after the next but one.
    ///
    /// The tiles are the same wherever the matrix is kept, and so are the bits of what is made of
    /// them.
    ///
    /// # Unwinds
    /// To [`Dispatched::run`](crate::Dispatched::run) with what the read or the device said.
    pub fn tiles_on<'a>(
        &'a self,
        device: &Device,
    ) -> impl Iterator<Item = (Range<usize>, WeightTensor)> + use<'a> {
        let inner = &*self.inner;
        let device = device.clone();
        let rows = inner.weight.rows();
        let step = inner.tile_rows.max(1);
        (0..rows).step_by(step).map(move |start| {
            let range = start..(start + step).min(rows);
            let tile = match inner.on_gpu() {
                Some(weight) => Ok(weight.slice(range.clone())),
                None => inner.upload_tile(range.clone(), &device),
            };
            (range, inner.or_raise(tile))
        })
    }
}

impl Inner {
    /// What to say of a device that failed.
    fn failed(&self, device: &Device, reason: String) -> Error {
        match self.slots.iter().find(|slots| slots.is_of(device)) {
            Some(slots) => slots.refused().unwrap_or_else(|| slots.failed(&reason)),
            None => Error::Value { name: self.path.to_string(), reason },
        }
    }

    fn upload_tile(&self, rows: Range<usize>, device: &Device) -> Result<WeightTensor, Error> {
        let slots = self.slots.iter().find(|slots| slots.is_of(device));
        let slots = slots.ok_or_else(|| self.refuse("its tiles on another device"))?;
        let none_free =
            || slots.failed("weights of more tiles are held at once than there are slots");
        if self.in_blocks {
            let blocks = match &self.chunks {
                Chunks::Tiles { rows: step, ids, .. } => {
                    let lease = self.lease(ids[rows.start / step])?;
                    self.blocks_of(lease, &self.weight.slice(rows))?
                }
                _ => self.blocks()?.rows(rows),
            };
            let copied = slots.upload(|device| WeightTensor::upload_blocks(&blocks, device))?;
            return copied.map_err(|_| none_free());
        }
        let columns = self.weight.data().shape.iter().skip(1).product();
        let (count, bytes) = (rows.len(), self.host_tile(rows)?);
        let shape = [count, columns];
        let copied =
            slots.upload(|device| WeightTensor::upload(bytes, self.dtype, shape, device))?;
        copied.map_err(|_| none_free())
    }

    /// A tensor of this shape where the module is. A large one goes to a GPU through a slot if one
    /// is free, so that it is copied while those before it are used.
    pub(super) fn tensor_of<const D: usize>(
        &self,
        bytes: Bytes,
        shape: &[usize],
    ) -> Result<Tensor<D>, Error> {
        let refused = |error: DataError| Error::Value {
            name: self.path.to_string(),
            reason: error.to_string(),
        };
        let slots = self.slots.iter().find(|slots| slots.is_of(&self.device));
        let Some(slots) = slots.filter(|_| bytes.len() >= LEAST_IN_SLOT) else {
            let data = TensorData::try_from_bytes(bytes, shape, self.dtype).map_err(refused)?;
            return Ok(Tensor::from_data(data, (&self.device, self.dtype)));
        };
        // In a slot it is a matrix of one row, whatever its shape.
        let row = [1, shape.iter().product()];
        let data = TensorData::try_from_bytes(bytes, row, self.dtype).map_err(refused)?;
        let copy = |device: &Device| -> Result<WeightTensor, String> {
            Ok(Tensor::<2>::from_data(data, (device, self.dtype)).into())
        };
        let copied = match slots.upload(copy)? {
            Ok(copied) => copied,
            Err(copy) => copy(&self.device).map_err(|reason| slots.failed(&reason))?,
        };
        let shape = std::array::from_fn::<_, D, _>(|axis| shape[axis]);
        Ok(copied.into_float(&self.device).reshape(shape))
    }

    /// Some rows in main memory.
    fn host_tile(&self, rows: Range<usize>) -> Result<Bytes, Error> {
        let whole = |bytes: SharedBytes| {
            let row = bytes.len() / self.weight.rows().max(1);
            bytes.slice(rows.start * row..rows.end * row)
        };
        let bytes = match &self.chunks {
            Chunks::Tiles { rows: step, ids, .. } => {
                SharedBytes::from_owner(self.lease(ids[rows.start / step])?)
            }
            Chunks::Whole(chunk) => whole(SharedBytes::from_owner(self.lease(*chunk)?)),
            Chunks::Part(chunk, part) => {
                whole(SharedBytes::from_owner(self.lease(*chunk)?).slice(part.clone()))
            }
            Chunks::Rows | Chunks::OnGpu => return Err(self.refuse("its tiles")),
        };
        Ok(Bytes::from_shared(bytes, AllocationProperty::Other))
    }
}
