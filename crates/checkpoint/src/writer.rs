use std::collections::HashSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Component, Path};

use crate::buffered_file::BufferedFile;
use crate::error::Error;
use crate::folder::INDEX_FILE;
use crate::index;
use crate::layout::{Layout, Progress, Shard, TensorSpec};
use crate::output_folder::OutputFolder;

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
    destination: OutputFolder,
    progress: Progress,
    total_parameters: Option<u64>,
    added: HashSet<String>,
}

/// A shard that still lacks data. At most two are: the one being filled, and one of a single large
/// tensor.
#[derive(Debug)]
struct OpenShard {
    file: BufferedFile,
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
        let progress = Progress::new(specs, max_shard_size)?;
        let destination = OutputFolder::prepare(out.as_ref())?;
        Ok(Self {
            open: BTreeMap::new(),
            destination,
            progress,
            total_parameters: None,
            added: HashSet::new(),
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
        while self.progress.is_past(name) {
            self.attempt(Self::complete_tensor)?;
        }
        let (shard, target) = self.progress.target(name, bytes.len() as u64)?;
        self.attempt(|writer| {
            let written = writer.open_shard(shard)?.file.write_at(target, bytes);
            written.map_err(|cause| writer.write_error(shard, cause))
        })?;
        self.progress.took(bytes.len() as u64);
        Ok(())
    }

    /// Bytes of tensors taken so far.
    pub fn bytes_written(&self) -> u64 {
        self.progress.written
    }

    /// Bytes of all tensors declared.
    pub fn total_bytes(&self) -> u64 {
        self.progress.layout.total_bytes
    }

    /// How many files the tensors are written to.
    pub fn shards(&self) -> usize {
        self.progress.layout.shards.len()
    }

    /// Writes the index, waits until everything is on the disk, and gives the folder its name.
    ///
    /// # Errors
    ///
    /// If a tensor is not complete or writing fails: then nothing is left behind. If only the last
    /// step fails, the complete checkpoint is kept where the error says.
    pub fn finish(mut self) -> Result<(), Error> {
        self.check_not_failed()?;
        while self.progress.current().is_some() {
            self.complete_tensor()?;
        }
        if self.progress.layout.tensors.is_empty() {
            self.open_shard(0)?;
            self.close_shard(0)?;
        }
        if self.progress.layout.shards.len() > 1 {
            self.write_index()?;
        }
        self.destination.publish()
    }

    fn write_index(&self) -> Result<(), Error> {
        let Layout { shards, tensors, total_bytes } = &self.progress.layout;
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
        create()
            .map_err(|cause| self.progress.write_error(self.destination.out().join(name), cause))
    }

    /// Does something after whose failure it is not known what is on disk.
    fn attempt(
        &mut self,
        action: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let result = action(self);
        self.progress.failed |= result.is_err();
        result
    }

    fn check_not_failed(&self) -> Result<(), Error> {
        self.progress.check_not_failed(self.destination.out())
    }

    /// Goes on to the next tensor, and closes the shard if this was its last.
    fn complete_tensor(&mut self) -> Result<(), Error> {
        let Some(shard) = self.progress.current().map(|place| place.shard) else {
            return Ok(());
        };
        self.progress.advance()?;
        // A shard of empty tensors only is opened by none of them being written.
        let open = self.open_shard(shard)?;
        open.left -= 1;
        match open.left {
            0 => self.close_shard(shard),
            _ => Ok(()),
        }
    }

    /// The open file of a shard; creates it and writes its header if need be.
    fn open_shard(&mut self, shard: usize) -> Result<&mut OpenShard, Error> {
        let Self { open, destination, progress, .. } = self;
        match open.entry(shard) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let Shard { file_name, head, tensors } = &progress.layout.shards[shard];
                let create = || {
                    let file = File::create_new(destination.folder().join(file_name))?;
                    let mut file = BufferedFile::new(file, BUFFER);
                    file.write_at(0, head)?;
                    Ok(OpenShard { file, left: *tensors })
                };
                match create() {
                    Ok(shard) => Ok(entry.insert(shard)),
                    Err(cause) => {
                        Err(progress.write_error(destination.out().join(file_name), cause))
                    }
                }
            }
        }
    }

    /// Waits until a shard is on the disk.
    fn close_shard(&mut self, shard: usize) -> Result<(), Error> {
        let Some(mut open) = self.open.remove(&shard) else {
            return Ok(());
        };
        open.file.sync().map_err(|cause| self.write_error(shard, cause))
    }

    /// Names the file as it would have been called: the unfinished folder goes.
    fn write_error(&self, shard: usize, cause: io::Error) -> Error {
        let name = &self.progress.layout.shards[shard].file_name;
        self.progress.write_error(self.destination.out().join(name), cause)
    }
}
