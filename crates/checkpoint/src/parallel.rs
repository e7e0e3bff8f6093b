//! Several small reads at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Threads that read from a disk at once, the caller's included. Opening a file takes two or three
/// dependent reads, and a disk can serve many at a time.
pub(crate) const THREADS: usize = 8;

/// Does `work` for each number below `count`, on `threads` threads, and returns the results by
/// number. With too few threads it takes longer.
///
/// # Errors
/// Nothing more is begun after an error; of several that of the lowest number is returned.
pub(crate) fn each<T: Send, E: Send>(
    threads: usize,
    count: usize,
    work: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let next = AtomicUsize::new(0);
    let (done, results) = mpsc::channel();
    let take = |done: mpsc::Sender<(usize, Result<T, E>)>| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            let result = work(number);
            if result.is_err() {
                // All lower numbers are taken already.
                next.store(count, Ordering::Relaxed);
            }
            if done.send((number, result)).is_err() {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(count) {
            let done = done.clone();
            if thread::Builder::new().spawn_scoped(scope, || take(done)).is_err() {
                break;
            }
        }
        take(done);
    });
    let mut results: Vec<_> = results.into_iter().collect();
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_by_number() {
        for count in [0, 1, 3, 1000] {
            let squares = each(4, count, |number| Ok::<_, ()>(number * number)).unwrap();
            assert!(squares.iter().copied().eq((0..count).map(|n| n * n)));
        }
    }

    #[test]
    fn of_several_errors_the_first_is_told() {
        let work = |number| if number < 30 { Ok(()) } else { Err(number) };
        assert!((0..100).all(|_| each(4, 1000, work) == Err(30)));
    }
}
