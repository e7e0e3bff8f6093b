//! `state.json`: what a state consists of, with a checksum of every file and of itself.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::fault::StateFault;

/// The format that this version writes and reads.
pub(super) const FORMAT: u64 = 1;
const NAME: &str = "state.json";
/// More than the names of the parameters of any model.
const MAX_BYTES: u64 = 64 << 20;
/// Bytes of a file that are read at once.
const CHUNK: usize = 1 << 20;

/// What a state consists of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub format: u64,
    pub ranks: usize,
    /// Of random operations.
    pub seed: Option<u64>,
    /// Batches that each rank has taken.
    pub batches_taken: u64,
    /// For each model, the identity of each parameter by its path.
    pub models: Vec<BTreeMap<String, u64>>,
    pub optimizers: usize,
    pub schedulers: usize,
    /// Items of all ranks in a batch, for each loader.
    pub loaders: Vec<usize>,
    pub has_scaler: bool,
    /// The names of registered objects.
    pub objects: Vec<String>,
    pub files: Vec<FileSum>,
}

/// A file of a state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct FileSum {
    /// Below the folder, divided by `/`.
    path: String,
    bytes: u64,
    /// CRC-32C of the contents.
    crc32c: u32,
}

impl Manifest {
    /// Reads the manifest of a state.
    pub fn read(folder: &Path) -> Result<Self, StateFault> {
        let path = folder.join(NAME);
        let text = match outsize_checkpoint::read_text(&path, MAX_BYTES) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                return Err(StateFault::NotAState);
            }
            Err(cause) if cause.kind() == io::ErrorKind::InvalidData => {
                return Err(StateFault::damaged(NAME, cause));
            }
            text => text.map_err(|cause| StateFault::File { file: path, cause })?,
        };
        let damaged = |what: &str| StateFault::damaged(NAME, what);
        let end = text.rfind(",\"crc32c\":").ok_or_else(|| damaged("its end is missing"))?;
        if text != with_sum(&text[..end]) {
            return Err(damaged("it is not what was written (wrong checksum)"));
        }
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|fault| StateFault::damaged(NAME, fault))?;
        match json["format"].as_u64() {
            Some(FORMAT) => {
                serde_json::from_value(json).map_err(|fault| StateFault::damaged(NAME, fault))
            }
            Some(found) => Err(StateFault::Format { found, reads: FORMAT }),
            None => Err(damaged("it states no format")),
        }
    }

    /// Writes the manifest: the last file of a state.
    pub fn write(&self, folder: &Path) -> Result<(), StateFault> {
        let json =
            serde_json::to_string(self).map_err(|fault| StateFault::mismatch(NAME, fault))?;
        let text = with_sum(&json[..json.len() - 1]);
        Ok(outsize_checkpoint::write_file(folder.join(NAME), text.as_bytes())?)
    }

    /// Checks that all files are what was written.
    pub fn verify(&self, folder: &Path) -> Result<(), StateFault> {
        for file in &self.files {
            let path = Path::new(&file.path);
            if !path.components().all(|part| matches!(part, Component::Normal(_))) {
                return Err(StateFault::damaged(NAME, "it names a file outside of the folder"));
            }
            let (bytes, crc32c) = sum(&folder.join(path)).map_err(|fault| match fault {
                StateFault::File { cause, .. } if cause.kind() == io::ErrorKind::NotFound => {
                    StateFault::damaged(&file.path, "it is missing")
                }
                fault => fault,
            })?;
            if bytes != file.bytes {
                let what = format!("it has {bytes} bytes of {}", file.bytes);
                return Err(StateFault::damaged(&file.path, what));
            }
            if crc32c != file.crc32c {
                return Err(StateFault::damaged(&file.path, "wrong checksum"));
            }
        }
        Ok(())
    }
}

/// The text of a manifest whose last field is the checksum of what is before.
fn with_sum(body: &str) -> String {
    format!("{body},\"crc32c\":\"{:08x}\"}}\n", crc32c::crc32c(body.as_bytes()))
}

/// The checksums of files and of all files of folders, which are below `folder`.
pub(super) fn sums(folder: &Path, names: &[String]) -> Result<Vec<FileSum>, StateFault> {
    let mut sums = Vec::new();
    for name in names {
        let path = folder.join(name);
        if path.is_dir() {
            let below = list(&path).map_err(|cause| StateFault::File { file: path, cause })?;
            let below: Vec<_> = below.into_iter().map(|file| format!("{name}/{file}")).collect();
            sums.extend(self::sums(folder, &below)?);
        } else {
            let (bytes, crc32c) = sum(&path)?;
            sums.push(FileSum { path: name.clone(), bytes, crc32c });
        }
    }
    Ok(sums)
}

fn list(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().into_string().ok());
    let names: io::Result<Vec<_>> = folder.read_dir()?.map(name).collect();
    Ok(names?.into_iter().flatten().collect())
}

/// The length and CRC-32C of a file.
fn sum(path: &Path) -> Result<(u64, u32), StateFault> {
    let failed = |cause| StateFault::File { file: PathBuf::from(path), cause };
    let mut file = File::open(path).map_err(failed)?;
    let (mut chunk, mut bytes, mut crc) = (vec![0; CHUNK], 0, 0);
    loop {
        match file.read(&mut chunk).map_err(failed)? {
            0 => return Ok((bytes, crc)),
            read => {
                bytes += read as u64;
                crc = crc32c::crc32c_append(crc, &chunk[..read]);
            }
        }
    }
}
