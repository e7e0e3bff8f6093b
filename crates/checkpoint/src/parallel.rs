//! Several small reads at once.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Threads that read at once, the caller's included. Opening a file takes two or three dependent
/// reads, and a disk can serve many at a time.
const THREADS: usize = 8;

/// Does `work` for each number below `count`, several at a time, and returns the results by number.
/// With too few threads it takes longer.
pub(crate) fn each<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let (done, results) = mpsc::channel();
    let take = |done: mpsc::Sender<(usize, T)>| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count || done.send((number, work(number))).is_err() {
                break;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..THREADS.min(count) {
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
            let squares = each(count, |number| number * number);
            assert!(squares.iter().copied().eq((0..count).map(|n| n * n)));
        }
    }
}
