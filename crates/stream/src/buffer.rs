//! Page-aligned memory, the one hazardous thing in this crate.

use crate::{BLOCK, Error, LARGE_PAGE};
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
        let start = system::take(len)
            .ok_or_else(|| Error::OutOfMemory { bytes: len as u64, purpose: purpose.into() })?;
        Ok(Self { start, len })
    }

    /// Length in bytes, a multiple of [`BLOCK`].
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Has the system find the memory of a part now rather than when it is first written to. The
    /// bytes stay as they are.
    ///
    /// By writing rather than by `MADV_POPULATE_WRITE`, which keeps the whole process from mapping
    /// memory meanwhile. One write is enough for a large page, if the system gives one; what is not
    /// there after it is written to page by page.
    ///
    /// # Safety
    /// Nobody may have a slice of `part`, or touch it, as long as this runs.
    pub(crate) unsafe fn touch(&self, part: Range<usize>) {
        self.check(&part);
        for large in part.clone().step_by(LARGE_PAGE) {
            let end = part.end.min(large + LARGE_PAGE);
            // SAFETY: inside the allocation (checked), and by the caller's word nobody else reads
            // or writes there.
            unsafe { self.write_to(large) };
            let mut there = [0; LARGE_PAGE / BLOCK];
            // SAFETY: only asks about pages of the allocation, which `large` is at the start of one
            // of.
            unsafe { system::ask(self.start.add(large), end - large, &mut there) };
            for (at, there) in (large..end).step_by(BLOCK).zip(there) {
                if there == 0 {
                    // SAFETY: as above.
                    unsafe { self.write_to(at) };
                }
            }
        }
    }

    /// Writes what is there already to one byte.
    ///
    /// # Safety
    /// `at` is inside the region, and nobody else reads or writes there meanwhile.
    unsafe fn write_to(&self, at: usize) {
        // SAFETY: inside the allocation, and exclusive, by the caller's word. Volatile, as a
        // compiler drops any other write of what is there already, an atomic one too.
        unsafe {
            let byte = self.start.as_ptr().add(at);
            byte.write_volatile(byte.read_volatile());
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
    use crate::{BLOCK, LARGE_PAGE};
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
        // SAFETY: `skip` is at most `spare`, so the first `len` bytes from there on are part of the
        // mapping; what lies before and behind them is given back once, and nothing of it was
        // handed out.
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

    /// Which pages of `len` bytes from `start` on, at most a large page, are there: not nought for
    /// each that is. Where the system does not tell, none are.
    ///
    /// # Safety
    /// `start` is the start of a page, and the `len` bytes belong to a mapping of [`take`].
    pub(super) unsafe fn ask(start: NonNull<u8>, len: usize, there: &mut [u8; LARGE_PAGE / BLOCK]) {
        #[cfg(target_os = "linux")]
        // SAFETY: it reads nothing of the mapping, and writes a byte for each of at most as many
        // pages of the system as `there` has room for: they are of a block, or larger.
        unsafe {
            if len > LARGE_PAGE
                || page() != BLOCK
                || libc::mincore(start.as_ptr().cast(), len, there.as_mut_ptr()) != 0
            {
                there.fill(0);
            }
            for page in there {
                *page &= 1;
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (start, len, there);
    }

    /// Bytes of a page of the system.
    #[cfg(target_os = "linux")]
    fn page() -> usize {
        // SAFETY: asks for a number.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(0)
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
    /// The `len` bytes from `start` on are whole pages that [`take`] mapped, and are given back
    /// once.
    pub(super) unsafe fn give_back(start: NonNull<u8>, len: usize) {
        // SAFETY: by the contract above this unmaps nothing that others have.
        unsafe {
            libc::munmap(start.as_ptr().cast(), len);
        }
    }
}

#[cfg(not(unix))]
mod system {
    use crate::{BLOCK, LARGE_PAGE};
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    /// The system does not tell which pages are there.
    ///
    /// # Safety
    /// None is needed.
    pub(super) unsafe fn ask(_: NonNull<u8>, _: usize, _: &mut [u8; LARGE_PAGE / BLOCK]) {}

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

    /// Bytes of memory that the system has given to the mapping with this address, as it counts.
    #[cfg(target_os = "linux")]
    fn given(start: usize) -> usize {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let first = words.next().unwrap();
            if let Some((from, to)) = first.split_once('-') {
                let number = |hex| usize::from_str_radix(hex, 16).unwrap();
                inside = (number(from)..number(to)).contains(&start);
            } else if inside && first == "Anonymous:" {
                return words.next().unwrap().parse::<usize>().unwrap() << 10;
            }
        }
        0
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_touched_is_there() {
        use std::mem::ManuallyDrop;
        // Pages that the system makes large, and pages that it does not.
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE] {
            // Between two that nobody may touch, or the system may join it with a neighbour.
            let all = Buffer::new(5 * LARGE_PAGE, "a test").unwrap();
            // SAFETY: the middle of a mapping that `all` holds for as long as this lives; it is not
            // given back twice.
            let buffer = unsafe {
                let start = all.start.add(LARGE_PAGE);
                libc::mprotect(all.start.as_ptr().cast(), LARGE_PAGE, libc::PROT_NONE);
                let behind = all.start.add(4 * LARGE_PAGE).as_ptr().cast();
                libc::mprotect(behind, LARGE_PAGE, libc::PROT_NONE);
                libc::madvise(start.as_ptr().cast(), 3 * LARGE_PAGE, advice);
                ManuallyDrop::new(Buffer { start, len: 3 * LARGE_PAGE })
            };
            let start = buffer.start.as_ptr() as usize;
            assert_eq!(given(start), 0);
            // SAFETY: nobody else has access.
            unsafe { buffer.touch(LARGE_PAGE..3 * LARGE_PAGE) };
            assert_eq!(given(start), 2 * LARGE_PAGE, "{advice}");
            // SAFETY: as above.
            unsafe { buffer.touch(BLOCK..3 * BLOCK) };
            assert!(given(start) >= 2 * LARGE_PAGE + 2 * BLOCK, "{advice}");
        }
    }

    #[test]
    fn absurd_sizes_are_an_error() {
        assert!(matches!(Buffer::new(usize::MAX / 4, "a test"), Err(Error::OutOfMemory { .. })));
    }

    #[test]
    #[should_panic(expected = "outside a buffer")]
    fn ranges_are_checked() {
        let buffer = Buffer::new(BLOCK, "a test").unwrap();
        // SAFETY: nobody else has access.
        let _ = unsafe { buffer.bytes(1..BLOCK + 1) };
    }
}
