//! The memory of the chunks that stay: one region, in which each of them has its place.
//!
//! One region rather than a mapping for each chunk, so that all of it can be had in large pages:
//! what is read over and over by products then takes the fewest entries of the processor's TLB, and
//! no byte is lost to rounding.
//!
//! The kernel must find and clear a page that is first touched, and so must the host of a virtual
//! machine; that can take longer than reading it from the disk. So threads that do nothing else
//! prefault the region ahead of the reads, in the order of use. Each large page is touched by one
//! thread: two that meet in one would both clear it.

use crate::buffer::Buffer;
use crate::sync::{AtomicBool, Condvar, Mutex, MutexGuard};
use crate::{Chunk, ChunkId, Error, LARGE_PAGE};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// The region, and how much of it was touched.
pub(crate) struct ResidentArena {
    memory: Buffer,
    /// Where each chunk's block lies; an empty range for those that do not stay.
    places: Vec<Range<usize>>,
    fresh: Mutex<Fresh>,
    /// Readers wait here for a page that another thread is touching.
    touched: Condvar,
    closed: AtomicBool,
}

/// How far ahead of the threads that touch memory a reader waits for them, in large pages.
const SOON: usize = 32;

/// Which large pages were never touched.
struct Fresh {
    pages: Vec<Page>,
    /// All pages before this one were at least begun.
    next: usize,
    /// Pages that are not yet done.
    left: usize,
    /// Threads in [`ResidentArena::touch_all`].
    touchers: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Page {
    Fresh,
    Begun,
    Done,
}

impl ResidentArena {
    /// Places for the chunks that stay, in the given order of use, those that it leaves out at the
    /// end.
    pub(crate) fn new(chunks: &[Chunk], order: &[ChunkId]) -> Result<Arc<Self>, Error> {
        let (places, end) = places(chunks, order);
        let purpose = "the weights that stay";
        let len = usize::try_from(end)
            .ok()
            .filter(|len| *len <= isize::MAX as usize)
            .ok_or_else(|| Error::OutOfMemory { bytes: end, purpose: purpose.into() })?;
        let pages = len.div_ceil(LARGE_PAGE);
        Ok(Arc::new(Self {
            memory: Buffer::new(len, purpose)?,
            places,
            fresh: Mutex::new(Fresh {
                pages: vec![Page::Fresh; pages],
                next: 0,
                left: pages,
                touchers: 0,
            }),
            touched: Condvar::new(),
            closed: AtomicBool::new(false),
        }))
    }

    /// The region.
    pub(crate) fn memory(&self) -> &Buffer {
        &self.memory
    }

    /// The place of a chunk that stays.
    pub(crate) fn place(&self, chunk: ChunkId) -> Range<usize> {
        self.places[chunk].clone()
    }

    /// Whether the region is large enough for threads that touch it ahead to be worth their start.
    pub(crate) fn is_large(&self) -> bool {
        self.fresh().pages.len() > 1
    }

    /// Touches page after page from the beginning on, until none is left or
    /// [`ResidentArena::close`] is called.
    pub(crate) fn touch_all(&self) {
        self.fresh().touchers += 1;
        let _leaving = Leaving(self);
        while !self.closed.load(Ordering::Relaxed) {
            let mut fresh = self.fresh();
            let from = fresh.next;
            let Some(found) = fresh.pages[from..].iter().position(|page| *page == Page::Fresh)
            else {
                fresh.next = fresh.pages.len();
                return;
            };
            let page = from + found;
            fresh.next = page + 1;
            drop(self.touch(fresh, page));
        }
    }

    /// Sees to it that a part of the region was touched. What threads in
    /// [`ResidentArena::touch_all`] will soon come to is waited for, so that no more threads than
    /// those take the processors from who computes.
    pub(crate) fn prepare(&self, range: Range<usize>) {
        let mut fresh = self.fresh();
        if fresh.left == 0 || range.is_empty() {
            return;
        }
        let (first, end) = (range.start / LARGE_PAGE, range.end.div_ceil(LARGE_PAGE));
        loop {
            let soon = match fresh.touchers {
                0 => 0,
                _ => fresh.next + SOON,
            };
            let mut pages = first..end;
            if let Some(page) =
                pages.find(|page| fresh.pages[*page] == Page::Fresh && *page >= soon)
            {
                fresh = self.touch(fresh, page);
                continue;
            }
            if fresh.pages[first..end].iter().all(|page| *page == Page::Done) {
                return;
            }
            fresh = self.touched.wait(fresh).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn touch<'a>(&'a self, mut fresh: MutexGuard<'a, Fresh>, page: usize) -> MutexGuard<'a, Fresh> {
        fresh.pages[page] = Page::Begun;
        drop(fresh);
        let start = page * LARGE_PAGE;
        let end = (start + LARGE_PAGE).min(self.memory.len());
        // SAFETY: this thread alone has begun the page, and readers write to it only after
        // `prepare`, which waits for it to be done; nobody reads what was not written.
        unsafe { self.memory.touch(start..end) }
        let mut fresh = self.fresh();
        fresh.pages[page] = Page::Done;
        fresh.left -= 1;
        self.touched.notify_all();
        fresh
    }

    /// Ends [`ResidentArena::touch_all`] soon.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn fresh(&self) -> MutexGuard<'_, Fresh> {
        // Nothing under the lock can panic.
        self.fresh.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that ends to touch memory: who waited for it goes on alone.
struct Leaving<'a>(&'a ResidentArena);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fresh().touchers -= 1;
        self.0.touched.notify_all();
    }
}

/// Where each chunk's block lies, and the end of the last.
fn places(chunks: &[Chunk], order: &[ChunkId]) -> (Vec<Range<usize>>, u64) {
    let mut places = vec![0..0; chunks.len()];
    let mut end = 0u64;
    for id in order.iter().copied().chain(0..chunks.len()) {
        let chunk = &chunks[id];
        if chunk.keep && places[id].is_empty() {
            // Each is at most a quarter of the address space, which the sum may exceed.
            let start = end;
            end = end.saturating_add(chunk.block_len() as u64);
            places[id] = start as usize..end as usize;
        }
    }
    (places, end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK, Segment};

    fn chunk(offset: usize, len: usize, keep: bool) -> Chunk {
        Chunk {
            name: "a test".into(),
            segments: vec![Segment {
                source: 0,
                offset: offset as u64,
                len: len as u64,
                align: 1,
                convert: None,
            }],
            keep,
            occasional: false,
        }
    }

    #[test]
    fn places_follow_the_order_of_use_without_holes() {
        let chunks = [
            chunk(5, 10, true),
            chunk(0, 10, false),
            chunk(0, 3 * BLOCK, true),
            chunk(BLOCK - 1, 2, true),
            chunk(0, 0, true),
        ];
        let (places, end) = places(&chunks, &[3, 1, 0, 3]);
        assert_eq!(places[3], 0..2 * BLOCK);
        assert_eq!(places[0], 2 * BLOCK..3 * BLOCK);
        assert_eq!(places[2], 3 * BLOCK..6 * BLOCK);
        assert!(places[1].is_empty() && places[4].is_empty());
        assert_eq!(end, 6 * BLOCK as u64);
    }

    #[test]
    fn more_than_there_can_be_is_refused() {
        let chunks = vec![chunk(0, isize::MAX as usize / 4 / BLOCK * BLOCK, true); 9];
        let error = ResidentArena::new(&chunks, &[]).err().unwrap();
        assert!(error.to_string().contains("weights that stay"), "{error}");
    }
}
