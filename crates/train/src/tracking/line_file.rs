//! A text file that grows line by line.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// Bytes that are looked at together for the last line's end.
const CHUNK: u64 = 64 << 10;

/// Such a file. A line is written in one call of the operating system.
#[derive(Debug)]
pub(super) struct LineFile {
    path: PathBuf,
    file: Option<File>,
}

impl LineFile {
    /// A file that [`open`](Self::open) will open.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), file: None }
    }

    /// Opens the file to go on with it, without what a killed process has written of a line.
    /// Whether it is empty.
    pub fn open(&mut self) -> Result<bool, Error> {
        let open = || -> io::Result<(File, bool)> {
            if let Some(folder) = self.path.parent() {
                fs::create_dir_all(folder)?;
            }
            let mut file = File::options().read(true).append(true).create(true).open(&self.path)?;
            let end = end_of_lines(&mut file)?;
            file.set_len(end)?;
            Ok((file, end == 0))
        };
        let (file, is_empty) = open().map_err(|source| self.error(source))?;
        self.file = Some(file);
        Ok(is_empty)
    }

    /// Adds a line.
    pub fn add(&mut self, line: &str) -> Result<(), Error> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let written = file.write_all(format!("{line}\n").as_bytes());
        written.map_err(|source| self.error(source))
    }

    fn error(&self, source: io::Error) -> Error {
        Error::Write { path: self.path.clone(), source }
    }
}

/// Where the last complete line ends.
fn end_of_lines(file: &mut File) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    while end > 0 {
        let start = end.saturating_sub(CHUNK);
        let mut chunk = vec![0; (end - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut chunk)?;
        if let Some(at) = chunk.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + at as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}
