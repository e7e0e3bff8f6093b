use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::burnpack;
use crate::dtype::Dtype;
use crate::error::Error;
use crate::fault::IndexFault;
use crate::file::{ShardFile, read_exact_at};
use crate::folder::{Container, Source, folder_of, model_folder};
use crate::gguf::GgufFile;
use crate::header::{HeaderEntry, MAX_HEADERS};
use crate::index::{self, Index};
use crate::packed_bf16::PackedBf16;
use crate::parallel::{self, THREADS};
use crate::torch;

/// A tensor of a checkpoint and where its bytes lie.
///
/// The range is proven to lie in its file, and `len` to be that of as many elements of `dtype` as
/// the product of `shape`; no product over some of the dimensions overflows. The offset need not be
/// a multiple of anything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// The name in the checkpoint, such as `model.layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The shape, slowest dimension first; empty for a scalar.
    pub shape: Vec<usize>,
    /// The file, as a position in [`Checkpoint::files`].
    pub file: usize,
    /// The first byte, from the start of the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A checkpoint on disk: its files, open, and an index of its tensors. Clones share everything.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    files: Vec<ShardFile>,
    /// By file, then by offset.
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, by name.
    by_name: Vec<usize>,
    ignored: Vec<TensorInfo>,
    total_bytes: u64,
    is_burnpack: bool,
}

impl Checkpoint {
    /// Opens the checkpoint at `path`: a folder with `model.safetensors`, or with
    /// `model.safetensors.index.json` and its shards; or one `.safetensors` file, or an index of
    /// shards, itself. Where there are none, the same of `pytorch_model.bin`, which `torch.save`
    /// writes, or `model.bpk` of a Burn module's `save_file`; a file given by itself may end in
    /// `.bin`, `.pt`, `.pth` or `.bpk`, or be one of GGUF, whose tensors then have the names of
    /// transformers.
    ///
    /// Reads and checks all headers, and no weights. Nothing in a pickle is executed. Symbolic
    /// links are followed, as the cache of the Hub needs.
    ///
    /// # Errors
    ///
    /// If there is no checkpoint, if a file cannot be read, or if any header or the index is wrong.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let inner = match Source::find(path.as_ref())? {
            Source::File(container, path) => Inner::from_file(container, path)?,
            Source::Index(container, path) => Inner::from_index(container, &path)?,
            Source::Gguf(path) => Inner::from_gguf(&path)?,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// All tensors, ordered by file, then by offset.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.inner.tensors
    }

    /// The tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors().get(self.position(name)?)
    }

    /// The position in [`Self::tensors`] of the tensor of this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        let Inner { tensors, by_name, .. } = &*self.inner;
        let found =
            by_name.binary_search_by(|&position| tensors[position].name.as_str().cmp(name)).ok()?;
        by_name.get(found).copied()
    }

    /// The files, in the order of their names.
    pub fn files(&self) -> &[ShardFile] {
        &self.inner.files
    }

    /// The folder that the checkpoint is in, where its configuration and tokenizer are too, or the
    /// GGUF file that holds all of it: see [`model_folder`].
    pub fn folder(&self) -> &Path {
        &self.inner.folder
    }

    /// Whether a module of Burn wrote it, so that names and shapes are those of the module.
    pub fn is_burnpack(&self) -> bool {
        self.inner.is_burnpack
    }

    /// Bytes of all tensors. What several share, as tied tensors in a file of `torch.save` do,
    /// counts once.
    pub fn total_bytes(&self) -> u64 {
        self.inner.total_bytes
    }

    /// Tensors that lie in the shards but that the index does not place where they lie, so that
    /// they are not part of the checkpoint. Some real checkpoints have them: shards taken over from
    /// another one, whose tensors newer shards replace.
    pub fn ignored(&self) -> &[TensorInfo] {
        &self.inner.ignored
    }

    /// A checkpoint of the same files that has these tensors: some of this one's, or rows of them,
    /// under any names.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if a tensor lies beyond its file, or its bytes are not those of its
    /// shape.
    pub fn with_tensors(&self, mut tensors: Vec<TensorInfo>) -> Result<Self, Error> {
        for tensor in &tensors {
            let len = tensor.dtype.bytes_of(&tensor.shape).filter(|len| *len == tensor.len);
            self.check_range(tensor, 0, len.unwrap_or(u64::MAX))?;
        }
        tensors.sort_by_key(|tensor| (tensor.file, tensor.offset));
        let Inner { folder, files, .. } = &*self.inner;
        let inner = Inner::new(folder.clone(), files.clone(), tensors, Vec::new());
        let inner = Inner { is_burnpack: self.is_burnpack(), ..inner };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Reads the bytes of one whole tensor, little endian.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has changed since it was opened; if there is no memory; or if
    /// the tensor is of another checkpoint.
    pub fn read(&self, tensor: &TensorInfo) -> Result<Vec<u8>, Error> {
        self.check_range(tensor, 0, tensor.len)?;
        let no_memory = || Error::OutOfMemory { tensor: tensor.name.clone(), len: tensor.len };
        let len = usize::try_from(tensor.len).map_err(|_| no_memory())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| no_memory())?;
        bytes.resize(len, 0);
        self.read_at(tensor, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Fills `out` with the bytes of a tensor from byte `start` of it on.
    ///
    /// # Errors
    ///
    /// If the range is not inside the tensor, and as [`Self::read`].
    pub fn read_at(&self, tensor: &TensorInfo, start: u64, out: &mut [u8]) -> Result<(), Error> {
        let (file, offset) = self.check_range(tensor, start, out.len() as u64)?;
        read_exact_at(file.file(), out, offset).map_err(|cause| Error::ReadTensor {
            tensor: tensor.name.clone(),
            path: file.path().to_owned(),
            cause,
        })
    }

    /// The file of a tensor, and the offset in it of the tensor's byte `start`, if `len` bytes from
    /// there are the tensor's.
    ///
    /// The fields of a [`TensorInfo`] are public, so they are checked anew.
    fn check_range(
        &self,
        tensor: &TensorInfo,
        start: u64,
        len: u64,
    ) -> Result<(&ShardFile, u64), Error> {
        let range = || {
            let file = self.files().get(tensor.file)?;
            let tensor_end =
                tensor.offset.checked_add(tensor.len).filter(|&end| end <= file.len())?;
            let offset = tensor.offset.checked_add(start)?;
            let end = offset.checked_add(len)?;
            (end <= tensor_end).then_some((file, offset))
        };
        range().ok_or_else(|| Error::OutOfRange {
            tensor: tensor.name.clone(),
            start,
            end: start.saturating_add(len),
            len: tensor.len,
            file: tensor.file,
            files: self.files().len(),
        })
    }
}

impl Inner {
    fn from_file(container: Container, path: PathBuf) -> Result<Self, Error> {
        let folder = model_folder(&path).to_owned();
        let (file, entries, data_start) = open_file(container, path, |_| Ok(()))?;
        let tensors = entries.into_iter().map(|entry| entry.at(0, data_start)).collect();
        let is_burnpack = container == Container::Burnpack;
        Ok(Self { is_burnpack, ..Self::new(folder, vec![file], tensors, Vec::new()) })
    }

    fn from_gguf(path: &Path) -> Result<Self, Error> {
        let (files, headers): (_, Vec<_>) = GgufFile::open(path)?.into_shards().into_iter().unzip();
        let of_file = |(file, entries): (usize, Vec<HeaderEntry>)| {
            entries.into_iter().map(move |entry| entry.at(file, 0))
        };
        let tensors = headers.into_iter().enumerate().flat_map(of_file).collect();
        Ok(Self::new(model_folder(path).to_owned(), files, tensors, Vec::new()))
    }

    fn from_index(container: Container, path: &Path) -> Result<Self, Error> {
        let folder = folder_of(path).to_owned();
        let wrong = |fault| Error::Index { path: path.to_owned(), fault };
        let json = index::read(path)?;
        let index = Index::parse(&json).map_err(wrong)?;

        // What cannot be looked at (a loop of links, no permission) is reported when it is opened.
        let shards = index.shards();
        let missing = parallel::each(THREADS, shards.len(), |shard| {
            Ok::<_, Error>(matches!(folder.join(&shards[shard]).try_exists(), Ok(false)))
        })?;
        if let Some(first) = missing.iter().position(|missing| *missing) {
            return Err(wrong(IndexFault::MissingShards {
                file: shards[first].clone(),
                missing: missing.into_iter().filter(|missing| *missing).count(),
                shards: shards.len(),
            }));
        }

        // No more is read of headers than they may have together.
        let header_bytes = AtomicU64::new(0);
        let admit = |bytes| {
            let before = header_bytes.fetch_add(bytes, Ordering::Relaxed);
            if before.saturating_add(bytes) > MAX_HEADERS {
                return Err(wrong(IndexFault::HeadersTooLarge { max: MAX_HEADERS }));
            }
            Ok(())
        };
        let opened = parallel::each(THREADS, shards.len(), |shard| {
            open_file(container, folder.join(&shards[shard]), admit)
        })?;
        let opened = opened.into_iter().map(|(file, entries, start)| (file, (entries, start)));
        let (files, headers): (_, Vec<_>) = opened.unzip();
        let (tensors, ignored) = sort_out(&index, headers).map_err(wrong)?;
        Ok(Self::new(folder, files, tensors, ignored))
    }

    fn new(
        folder: PathBuf,
        files: Vec<ShardFile>,
        tensors: Vec<TensorInfo>,
        ignored: Vec<TensorInfo>,
    ) -> Self {
        let tensors = with_packed(tensors);
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_unstable_by(|&a, &b| tensors[a].name.cmp(&tensors[b].name));
        let total_bytes = covered_bytes(&tensors);
        Self { folder, files, tensors, by_name, ignored, total_bytes, is_burnpack: false }
    }
}

/// Shows tensors of packed bf16 as the matrices that they are, unless there is another of that
/// name.
fn with_packed(tensors: Vec<TensorInfo>) -> Vec<TensorInfo> {
    let names: HashSet<String> = tensors.iter().map(|tensor| tensor.name.clone()).collect();
    let shown = |tensor: TensorInfo| {
        let found = PackedBf16::of_stored(&tensor.name, &tensor.shape);
        let Some((name, packed, shape)) = found.filter(|_| tensor.dtype == Dtype::U8) else {
            return tensor;
        };
        let dtype = Dtype::PackedBf16(packed);
        match dtype.bytes_of(&shape) == Some(tensor.len) && !names.contains(&name) {
            true => TensorInfo { name, dtype, shape: shape.to_vec(), ..tensor },
            false => tensor,
        }
    };
    tensors.into_iter().map(shown).collect()
}

impl HeaderEntry {
    pub(crate) fn at(self, file: usize, data_start: u64) -> TensorInfo {
        let Self { name, dtype, shape, start, end } = self;
        TensorInfo { name, dtype, shape, file, offset: data_start + start, len: end - start }
    }
}

/// Opens one file and finds its tensors, as offsets from the byte that is given beside them.
fn open_file(
    container: Container,
    path: PathBuf,
    admit: impl Fn(u64) -> Result<(), Error>,
) -> Result<(ShardFile, Vec<HeaderEntry>, u64), Error> {
    match container {
        Container::Safetensors => {
            let (file, header, data_start) = ShardFile::open(path, admit)?;
            Ok((file, header.tensors, data_start))
        }
        Container::Burnpack => burnpack::open(path, admit),
        Container::Torch => {
            let (file, entries) = torch::open(path, admit)?;
            Ok((file, entries, 0))
        }
    }
}

/// Bytes that tensors, ordered by file and offset, lie in.
fn covered_bytes(tensors: &[TensorInfo]) -> u64 {
    let (mut file, mut end) = (0, 0);
    // Each length is at most that of a file; no number of real files sums up to the bound.
    tensors.iter().fold(0u64, |sum, tensor| {
        if tensor.file != file {
            (file, end) = (tensor.file, 0);
        }
        let start = tensor.offset.max(end);
        end = end.max(tensor.offset + tensor.len);
        sum.saturating_add(end.saturating_sub(start))
    })
}

/// The tensors of shards with these headers and offsets of their data, and those that the index
/// does not place where they lie.
pub(crate) fn sort_out(
    index: &Index<'_>,
    headers: Vec<(Vec<HeaderEntry>, u64)>,
) -> Result<(Vec<TensorInfo>, Vec<TensorInfo>), IndexFault> {
    let (mut tensors, mut ignored) = (Vec::with_capacity(index.len()), Vec::new());
    for (shard, (entries, data_start)) in headers.into_iter().enumerate() {
        for entry in entries {
            let here = index.shard_of(&entry.name) == Some(shard);
            let list = if here { &mut tensors } else { &mut ignored };
            list.push(entry.at(shard, data_start));
        }
    }
    // Names are unique in the index and in each shard, so only too few can be found.
    if tensors.len() < index.len() {
        let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        let not_found = index.tensors().find(|(tensor, _)| names.binary_search(tensor).is_err());
        let (tensor, file) = not_found.unwrap_or_default();
        return Err(IndexFault::NotInShard { tensor: tensor.to_owned(), file: file.to_owned() });
    }
    Ok((tensors, ignored))
}
