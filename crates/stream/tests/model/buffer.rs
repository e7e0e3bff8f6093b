//! Memory that is counted and can be refused, in place of the crate's mapped memory.

use crate::{BLOCK, Error};
use std::cell::{Cell, UnsafeCell};
use std::ops::Range;

thread_local! {
    /// All of a schedule's threads share the thread that runs it.
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static REFUSALS: Cell<u32> = const { Cell::new(0) };
    static TOUCHED: Cell<usize> = const { Cell::new(0) };
}

/// Forgets what an earlier, failed schedule left.
pub(crate) fn reset() {
    LIVE.set(0);
    TOUCHED.set(0);
    REFUSALS.set(0);
}

/// Bytes held now.
pub(crate) fn live() -> usize {
    LIVE.get()
}

/// Bytes touched ahead of being written to.
pub(crate) fn touched() -> usize {
    TOUCHED.get()
}

/// Refuses memory the next `count` times that it is asked for.
pub(crate) fn refuse(count: u32) {
    REFUSALS.set(count);
}

pub(crate) struct Buffer(Box<[UnsafeCell<u8>]>);

// SAFETY: as for the crate's own buffer, the pool decides who may touch which part; besides, all
// threads of a model run on one.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn new(len: usize, purpose: &str) -> Result<Self, Error> {
        let len = len.div_ceil(BLOCK).max(1) * BLOCK;
        let refusals = REFUSALS.get();
        if refusals > 0 {
            REFUSALS.set(refusals - 1);
            return Err(Error::OutOfMemory { bytes: len as u64, purpose: purpose.into() });
        }
        LIVE.set(LIVE.get() + len);
        Ok(Self((0..len).map(|_| UnsafeCell::new(0)).collect()))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes its time.
    ///
    /// # Safety
    /// As in the crate.
    pub(crate) unsafe fn touch(&self, part: Range<usize>) {
        assert!(part.start < part.end && part.end <= self.len());
        crate::sync::switch();
        TOUCHED.set(TOUCHED.get() + part.len());
    }

    /// # Safety
    /// As in the crate.
    pub(crate) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        let cells = &self.0[range];
        // SAFETY: bytes in cells lie as bytes do; nobody writes them, by the caller's word.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    /// # Safety
    /// As in the crate.
    #[allow(clippy::mut_from_ref)] // Exclusive access to the part is the caller's contract.
    pub(crate) unsafe fn bytes_mut(&self, range: Range<usize>) -> &mut [u8] {
        let cells = &self.0[range];
        let start = UnsafeCell::raw_get(cells.as_ptr());
        // SAFETY: as above, and nobody else reads or writes them, by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(start, cells.len()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        LIVE.set(LIVE.get() - self.0.len());
    }
}
