//! Files of examples: JSON, one object a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use burn::data::dataset::{Dataset, DatasetError};
use jiff::Zoned;

use crate::FinetuneError;
use crate::example::{Example, ExampleFault, ExampleFormat, ExampleReader};

/// The longest line that is read, in bytes.
const LONGEST: u64 = 16 << 20;

/// What is learned from, in memory.
#[derive(Debug, Clone, Default)]
pub struct Examples {
    /// In the order of the file.
    pub examples: Arc<Vec<Example>>,
    /// How many were cut because they are longer than the context.
    pub cut: usize,
    /// Lines that were passed over: of these no token to learn is within the context.
    pub skipped: usize,
}

impl Examples {
    /// Reads a file of which each line is an [`ExampleFormat`]; empty lines are none.
    pub(crate) fn read(path: &Path, reader: &ExampleReader) -> Result<Self, FinetuneError> {
        let failed = |source| FinetuneError::Data { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        // Templates may write down the date: that of the file, so that it gives the same examples tomorrow.
        let written =
            file.metadata().and_then(|it| it.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let now = Zoned::try_from(written).unwrap_or_default();
        let mut lines = BufReader::new(file);
        let (mut examples, mut cut, mut skipped) = (Vec::new(), 0, 0);
        for number in 1.. {
            let mut line = Vec::new();
            let length = (&mut lines).take(LONGEST).read_until(b'\n', &mut line).map_err(failed)?;
            if length == 0 {
                break;
            }
            let fault =
                |reason| FinetuneError::Line { path: path.to_owned(), line: number, reason };
            if length as u64 == LONGEST {
                return Err(fault(format!("it is longer than {LONGEST} bytes")));
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let format: ExampleFormat = serde_json::from_slice(&line).map_err(|error| {
                let expected = r#"{"text": ".."}, {"prompt": "..", "completion": ".."} or {"messages": [{"role": "..", "content": ".."}]}"#;
                match error.is_data() {
                    true => fault(format!("it is none of {expected}")),
                    false => fault(format!("expected one JSON object, {expected}: {error}")),
                }
            })?;
            match reader.example(&format, &now) {
                Ok((example, is_cut)) => {
                    examples.push(example);
                    cut += usize::from(is_cut);
                }
                Err(ExampleFault::TooLong) => skipped += 1,
                Err(reason) => return Err(fault(reason.to_string())),
            }
        }
        match examples.is_empty() {
            true => Err(FinetuneError::NoExamples { path: path.to_owned() }),
            false => Ok(Self { examples: Arc::new(examples), cut, skipped }),
        }
    }

    /// What they take, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        /// What two vectors take besides what they hold.
        const VECTORS: usize = 128;
        let each = self.examples.iter().map(|example| {
            let Example { tokens, is_target } = example;
            VECTORS + 4 * tokens.capacity() + is_target.capacity()
        });
        each.sum::<usize>() as u64
    }

    /// A checksum of all tokens and of which are to be learned.
    pub(crate) fn checksum(&self) -> u32 {
        self.examples.iter().fold(0, |sum, example| {
            let pairs = example.tokens.iter().zip(&example.is_target);
            let bytes = pairs.flat_map(|(token, is_target)| {
                (u64::from(*token) << 1 | u64::from(*is_target)).to_le_bytes()
            });
            let bytes: Vec<u8> = bytes.chain([0xff; 8]).collect();
            crc32c::crc32c_append(sum, &bytes)
        })
    }
}

impl Dataset<Example> for Examples {
    fn get(&self, index: usize) -> Result<Example, DatasetError> {
        Ok(self.examples[index].clone())
    }

    fn len(&self) -> usize {
        self.examples.len()
    }
}
