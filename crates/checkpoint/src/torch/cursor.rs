//! Numbers and texts in the bytes of a pickle.

/// What is wrong with a pickle that is cut short.
const END: &str = "an end before its last opcode";

/// The bytes of a pickle, read from start to end.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes were read.
    pub fn position(&self) -> usize {
        self.at
    }

    /// A number of at most eight bytes, as a length or a position.
    pub fn size(&mut self, bytes: usize) -> Result<usize, &'static str> {
        let mut wide = [0; 8];
        wide[..bytes].copy_from_slice(self.bytes(bytes)?);
        Ok(usize::try_from(u64::from_le_bytes(wide)).unwrap_or(usize::MAX))
    }

    pub fn byte(&mut self) -> Result<u8, &'static str> {
        Ok(self.array::<1>()?[0])
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        self.bytes(N)?.first_chunk().copied().ok_or(END)
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let bytes = rest.get(..len).ok_or(END)?;
        self.at += len;
        Ok(bytes)
    }

    /// A text after its length in so many bytes.
    pub fn text(&mut self, bytes: usize) -> Result<&'a str, &'static str> {
        let len = self.size(bytes)?;
        str::from_utf8(self.bytes(len)?).map_err(|_| "a string that is not UTF-8")
    }

    /// The text up to the end of the line.
    pub fn line(&mut self) -> Result<&'a str, &'static str> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let len = rest.iter().position(|byte| *byte == b'\n');
        let line = self.bytes(len.ok_or("a name without an end")?)?;
        self.at += 1;
        str::from_utf8(line).map_err(|_| "a name that is not UTF-8")
    }
}
