//! How fast main memory is read, copied, and had for the first time.

use crate::Region;
use std::hint::black_box;
use std::io;
use std::time::Instant;

/// Size of a small page in bytes.
const PAGE: usize = 4096;

/// What is taken at once when memory is touched for the first time, in bytes: about a weight.
const WEIGHT: usize = 16 << 20;

/// Buffers for measuring main memory: one for each thread, far larger together than the processor's caches.
#[derive(Debug)]
pub struct Bandwidth {
    parts: Vec<Region>,
}

impl Bandwidth {
    /// Takes and touches about `bytes` of memory for `threads` threads.
    ///
    /// # Errors
    /// What the system says if it has no room.
    pub fn new(bytes: usize, threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let each = (bytes / threads).max(2 * PAGE);
        let mut parts = (0..threads)
            .map(|_| Region::new(each))
            .collect::<io::Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            for part in &mut parts {
                scope.spawn(|| part.as_mut().fill(1));
            }
        });
        Ok(Self { parts })
    }

    /// Reads all of it once with all threads, and gives the bytes per second.
    pub fn read(&mut self) -> f64 {
        self.rate(1.0, |part| {
            black_box(sum(part));
        })
    }

    /// Copies one half of each thread's memory over the other, and gives the bytes copied per second.
    pub fn copy(&mut self) -> f64 {
        self.rate(0.5, |part| {
            let (from, to) = part.split_at_mut(part.len() / 2);
            to[..from.len()].copy_from_slice(from);
            black_box(to);
        })
    }

    /// The bytes per second of work on each part, of which a `share` counts.
    fn rate(&mut self, share: f64, work: impl Fn(&mut [u8]) + Sync) -> f64 {
        let bytes: usize = self.parts.iter().map(|part| part.as_ref().len()).sum();
        let began = Instant::now();
        std::thread::scope(|scope| {
            for part in &mut self.parts {
                scope.spawn(|| work(part.as_mut()));
            }
        });
        bytes as f64 * share / seconds(began)
    }
}

/// Takes about `bytes` of fresh memory as resident weights are taken, a mapping for each, touches every page with
/// `threads` threads, and gives the bytes per second.
///
/// # Errors
/// What the system says if it has no room.
pub fn first_touch(bytes: usize, threads: usize) -> io::Result<f64> {
    let threads = threads.max(1);
    let each = (bytes / threads / WEIGHT).max(1);
    let began = Instant::now();
    let taken = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(move || -> io::Result<Vec<Region>> {
                    let mut regions = Vec::with_capacity(each);
                    for _ in 0..each {
                        let mut region = Region::new(WEIGHT)?;
                        region
                            .as_mut()
                            .iter_mut()
                            .step_by(PAGE)
                            .for_each(|byte| *byte = 1);
                        regions.push(region);
                    }
                    Ok(regions)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
            })
            .collect::<io::Result<Vec<_>>>()
    });
    let elapsed = seconds(began);
    // Given back after the clock was read.
    let regions = taken?;
    let bytes = regions.iter().map(Vec::len).sum::<usize>() * WEIGHT;
    Ok(bytes as f64 / elapsed)
}

/// Never nothing: a clock may not tick.
fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64().max(1e-9)
}

/// The sum of the words in it, so that all of them are read.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    for block in bytes.chunks_exact(size_of_val(&sums)) {
        for (sum, word) in sums.iter_mut().zip(block.chunks_exact(8)) {
            let word = word.try_into().map_or(0, u64::from_ne_bytes);
            *sum = sum.wrapping_add(word);
        }
    }
    sums.into_iter().fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let bytes: Vec<u8> = (0..64u64 * 8).flat_map(u64::to_ne_bytes).collect();
        assert_eq!(sum(&bytes), (0..64 * 8).sum::<u64>());
    }

    #[test]
    fn rates_are_of_the_bytes_there_are() {
        let mut memory = Bandwidth::new(4 << 20, 2).unwrap();
        for rate in [memory.read(), memory.copy()] {
            assert!(rate.is_finite() && rate > 1e6, "{rate}");
        }
        // After copying, both halves are what one was.
        assert!(memory.parts[0].as_ref().iter().all(|byte| *byte == 1));
        let rate = first_touch(0, 2).unwrap();
        assert!(rate.is_finite() && rate > 1e6, "{rate}");
    }

    #[test]
    fn no_room_is_an_error() {
        assert!(Bandwidth::new(usize::MAX / 4, 2).is_err());
    }
}
