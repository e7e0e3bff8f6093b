mod operand;
mod rows;
mod to_gpu;

use crate::integers::block_weight;
use crate::pass::Pass;
use crate::slots::Slots;
use crate::tape::Tape;
use crate::{Access, Error, LowRank};
use burn::module::{Param, ParamMapper, Reparameterization};
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use bytes::Bytes as SharedBytes;
use outsize_checkpoint::StoredWeight;
use outsize_kernels::{BlockWeight, WeightTensor};
use outsize_stream::{ChunkId, Convert, Lease, Stream};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// The handle of a parameter whose value comes from the checkpoint.
///
/// `Param::val()` goes through it and needs no more. A module that knows about it can reach it
/// ([`Streamed::of`]) to read a table by [rows](Streamed::rows) or a large matrix by
/// [tiles](Streamed::tiles), so that less of it has to be in memory at once.
///
/// Its methods cannot return errors where Burn calls them. A failed read unwinds to
/// [`Dispatched::run`](crate::Dispatched::run), which returns it.
#[derive(Debug, Clone)]
pub struct Streamed {
    pub(crate) inner: Arc<Inner>,
}

/// What a handle knows of its parameter.
pub(crate) struct Inner {
    /// Path in the module.
    pub(crate) path: Arc<str>,
    pub(crate) stream: Stream,
    pub(crate) pass: Arc<Pass>,
    pub(crate) chunks: Chunks,
    /// As stored in the checkpoint: before any transposition.
    pub(crate) weight: StoredWeight,
    /// Whether it is held in the blocks in which it is stored.
    pub(crate) in_blocks: bool,
    /// As held in memory, or as its value is if it is held in blocks.
    pub(crate) dtype: DType,
    pub(crate) transposed: bool,
    pub(crate) device: Device,
    /// The `ParamMapper<Tensor<D>>` of the parameter, D being its rank.
    pub(crate) mapper: Box<dyn Any + Send + Sync>,
    /// For a parameter that is resident where it is used: its `Tensor<D>`, its blocks, or its
    /// [`WeightTensor`] on a GPU, once it is read.
    pub(crate) resident: Option<OnceLock<Arc<dyn Any + Send + Sync>>>,
    /// Where its block computes, in prefill and in decode, if that is not where the module is.
    pub(crate) computes: Option<Box<[Device; 2]>>,
    /// What it passes through on its way to GPUs.
    pub(crate) slots: Arc<[Slots]>,
    /// Rows of a tile on a GPU.
    pub(crate) tile_rows: usize,
    /// The conversion on the way in, for reading single rows.
    pub(crate) convert: Option<Convert>,
    /// What is added to the value where it is used.
    pub(crate) low_rank: RwLock<Option<Box<LowRank>>>,
    pub(crate) tape: Arc<Tape>,
}

/// How a parameter's value is divided into chunks of streaming.
#[derive(Debug, Clone)]
pub(crate) enum Chunks {
    Whole(ChunkId),
    /// The bytes of a chunk that is read in one go with neighbours.
    Part(ChunkId, Range<usize>),
    Tiles {
        rows: usize,
        ids: Vec<ChunkId>,
        /// Whether they are expected in turns with as many tiles of the parameter before.
        interleaved: bool,
    },
    Rows,
    /// On a GPU already.
    OnGpu,
}

impl Chunks {
    pub(crate) fn ids(&self) -> &[ChunkId] {
        match self {
            Self::Whole(id) | Self::Part(id, _) => std::slice::from_ref(id),
            Self::Tiles { ids, .. } => ids,
            Self::Rows | Self::OnGpu => &[],
        }
    }

    fn is_interleaved(&self) -> bool {
        matches!(self, Self::Tiles { interleaved: true, .. })
    }

    /// Adds them to an order in which the last ones are `before`, those of another parameter.
    pub(crate) fn add_to(&self, order: &mut Vec<ChunkId>, before: usize) {
        let start = order.len() - before;
        order.extend(self.ids());
        if self.is_interleaved() && before == self.ids().len() {
            let both = order.split_off(start);
            let (first, second) = both.split_at(before);
            order.extend(first.iter().zip(second).flat_map(|(first, second)| [*first, *second]));
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.path, self.weight.data().shape)
    }
}

impl Reparameterization for Streamed {
    const NAME: &'static str = "streamed";

    fn apply<const D: usize>(&self, _placeholder: Tensor<D>) -> Tensor<D> {
        match self.inner.tape.values() {
            Some(values) => self.refetched(&values),
            None if self.inner.tape.is_recording() => self.leaf(),
            None => self.used_value(self.value_alone()),
        }
    }
}

impl Streamed {
    pub(crate) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// The handle of `param`, if it is dispatched.
    pub fn of<const D: usize>(param: &Param<Tensor<D>>) -> Option<&Self> {
        param.reparameterization::<Self>()
    }

    /// Whether the value stays in memory. `Param::val()` is then the way to read it.
    pub fn is_resident(&self) -> bool {
        self.inner.resident.is_some()
    }

    /// Whether it is held in the blocks in which it is stored.
    pub fn is_in_blocks(&self) -> bool {
        self.inner.in_blocks
    }

    /// How the value is read when it is not resident.
    pub fn access(&self) -> Access {
        match &self.inner.chunks {
            Chunks::Whole(_) | Chunks::Part(..) | Chunks::OnGpu => Access::Whole,
            Chunks::Tiles { .. } => Access::Tiles,
            Chunks::Rows => Access::Rows,
        }
    }

    /// What an adapter adds to the weight. `Param::val()` has it added; who takes the weight by
    /// [`Self::weight`], [`Self::value_alone`] or [`Self::tiles`] adds it to what is computed with
    /// that.
    pub fn low_rank(&self) -> Option<LowRank> {
        let low_rank = self.inner.low_rank.read().unwrap_or_else(PoisonError::into_inner);
        low_rank.as_deref().cloned()
    }

    /// Adds this to the weight from now on, instead of what was added before.
    pub(crate) fn set_low_rank(&self, low_rank: Option<LowRank>) {
        *self.inner.low_rank.write().unwrap_or_else(PoisonError::into_inner) =
            low_rank.map(Box::new);
    }

    /// The value with what an adapter adds to it, if one does.
    fn used_value<const D: usize>(&self, value: Tensor<D>) -> Tensor<D> {
        match self.low_rank() {
            Some(low_rank) => self.inner.adapted(value, &low_rank),
            None => value,
        }
    }

    /// What `Param::val()` is without what an adapter adds.
    ///
    /// # Unwinds
    /// As that.
    pub fn value_alone<const D: usize>(&self) -> Tensor<D> {
        self.inner.or_raise(self.inner.value())
    }

    /// Where its block computes in this pass: where what it is used with should be.
    pub fn device(&self) -> &Device {
        let Some(devices) = &self.inner.computes else { return &self.inner.device };
        let [prefill, decode] = &**devices;
        if self.inner.pass.decodes() { decode } else { prefill }
    }

    /// Shape as stored in the checkpoint.
    pub fn shape(&self) -> &[usize] {
        &self.inner.weight.data().shape
    }

    /// The whole matrix `[rows, columns]`, as it is held. (`Param::val()` is its value: in floats,
    /// made anew each time if it is held in blocks.)
    ///
    /// # Unwinds
    /// To [`Dispatched::run`](crate::Dispatched::run) with what the read said, or with
    /// [`Error::Access`] if the parameter is streamed by tiles or rows.
    pub fn weight(&self) -> WeightTensor {
        if let Some(weight) = self.inner.on_gpu() {
            return weight.clone();
        }
        self.inner.or_raise(match self.inner.in_blocks {
            true => self.inner.blocks().map(WeightTensor::Blocks),
            false => self.inner.value().map(WeightTensor::Float),
        })
    }

    /// The rows of a matrix `[rows, columns]`, as stored in the checkpoint, tile after tile: the
    /// range of rows and these rows `[range.len(), columns]`; of a tensor of more dimensions, all
    /// but the first count as columns. Hold one at a time: the next may need its memory.
    ///
    /// # Unwinds
    /// To [`Dispatched::run`](crate::Dispatched::run) with what the read said, or with
    /// [`Error::Access`] if the parameter is not streamed by tiles.
    pub fn tiles(&self) -> impl Iterator<Item = (Range<usize>, WeightTensor)> + '_ {
        let inner = &*self.inner;
        let Chunks::Tiles { rows, ids, .. } = &inner.chunks else {
            inner.pass.raise(inner.refuse("its tiles"))
        };
        ids.iter().enumerate().map(move |(tile, chunk)| {
            let range = tile * rows..((tile + 1) * rows).min(inner.weight.rows());
            let tile = inner.lease(*chunk).and_then(|lease| {
                let weight = inner.weight.slice(range.clone());
                Ok(match inner.in_blocks {
                    true => inner.blocks_of(lease, &weight)?.into(),
                    false => {
                        let shape = &weight.data().shape;
                        let columns = shape.iter().skip(1).product();
                        inner
                            .shared::<2>(SharedBytes::from_owner(lease), &[range.len(), columns])?
                            .into()
                    }
                })
            });
            (range, inner.or_raise(tile))
        })
    }

    /// Whether its tiles should be asked for in turns with those of the matrix that
    /// [`Options::interleaved`](crate::Options::interleaved) names, that one's first: both stream,
    /// and the ring has room for two tiles while others are read.
    pub fn is_interleaved(&self) -> bool {
        self.inner.chunks.is_interleaved()
    }

    /// Says that the pass will ask for these parameters next, in this order, where that is not
    /// always the same, as with experts of which a router chooses some: they are read ahead of
    /// need. Tiles that [take turns](Self::is_interleaved) do so with those of the parameter
    /// before. What was said before and is not asked for yet does not count any more. The
    /// parameters are of one dispatched module.
    pub fn announce<'a>(parameters: impl Iterator<Item = &'a Self>) {
        let mut stream = None;
        let (mut chunks, mut before) = (Vec::new(), 0);
        for Self { inner } in parameters {
            stream.get_or_insert(&inner.stream);
            inner.chunks.add_to(&mut chunks, before);
            before = inner.chunks.ids().len();
        }
        if let Some(stream) = stream {
            stream.announce(chunks);
        }
    }

    /// Whether the value is in memory now: asking for it does not wait for the disk.
    pub fn is_in_memory(&self) -> bool {
        let inner = &*self.inner;
        match inner.resident.as_ref().and_then(OnceLock::get) {
            Some(_) => true,
            None => inner.stream.are_ready(inner.chunks.ids()),
        }
    }

    /// Single rows of a matrix `[rows, columns]`, read by themselves: `[ids.len(), columns]`, in
    /// floats.
    ///
    /// # Unwinds
    /// To [`Dispatched::run`](crate::Dispatched::run) with what the read said, or with
    /// [`Error::Row`].
    pub fn rows(&self, ids: &[usize]) -> Tensor<2> {
        self.inner.or_raise(self.inner.rows(ids))
    }
}

impl Inner {
    fn or_raise<T>(&self, result: Result<T, Error>) -> T {
        result.unwrap_or_else(|error| self.pass.raise(error))
    }

    /// Ends the pass because the module is used for something that it cannot do.
    pub(crate) fn refuse_use(&self, what: &'static str) -> ! {
        self.pass.raise(Error::Misuse { path: self.path.to_string(), what })
    }

    fn refuse(&self, asked: &'static str) -> Error {
        Error::Access {
            path: self.path.to_string(),
            streamed: match self.chunks {
                Chunks::Whole(_) | Chunks::Part(..) | Chunks::OnGpu => "as a whole",
                Chunks::Tiles { .. } => "by tiles",
                Chunks::Rows => "by rows",
            },
            asked,
        }
    }

    fn lease(&self, chunk: ChunkId) -> Result<Lease, Error> {
        self.pass.check(&self.path);
        match self.stream.lease(chunk) {
            Err(outsize_stream::Error::Exhausted { .. }) if !self.slots.is_empty() => {
                // Copies to a GPU that are under way hold the ring.
                self.slots.iter().try_for_each(Slots::wait)?;
                Ok(self.stream.lease(chunk)?)
            }
            lease => Ok(lease?),
        }
    }

    /// The parameter's value, as `Param::val()` should give it.
    fn value<const D: usize>(&self) -> Result<Tensor<D>, Error> {
        self.value_of(|streamed| streamed)
    }

    /// The same of what `take` makes of a value that streams, as it lies in the ring.
    fn value_of<const D: usize>(
        &self,
        take: impl FnOnce(Tensor<D>) -> Tensor<D>,
    ) -> Result<Tensor<D>, Error> {
        self.pass.check(&self.path);
        if let Some(resident) = &self.resident
            && let Some(tensor) = resident.get().and_then(|any| any.downcast_ref::<Tensor<D>>())
        {
            return Ok(tensor.clone());
        }
        let shape = &self.weight.data().shape;
        if let Some(weight) = self.on_gpu() {
            let floats = weight.clone().into_float(&self.device);
            return Ok(floats.reshape(std::array::from_fn::<_, D, _>(|axis| shape[axis])));
        }
        if self.in_blocks {
            let mut values = vec![0.0; shape.iter().product()];
            self.blocks()?.dequantize(0..self.weight.rows(), &mut values);
            let data = TensorData::new(values, shape.clone());
            return Ok(self.loaded(Tensor::from_data(data, (&self.device, self.dtype))));
        }
        let bytes = match &self.chunks {
            Chunks::Whole(chunk) => SharedBytes::from_owner(self.lease(*chunk)?),
            Chunks::Part(chunk, range) => {
                SharedBytes::from_owner(self.lease(*chunk)?).slice(range.clone())
            }
            _ => return Err(self.refuse("its whole value")),
        };
        let mut tensor = self.shared::<D>(bytes, shape)?;
        if self.resident.is_none() {
            tensor = take(tensor);
        }
        if self.transposed {
            tensor = tensor.swap_dims(0, 1);
        }
        let tensor = self.loaded(tensor);
        if let Some(resident) = &self.resident {
            // Two threads may come here at once; both have the same bytes.
            let _ = resident.set(Arc::new(tensor.clone()));
        }
        Ok(tensor)
    }

    /// The value with what an adapter adds to it, which is for matrices as they are stored.
    fn adapted<const D: usize>(&self, value: Tensor<D>, low_rank: &LowRank) -> Tensor<D> {
        let mut more = low_rank.product();
        if self.transposed {
            more = more.transpose();
        }
        let more = more.reshape(value.dims()).to_device(&value.device());
        (value.clone().cast(DType::F32) + more).cast(value.dtype())
    }

    /// What the parameter makes of a value that is loaded.
    fn loaded<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        match self.mapper.downcast_ref::<ParamMapper<Tensor<D>>>() {
            Some(mapper) => mapper.on_load(tensor),
            None => tensor,
        }
    }

    /// What it makes of one that is saved.
    fn saved<const D: usize>(&self, tensor: Tensor<D>) -> Tensor<D> {
        match self.mapper.downcast_ref::<ParamMapper<Tensor<D>>>() {
            Some(mapper) => mapper.on_save(tensor),
            None => tensor,
        }
    }

    /// The weight, if it is kept on a GPU.
    pub(crate) fn on_gpu(&self) -> Option<&WeightTensor> {
        self.pass.check(&self.path);
        let held = self.resident.as_ref().and_then(OnceLock::get)?;
        held.downcast_ref().filter(|_| matches!(self.chunks, Chunks::OnGpu))
    }

    /// The whole value in blocks.
    fn blocks(&self) -> Result<BlockWeight<SharedBytes>, Error> {
        self.pass.check(&self.path);
        let held = self.resident.as_ref().and_then(OnceLock::get);
        if let Some(blocks) = held.and_then(|any| any.downcast_ref::<BlockWeight<SharedBytes>>()) {
            return Ok(blocks.clone());
        }
        let blocks = match &self.chunks {
            Chunks::Whole(chunk) => self.blocks_of(self.lease(*chunk)?, &self.weight)?,
            // What is read with neighbours is one tensor: it holds its scales.
            Chunks::Part(chunk, range) => {
                let data = SharedBytes::from_owner(self.lease(*chunk)?).slice(range.clone());
                self.block_weight(&self.weight, [data, SharedBytes::new(), SharedBytes::new()])?
            }
            _ => return Err(self.refuse("its whole value")),
        };
        if let Some(resident) = &self.resident {
            let _ = resident.set(Arc::new(blocks.clone()));
        }
        Ok(blocks)
    }

    /// Rows in blocks over the leased bytes.
    fn blocks_of(
        &self,
        lease: Lease,
        rows: &StoredWeight,
    ) -> Result<BlockWeight<SharedBytes>, Error> {
        self.block_weight(rows, segments(&lease, rows))
    }

    fn block_weight(
        &self,
        rows: &StoredWeight,
        [data, scales, zeros]: [SharedBytes; 3],
    ) -> Result<BlockWeight<SharedBytes>, Error> {
        block_weight(&self.path, rows, data, scales, zeros)
    }

    /// A tensor over the leased bytes: no copy on the CPU, and the lease lives as long as it does.
    fn shared<const D: usize>(
        &self,
        bytes: SharedBytes,
        shape: &[usize],
    ) -> Result<Tensor<D>, Error> {
        let bytes = Bytes::from_shared(bytes, AllocationProperty::Other);
        self.tensor_of(bytes, shape)
    }
}

/// The leased bytes of some rows in blocks: of data, of scales and of zero points.
pub(crate) fn segments(lease: &Lease, rows: &StoredWeight) -> [SharedBytes; 3] {
    let count = rows.tensors().count();
    let segment = |at| SharedBytes::from_owner(lease.segment(at));
    [0, 1, 2].map(|at| if at < count { segment(at) } else { SharedBytes::new() })
}
