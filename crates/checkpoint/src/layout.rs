use std::collections::HashSet;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::dtype::Dtype;
use crate::error::Error;
use crate::fault::SpecFault;
use crate::folder::SINGLE_FILE;
use crate::header::{LENGTH_BYTES, MAX_HEADER, MAX_RANK, METADATA};
use crate::index::MAX_SHARDS;
use crate::text::{name_fault, shortened};

/// The data section of a shard starts at a multiple of this: a page, so that reads past the page
/// cache need no extra block for tensors whose sizes are round numbers.
const DATA_ALIGNMENT: u64 = 4096;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name in the checkpoint.
    pub name: String,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The shape, slowest dimension first; empty for a scalar.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor of this name, dtype and shape.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), dtype, shape: shape.into() }
    }
}

/// Where every tensor of a checkpoint to be written goes.
#[derive(Debug)]
pub(crate) struct Layout {
    pub shards: Vec<Shard>,
    /// In the order of declaration.
    pub tensors: Vec<Place>,
    /// Bytes of all tensors.
    pub total_bytes: u64,
}

/// One file to be written.
#[derive(Debug)]
pub(crate) struct Shard {
    pub file_name: String,
    /// Everything before the data section.
    pub head: Vec<u8>,
    /// How many tensors are in it.
    pub tensors: usize,
}

/// Where one tensor goes.
#[derive(Debug)]
pub(crate) struct Place {
    pub name: String,
    /// The position of its shard in [`Layout::shards`].
    pub shard: usize,
    /// Its first byte, from the start of the file.
    pub offset: u64,
    pub len: u64,
}

impl Layout {
    /// Lays out tensors in the order given, in shards of at most `max_shard_size` bytes of data.
    ///
    /// Shards are divided as huggingface_hub does: tensors fill the current shard until one would
    /// go over the limit, which then begins the next; a tensor over the limit by itself gets a
    /// shard of its own, and the current one goes on.
    pub fn new(specs: Vec<TensorSpec>, max_shard_size: u64) -> Result<Self, SpecFault> {
        let (lens, total_bytes) = check(&specs)?;
        let groups = divide(&lens, max_shard_size);
        let count = groups.len();
        if count > MAX_SHARDS {
            return Err(SpecFault::TooManyShards { count, max: MAX_SHARDS });
        }
        let mut shards = Vec::with_capacity(count);
        let mut offsets = vec![(0, 0); specs.len()];
        for (shard, group) in groups.into_iter().enumerate() {
            let file_name = match count {
                1 => SINGLE_FILE.to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", shard + 1),
            };
            let starts = starts(&specs, &lens, &group);
            let head = head(&specs, &lens, &group, &starts);
            let data_start = head.len() as u64;
            if data_start - LENGTH_BYTES > MAX_HEADER {
                return Err(SpecFault::HeaderTooLarge {
                    file: file_name,
                    len: data_start - LENGTH_BYTES,
                    max: MAX_HEADER,
                });
            }
            for (&tensor, start) in group.iter().zip(starts) {
                offsets[tensor] = (shard, data_start + start);
            }
            shards.push(Shard { file_name, head, tensors: group.len() });
        }
        let places = specs.into_iter().zip(lens).zip(offsets);
        let tensors = places
            .map(|((spec, len), (shard, offset))| Place { name: spec.name, shard, offset, len })
            .collect();
        Ok(Self { shards, tensors, total_bytes })
    }
}

/// How much of the data of a layout has come.
#[derive(Debug)]
pub(crate) struct Progress {
    pub layout: Layout,
    /// The tensor whose turn it is, as a position in the layout.
    current: usize,
    /// Bytes of it received.
    filled: u64,
    /// Bytes of all tensors received.
    pub written: u64,
    /// A write failed, so what is on disk is not known.
    pub failed: bool,
}

impl Progress {
    pub fn new(specs: Vec<TensorSpec>, max_shard_size: u64) -> Result<Self, Error> {
        let layout = Layout::new(specs, max_shard_size).map_err(|fault| Error::Specs { fault })?;
        Ok(Self { layout, current: 0, filled: 0, written: 0, failed: false })
    }

    /// The tensor whose turn it is.
    pub fn current(&self) -> Option<&Place> {
        self.layout.tensors.get(self.current)
    }

    /// Whether the current tensor is complete and `name` is another one.
    pub fn is_past(&self, name: &str) -> bool {
        self.current().is_some_and(|place| place.name != name && place.len == self.filled)
    }

    /// Goes on to the next tensor.
    ///
    /// # Errors
    /// If the current one is not complete.
    pub fn advance(&mut self) -> Result<(), Error> {
        if let Some(place) = self.current()
            && self.filled < place.len
        {
            let missing = place.len - self.filled;
            return Err(Error::Incomplete { tensor: place.name.clone(), missing, len: place.len });
        }
        self.current += 1;
        self.filled = 0;
        Ok(())
    }

    /// The shard of the next bytes, and where in it they go, if so many of tensor `name` may come.
    pub fn target(&self, name: &str, count: u64) -> Result<(usize, u64), Error> {
        let place = match self.current() {
            Some(place) if place.name == name => place,
            other => {
                return Err(Error::OutOfOrder {
                    found: name.to_owned(),
                    expected: other
                        .map_or("no tensor".to_owned(), |place| format!("tensor {:?}", place.name)),
                    missing: other.map_or(0, |place| place.len - self.filled),
                });
            }
        };
        let missing = place.len - self.filled;
        if count > missing {
            let excess = count - missing;
            return Err(Error::TooMuchData { tensor: name.to_owned(), len: place.len, excess });
        }
        Ok((place.shard, place.offset + self.filled))
    }

    /// Bytes of the current tensor were written.
    pub fn took(&mut self, count: u64) {
        self.filled += count;
        self.written += count;
    }

    pub fn check_not_failed(&self, path: &Path) -> Result<(), Error> {
        match self.failed {
            true => Err(Error::WriterFailed { path: path.to_owned() }),
            false => Ok(()),
        }
    }

    pub fn write_error(&self, path: impl Into<PathBuf>, cause: io::Error) -> Error {
        let (written, total) = (self.written, self.layout.total_bytes);
        Error::Write { path: path.into(), written, total, cause }
    }
}

/// Checks names and sizes. Gives the bytes of each tensor and of all.
fn check(specs: &[TensorSpec]) -> Result<(Vec<u64>, u64), SpecFault> {
    let mut names = HashSet::with_capacity(specs.len());
    let mut lens = Vec::with_capacity(specs.len());
    let mut total = 0u64;
    for TensorSpec { name, dtype, shape } in specs {
        if name == METADATA {
            return Err(SpecFault::Reserved);
        }
        if let Some(what) = name_fault(name) {
            return Err(SpecFault::Name { tensor: shortened(name), what });
        }
        if shape.len() > MAX_RANK {
            return Err(SpecFault::Rank { tensor: name.clone(), rank: shape.len(), max: MAX_RANK });
        }
        if !names.insert(name) {
            return Err(SpecFault::Duplicate { tensor: name.clone() });
        }
        let overflow = || SpecFault::Overflow { tensor: name.clone() };
        let len = dtype.bytes_of(shape).ok_or_else(overflow)?;
        // A file's length is a signed number for every system, header included.
        total = total
            .checked_add(len)
            .filter(|&total| total <= i64::MAX as u64 / 2)
            .ok_or_else(overflow)?;
        lens.push(len);
    }
    Ok((lens, total))
}

/// Divides tensors, by position, into shards. There is at least one, if need be an empty one.
fn divide(lens: &[u64], max_shard_size: u64) -> Vec<Vec<usize>> {
    let mut shards = Vec::new();
    let mut current = Vec::new();
    let mut current_size = 0;
    for (tensor, &len) in lens.iter().enumerate() {
        if len > max_shard_size {
            shards.push(vec![tensor]);
            continue;
        }
        if current_size + len > max_shard_size {
            shards.push(std::mem::take(&mut current));
            current_size = 0;
        }
        current.push(tensor);
        current_size += len;
    }
    if !current.is_empty() || shards.is_empty() {
        shards.push(current);
    }
    shards
}

/// The first byte in the data section of each tensor of a shard: in the order given, which is meant
/// to be the order of use; or, where that would misalign a tensor for its dtype (which some readers
/// refuse), by falling size of dtype.
fn starts(specs: &[TensorSpec], lens: &[u64], group: &[usize]) -> Vec<u64> {
    let place = |order: &[usize]| {
        let mut starts = vec![0; group.len()];
        let mut aligned = true;
        let mut end = 0;
        for &member in order {
            let tensor = group[member];
            aligned &= end % specs[tensor].dtype.size() as u64 == 0;
            starts[member] = end;
            end += lens[tensor];
        }
        (starts, aligned)
    };
    let mut order: Vec<usize> = (0..group.len()).collect();
    let (starts, aligned) = place(&order);
    if aligned {
        return starts;
    }
    order.sort_by_key(|&member| std::cmp::Reverse(specs[group[member]].dtype.size()));
    place(&order).0
}

/// The bytes of a shard before its data section: length and JSON, filled up with spaces.
fn head(specs: &[TensorSpec], lens: &[u64], group: &[usize], starts: &[u64]) -> Vec<u8> {
    let mut json = format!(r#"{{"{METADATA}":{{"format":"pt"}}"#);
    for (&tensor, start) in group.iter().zip(starts) {
        let TensorSpec { name, dtype, shape } = &specs[tensor];
        let (name, shape) = (Value::from(name.as_str()), Value::from(shape.as_slice()));
        let end = start + lens[tensor];
        // Writing to a string does not fail.
        let _ = write!(
            json,
            r#",{name}:{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#
        );
    }
    json.push('}');

    let data_start = (LENGTH_BYTES + json.len() as u64).next_multiple_of(DATA_ALIGNMENT);
    let mut head = Vec::with_capacity(data_start as usize);
    head.extend_from_slice(&(data_start - LENGTH_BYTES).to_le_bytes());
    head.extend_from_slice(json.as_bytes());
    head.resize(data_start as usize, b' ');
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Header;

    const MB: u64 = 1_000_000;

    #[test]
    fn shards_divide_as_in_huggingface_hub() {
        // The example of its documentation: [6], [6+2], [6+2+2] of a limit of 10.
        assert_eq!(divide(&[6, 6, 2, 6, 2, 2], 10), [vec![0], vec![1, 2], vec![3, 4, 5]]);
        // A tensor over the limit is by itself and goes before the shard that is being filled.
        assert_eq!(divide(&[1, 11, 1], 10), [vec![1], vec![0, 2]]);
        assert_eq!(divide(&[11, 11], 10), [vec![0], vec![1]]);
        assert_eq!(divide(&[10, 0, 0, 1], 10), [vec![0, 1, 2], vec![3]]);
        assert_eq!(divide(&[], 10), [Vec::<usize>::new()]);
        assert_eq!(divide(&[0, 1, 2], 0), [vec![1], vec![2], vec![0]]);
    }

    #[test]
    fn names_are_those_of_transformers() {
        let names = |limit| -> Vec<String> {
            let specs = (0..3).map(|n| TensorSpec::new(format!("w{n}"), Dtype::U8, [4])).collect();
            Layout::new(specs, limit)
                .unwrap()
                .shards
                .into_iter()
                .map(|shard| shard.file_name)
                .collect()
        };
        assert_eq!(names(MB), ["model.safetensors"]);
        assert_eq!(
            names(8),
            ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        );
    }

    #[test]
    fn a_head_is_a_header_and_data_is_aligned() {
        let specs = vec![
            TensorSpec::new("a\"\\\u{e9}", Dtype::BF16, [2, 3]),
            TensorSpec::new("scalar", Dtype::F32, []),
            TensorSpec::new("empty", Dtype::F64, [0]),
        ];
        let layout = Layout::new(specs, MB).unwrap();
        let [Shard { head, .. }] = &layout.shards[..] else { panic!("one shard") };
        assert_eq!(head.len() as u64 % DATA_ALIGNMENT, 0);
        assert_eq!(u64::from_le_bytes(head[..8].try_into().unwrap()), head.len() as u64 - 8);
        let header = Header::parse(&head[8..], 16).unwrap();
        assert_eq!(header.metadata["format"], "pt");
        assert_eq!(header.tensors[0].name, "a\"\\\u{e9}");
        assert_eq!(header.tensors[0].shape, [2, 3]);
        let starts: Vec<_> =
            layout.tensors.iter().map(|place| place.offset - head.len() as u64).collect();
        assert_eq!(starts, [0, 12, 16]);
    }

    #[test]
    fn order_gives_way_to_alignment_only() {
        let starts_of = |dtypes: &[(Dtype, usize)]| {
            let specs: Vec<_> = dtypes
                .iter()
                .enumerate()
                .map(|(n, &(dtype, len))| TensorSpec::new(format!("{n}"), dtype, [len]))
                .collect();
            let layout = Layout::new(specs, MB).unwrap();
            layout
                .tensors
                .iter()
                .map(|place| place.offset - layout.shards[0].head.len() as u64)
                .collect::<Vec<_>>()
        };
        assert_eq!(starts_of(&[(Dtype::U8, 4), (Dtype::F32, 1), (Dtype::F16, 1)]), [0, 4, 8]);
        assert_eq!(
            starts_of(&[(Dtype::U8, 3), (Dtype::F32, 1), (Dtype::I8, 1), (Dtype::F16, 1)]),
            [6, 0, 9, 4]
        );
    }

    #[test]
    fn faults_name_the_tensor() {
        let fault = |specs: Vec<TensorSpec>| Layout::new(specs, MB).unwrap_err().to_string();
        let w = |shape: &[usize]| TensorSpec::new("w", Dtype::F32, shape);
        assert_eq!(fault(vec![w(&[1]), w(&[1])]), "tensor \"w\" is declared twice");
        assert!(
            fault(vec![TensorSpec::new("__metadata__", Dtype::U8, [1])])
                .contains("\"__metadata__\"")
        );
        assert!(fault(vec![w(&[usize::MAX])]).contains("tensor \"w\" is too large"));
        assert!(
            fault(vec![w(&[1 << 59]), TensorSpec::new("v", Dtype::F32, [1 << 60])])
                .contains("tensor \"v\" is too large")
        );
    }

    #[test]
    fn what_would_not_be_read_back_is_refused() {
        let said = |spec: TensorSpec| Layout::new(vec![spec], MB).unwrap_err().to_string();
        let escape = said(TensorSpec::new("a\u{1b}[2J", Dtype::U8, [1]));
        assert_eq!(escape, r#""a\u{1b}[2J" is a name with control characters"#);
        let long = said(TensorSpec::new("x".repeat(4097), Dtype::U8, [1]));
        assert!(long.ends_with("is a name of more than 4096 bytes") && long.len() < 500);
        let deep = said(TensorSpec::new("a", Dtype::U8, [1; 65]));
        assert_eq!(deep, r#"tensor "a" has 65 dimensions, over the limit of 64"#);
        let specs = (0..10_001).map(|n| TensorSpec::new(n.to_string(), Dtype::U8, [1]));
        let many = Layout::new(specs.collect(), 1).unwrap_err().to_string();
        assert_eq!(
            many,
            "there would be 10001 shards, over the limit of 10000: ask for larger shards"
        );
    }

    #[test]
    fn a_header_over_the_limit_is_refused() {
        let long = "x".repeat(4000);
        let specs = (0..26_000).map(|n| TensorSpec::new(format!("{n}{long}"), Dtype::U8, [1]));
        let fault = Layout::new(specs.collect(), MB).unwrap_err();
        assert!(
            matches!(&fault, SpecFault::HeaderTooLarge { file, .. } if file == SINGLE_FILE),
            "{fault}"
        );
    }
}
