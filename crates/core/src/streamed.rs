use crate::pass::Pass;
use crate::{Access, Error};
use burn::module::{Param, ParamMapper, Reparameterization};
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor, TensorData};
use outsize_stream::{ChunkId, Convert, Lease, Stream};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

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
    pub(crate) units: Units,
    /// As stored in the checkpoint: before any transposition.
    pub(crate) shape: Vec<usize>,
    /// As held in memory.
    pub(crate) dtype: DType,
    pub(crate) transposed: bool,
    pub(crate) device: Device,
    /// The `ParamMapper<Tensor<D>>` of the parameter, D being its rank.
    pub(crate) mapper: Box<dyn Any + Send + Sync>,
    /// For a resident parameter: its `Tensor<D>`, once it is read.
    pub(crate) resident: Option<OnceLock<Box<dyn Any + Send + Sync>>>,
    /// Where the value lies in the file, for reading single rows.
    pub(crate) place: Place,
}

/// How a parameter's value is divided into units of streaming.
#[derive(Debug, Clone)]
pub(crate) enum Units {
    Whole(ChunkId),
    /// The bytes of a unit that is read in one go with neighbours.
    Part(ChunkId, Range<usize>),
    Tiles {
        rows: usize,
        ids: Vec<ChunkId>,
    },
    Rows,
}

/// Where a tensor lies.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) source: usize,
    pub(crate) offset: u64,
    pub(crate) row_bytes: usize,
    pub(crate) convert: Option<Convert>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.path, self.shape)
    }
}

impl Reparameterization for Streamed {
    const NAME: &'static str = "streamed";

    fn apply<const D: usize>(&self, _placeholder: Tensor<D>) -> Tensor<D> {
        self.inner.or_raise(self.inner.value())
    }
}

impl Streamed {
    pub(crate) fn new(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// The handle of `param`, if it is dispatched.
    pub fn of<const D: usize>(param: &Param<Tensor<D>>) -> Option<&Self> {
        param.reparameterization::<Self>()
    }

    /// Whether the value stays in memory. `Param::val()` is then the way to read it.
    pub fn is_resident(&self) -> bool {
        self.inner.resident.is_some()
    }

    /// How the value is read when it is not resident.
    pub fn access(&self) -> Access {
        match &self.inner.units {
            Units::Whole(_) | Units::Part(..) => Access::Whole,
            Units::Tiles { .. } => Access::Tiles,
            Units::Rows => Access::Rows,
        }
    }

    /// Shape as stored in the checkpoint.
    pub fn shape(&self) -> &[usize] {
        &self.inner.shape
    }

    /// The rows of a matrix `[rows, columns]`, as stored in the checkpoint, tile after tile: the range
    /// of rows and a tensor `[range.len(), columns]`. Hold one at a time: the next may need its memory.
    ///
    /// # Unwinds
    /// To [`Dispatched::run`](crate::Dispatched::run) with what the read said, or with
    /// [`Error::Access`] if the parameter is not streamed by tiles.
    pub fn tiles(&self) -> impl Iterator<Item = (Range<usize>, Tensor<2>)> + '_ {
        let Units::Tiles { rows, ids } = &self.inner.units else {
            self.inner.pass.raise(self.inner.refuse("its tiles"))
        };
        let (height, width) = (self.inner.shape[0], self.inner.shape[1]);
        ids.iter().enumerate().map(move |(tile, unit)| {
            let range = tile * rows..((tile + 1) * rows).min(height);
            let tensor = self
                .inner
                .lease(*unit)
                .and_then(|lease| self.inner.tensor::<2>(lease, &[range.len(), width]));
            (range, self.inner.or_raise(tensor))
        })
    }

    /// Single rows of a matrix `[rows, columns]`, read by themselves: `[ids.len(), columns]`.
    ///
    /// # Unwinds
    /// To [`Dispatched::run`](crate::Dispatched::run) with what the read said, or with [`Error::Row`].
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
        self.pass.raise(Error::Misuse {
            path: self.path.to_string(),
            what,
        })
    }

    fn refuse(&self, asked: &'static str) -> Error {
        Error::Access {
            path: self.path.to_string(),
            streamed: match self.units {
                Units::Whole(_) | Units::Part(..) => "as a whole",
                Units::Tiles { .. } => "by tiles",
                Units::Rows => "by rows",
            },
            asked,
        }
    }

    fn lease(&self, unit: ChunkId) -> Result<Lease, Error> {
        self.pass.check(&self.path);
        Ok(self.stream.lease(unit)?)
    }

    /// The parameter's value, as `Param::val()` should give it.
    fn value<const D: usize>(&self) -> Result<Tensor<D>, Error> {
        self.pass.check(&self.path);
        if let Some(resident) = &self.resident
            && let Some(tensor) = resident
                .get()
                .and_then(|any| any.downcast_ref::<Tensor<D>>())
        {
            return Ok(tensor.clone());
        }
        let bytes = match &self.units {
            Units::Whole(unit) => bytes::Bytes::from_owner(self.lease(*unit)?),
            Units::Part(unit, range) => {
                bytes::Bytes::from_owner(self.lease(*unit)?).slice(range.clone())
            }
            _ => return Err(self.refuse("its whole value")),
        };
        let mut tensor = self.shared::<D>(bytes, &self.shape)?;
        if self.transposed {
            tensor = tensor.swap_dims(0, 1);
        }
        if let Some(mapper) = self.mapper.downcast_ref::<ParamMapper<Tensor<D>>>() {
            tensor = mapper.on_load(tensor);
        }
        if let Some(resident) = &self.resident {
            // Two threads may come here at once; both have the same bytes.
            let _ = resident.set(Box::new(tensor.clone()));
        }
        Ok(tensor)
    }

    /// A tensor over the leased bytes: no copy on the CPU, and the lease lives as long as it does.
    fn tensor<const D: usize>(&self, lease: Lease, shape: &[usize]) -> Result<Tensor<D>, Error> {
        self.shared(bytes::Bytes::from_owner(lease), shape)
    }

    fn shared<const D: usize>(
        &self,
        bytes: bytes::Bytes,
        shape: &[usize],
    ) -> Result<Tensor<D>, Error> {
        let bytes = Bytes::from_shared(bytes, AllocationProperty::Other);
        self.tensor_of(bytes, shape)
    }

    fn tensor_of<const D: usize>(&self, bytes: Bytes, shape: &[usize]) -> Result<Tensor<D>, Error> {
        let data =
            TensorData::try_from_bytes(bytes, shape, self.dtype).map_err(|error| Error::Value {
                name: self.path.to_string(),
                reason: error.to_string(),
            })?;
        Ok(Tensor::from_data(data, (&self.device, self.dtype)))
    }

    fn rows(&self, ids: &[usize]) -> Result<Tensor<2>, Error> {
        self.pass.check(&self.path);
        let (height, width) = match self.shape[..] {
            [height, width] => (height, width),
            _ => return Err(self.refuse("single rows")),
        };
        if let Some(row) = ids.iter().find(|row| **row >= height) {
            return Err(Error::Row {
                path: self.path.to_string(),
                row: *row,
                rows: height,
            });
        }
        let Place {
            source,
            offset,
            row_bytes,
            convert,
        } = &self.place;
        let mut raw = vec![0; ids.len() * row_bytes];
        // Each distinct row is read once; neighbours in the file follow each other.
        let mut wanted: Vec<_> = ids.iter().copied().zip(0..).collect();
        wanted.sort_unstable();
        let mut last: Option<(usize, usize)> = None;
        for (row, at) in wanted {
            let to = at * row_bytes..(at + 1) * row_bytes;
            match last {
                Some((same, from)) if same == row => {
                    raw.copy_within(from * row_bytes..(from + 1) * row_bytes, to.start);
                }
                _ => {
                    let start = offset + (row * row_bytes) as u64;
                    self.stream.read(&self.path, *source, start, &mut raw[to])?;
                    last = Some((row, at));
                }
            }
        }
        let held = match convert {
            Some(convert) => {
                let mut held = vec![0; raw.len() / convert.from * convert.to];
                convert.run(*offset, &raw, &mut held);
                held
            }
            None => raw,
        };
        self.tensor_of(Bytes::from_bytes_vec(held), &[ids.len(), width])
    }
}
