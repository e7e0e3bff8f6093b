//! How rows are shared among threads.

use std::sync::{Mutex, PoisonError};

use crate::thread_pool;

/// How many of `elements`, in whole rows of `width`, each of several threads takes at a time:
/// enough to be worth it; all if there are too few for several.
pub(crate) fn share_size(elements: usize, width: usize) -> usize {
    /// Below so many elements, sharing takes longer than the work.
    const MIN_ELEMENTS: usize = 8 << 10;
    let width = width.max(1);
    let (rows, threads) = (elements / width, crate::threads());
    let share = rows.div_ceil(4 * threads).max(MIN_ELEMENTS.div_ceil(width));
    let share = if threads > 1 { share.min(rows) } else { rows };
    (share * width).max(1)
}

/// Does the work on each piece on some thread; on this one if there is one piece.
pub(crate) fn share<I>(pieces: I, work: impl Fn(I::Item) + Sync)
where
    I: Iterator + Send,
{
    if pieces.size_hint().1.is_some_and(|most| most <= 1) {
        return pieces.for_each(work);
    }
    let pieces = Mutex::new(pieces);
    // No thread holds the lock while it works, and taking the next piece cannot fail half way.
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread_pool::share(crate::threads(), || {
        while let Some(piece) = next() {
            work(piece);
        }
    });
}
