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
        // Templates may write down the date: that of the file, so that it gives the same examples
        // tomorrow.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use outsize_generate::{ChatTemplate, Tokenizer, TokenizerFile, byte_level_tokenizer};

    use super::*;

    /// What renders a conversation.
    const TEMPLATE: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";

    fn reader(context: usize) -> ExampleReader {
        let json = byte_level_tokenizer(VOCABULARY).unwrap();
        let file = TokenizerFile::new("tokenizer.json".into(), json.into());
        ExampleReader {
            tokenizer: Tokenizer::load(file).unwrap(),
            template: Some(ChatTemplate::new("t", TEMPLATE, BTreeMap::new()).unwrap()),
            eos: vec![2],
            context,
            vocab_size: VOCABULARY,
        }
    }

    const VOCABULARY: usize = 400;

    fn read(text: &str, reader: &ExampleReader) -> Result<Examples, FinetuneError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Examples::read(file.path(), reader)
    }

    /// The text of what is learned of the only example.
    fn learned(text: &str) -> (String, bool) {
        let reader = reader(400);
        let examples = read(text, &reader).unwrap();
        let [example] = &examples.examples[..] else { panic!("{text}: not one") };
        let pairs = example.tokens.iter().zip(&example.is_target);
        let tokens: Vec<u32> = pairs.filter(|(_, is)| **is).map(|(token, _)| *token).collect();
        let ends = tokens.last() == Some(&2);
        let tokens = if ends { &tokens[..tokens.len() - 1] } else { &tokens[..] };
        (reader.tokenizer.decode(tokens, false).unwrap(), ends)
    }

    #[test]
    fn what_is_learned_is_what_is_answered() {
        let completion = r#"{"prompt": "What is it?", "completion": " A lamp.", "id": 7}"#;
        assert_eq!(learned(completion), (" A lamp.".into(), true));
        let conversation = r#"{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ruth"},
            {"role": "user", "content": "And?"}, {"role": "assistant", "content": "Saul"}]}"#.replace('\n', " ");
        let (text, ends) = learned(&conversation);
        assert_eq!((text.as_str(), ends), ("Ruth</assistant>Saul</assistant>", false));
        let (text, ends) = learned(r#"{"text": "A stone is good."}"#);
        assert!("A stone is good.".ends_with(&text) && text.len() > 10 && ends, "{text}");
    }

    #[test]
    fn long_ones_are_cut_and_those_of_which_nothing_is_left_passed_over() {
        let reader = reader(20);
        let long = "a ".repeat(100_000);
        let lines = format!(
            "{{\"text\": \"{long}\"}}\n{{\"prompt\": \"{long}\", \"completion\": \"b\"}}\n{{\"text\": \"a b c\"}}\n"
        );
        let found = read(&lines, &reader).unwrap();
        assert_eq!((found.examples.len(), found.cut, found.skipped), (2, 1, 1));
        assert_eq!(found.examples[0].tokens.len(), 20);
    }

    #[test]
    fn broken_lines_end_with_an_error() {
        let reader = reader(30);
        let valid = [
            r#"{"text": "A stone é is good."}"#,
            r#"{"prompt": "What is it?", "completion": " A lamp."}"#,
            r#"{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ruth"}]}"#,
        ];
        let mut random = 1u64;
        let mut next = |most: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) as usize % most
        };
        let (mut examples, mut errors) = (0, 0);
        for _ in 0..1_500 {
            let mut line = valid[next(3)].as_bytes().to_vec();
            for _ in 0..=next(3) {
                let at = next(line.len());
                match next(3) {
                    0 => line[at] = next(256) as u8,
                    1 => drop(line.remove(at)),
                    _ => line.insert(at, b"\"{}[]:,\\\n0"[next(10)]),
                }
            }
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), &line).unwrap();
            match Examples::read(file.path(), &reader) {
                Ok(found) => {
                    examples += 1;
                    for example in found.examples.iter() {
                        let Example { tokens, is_target } = example;
                        assert!(tokens.len() <= 30 && tokens.len() == is_target.len());
                        assert!(!is_target[0] && is_target.contains(&true));
                        assert!(tokens.iter().all(|token| (*token as usize) < VOCABULARY));
                    }
                }
                Err(FinetuneError::Line { .. } | FinetuneError::NoExamples { .. }) => errors += 1,
                Err(other) => panic!("{other}"),
            }
        }
        assert!(examples > 100 && errors > 200, "{examples}, {errors}");
    }
}
