//! Page-aligned memory, the one hazardous thing in this crate.

use crate::{BLOCK, Error};
use std::ops::Range;
use std::ptr::NonNull;

/// A fixed, zeroed, [`BLOCK`]-aligned region of memory.
///
/// The region is shared between threads that write disjoint parts of it and threads that read parts
/// which nobody writes any more. Who may touch which part is decided by the pool, not here: that is
/// why [`Buffer::bytes`] and [`Buffer::bytes_mut`] are unsafe.
pub(crate) struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Buffer` owns its memory exclusively; access to it is only given by the unsafe methods
// below, whose callers guarantee the absence of data races.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes `len` bytes from the system, rounded up to whole blocks. Pages are only backed by
    /// memory once they are touched.
    pub(crate) fn new(len: usize, purpose: &str) -> Result<Self, Error> {
        let len = len.div_ceil(BLOCK).max(1) * BLOCK;
        let start = system::take(len).ok_or_else(|| Error::OutOfMemory {
            bytes: len as u64,
            purpose: purpose.into(),
        })?;
        Ok(Self { start, len })
    }

    /// Length in bytes, a multiple of [`BLOCK`].
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has the system find the memory of a part now rather than when it is first written to. The bytes stay as they
    /// are.
    ///
    /// By writing rather than by `MADV_POPULATE_WRITE`, which keeps the whole process from mapping memory meanwhile.
    ///
    /// # Safety
    /// Nobody may have a slice of `part`, or touch it, as long as this runs.
    pub(crate) unsafe fn touch(&self, part: Range<usize>) {
        self.check(&part);
        for at in part.step_by(BLOCK) {
            // SAFETY: inside the allocation (checked), and by the caller's word nobody else reads or writes there.
            unsafe {
                let byte = self.start.as_ptr().add(at);
                // Volatile, as a compiler is free to drop any other write of what is there already, an atomic one too.
                byte.write_volatile(byte.read_volatile());
            }
        }
    }

    fn check(&self, range: &Range<usize>) {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range {range:?} outside a buffer of {} bytes",
            self.len
        );
    }

    /// Reads a part of the region.
    ///
    /// # Safety
    /// Nobody may write into `range` as long as the returned slice lives.
    pub(crate) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        self.check(&range);
        // SAFETY: the range lies inside the allocation (checked), which is zeroed when taken, hence
        // initialised; the caller guarantees that it is not written meanwhile.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(range.start), range.len()) }
    }

    /// Writes a part of the region.
    ///
    /// # Safety
    /// Nobody else may read or write `range` as long as the returned slice lives.
    #[allow(clippy::mut_from_ref)] // Exclusive access to the part is the caller's contract.
    pub(crate) unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        self.check(&range);
        // SAFETY: inside the allocation (checked), initialised, and exclusive by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(range.start), range.len()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: taken with the same length in `new`, given back once.
        unsafe { system::give_back(self.start, self.len) }
    }
}

/// Anonymous mappings: they never fragment the heap and go back to the system at once, so that
/// the resident set is what is counted.
#[cfg(unix)]
mod system {
    use crate::LARGE_PAGE;
    use std::ptr::{NonNull, null_mut};

    /// Maps `len` bytes, a multiple of the system's pages; from a large page on, they begin on one.
    pub(super) fn take(len: usize) -> Option<NonNull<u8>> {
        // The system aligns mappings of some lengths only. What is too much goes back untouched.
        let spare = if len >= LARGE_PAGE { LARGE_PAGE } else { 0 };
        let start = map(len.checked_add(spare)?)?;
        let skip = match spare {
            0 => 0,
            _ => start.addr().get().next_multiple_of(LARGE_PAGE) - start.addr().get(),
        };
        // SAFETY: `skip` is at most `spare`, so the first `len` bytes from there on are part of the mapping; what lies
        // before and behind them is given back once, and nothing of it was handed out.
        let start = unsafe {
            let taken = start.add(skip);
            if skip > 0 {
                give_back(start, skip);
            }
            if spare > skip {
                give_back(taken.add(len), spare - skip);
            }
            taken
        };
        // Weights are read from end to end, over and over: large pages spare most TLB misses. It is
        // only advice, its result does not matter.
        #[cfg(target_os = "linux")]
        // SAFETY: the range is what remains of the mapping just made.
        unsafe {
            libc::madvise(start.as_ptr().cast(), len, libc::MADV_HUGEPAGE);
        }
        Some(start)
    }

    fn map(len: usize) -> Option<NonNull<u8>> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no
        // existing memory; failure is reported as MAP_FAILED, checked below.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast())
    }

    /// # Safety
    /// The `len` bytes from `start` on are whole pages that [`take`] mapped, and are given back once.
    pub(super) unsafe fn give_back(start: NonNull<u8>, len: usize) {
        // SAFETY: by the contract above this unmaps nothing that others have.
        unsafe {
            libc::munmap(start.as_ptr().cast(), len);
        }
    }
}

#[cfg(not(unix))]
mod system {
    use crate::BLOCK;
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub(super) fn take(len: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(len, BLOCK).ok()?;
        // SAFETY: `len` is at least one block, so the layout is not empty.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// # Safety
    /// `start` and `len` come from one call of [`take`], and are given back once.
    pub(super) unsafe fn give_back(start: NonNull<u8>, len: usize) {
        if let Ok(layout) = Layout::from_size_align(len, BLOCK) {
            // SAFETY: the same layout as in `take`.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LARGE_PAGE;

    #[test]
    fn is_aligned_zeroed_and_rounded_up() {
        let buffer = Buffer::new(BLOCK + 1, "a test").unwrap();
        assert_eq!(buffer.len(), 2 * BLOCK);
        assert_eq!(buffer.start.as_ptr() as usize % BLOCK, 0);
        // SAFETY: nobody else has access.
        let bytes = unsafe { buffer.bytes(0..buffer.len()) };
        assert!(bytes.iter().all(|byte| *byte == 0));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn large_ones_begin_on_a_large_page() {
        let buffer = Buffer::new(3 * LARGE_PAGE + BLOCK, "a test").unwrap();
        assert_eq!(buffer.len(), 3 * LARGE_PAGE + BLOCK);
        assert_eq!(buffer.start.as_ptr() as usize % LARGE_PAGE, 0);
        // SAFETY: nobody else has access, and no slice outlives its statement.
        unsafe {
            buffer.bytes_mut(0..buffer.len()).fill(7);
            buffer.touch(BLOCK..buffer.len());
            assert!(buffer.bytes(0..buffer.len()).iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn absurd_sizes_are_an_error() {
        assert!(matches!(
            Buffer::new(usize::MAX / 4, "a test"),
            Err(Error::OutOfMemory { .. })
        ));
    }

    #[test]
    #[should_panic(expected = "outside a buffer")]
    fn ranges_are_checked() {
        let buffer = Buffer::new(BLOCK, "a test").unwrap();
        // SAFETY: nobody else has access.
        let _ = unsafe { buffer.bytes(1..BLOCK + 1) };
    }
}
