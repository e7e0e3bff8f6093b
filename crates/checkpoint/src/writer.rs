use std::collections::HashSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Component, Path};

use crate::destination::Destination;
use crate::error::Error;
use crate::folder::INDEX_FILE;
use crate::index;
use crate::layout::{Layout, Place, Shard, TensorSpec};

/// Bytes gathered before a write to disk; larger pieces go straight through.
const BUFFER: usize = 1 << 20;

/// Writes a checkpoint in shards, in bounded memory, as `save_pretrained` of transformers lays it
/// out.
///
/// All tensors are declared first; then their data comes in that order, in pieces of any size. It
/// is all written to a folder beside the output, which gets its name in [`Self::finish`]; a writer
/// dropped before leaves nothing behind.
///
/// Inside a shard tensors keep the order of declaration, which should be the order of use, so that
/// a pass over the model reads the disk from front to back. (A shard that mixes dtypes such that
/// this would misalign a tensor is ordered by size of dtype instead.)
#[derive(Debug)]
pub struct ShardWriter {
    // Before `destination`, so that on drop the files are closed before their folder is removed.
    open: BTreeMap<usize, OpenShard>,
    destination: Destination,
    layout: Layout,
    total_parameters: Option<u64>,
    added: HashSet<String>,
    /// The tensor whose turn it is, as a position in the layout.
    current: usize,
    /// Bytes of it received.
    filled: u64,
    written: u64,
    failed: bool,
}

/// A shard that still lacks data. At most two are: the one being filled, and one of a single large
/// tensor.
#[derive(Debug)]
struct OpenShard {
    file: BufWriter<File>,
    file_name: String,
    position: u64,
    /// Tensors that are not complete.
    left: usize,
}

impl ShardWriter {
    /// Lays out `specs` in shards of at most `max_shard_size` bytes of data (a larger tensor gets
    /// its own shard), checks that `out` does not exist or is an empty folder, and creates the
    /// folder to write in, beside it.
    ///
    /// # Errors
    ///
    /// If a name comes twice or a size overflows; if `out` is not free; if folders cannot be
    /// created there.
    pub fn create(
        out: impl AsRef<Path>,
        specs: Vec<TensorSpec>,
        max_shard_size: u64,
    ) -> Result<Self, Error> {
        let layout = Layout::new(specs, max_shard_size).map_err(|fault| Error::Specs { fault })?;
        let destination = Destination::prepare(out.as_ref())?;
        Ok(Self {
            open: BTreeMap::new(),
            destination,
            layout,
            total_parameters: None,
            added: HashSet::new(),
            current: 0,
            filled: 0,
            written: 0,
            failed: false,
        })
    }

    /// Sets the number of parameters that the index of a checkpoint in shards will state (buffers
    /// not counted, tied weights once); without it the index states none.
    pub fn set_total_parameters(&mut self, count: u64) {
        self.total_parameters = Some(count);
    }

    /// Adds a small file, such as `config.json`, to the folder.
    ///
    /// # Errors
    ///
    /// If the name is not a plain file name, is taken, or is one of those that the weights have; if
    /// writing fails.
    pub fn add_file(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.check_not_failed()?;
        let wrong = |what| Error::FileName { name: name.to_owned(), what };
        let mut parts = Path::new(name).components();
        if name.contains(['/', '\\', ':', '\0'])
            || !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None))
        {
            return Err(wrong("is not a plain file name"));
        }
        // A stray file of weights could be taken for the checkpoint, or for a part of it.
        let lower = name.to_ascii_lowercase(); // some systems do not tell the cases apart
        if lower.ends_with(".safetensors") || lower.ends_with(".safetensors.index.json") {
            return Err(wrong("is for weights, which only the writer itself adds"));
        }
        if !self.added.insert(name.to_owned()) {
            return Err(wrong("was added before"));
        }
        self.attempt(|writer| writer.write_small_file(name, bytes))
    }

    /// Takes the next bytes, little endian, of tensor `name`.
    ///
    /// Tensors come in the order of declaration, each in as many pieces as wanted. Tensors without
    /// elements may be left out.
    ///
    /// # Errors
    ///
    /// If it is another tensor's turn, if these are more bytes than the tensor lacks, or if writing
    /// fails. After a failed write the writer takes nothing more; after the other errors it can go
    /// on.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.check_not_failed()?;
        while let Some(place) = self.layout.tensors.get(self.current)
            && place.name != name
            && place.len == self.filled
        {
            self.attempt(Self::complete_tensor)?;
        }
        self.layout.check_turn(self.current, self.filled, name, bytes.len() as u64)?;
        self.attempt(|writer| writer.put(bytes))
    }

    /// Bytes of tensors taken so far.
    pub fn bytes_written(&self) -> u64 {
        self.written
    }

    /// Bytes of all tensors declared.
    pub fn total_bytes(&self) -> u64 {
        self.layout.total_bytes
    }

    /// Writes the index, waits until everything is on the disk, and gives the folder its name.
    ///
    /// # Errors
    ///
    /// If a tensor is not complete or writing fails: then nothing is left behind. If only the last
    /// step fails, the complete checkpoint is kept where the error says.
    pub fn finish(mut self) -> Result<(), Error> {
        self.check_not_failed()?;
        while let Some(place) = self.layout.tensors.get(self.current) {
            if self.filled < place.len {
                let missing = place.len - self.filled;
                return Err(Error::Incomplete {
                    tensor: place.name.clone(),
                    missing,
                    len: place.len,
                });
            }
            self.complete_tensor()?;
        }
        if self.layout.tensors.is_empty() {
            self.open_shard(0)?;
            self.close_shard(0)?;
        }
        if self.layout.shards.len() > 1 {
            self.write_index()?;
        }
        self.destination.publish()
    }

    fn write_index(&self) -> Result<(), Error> {
        let Layout { shards, tensors, total_bytes } = &self.layout;
        let weight_map = tensors
            .iter()
            .map(|place| (place.name.as_str(), shards[place.shard].file_name.as_str()));
        let text = index::encode(*total_bytes, self.total_parameters, weight_map);
        self.write_small_file(INDEX_FILE, text.as_bytes())
    }

    fn write_small_file(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.destination.folder().join(name);
        let create = || {
            let mut file = File::create_new(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        create().map_err(|cause| self.write_error(name, cause))
    }

    /// Does something after whose failure it is not known what is on disk.
    fn attempt(
        &mut self,
        action: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let result = action(self);
        self.failed |= result.is_err();
        result
    }

    fn check_not_failed(&self) -> Result<(), Error> {
        match self.failed {
            true => Err(Error::WriterFailed { path: self.destination.out().to_owned() }),
            false => Ok(()),
        }
    }

    /// Writes bytes that the current tensor lacks.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let Some(&Place { shard, offset, .. }) = self.layout.tensors.get(self.current) else {
            return Ok(());
        };
        let target = offset + self.filled;
        let open = self.open_shard(shard)?;
        let result = open.write_at(target, bytes);
        let file_name = open.file_name.clone();
        result.map_err(|cause| self.write_error(&file_name, cause))?;
        self.filled += bytes.len() as u64;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Goes on to the next tensor, and closes the shard if this was its last.
    fn complete_tensor(&mut self) -> Result<(), Error> {
        let Some(&Place { shard, .. }) = self.layout.tensors.get(self.current) else {
            return Ok(());
        };
        // A shard of empty tensors only is opened by none of them being written.
        let open = self.open_shard(shard)?;
        open.left -= 1;
        if open.left == 0 {
            self.close_shard(shard)?;
        }
        self.current += 1;
        self.filled = 0;
        Ok(())
    }

    /// The open file of a shard; creates it and writes its header if need be.
    fn open_shard(&mut self, shard: usize) -> Result<&mut OpenShard, Error> {
        let Self { open, destination, layout, written, .. } = self;
        match open.entry(shard) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let Shard { file_name, head, tensors } = &layout.shards[shard];
                let path = destination.folder().join(file_name);
                let create = || {
                    let mut file = BufWriter::with_capacity(BUFFER, File::create_new(&path)?);
                    file.write_all(head)?;
                    Ok(file)
                };
                match create() {
                    Ok(file) => Ok(entry.insert(OpenShard {
                        file,
                        file_name: file_name.clone(),
                        position: head.len() as u64,
                        left: *tensors,
                    })),
                    Err(cause) => Err(Error::Write {
                        path: destination.out().join(file_name),
                        written: *written,
                        total: layout.total_bytes,
                        cause,
                    }),
                }
            }
        }
    }

    /// Waits until a shard is on the disk.
    fn close_shard(&mut self, shard: usize) -> Result<(), Error> {
        let Some(OpenShard { mut file, file_name, .. }) = self.open.remove(&shard) else {
            return Ok(());
        };
        file.flush()
            .and_then(|()| file.get_ref().sync_all())
            .map_err(|cause| self.write_error(&file_name, cause))
    }

    /// Names the file as it would have been called: the unfinished folder goes.
    fn write_error(&self, file_name: &str, cause: io::Error) -> Error {
        Error::Write {
            path: self.destination.out().join(file_name),
            written: self.written,
            total: self.layout.total_bytes,
            cause,
        }
    }
}

impl OpenShard {
    fn write_at(&mut self, target: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if target != self.position {
            self.file.seek(SeekFrom::Start(target))?;
        }
        self.file.write_all(bytes)?;
        self.position = target + bytes.len() as u64;
        Ok(())
    }
}
