//! What a map keeps on GPUs, copied there when a module is dispatched.

use crate::integers::block_weight;
use crate::matching::{Matched, Stored};
use crate::registry::tile_rows;
use crate::streamed::segments;
use crate::{Devices, Error, LEAST_RING, Options};
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use bytes::Bytes as SharedBytes;
use outsize_kernels::{BlockWeight, WeightTensor};
use outsize_plan::{DeviceMap, Residency, Tier};
use outsize_stream::{Chunk, ChunkId, Lease, Source, Stream};
use std::any::Any;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A value on a GPU: a `Tensor<D>` or a [`WeightTensor`].
pub(crate) type OnGpu = Arc<dyn Any + Send + Sync>;

/// Some rows, and the chunk that holds them.
type Part = (Range<usize>, ChunkId);

/// Reads through a ring of its own, which is gone before the module's own stream begins.
pub(crate) struct Upload {
    stream: Option<Stream>,
    /// By the parameter's path: the GPU, and its parts in order.
    parts: HashMap<String, (Tier, Vec<Part>)>,
    /// Values that several parameters share.
    shared: HashMap<(Tier, (usize, usize, usize)), OnGpu>,
    /// Whether matrices are kept as stored, for modules that know of that.
    packs: bool,
}

impl Upload {
    /// Begins to read.
    pub(crate) fn new(
        sources: impl FnOnce() -> Vec<Source>,
        matched: &[Matched],
        map: &DeviceMap,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut known: HashMap<_, Vec<Part>> = HashMap::new();
        let mut parts = HashMap::new();
        for entry in matched {
            let path = &entry.parameter.path;
            let (Some(Residency::Resident(tier @ Tier::Gpu(_))), Some(stored)) =
                (map.residency(path), &entry.stored)
            else {
                continue;
            };
            if !entry.parameter.streams {
                let reason = format!("weights of this kind cannot be kept on {tier}");
                return Err(Error::Value { name: path.clone(), reason });
            }
            let own = known.entry((stored.key, tier)).or_insert_with(|| {
                let rows = stored.weight.rows().max(1);
                // Words hold up to four elements: a part begins with a whole one.
                let step = match stored.info().shape.len() {
                    0 | 1 => rows,
                    _ => tile_rows(entry, stored, options).next_multiple_of(4),
                };
                let ranges = (0..rows).step_by(step).map(|start| start..(start + step).min(rows));
                let part = |range: Range<usize>| {
                    let whole = range.len() == rows;
                    let part = stored.weight.slice(range.clone());
                    let weight = if whole { &stored.weight } else { &part };
                    chunks.push(entry.chunk(stored, weight));
                    (range, chunks.len() - 1)
                };
                ranges.map(part).collect()
            });
            parts.insert(path.clone(), (tier, own.clone()));
        }
        let ring = |bytes: u64| outsize_stream::Options { ring_bytes: bytes, ..options.stream() };
        let stream = match chunks.iter().map(|chunk| chunk.block_len() as u64).max() {
            None => None,
            Some(largest) => {
                let all: u64 = chunks.iter().map(|chunk| chunk.block_len() as u64).sum();
                let bytes = (2 * largest).max(LEAST_RING).min(all);
                let order = (0..chunks.len()).collect();
                Some(Stream::start(sources(), chunks, order, ring(bytes))?)
            }
        };
        Ok(Self { stream, parts, shared: HashMap::new(), packs: options.moves_activations })
    }

    /// The value of a parameter that is kept on a GPU.
    pub(crate) fn value<const D: usize>(
        &mut self,
        entry: &Matched,
        stored: &Stored,
        devices: &Devices,
    ) -> Option<Result<OnGpu, Error>> {
        let (tier, parts) = self.parts.get(&entry.parameter.path)?;
        let key = (*tier, stored.key);
        if let Some(value) = self.shared.get(&key) {
            return Some(Ok(value.clone()));
        }
        let device = devices.of(*tier);
        let stream = self.stream.as_ref()?;
        let reader = Reader { stream, entry, stored, device: &device };
        let value = device.memory_persistent_allocations((), |()| match D {
            2.. if self.packs => Ok(Arc::new(reader.matrix(parts)?) as OnGpu),
            _ => Ok(Arc::new(reader.tensor::<D>(parts, self.packs)?) as OnGpu),
        });
        if let Ok(value) = &value {
            self.shared.insert(key, value.clone());
        }
        Some(value)
    }
}

struct Reader<'a> {
    stream: &'a Stream,
    entry: &'a Matched<'a>,
    stored: &'a Stored,
    device: &'a Device,
}

impl Reader<'_> {
    fn lease(&self, chunk: ChunkId) -> Result<Lease, Error> {
        match self.stream.lease(chunk) {
            Err(outsize_stream::Error::Exhausted { .. }) => {
                // Copies that are under way hold the ring.
                let _ = self.device.sync();
                Ok(self.stream.lease(chunk)?)
            }
            lease => Ok(lease?),
        }
    }

    fn bytes(&self, chunk: ChunkId) -> Result<Bytes, Error> {
        let lease = SharedBytes::from_owner(self.lease(chunk)?);
        Ok(Bytes::from_shared(lease, AllocationProperty::Other))
    }

    fn wrong(&self, reason: String) -> Error {
        Error::Value { name: self.entry.parameter.path.clone(), reason }
    }

    /// A matrix as stored.
    fn matrix(&self, parts: &[Part]) -> Result<WeightTensor, Error> {
        let columns: usize = self.stored.info().shape.iter().skip(1).product();
        let dtype = self.entry.dtype;
        let part = |(rows, chunk): &Part| {
            let part = match self.entry.in_blocks {
                true => WeightTensor::upload_blocks(&self.blocks(rows, *chunk)?, self.device),
                false => {
                    let bytes = self.bytes(*chunk)?;
                    WeightTensor::upload(bytes, dtype, [rows.len(), columns], self.device)
                }
            };
            part.map_err(|reason| self.wrong(reason))
        };
        if let [only] = parts {
            return part(only);
        }
        let shape = [self.stored.weight.rows(), columns];
        let whole = match self.entry.in_blocks {
            true => {
                let (weight, scales) = (&self.stored.weight, self.scales()?);
                let (format, skipped) = (weight.format(), weight.skipped_rows());
                WeightTensor::empty_blocks(format, shape, &scales, skipped, self.device)
            }
            false => WeightTensor::empty(dtype, shape, self.device)
                .ok_or_else(|| format!("{dtype:?} cannot be kept on a GPU")),
        };
        let mut whole = whole.map_err(|reason| self.wrong(reason))?;
        for entry in parts {
            whole = whole.with_rows(entry.0.start, part(entry)?);
        }
        Ok(whole)
    }

    /// Some rows in blocks.
    fn blocks(
        &self,
        rows: &Range<usize>,
        chunk: ChunkId,
    ) -> Result<BlockWeight<SharedBytes>, Error> {
        let (lease, weight) = (self.lease(chunk)?, self.stored.weight.slice(rows.clone()));
        let [data, scales, zeros] = segments(&lease, &weight);
        block_weight(&self.entry.parameter.path, &weight, data, scales, zeros)
    }

    /// The scales of all rows, if they have a tensor of their own.
    fn scales(&self) -> Result<Vec<u8>, Error> {
        let Some(scales) = self.stored.weight.scales() else { return Ok(Vec::new()) };
        let mut bytes = vec![0; scales.len as usize];
        self.stream.read(&self.stored.name, scales.file, scales.offset, &mut bytes)?;
        Ok(bytes)
    }

    /// A tensor: in f32 if the module takes any type.
    fn tensor<const D: usize>(&self, parts: &[Part], widen: bool) -> Result<Tensor<D>, Error> {
        let mut tensors = Vec::with_capacity(parts.len());
        for (rows, chunk) in parts {
            let mut shape = self.stored.info().shape.clone();
            if let Some(first) = shape.first_mut() {
                *first = rows.len();
            }
            let data = TensorData::try_from_bytes(self.bytes(*chunk)?, shape, self.entry.dtype);
            let data = data.map_err(|error| self.wrong(error.to_string()))?;
            let tensor = match widen {
                true => Tensor::<D>::from_data(data, (&Device::flex(), self.entry.dtype))
                    .cast(DType::F32)
                    .to_device(self.device),
                false => Tensor::from_data(data, (self.device, self.entry.dtype)),
            };
            tensors.push(tensor);
        }
        let tensor = match tensors.len() {
            1 => tensors.remove(0),
            _ => Tensor::cat(tensors, 0),
        };
        Ok(match self.entry.transposed {
            true => tensor.swap_dims(0, 1),
            false => tensor,
        })
    }
}
