use memmap2::MmapMut;
use std::fmt;
use std::io;

/// Memory as weights are kept in: a mapping of its own, with large pages where the system gives
/// them.
pub struct Region(MmapMut);

impl Region {
    /// Maps `bytes` of zeros, one at least. No page is there before it is touched.
    ///
    /// # Errors
    /// What the system says if it has no room.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let memory = MmapMut::map_anon(bytes.max(1))?;
        // Only advice.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        Ok(Self(memory))
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Region {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes)", self.0.len())
    }
}
