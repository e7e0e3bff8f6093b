use std::fmt;
use std::sync::Arc;

/// Number of a unit in the list given to [`crate::Stream::start`].
pub type UnitId = usize;

/// A byte range of a file that is read, held and dropped as a whole: a tensor, or a tile of one.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Name for error messages, usually the tensor's.
    pub name: Arc<str>,
    /// Index of the file among the sources.
    pub source: usize,
    /// Where it begins in the file, in bytes.
    pub offset: u64,
    /// Its length in the file, in bytes.
    pub len: u64,
    /// The alignment that the bytes must have in memory (a power of two, at most
    /// [`BLOCK`](crate::BLOCK)). A unit that the file stores misaligned is copied to alignment.
    pub align: usize,
    /// A conversion on the way in, element by element.
    pub convert: Option<Convert>,
    /// Whether it stays in memory of its own once it is read. It then takes nothing of the ring.
    pub keep: bool,
}

impl Unit {
    /// Length in memory, in bytes: after the conversion.
    pub fn len_in_memory(&self) -> u64 {
        match &self.convert {
            Some(convert) => self.len / convert.from as u64 * convert.to as u64,
            None => self.len,
        }
    }

    /// Whether bytes go through a reader's scratch memory rather than straight to their place.
    pub(crate) fn is_staged(&self) -> bool {
        self.convert.is_some() || !self.offset.is_multiple_of(self.align.max(1) as u64)
    }
}

/// An element-wise conversion of bytes on their way from the file to memory.
#[derive(Clone)]
pub struct Convert {
    /// Bytes of one element in the file.
    pub from: usize,
    /// Bytes of one element in memory.
    pub to: usize,
    /// Converts whole elements: the output holds as many of them as the input.
    pub run: fn(&[u8], &mut [u8]),
}

impl fmt::Debug for Convert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Convert({} -> {} bytes)", self.from, self.to)
    }
}
