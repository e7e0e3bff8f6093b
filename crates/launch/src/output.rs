//! The lines that the processes of a job write, on their way to a person and to files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::error::Error;
use crate::event::{Event, OutputStream};
use crate::failure::LastWords;
use crate::tagged::RankLines;

/// Takes the lines of a job, one at a time.
pub(crate) struct Output<'a> {
    show: &'a Mutex<dyn FnMut(Event<'_>) + Send + 'a>,
    kept: Mutex<Kept>,
    /// Whether lines are mpirun's, with marks of ranks.
    marked: bool,
}

struct Kept {
    words: LastWords,
    logs: Option<Logs>,
}

impl<'a> Output<'a> {
    pub fn new(
        show: &'a Mutex<dyn FnMut(Event<'_>) + Send + 'a>,
        marked: bool,
        words: LastWords,
        logs: Option<&Path>,
    ) -> Result<Self, Error> {
        let logs = logs.map(Logs::new).transpose()?;
        Ok(Self { show, kept: Mutex::new(Kept { words, logs }), marked })
    }

    /// Reads a stream to its end.
    pub fn read(&self, stream: OutputStream, pipe: impl Read) {
        let mut pipe = BufReader::new(pipe);
        let mut lines = RankLines::default();
        let mut line = Vec::new();
        // What cannot be read is the end.
        while pipe.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            match self.marked {
                true => lines.take(text, |rank, text| self.line(stream, rank, text)),
                false => self.line(stream, None, text),
            }
            line.clear();
        }
        lines.end(|rank, text| self.line(stream, rank, text));
    }

    fn line(&self, stream: OutputStream, rank: Option<usize>, text: &[u8]) {
        let text = String::from_utf8_lossy(text);
        let Ok(mut kept) = self.kept.lock() else { return };
        if stream == OutputStream::Err && kept.words.take(rank, &text) {
            return;
        }
        if let Some(logs) = &mut kept.logs {
            logs.write(rank, &text);
        }
        // mpirun's own words are for the report of a failure.
        if self.marked && rank.is_none() {
            return;
        }
        drop(kept);
        if let Ok(mut show) = self.show.lock() {
            show(Event::Line { stream, rank, text: &text });
        }
    }

    /// What was said last, and what could not be written to the files.
    pub fn end(self) -> (LastWords, Result<(), Error>) {
        let kept = self.kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        (kept.words, kept.logs.map_or(Ok(()), Logs::end))
    }
}

/// A file for each rank.
struct Logs {
    folder: PathBuf,
    files: BTreeMap<Option<usize>, BufWriter<File>>,
    failed: Option<Error>,
}

impl Logs {
    fn new(folder: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(folder)
            .map_err(Error::system(format!("cannot create the folder {}", folder.display())))?;
        Ok(Self { folder: folder.to_owned(), files: BTreeMap::new(), failed: None })
    }

    /// Writes a line; a failure is kept until the end, as training goes on without its log.
    fn write(&mut self, rank: Option<usize>, text: &str) {
        let name = match rank {
            Some(rank) => format!("rank-{rank}.log"),
            None => "output.log".to_string(),
        };
        let path = self.folder.join(name);
        let written = match self.files.entry(rank) {
            std::collections::btree_map::Entry::Occupied(file) => Ok(file.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                let file = File::options().create(true).append(true).open(&path);
                file.map(|file| place.insert(BufWriter::new(file)))
            }
        }
        .and_then(|file| {
            writeln!(file, "{text}")?;
            file.flush()
        });
        if let Err(error) = written {
            let failed = Error::system(format!("cannot write {}", path.display()))(error);
            self.failed.get_or_insert(failed);
        }
    }

    fn end(self) -> Result<(), Error> {
        self.failed.map_or(Ok(()), Err)
    }
}
