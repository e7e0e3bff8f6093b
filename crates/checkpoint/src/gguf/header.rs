//! The header of a GGUF file, parsed and checked.

use std::collections::BTreeMap;
use std::ops::Range;

use super::fault::GgufFault;
use super::value::{GgufArray, GgufValue, Kind};
use crate::dtype::Dtype;
use crate::header::{HeaderEntry, MAX_HEADER};
use crate::text::{name_fault, quoted};

/// Bytes that are read at a time.
const STEP: u64 = 1 << 20;

/// Keys that the metadata may have. Real files have less than a hundred.
const MAX_VALUES: u64 = 1 << 16;

/// Dimensions that a tensor may have, in the format.
const MAX_DIMENSIONS: u32 = 4;

/// The type of a value that is an array.
const ARRAY: u32 = 9;

/// Metadata and tensors of a GGUF file. Every tensor lies in the file, and none in another.
#[derive(Debug)]
pub struct GgufHeader {
    bytes: Vec<u8>,
    values: BTreeMap<String, Place>,
    tensors: Vec<HeaderEntry>,
}

/// Where a value lies in the header.
#[derive(Debug)]
struct Place {
    kind: Kind,
    is_array: bool,
    bytes: Range<usize>,
}

impl GgufHeader {
    /// Parses the header of a file of `file_len` bytes, which `fill` reads from an offset on.
    ///
    /// Takes memory in proportion to the header: about six times its bytes at worst.
    ///
    /// # Errors
    /// What `fill` says; and as `wrong` makes it, a header that is cut short, has an impossible
    /// length or offset, a name twice, or a type that is not built in.
    pub fn read<E>(
        file_len: u64,
        fill: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
        wrong: impl Fn(GgufFault) -> E,
    ) -> Result<Self, E> {
        let mut source = Source { fill, wrong, file_len, bytes: Vec::new(), at: 0 };
        let (values, mut tensors) = source.parse()?;
        let Source { bytes, at, wrong, .. } = source;
        let mut header = Self { bytes, values, tensors: Vec::new() };
        let mut place = |header: &Self| {
            let alignment = header.alignment()?;
            // At most MAX_HEADER.
            let data = (at as u64).next_multiple_of(alignment);
            for entry in &mut tensors {
                place_tensor(entry, data, alignment, file_len)?;
            }
            tensors.sort_by_key(|entry| (entry.start, entry.end));
            let overlap = tensors.array_windows().find(|[one, two]| one.end > two.start);
            overlap.map_or(Ok(()), |[one, two]| {
                Err(fault_of(
                    &two.name,
                    format!("it begins inside of tensor {}", quoted(&one.name)),
                ))
            })
        };
        place(&header).map_err(wrong)?;
        header.tensors = tensors;
        Ok(header)
    }

    /// Bytes of the header.
    pub(super) fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The tensors, in the order in which they lie in the file, with offsets from its beginning.
    pub fn tensors(&self) -> &[HeaderEntry] {
        &self.tensors
    }

    /// Keys and values of the metadata.
    pub fn values(&self) -> impl Iterator<Item = (&str, GgufValue<'_>)> {
        self.values.keys().filter_map(|key| Some((key.as_str(), self.get(key)?)))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<GgufValue<'_>> {
        let Place { kind, is_array, bytes } = self.values.get(key)?;
        let bytes = self.bytes.get(bytes.clone())?;
        match is_array {
            true => Some(GgufValue::Array(GgufArray { kind: *kind, bytes })),
            false => Some(kind.split(bytes)?.0),
        }
    }

    /// The text of a key.
    ///
    /// # Errors
    /// If there is a value and it is no UTF-8 text.
    pub fn text(&self, key: &str) -> Result<Option<&str>, GgufFault> {
        self.read_as(key, "a UTF-8 text", |value| match value {
            GgufValue::Text(text) => str::from_utf8(text).ok(),
            _ => None,
        })
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, GgufFault> {
        self.read_as(key, "true or false", |value| match value {
            GgufValue::Bool(value) => Some(value),
            _ => None,
        })
    }

    pub(super) fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufFault> {
        self.read_as(key, "a whole number", GgufValue::unsigned)
    }

    /// The texts of an array.
    pub(super) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, GgufFault> {
        self.array(key, "an array of UTF-8 texts", |value| match value {
            GgufValue::Text(text) => str::from_utf8(text).ok(),
            _ => None,
        })
    }

    pub(super) fn array<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl Fn(GgufValue<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, GgufFault> {
        self.read_as(key, wanted, |value| match value {
            GgufValue::Array(array) => array.iter().map(&read).collect(),
            _ => None,
        })
    }

    fn read_as<'a, T>(
        &'a self,
        key: &str,
        wanted: &str,
        read: impl FnOnce(GgufValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufFault> {
        let wrong = || metadata(key, format!("it must be {wanted}"));
        self.get(key).map(|value| read(value).ok_or_else(wrong)).transpose()
    }

    fn alignment(&self) -> Result<u64, GgufFault> {
        let key = "general.alignment";
        let alignment = self.unsigned(key)?.unwrap_or(32);
        match alignment.is_power_of_two() && (8..=1 << 20).contains(&alignment) {
            true => Ok(alignment),
            false => Err(metadata(key, "it must be a power of two from 8 to 2^20".to_owned())),
        }
    }
}

/// A fault of a key of the metadata.
pub(super) fn metadata(key: &str, reason: String) -> GgufFault {
    GgufFault::Metadata { key: quoted(key), reason }
}

fn fault_of(tensor: &str, reason: String) -> GgufFault {
    GgufFault::Tensor { tensor: quoted(tensor), reason }
}

/// Turns offsets from the beginning of the data into those from the beginning of the file.
fn place_tensor(
    entry: &mut HeaderEntry,
    data: u64,
    alignment: u64,
    file_len: u64,
) -> Result<(), GgufFault> {
    let fault = |reason| Err(fault_of(&entry.name, reason));
    if !entry.start.is_multiple_of(alignment) {
        return fault(format!("its offset is no multiple of the file's alignment, {alignment}"));
    }
    let ends = [entry.start, entry.end].map(|offset| offset.checked_add(data));
    match ends {
        [Some(start), Some(end)] if end <= file_len => {
            (entry.start, entry.end) = (start, end);
            Ok(())
        }
        _ => fault(format!("it ends beyond the file's {file_len} bytes: download it again")),
    }
}

/// The bytes of a file that were read so far, and how far they are parsed.
struct Source<F, W> {
    fill: F,
    wrong: W,
    file_len: u64,
    bytes: Vec<u8>,
    at: usize,
}

type Parsed = (BTreeMap<String, Place>, Vec<HeaderEntry>);

impl<E, F: FnMut(u64, &mut [u8]) -> Result<(), E>, W: Fn(GgufFault) -> E> Source<F, W> {
    fn fail<T>(&self, fault: GgufFault) -> Result<T, E> {
        Err((self.wrong)(fault))
    }

    /// The next `len` bytes, which are read if they were not.
    fn take(&mut self, len: u64) -> Result<Range<usize>, E> {
        let end = (self.at as u64).checked_add(len).filter(|end| *end <= self.file_len);
        let Some(end) = end else {
            return self.fail(GgufFault::CutShort { len: self.file_len });
        };
        if end > MAX_HEADER {
            return self.fail(GgufFault::TooLarge { max: MAX_HEADER });
        }
        let here = self.bytes.len();
        if end > here as u64 {
            let ahead = (here as u64 + STEP).clamp(end, self.file_len.max(end));
            self.bytes.resize(ahead as usize, 0);
            (self.fill)(here as u64, &mut self.bytes[here..])?;
        }
        let range = self.at..end as usize;
        self.at = range.end;
        Ok(range)
    }

    fn u32(&mut self) -> Result<u32, E> {
        let range = self.take(4)?;
        Ok(self.bytes[range].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }

    fn u64(&mut self) -> Result<u64, E> {
        let range = self.take(8)?;
        Ok(self.bytes[range].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    /// A text that names something.
    fn name(&mut self) -> Result<String, E> {
        let len = self.u64()?;
        let range = self.take(len)?;
        let name = String::from_utf8_lossy(&self.bytes[range]).into_owned();
        match name_fault(&name) {
            None => Ok(name),
            Some(fault) => {
                let fault = GgufFault::Metadata { key: quoted(&name), reason: fault.to_owned() };
                self.fail(fault)
            }
        }
    }

    fn parse(&mut self) -> Result<Parsed, E> {
        let magic = self.take(4)?;
        if self.bytes[magic] != *b"GGUF" {
            return self.fail(GgufFault::NotGguf);
        }
        let found = self.u32()?;
        if !(2..=3).contains(&found) {
            return self.fail(GgufFault::Version { found });
        }
        // Each tensor takes some bytes of the header: its limit is theirs.
        let [tensors, values] = [self.u64()?, self.u64()?];
        if values > MAX_VALUES {
            return self.fail(GgufFault::TooManyKeys { count: values, max: MAX_VALUES });
        }
        let mut known = BTreeMap::new();
        for _ in 0..values {
            let key = self.name()?;
            let place = self.value(&key)?;
            if known.contains_key(&key) {
                return self.fail(metadata(&key, "it comes twice".to_owned()));
            }
            known.insert(key, place);
        }
        let mut entries: Vec<HeaderEntry> = Vec::new();
        for _ in 0..tensors {
            entries.push(self.tensor()?);
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        match entries.array_windows().find(|[one, other]| one.name == other.name) {
            Some([one, _]) => self.fail(fault_of(&one.name, "it comes twice".to_owned())),
            None => Ok((known, entries)),
        }
    }

    fn value(&mut self, key: &str) -> Result<Place, E> {
        let number = self.u32()?;
        let is_array = number == ARRAY;
        let (number, count) = match is_array {
            true => (self.u32()?, self.u64()?),
            false => (number, 1),
        };
        let Some(kind) = Kind::of(number) else {
            let reason = format!("its type, {number}, is not one of the format's");
            return self.fail(metadata(key, reason));
        };
        let start = self.at;
        match kind.size() {
            Some(size) => {
                // An overflow goes beyond every file.
                self.take(count.saturating_mul(size as u64))?;
            }
            None => {
                for _ in 0..count {
                    let len = self.u64()?;
                    self.take(len)?;
                }
            }
        }
        Ok(Place { kind, is_array, bytes: start..self.at })
    }

    fn tensor(&mut self) -> Result<HeaderEntry, E> {
        let name = self.name()?;
        let dimensions = self.u32()?;
        if dimensions > MAX_DIMENSIONS {
            let reason = format!("it has {dimensions} dimensions, more than {MAX_DIMENSIONS}");
            return self.fail(fault_of(&name, reason));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            // What no machine can address has too many bytes too.
            shape.push(usize::try_from(self.u64()?).unwrap_or(usize::MAX));
        }
        shape.reverse();
        let number = self.u32()?;
        let start = self.u64()?;
        let dtype = match dtype(number) {
            Ok(dtype) => dtype,
            Err(unknown) => {
                let known: Vec<_> = known().map(Dtype::name).collect();
                let known = known.join(", ");
                let reason =
                    format!("its type, {unknown}, is not built in, but these are: {known}");
                return self.fail(fault_of(&name, reason));
            }
        };
        let end = dtype.bytes_of(&shape).and_then(|len| start.checked_add(len));
        match end {
            Some(end) => Ok(HeaderEntry { name, dtype, shape, start, end }),
            None => {
                let reason = format!(
                    "a shape of {shape:?} is too large, or its rows are no whole blocks of {dtype}"
                );
                self.fail(fault_of(&name, reason))
            }
        }
    }
}

/// The types that are built in.
fn known() -> impl Iterator<Item = Dtype> {
    let plain = [Dtype::F32, Dtype::F16, Dtype::BF16, Dtype::F64, Dtype::I32];
    plain.into_iter().chain(Dtype::GGUF_BLOCKS)
}

/// The type of that number in the format, or the name of one that is not built in.
fn dtype(number: u32) -> Result<Dtype, String> {
    /// Of all numbers.
    const NAMES: &str = "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K \
        Q8_K IQ2_XXS IQ2_XS IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 \
        Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4 Q1_0";
    let Some(name) = NAMES.split(' ').nth(number as usize) else {
        return Err(format!("number {number}"));
    };
    known().find(|dtype| dtype.name() == name).ok_or_else(|| name.to_owned())
}
