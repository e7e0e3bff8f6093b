use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};

/// A buffered file that knows its position: writing on from there costs no seek.
#[derive(Debug)]
pub(crate) struct BufferedFile {
    file: BufWriter<File>,
    position: u64,
}

impl BufferedFile {
    /// An empty file with a buffer of so many bytes; larger pieces go straight through.
    pub fn new(file: File, buffer: usize) -> Self {
        Self { file: BufWriter::with_capacity(buffer, file), position: 0 }
    }

    pub fn write_at(&mut self, target: u64, bytes: &[u8]) -> io::Result<()> {
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

    /// Waits until all of it is on the disk.
    pub fn sync(&mut self) -> io::Result<()> {
        self.file.flush()?;
        self.file.get_ref().sync_all()
    }
}
