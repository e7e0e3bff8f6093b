use crate::{BLOCK, Error};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The longest chunk, in bytes: a sum of a few of them and some blocks does not overflow.
const LONGEST: u64 = (isize::MAX / 4) as u64;

/// The longest read that goes through a reader's scratch memory, in bytes: each reader has as much.
const MAX_STAGED: usize = 1 << 20;

/// Scratch memory of a reader whose reads are of at most `read_bytes`: these, and the rest of the
/// blocks in which they begin and end.
pub(crate) fn scratch_bytes(read_bytes: usize) -> usize {
    read_bytes.min(MAX_STAGED) + 2 * BLOCK
}

/// Number of a chunk in the list given to [`crate::Stream::start`].
pub type ChunkId = usize;

/// What is read, held and dropped as a whole: a tensor, a tile of one, or such a tile and its
/// scales.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Name for error messages, usually the tensor's.
    pub name: Arc<str>,
    /// The byte ranges of files that it is made of, at least one.
    pub segments: Vec<Segment>,
    /// Whether it stays in memory, at a place of its own, once it is read. It then takes nothing of
    /// the ring.
    pub keep: bool,
    /// Whether some passes do not ask for it. No schedule has it: it is read when it is
    /// [announced](crate::Stream::announce) or asked for, and if it stays, when there is nothing
    /// else to read.
    pub occasional: bool,
}

/// A byte range of a file.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Index of the file among the sources.
    pub source: usize,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its length in the file, in bytes.
    pub len: u64,
    /// The alignment that the bytes must have in memory (a power of two, at most
    /// [`BLOCK`](crate::BLOCK)). A segment that the file stores misaligned is copied to alignment.
    pub align: usize,
    /// A conversion on the way in, block of elements by block of elements.
    pub convert: Option<Convert>,
}

/// One read of a chunk.
pub(crate) struct Read<'a> {
    pub(crate) segment: &'a Segment,
    /// Which bytes: of the segment if it is staged, else of the whole blocks that cover it.
    pub(crate) range: Range<usize>,
    /// Where the segment's memory begins in that of the chunk.
    pub(crate) base: usize,
}

impl Chunk {
    /// Length in memory, in bytes: after conversions.
    pub fn len_in_memory(&self) -> u64 {
        let lengths = self.segments.iter().map(Segment::len_in_memory);
        lengths.fold(0, u64::saturating_add)
    }

    /// Whether some bytes go through a reader's scratch memory rather than straight to their place.
    pub fn is_staged(&self) -> bool {
        self.segments.iter().any(Segment::is_staged)
    }

    /// Refuses what could not be read in parts, or would overflow on the way.
    pub(crate) fn check(&self, sources: usize) -> Result<(), Error> {
        let faults = self.segments.iter().map(|segment| segment.fault(sources));
        let reason = if self.segments.is_empty() {
            Some("it has no segment")
        } else if self.len_in_memory() > LONGEST {
            Some("it is longer than any memory")
        } else {
            faults.flatten().next()
        };
        reason.map_or(Ok(()), |reason| Err(Error::Chunk { chunk: self.name.clone(), reason }))
    }

    /// Where each segment's bytes lie in the chunk's memory.
    pub(crate) fn payload(&self) -> Vec<Range<usize>> {
        let place = |(base, segment): (usize, &Segment)| {
            let start = base + segment.skipped();
            start..start + segment.len_in_memory() as usize
        };
        self.placed().map(place).collect()
    }

    /// Memory that the chunk takes, in bytes: whole blocks for each segment.
    pub fn block_len(&self) -> usize {
        let blocks = self.segments.iter().map(Segment::block_len);
        blocks.fold(0, usize::saturating_add)
    }

    /// In how many reads of at most `max` bytes the chunk is read.
    pub(crate) fn reads(&self, max: usize) -> usize {
        self.segments.iter().map(|segment| segment.reads(max)).sum()
    }

    /// Read number `index` of those of at most `max` bytes.
    pub(crate) fn read(&self, mut index: usize, max: usize) -> Option<Read<'_>> {
        for (base, segment) in self.placed() {
            let reads = segment.reads(max);
            if index < reads {
                let len = segment.read_len(max);
                let range = index * len..((index + 1) * len).min(segment.to_read());
                return Some(Read { segment, range, base });
            }
            index -= reads;
        }
        None
    }

    /// The segments, and where the memory of each begins: each has whole blocks of its own.
    fn placed(&self) -> impl Iterator<Item = (usize, &Segment)> {
        self.segments.iter().scan(0, |end, segment| {
            let base = *end;
            *end += segment.block_len();
            Some((base, segment))
        })
    }
}

impl Segment {
    fn fault(&self, sources: usize) -> Option<&'static str> {
        let end = self.offset.checked_add(self.len);
        Some(if self.source >= sources {
            "its file is not among the sources"
        } else if self.len > LONGEST {
            "it is longer than any memory"
        } else if end.is_none_or(|end| end > i64::MAX as u64) {
            "it ends beyond the end of any file"
        } else if !self.align.is_power_of_two() || self.align > BLOCK {
            "its alignment is no power of two up to a block"
        } else if let Some(convert) = &self.convert
            && (convert.from == 0 || convert.to == 0 || convert.from > BLOCK)
        {
            "what it converts at a time is empty or longer than a block"
        } else if let Some(convert) = &self.convert
            && !self.len.is_multiple_of(convert.from as u64)
        {
            "it does not hold a whole number of the elements to convert"
        } else {
            return None;
        })
    }

    pub(crate) fn len_in_memory(&self) -> u64 {
        match &self.convert {
            Some(Convert { whole: Some(whole), .. }) => whole.len,
            Some(convert) => {
                (self.len / convert.from.max(1) as u64).saturating_mul(convert.to as u64)
            }
            None => self.len,
        }
    }

    /// Whether bytes go through a reader's scratch memory rather than straight to their place.
    pub(crate) fn is_staged(&self) -> bool {
        self.convert.is_some() || !self.offset.is_multiple_of(self.align as u64)
    }

    /// Bytes of the first block that are not the segment's.
    fn skipped(&self) -> usize {
        match self.is_staged() {
            true => 0,
            false => (self.offset % BLOCK as u64) as usize,
        }
    }

    fn block_len(&self) -> usize {
        let end = self.len_in_memory().saturating_add(self.skipped() as u64);
        let blocks = end.checked_next_multiple_of(BLOCK as u64);
        blocks.map_or(usize::MAX, |bytes| bytes as usize)
    }

    fn reads(&self, max: usize) -> usize {
        self.to_read().div_ceil(self.read_len(max))
    }

    /// The length of each read but the last, if they are of at most `max` bytes: whole blocks (or,
    /// if those do not hold a whole number of the elements to convert, such elements), and about as
    /// many in each. A small rest would cost a disk as much as half a megabyte.
    fn read_len(&self, max: usize) -> usize {
        let step = match &self.convert {
            Some(convert) if !BLOCK.is_multiple_of(convert.from) => convert.from,
            _ => BLOCK,
        };
        let max = match self.is_staged() {
            true => max.min(MAX_STAGED),
            false => max,
        };
        let count = self.to_read().div_ceil(max / step * step).max(1);
        let len = self.to_read().div_ceil(count).max(1);
        len.next_multiple_of(step)
    }

    /// Bytes to read: of the file if they are staged, else to fill the blocks.
    fn to_read(&self) -> usize {
        match self.len == 0 || self.is_staged() {
            true => self.len as usize,
            false => self.block_len(),
        }
    }
}

/// A conversion of bytes on their way from the file to memory: blocks of so many bytes become
/// blocks of so many others.
#[derive(Clone)]
pub struct Convert {
    /// Bytes of one block of elements in the file, at most [`BLOCK`](crate::BLOCK).
    pub from: usize,
    /// Bytes of one such block in memory.
    pub to: usize,
    run: Arc<ConvertFn>,
    /// Of a conversion that may write anywhere: what it writes to, one read at a time.
    pub(crate) whole: Option<Whole>,
}

/// The memory of all of a segment.
#[derive(Clone)]
pub(crate) struct Whole {
    len: u64,
    /// Held by the reader that writes.
    pub(crate) lock: Arc<Mutex<()>>,
}

type ConvertFn = dyn Fn(u64, &[u8], &mut [u8]) + Send + Sync;

impl Convert {
    /// A conversion of whole blocks that knows where in the file its input begins, in bytes; the
    /// output holds as many of them as the input. It should not panic; if it does, the chunk fails
    /// with [`Error::Reader`], and the message of the panic hook is its own.
    pub fn new(
        from: usize,
        to: usize,
        run: impl Fn(u64, &[u8], &mut [u8]) + Send + Sync + 'static,
    ) -> Self {
        let run = Arc::new(run);
        Self { from, to, run, whole: None }
    }

    /// A conversion that spreads blocks of `from` bytes over `len` bytes of memory: it is given all
    /// of these with each part of the file. Parts come in any order, one at a time; bytes that none
    /// of them writes are arbitrary. Otherwise as [`new`](Self::new).
    pub fn scattered(
        from: usize,
        len: u64,
        run: impl Fn(u64, &[u8], &mut [u8]) + Send + Sync + 'static,
    ) -> Self {
        let whole = Some(Whole { len, lock: Arc::default() });
        Self { whole, ..Self::new(from, 1, run) }
    }

    /// Whether each part of the file is given all of the memory.
    pub fn is_scattered(&self) -> bool {
        self.whole.is_some()
    }

    /// Converts what the file holds from byte `offset` on.
    pub fn run(&self, offset: u64, from: &[u8], to: &mut [u8]) {
        (self.run)(offset, from, to);
    }
}

impl fmt::Debug for Convert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Convert({} -> {} bytes)", self.from, self.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(offset: u64, len: u64, align: usize, from: Option<usize>) -> Segment {
        Segment {
            source: 0,
            offset,
            len,
            align,
            convert: from.map(|from| Convert::new(from, 4, |_, _, _| {})),
        }
    }

    /// Bytes of blocks of elements, of which some do not divide a page.
    const FROM: [usize; 6] = [1, 2, 9, BLOCK / 2 - 1, BLOCK - 1, BLOCK];

    proptest! {
        /// Reads cover the segment, are no longer than allowed, and about equal.
        #[test]
        fn reads_are_about_equal(
            offset in 0u64..3 * BLOCK as u64,
            len in 0u64..40 << 20,
            align in prop::sample::select(vec![1, 64, BLOCK]),
            from in prop::option::of(prop::sample::select(FROM.to_vec())),
            blocks in 1usize..2000,
        ) {
            let len = from.map_or(len, |from| len / from as u64 * from as u64);
            let segment = segment(offset, len, align, from);
            let step = from.filter(|from| !BLOCK.is_multiple_of(*from)).unwrap_or(BLOCK);
            let most = blocks * BLOCK;
            let (count, read) = (segment.reads(most), segment.read_len(most));
            prop_assert!(read.is_multiple_of(step) && read <= most);
            prop_assert!(!segment.is_staged() || read <= MAX_STAGED);
            let all = segment.to_read();
            prop_assert!(count * read >= all);
            prop_assert!(count == 0 || (count - 1) * read < all);
            // No more of them than need be, and none that is a small rest: each gives up less than
            // a step to others.
            let allowed = if segment.is_staged() { most.min(MAX_STAGED) } else { most };
            prop_assert_eq!(count, all.div_ceil(allowed / step * step));
            if count > 0 {
                let last = all - (count - 1) * read;
                prop_assert!(last + count * step > read, "{} of {}, the last {}", count, read, last);
            }
        }

        /// Every byte of every segment has one place in memory and is in one read.
        #[test]
        fn segments_do_not_overlap(
            ranges in prop::collection::vec((0u64..3 * BLOCK as u64, 0u64..5 * BLOCK as u64, prop::bool::ANY), 1..5),
            blocks in 1usize..4,
        ) {
            let segments = ranges.into_iter().map(|(offset, len, staged)| {
                segment(offset, len / 9 * 9, 1, staged.then_some(9))
            });
            let chunk = Chunk { name: "a chunk".into(), segments: segments.collect(), keep: false, occasional: false };
            let (payload, most) = (chunk.payload(), blocks * BLOCK);
            let ends: Vec<_> = chunk.placed().map(|(base, segment)| base..base + segment.block_len()).collect();
            for ((place, segment), memory) in payload.iter().zip(&chunk.segments).zip(&ends) {
                prop_assert_eq!(place.len() as u64, segment.len_in_memory());
                prop_assert!(memory.start <= place.start && place.end <= memory.end);
            }
            prop_assert!(ends.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert_eq!(ends.last().map(|memory| memory.end), Some(chunk.block_len()));
            let mut read = vec![0; chunk.segments.len()];
            for index in 0..chunk.reads(most) {
                let one = chunk.read(index, most).unwrap();
                let at = ends.iter().position(|memory| memory.start == one.base && !memory.is_empty()).unwrap();
                prop_assert_eq!(one.range.start, read[at]);
                read[at] = one.range.end;
            }
            prop_assert!(chunk.read(chunk.reads(most), most).is_none());
            for (read, segment) in read.iter().zip(&chunk.segments) {
                prop_assert!(segment.block_len() == 0 || *read == segment.to_read());
            }
        }
    }
}
