//! How fast main memory is read, copied, and had for the first time.

use crate::{Error, Region};
use std::hint::black_box;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Size of a small page in bytes.
const PAGE: usize = 4096;

/// What memory is filled with.
const WORD: u64 = 0x0101_0101_0101_0101;

/// Bytes that are summed at once.
const BLOCK: usize = 128;

/// What is taken at once when memory is touched for the first time, in bytes: about a weight.
const WEIGHT: usize = 16 << 20;

/// Buffers for measuring main memory: one for each thread, far larger together than the processor's caches.
#[derive(Debug)]
pub struct MemoryProbe {
    parts: Vec<Region>,
}

impl MemoryProbe {
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
                scope.spawn(|| part.as_mut().fill(WORD as u8));
            }
        });
        Ok(Self { parts })
    }

    /// Reads all of it once with all threads, and gives the bytes per second. That all of it was read is shown by the sum
    /// of its words.
    ///
    /// # Errors
    /// [`Error::WrongMemory`].
    pub fn read(&mut self) -> Result<f64, Error> {
        let wrong = AtomicBool::new(false);
        let rate = self.rate(1.0, |part| {
            let words = part.len() / BLOCK * (BLOCK / 8);
            if sum(part) != WORD.wrapping_mul(words as u64) {
                wrong.store(true, Ordering::Relaxed);
            }
        });
        match wrong.into_inner() {
            false => Ok(rate),
            true => Err(Error::WrongMemory),
        }
    }

    /// Copies one half of each thread's memory over the other, and gives the bytes copied per second.
    pub fn copy(&mut self) -> f64 {
        self.copy_with(<[u8]>::copy_from_slice)
    }

    /// The same with another way to copy, which gets the place first, and then as many bytes to copy there.
    pub fn copy_with(&mut self, copy: impl Fn(&mut [u8], &[u8]) + Sync) -> f64 {
        self.rate(0.5, |part| {
            let (from, to) = part.split_at_mut(part.len() / 2);
            copy(&mut to[..from.len()], from);
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

/// Memory that was touched for the first time, held so that the next to be touched is other memory: what was just given
/// back is had again for much less.
#[derive(Debug)]
pub struct FreshMemory {
    held: Vec<Region>,
    piece: usize,
    /// How fast each piece was had.
    rates: Vec<f64>,
}

impl FreshMemory {
    /// None yet; `piece` bytes are to be touched at a time.
    pub fn new(piece: usize) -> Self {
        Self {
            held: Vec::new(),
            piece: piece.max(PAGE),
            rates: Vec::new(),
        }
    }

    /// Takes a piece more as resident weights are taken and touches every page with `threads` threads: the bytes per
    /// second.
    ///
    /// # Errors
    /// What the system says if it has no room.
    pub fn touch(&mut self, threads: usize) -> io::Result<f64> {
        let threads = threads.max(1);
        let each = self.piece.div_ceil(threads);
        let began = Instant::now();
        let taken = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| fresh(each))).collect();
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
        self.held.extend(taken?.into_iter().flatten());
        let rate = (each * threads) as f64 / elapsed;
        self.rates.push(rate);
        Ok(rate)
    }

    /// How fast it was had so far. None if nothing was touched.
    pub fn rates(&self) -> Option<FreshRates> {
        FreshRates::of(&self.rates, self.piece)
    }
}

/// How fast memory is had that this process did not have. A system has some at hand; more of it must first be found, on a
/// virtual machine by its host, which takes many times as long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FreshRates {
    /// Bytes that were at hand; nought if all was had at one speed.
    pub at_hand_bytes: u64,
    /// Bytes per second of these.
    pub at_hand_bytes_per_second: f64,
    /// Bytes per second of what must be found.
    pub bytes_per_second: f64,
}

/// What is at hand is had at least so many times as fast as the rest.
const AT_HAND: f64 = 2.0;

impl FreshRates {
    /// Of pieces of equal size, in the order in which they were had.
    fn of(rates: &[f64], piece: usize) -> Option<Self> {
        let together = |rates: &[f64]| {
            let times: f64 = rates.iter().map(|rate| 1.0 / rate).sum();
            rates.len() as f64 / times
        };
        let found = together(
            rates
                .get(rates.len() / 2..)
                .filter(|half| !half.is_empty())?,
        );
        let at_hand = rates
            .iter()
            .take_while(|rate| **rate >= AT_HAND * found)
            .count();
        Some(Self {
            at_hand_bytes: (at_hand * piece) as u64,
            at_hand_bytes_per_second: match at_hand {
                0 => found,
                _ => together(&rates[..at_hand]),
            },
            bytes_per_second: together(&rates[at_hand..]),
        })
    }

    /// How long it takes to have this many bytes, in seconds.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let at_hand = bytes.min(self.at_hand_bytes as f64);
        at_hand / self.at_hand_bytes_per_second + (bytes - at_hand) / self.bytes_per_second
    }
}

/// Takes and touches `bytes`, a weight at a time.
fn fresh(bytes: usize) -> io::Result<Vec<Region>> {
    (0..bytes)
        .step_by(WEIGHT)
        .map(|at| {
            let mut region = Region::new(WEIGHT.min(bytes - at))?;
            let pages = region.as_mut().iter_mut().step_by(PAGE);
            pages.for_each(|byte| *byte = 1);
            Ok(region)
        })
        .collect()
}

/// Never nothing: a clock may not tick.
fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64().max(1e-9)
}

/// The sum of the words in it, so that all of them are read.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; BLOCK / 8];
    for block in bytes.chunks_exact(BLOCK) {
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
        let mut memory = MemoryProbe::new(4 << 20, 2).unwrap();
        for rate in [memory.read().unwrap(), memory.copy()] {
            assert!(rate.is_finite() && rate > 1e6, "{rate}");
        }
        // After copying, both halves are what one was.
        assert!(memory.parts[0].as_ref().iter().all(|byte| *byte == 1));
        memory.parts[1].as_mut()[12_345] = 2;
        assert!(memory.read().is_err());
    }

    #[test]
    fn fresh_memory_is_held() {
        let mut fresh = FreshMemory::new(40 << 20);
        assert_eq!(fresh.rates(), None);
        for _ in 0..2 {
            fresh.touch(2).unwrap();
        }
        let rates = fresh.rates().unwrap();
        let rate = rates.bytes_per_second;
        assert!(rate.is_finite() && rate > 1e5, "{rate}");
        let held: usize = fresh.held.iter().map(|part| part.as_ref().len()).sum();
        assert_eq!(held, 2 * (40 << 20));
    }

    #[test]
    fn what_is_at_hand_is_told_from_the_rest() {
        let rates = FreshRates::of(&[1000.0, 1000.0, 100.0, 80.0, 120.0, 100.0], 100).unwrap();
        assert_eq!(rates.at_hand_bytes, 200);
        assert_eq!(rates.at_hand_bytes_per_second, 1000.0);
        assert!((95.0..100.0).contains(&rates.bytes_per_second));
        assert_eq!(rates.seconds(100.0), 0.1);
        let rest = 300.0 / rates.bytes_per_second;
        assert!((rates.seconds(500.0) - 0.2 - rest).abs() < 1e-9);
        // One speed, with some noise.
        let even = FreshRates::of(&[120.0, 80.0, 100.0], 100).unwrap();
        assert_eq!(even.at_hand_bytes, 0);
        assert_eq!(even.seconds(100.0), 100.0 / even.bytes_per_second);
        // What is at hand and is all that was touched is of one speed, too.
        assert_eq!(FreshRates::of(&[100.0], 5).unwrap().at_hand_bytes, 0);
    }

    #[test]
    fn no_room_is_an_error() {
        assert!(MemoryProbe::new(usize::MAX / 4, 2).is_err());
        assert!(Region::new(usize::MAX / 4).is_err());
    }
}
