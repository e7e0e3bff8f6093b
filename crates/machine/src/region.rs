use memmap2::MmapMut;
use std::io;

/// Memory like that of resident weights: a mapping of its own, with large pages if the system has
/// them.
#[derive(Debug)]
pub struct Region(MmapMut);

impl Region {
    /// Maps `bytes` of zeros, at least one. Pages are faulted in when they are touched.
    ///
    /// # Errors
    /// The system's error if it has no room.
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
