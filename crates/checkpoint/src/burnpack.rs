//! Burnpack, what `save_file` of a Burn module writes: a header, metadata in CBOR that says where
//! the tensors lie, and the tensors. The format is
//! [burn-pack's](https://docs.rs/burn-pack), version 1.

mod claims;
mod fault;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use self::claims::Claims;
use crate::error::Error;
use crate::fault::HeaderFault;
use crate::file::{ShardFile, open_regular, read_vec};
use crate::header::HeaderEntry;
use crate::masquerade;
use crate::text::message;

pub use self::fault::BurnpackFault;

/// What a file begins with.
const MAGIC: &[u8] = b"NRUB";
/// The version of the format that is read.
const VERSION: u16 = 1;
/// Bytes before the metadata: those, the version, and the metadata's length.
const HEADER: u64 = 10;
/// Bytes that metadata may have, as Burn reads them.
const MAX_METADATA: u64 = 100 << 20;
/// What the first byte of the data section is a multiple of.
const ALIGNMENT: u64 = 256;
/// How deep values of the metadata lie in one another.
const DEPTH: usize = 16;

/// The metadata of a burnpack file found right: its tensors lie in the data section and share no
/// byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BurnpackHeader {
    /// The notes, such as `producer`.
    pub metadata: BTreeMap<String, String>,
    /// All tensors, by offset from the start of the data section. Names are unique.
    pub tensors: Vec<HeaderEntry>,
}

impl BurnpackHeader {
    /// How many of a file's first bytes [`Self::metadata_len`] looks at.
    pub const START: u64 = 64;

    /// The bytes of the metadata, which begin with byte 10 of a file of `file_len` bytes that
    /// begins with `start`: [`Self::START`] bytes, or all that the file has.
    ///
    /// # Errors
    /// If the file cannot be burnpack of a version that is read, or is cut short inside its
    /// metadata.
    pub fn metadata_len(start: &[u8], file_len: u64) -> Result<u64, BurnpackFault> {
        let &[n, r, u, b, v0, v1, m0, m1, m2, m3, ..] = start else {
            return Err(BurnpackFault::TooShort { len: file_len });
        };
        if [n, r, u, b] != MAGIC {
            return Err(match masquerade::identify(start) {
                Some((what, advice)) => BurnpackFault::OtherFormat { what, advice },
                None => BurnpackFault::NotBurnpack,
            });
        }
        let (version, len) =
            (u16::from_le_bytes([v0, v1]), u32::from_le_bytes([m0, m1, m2, m3]).into());
        if version != VERSION {
            return Err(BurnpackFault::Version { found: version });
        }
        if len > MAX_METADATA {
            return Err(BurnpackFault::MetadataTooLarge { len, max: MAX_METADATA });
        }
        match HEADER + len <= file_len {
            true => Ok(len),
            false => Err(BurnpackFault::MetadataBeyondEnd { len, file_len }),
        }
    }

    /// Where the data section of a file with so many bytes of metadata begins.
    pub fn data_start(metadata_len: u64) -> u64 {
        (HEADER + metadata_len).next_multiple_of(ALIGNMENT)
    }

    /// Parses metadata and proves it right for a data section of `data_len` bytes.
    ///
    /// # Errors
    /// If it is not of the right form, if a name comes twice, or if anything that it says of a
    /// tensor contradicts the rest or the length of the data.
    pub fn parse(metadata: &[u8], data_len: u64) -> Result<Self, BurnpackFault> {
        let mut rest = metadata;
        let claims: Claims = ciborium::de::from_reader_with_recursion_limit(&mut rest, DEPTH)
            .map_err(|error| BurnpackFault::Metadata { detail: detail(error) })?;
        if !rest.is_empty() {
            let detail = format!("{} bytes follow it", rest.len());
            return Err(BurnpackFault::Metadata { detail });
        }
        let Claims { metadata, tensors } = claims;
        let mut entries = Vec::with_capacity(tensors.0.len());
        for (name, claim) in tensors.0 {
            let dtype = claim.dtype(&name)?;
            let (shape, offsets) = (claim.shape.0, claim.data_offsets);
            entries.push(HeaderEntry::checked(name.into(), dtype, shape, offsets, data_len)?);
        }
        entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        if let Some([entry, _]) =
            entries.array_windows().find(|[one, other]| one.name == other.name)
        {
            return Err(HeaderFault::Duplicate { tensor: entry.name.clone() }.into());
        }
        entries.sort_by_key(|entry| (entry.start, entry.end));
        // Tensors without elements have no bytes to share.
        let filled = entries.iter().filter(|entry| entry.start < entry.end);
        let mut before: Option<&HeaderEntry> = None;
        for entry in filled {
            if let Some(other) = before.filter(|other| entry.start < other.end) {
                let (tensor, other) = (entry.name.clone(), other.name.clone());
                return Err(HeaderFault::Overlap { tensor, other }.into());
            }
            before = Some(entry);
        }
        Ok(Self { metadata: metadata.0, tensors: entries })
    }
}

/// What is wrong with CBOR, and where.
fn detail(error: ciborium::de::Error<std::io::Error>) -> String {
    use ciborium::de::Error::{Io, RecursionLimitExceeded, Semantic, Syntax};
    match error {
        Io(_) => "it ends early".to_owned(),
        Syntax(at) => format!("byte {at} of it is not CBOR"),
        Semantic(Some(at), what) => format!("{} at byte {at} of it", message(&what)),
        Semantic(None, what) => message(&what),
        RecursionLimitExceeded => "its values lie too deep in one another".to_owned(),
    }
}

/// Opens a burnpack file and reads where its tensors lie, from the start of the data section, which
/// is given beside them. `admit` is asked before memory is taken for metadata of so many bytes.
pub(crate) fn open(
    path: PathBuf,
    admit: impl FnOnce(u64) -> Result<(), Error>,
) -> Result<(ShardFile, Vec<HeaderEntry>, u64), Error> {
    let (file, opened) = open_regular(&path)?;
    let read = |start, len| read_vec(&path, &file, start, len);
    let (header, data_start) = read_header(&path, opened.len(), read, admit)?;
    let file = ShardFile::new(path, file, opened).with_metadata(header.metadata);
    Ok((file, header.tensors, data_start))
}

/// The header of a file of `len` bytes, of which `read` reads so many bytes from an offset on, and
/// where its data section begins.
pub(crate) fn read_header<E: From<Error>>(
    path: &Path,
    len: u64,
    read: impl Fn(u64, usize) -> Result<Vec<u8>, E>,
    admit: impl FnOnce(u64) -> Result<(), E>,
) -> Result<(BurnpackHeader, u64), E> {
    let wrong = |fault| E::from(Error::Burnpack { path: path.to_owned(), fault });
    let start = read(0, len.min(BurnpackHeader::START) as usize)?;
    let metadata_len = BurnpackHeader::metadata_len(&start, len).map_err(wrong)?;
    admit(metadata_len)?;
    let metadata = read(HEADER, metadata_len as usize)?;
    let data_start = BurnpackHeader::data_start(metadata_len);
    let data_len = len.saturating_sub(data_start);
    let header = BurnpackHeader::parse(&metadata, data_len).map_err(wrong)?;
    Ok((header, data_start))
}
