//! The zip container of `torch.save`: where each member lies in the file.
//!
//! Follows the [ZIP format](https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT), of which
//! PyTorch writes a part: no compression, no encryption, one disk, and the zip64 records always.

use std::ops::Range;
use std::path::Path;

use super::fault::TorchFault;
use crate::error::Error;
use crate::text::shortened;

/// Bytes that the directory may have: a quarter of a million members.
const MAX_DIRECTORY: u64 = 16 << 20;
/// Bytes of the record at the end of the file.
const END: usize = 22;
/// Bytes of what precedes it, and says where the zip64 record is.
const LOCATOR: usize = 20;
/// Bytes of the zip64 record that are looked at.
const END64: u64 = 56;
/// Bytes of a directory's entry before its name.
const ENTRY: usize = 46;
/// Bytes of a member's own header before its name.
const HEADER: usize = 30;
/// What is wrong with a member that ends behind the directory's start.
const OUTSIDE: &str = "lies outside the file: it is cut short; download it again";
/// Says that a number has its place in the zip64 field.
const IN_ZIP64: u32 = u32::MAX;

/// Gives so many bytes from a position of the file on.
pub(super) type ReadAt<'a, E> = &'a (dyn Fn(u64, usize) -> Result<Vec<u8>, E> + Sync);

/// The members of an archive, by name. Each lies before the directory, as far as its length and the
/// start of its header tell.
pub(super) struct Archive<'a, E> {
    path: &'a Path,
    read: ReadAt<'a, E>,
    directory: Vec<u8>,
    /// Sorted by name; names are unique.
    members: Vec<Member>,
    /// Where the directory starts.
    end: u64,
}

/// One member, as the directory describes it.
pub(super) struct Member {
    /// In the directory.
    name: Range<u32>,
    /// The first byte of its header in the file.
    header: u64,
    /// Bytes of its data.
    len: u64,
    /// Why its data cannot be read in place, if so.
    fault: Option<&'static str>,
}

impl Member {
    fn name_in<'d>(&self, directory: &'d [u8]) -> &'d [u8] {
        &directory[self.name.start as usize..self.name.end as usize]
    }
}

impl<'a, E: From<Error>> Archive<'a, E> {
    /// Reads the directory of an archive of `len` bytes. `admit` is asked before memory is taken
    /// for a directory of so many bytes.
    pub fn open(
        path: &'a Path,
        len: u64,
        read: ReadAt<'a, E>,
        admit: impl FnOnce(u64) -> Result<(), E>,
    ) -> Result<Self, E> {
        let wrong = |fault| E::from(Error::Torch { path: path.to_owned(), fault });
        let damaged = |what| wrong(TorchFault::Directory { what });
        let mut archive = Self { path, read, directory: Vec::new(), members: Vec::new(), end: 0 };

        let longest = (LOCATOR + END + usize::from(u16::MAX)) as u64;
        let tail_start = len - len.min(longest);
        let tail = read(tail_start, (len - tail_start) as usize)?;
        let Some(at) = find_end(&tail) else {
            return Err(wrong(TorchFault::NoDirectory { len }));
        };
        let record = &tail[at..];
        let mut end = tail_start + at as u64;
        let mut count = u64::from(u16_at(record, 10));
        let mut size = u64::from(u32_at(record, 12));
        let mut start = u64::from(u32_at(record, 16));
        let locator = at.checked_sub(LOCATOR).map(|at| &tail[at..]);
        if let Some(locator) = locator.filter(|locator| locator.starts_with(b"PK\x06\x07")) {
            let locator_at = end - LOCATOR as u64;
            end = u64_at(locator, 8);
            if end.checked_add(END64).is_none_or(|past| past > locator_at) {
                return Err(damaged("its zip64 record lies outside the file"));
            }
            let record = read(end, END64 as usize)?;
            if !record.starts_with(b"PK\x06\x06") {
                return Err(damaged("there is no zip64 record where it should be"));
            }
            count = u64_at(&record, 32);
            size = u64_at(&record, 40);
            start = u64_at(&record, 48);
        }
        // Programs disagree about archives with something between: some move all offsets.
        if start.checked_add(size) != Some(end) {
            return Err(damaged("it does not end where its record starts"));
        }
        if size > MAX_DIRECTORY {
            let what = "the directory of the zip archive";
            return Err(wrong(TorchFault::TooLarge { what, len: size, max: MAX_DIRECTORY }));
        }
        admit(size)?;
        archive.end = start;
        archive.directory = read(start, size as usize)?;
        archive.members = members(&archive.directory, start).map_err(damaged)?;
        if archive.members.len() as u64 != count {
            return Err(damaged("it has not as many entries as it says"));
        }
        let Archive { directory, members, .. } = &mut archive;
        members.sort_unstable_by(|one, other| one.name_in(directory).cmp(other.name_in(directory)));
        let Archive { directory, members, .. } = &archive;
        let twice = |members: &[Member; 2]| {
            let [one, other] = members.each_ref().map(|member| member.name_in(directory));
            one == other
        };
        if let Some([member, _]) = members.array_windows().find(|members| twice(members)) {
            let member = archive.name(member);
            return Err(wrong(TorchFault::Member { member, what: "is there twice" }));
        }
        Ok(archive)
    }

    /// The member of this name.
    pub fn find(&self, name: &str) -> Option<&Member> {
        let found =
            self.members.binary_search_by(|member| self.raw_name(member).cmp(name.as_bytes()));
        self.members.get(found.ok()?)
    }

    /// The folders of the archive in which there is a `data.pkl`. `torch.save` makes one, of any
    /// name.
    pub fn roots(&self) -> impl Iterator<Item = &str> {
        self.members.iter().filter_map(|member| {
            let root = self.raw_name(member).strip_suffix(b"/data.pkl")?;
            str::from_utf8(root).ok().filter(|root| !root.contains('/'))
        })
    }

    /// Where the data of a member lies, before the directory, if its own header is as short as can
    /// be: the directory does not tell that.
    pub fn earliest(&self, member: &Member) -> Result<Range<u64>, E> {
        let wrong = |what| self.wrong(TorchFault::Member { member: self.name(member), what });
        if let Some(fault) = member.fault {
            return Err(wrong(fault));
        }
        let start = member.header + (HEADER + self.raw_name(member).len()) as u64;
        match start.checked_add(member.len).filter(|end| *end <= self.end) {
            Some(end) => Ok(start..end),
            None => Err(wrong(OUTSIDE)),
        }
    }

    /// Where the data of a member lies, by its own header.
    pub fn locate(&self, member: &Member) -> Result<Range<u64>, E> {
        let wrong = |what| self.wrong(TorchFault::Member { member: self.name(member), what });
        let Range { start, end } = self.earliest(member)?;
        let name = self.raw_name(member);
        let header = (self.read)(member.header, HEADER + name.len())?;
        if !header.starts_with(b"PK\x03\x04")
            || usize::from(u16_at(&header, 26)) != name.len()
            || header[HEADER..] != *name
            || u16_at(&header, 8) != 0
        {
            return Err(wrong(
                "has another header than the directory says; download the file again",
            ));
        }
        let more = u64::from(u16_at(&header, 28));
        match end + more <= self.end {
            true => Ok(start + more..end + more),
            false => Err(wrong(OUTSIDE)),
        }
    }

    /// The data of a member of at most `max` bytes. `what` it is stands in the message about a
    /// larger one.
    pub fn read(&self, member: &Member, what: &'static str, max: u64) -> Result<Vec<u8>, E> {
        let Range { start, end } = self.locate(member)?;
        let len = end - start;
        match len > max {
            true => Err(self.wrong(TorchFault::TooLarge { what, len, max })),
            false => (self.read)(start, len as usize),
        }
    }

    /// The name of a member, as messages show it.
    pub fn name(&self, member: &Member) -> String {
        shortened(&String::from_utf8_lossy(self.raw_name(member)))
    }

    /// An error of this file.
    pub fn wrong(&self, fault: TorchFault) -> E {
        Error::Torch { path: self.path.to_owned(), fault }.into()
    }

    fn raw_name(&self, member: &Member) -> &[u8] {
        member.name_in(&self.directory)
    }
}

/// Where in the end of a file the record is that ends it, with its comment.
fn find_end(tail: &[u8]) -> Option<usize> {
    let last = tail.len().checked_sub(END)?;
    (0..=last).rev().find(|&at| {
        let record = &tail[at..];
        record.starts_with(b"PK\x05\x06") && END + usize::from(u16_at(record, 20)) == record.len()
    })
}

/// The entries of a directory that starts at byte `start` of the file.
fn members(directory: &[u8], start: u64) -> Result<Vec<Member>, &'static str> {
    const CUT: &str = "an entry is cut short";
    let mut members = Vec::new();
    let mut at = 0;
    while at < directory.len() {
        let entry = &directory[at..];
        if entry.len() < ENTRY || !entry.starts_with(b"PK\x01\x02") {
            return Err(CUT);
        }
        let [name, extra, comment] = [28, 30, 32].map(|at| usize::from(u16_at(entry, at)));
        let extra_start = ENTRY + name;
        let fields = entry.get(extra_start..extra_start + extra).ok_or(CUT)?;
        let mut wide = zip64(fields);
        let mut number = |at| -> Result<u64, &'static str> {
            let number = u32_at(entry, at);
            if number != IN_ZIP64 {
                return Ok(number.into());
            }
            let (number, rest) = wide.split_first_chunk().ok_or("a zip64 field is missing")?;
            wide = rest;
            Ok(u64::from_le_bytes(*number))
        };
        let (len, stored, header) = (number(24)?, number(20)?, number(42)?);
        if header > start || len > start {
            return Err("a member lies outside the file");
        }
        let fault = if u16_at(entry, 8) & 1 != 0 {
            Some("is encrypted, which torch.save never does")
        } else if u16_at(entry, 10) != 0 || stored != len {
            Some("is compressed, which is not read: load the file with torch and save it again")
        } else {
            None
        };
        let first = (at + ENTRY) as u32;
        members.push(Member { name: first..first + name as u32, header, len, fault });
        at += extra_start + extra + comment;
    }
    match at == directory.len() {
        true => Ok(members),
        false => Err(CUT),
    }
}

/// The zip64 field among the extra fields of an entry; empty if there is none.
fn zip64(mut fields: &[u8]) -> &[u8] {
    while let Some((head, rest)) = fields.split_first_chunk::<4>() {
        let len = usize::from(u16_at(head, 2)).min(rest.len());
        if u16_at(head, 0) == 1 {
            return &rest[..len];
        }
        fields = &rest[len..];
    }
    &[]
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes_at(bytes, at).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes_at(bytes, at).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes_at(bytes, at).map_or(0, u64::from_le_bytes)
}

/// The bytes at `at`, of which every caller has made sure that they are there.
fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}
