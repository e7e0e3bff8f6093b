//! Files of examples: JSON, one object a line.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::FinetuneError;
use crate::example::{Example, ExampleFault, ExampleFormat};

/// The longest line that is read, in bytes.
const LONGEST: u64 = 16 << 20;

/// What is learned from, in memory.
#[derive(Debug, Clone, Default)]
pub struct Examples {
    /// In the order of the file.
    pub examples: Vec<Example>,
    /// How many were cut because they are longer than the context.
    pub cut: usize,
}

impl Examples {
    /// Reads a file of which each line is an [`ExampleFormat`]; empty lines are none. `make` gives the example of one, and how
    /// many tokens it would have without end.
    pub(crate) fn read(
        path: &Path,
        mut make: impl FnMut(&ExampleFormat) -> Result<(Example, bool), ExampleFault>,
    ) -> Result<Self, FinetuneError> {
        let read = |source| FinetuneError::Data { path: path.to_owned(), source };
        let mut lines = BufReader::new(File::open(path).map_err(read)?);
        let mut all = Self::default();
        for number in 1.. {
            let mut line = Vec::new();
            let length = (&mut lines).take(LONGEST).read_until(b'\n', &mut line).map_err(read)?;
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
            let (example, is_cut) = make(&format).map_err(|reason| fault(reason.to_string()))?;
            all.examples.push(example);
            all.cut += usize::from(is_cut);
        }
        match all.examples.is_empty() {
            true => Err(FinetuneError::NoExamples { path: path.to_owned() }),
            false => Ok(all),
        }
    }

    /// Tokens of the longest.
    pub fn longest(&self) -> usize {
        self.examples.iter().map(|example| example.tokens.len()).max().unwrap_or(0)
    }
}
