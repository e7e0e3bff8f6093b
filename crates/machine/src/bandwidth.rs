//! Memory bandwidth: reads, copies, and first touch (page faults included).

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

/// Bytes of one mapping when memory is touched for the first time: about a weight.
const WEIGHT: usize = 16 << 20;

/// Buffers for measuring main memory: one for each thread, far larger together than the processor's
/// caches.
#[derive(Debug)]
pub struct MemoryProbe {
    parts: Vec<Region>,
}

impl MemoryProbe {
    /// Takes and touches about `bytes` of memory for `threads` threads.
    ///
    /// # Errors
    /// The system's error if it has no room.
    pub fn new(bytes: usize, threads: usize) -> io::Result<Self> {
        let threads = threads.max(1);
        let each = (bytes / threads).max(2 * PAGE);
        let mut parts = (0..threads).map(|_| Region::new(each)).collect::<io::Result<Vec<_>>>()?;
        std::thread::scope(|scope| {
            for part in &mut parts {
                scope.spawn(|| part.as_mut().fill(WORD as u8));
            }
        });
        Ok(Self { parts })
    }

    /// Reads all of it once with all threads; returns the bytes per second. The sum of its words
    /// proves that all of it was read.
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

    /// Copies one half of each thread's memory over the other; returns the bytes copied per second.
    pub fn copy(&mut self) -> f64 {
        self.copy_with(<[u8]>::copy_from_slice)
    }

    /// The same with another copy function, called with destination and source.
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

/// Measures first-touch bandwidth. Holds what it touched, as memory that was just given back is
/// faulted in again much faster.
#[derive(Debug)]
pub struct FirstTouchProbe {
    held: Vec<Region>,
    step: usize,
    /// The rate of each step.
    rates: Vec<f64>,
}

impl FirstTouchProbe {
    /// A probe that touches `step` bytes at a time.
    pub fn new(step: usize) -> Self {
        Self { held: Vec::new(), step: step.max(PAGE), rates: Vec::new() }
    }

    /// Allocates another step the way resident weights are and touches every page with `threads`
    /// threads. Returns the bytes per second.
    ///
    /// # Errors
    /// The system's error if it has no room.
    pub fn touch(&mut self, threads: usize) -> io::Result<f64> {
        let threads = threads.max(1);
        let each = self.step.div_ceil(threads);
        let began = Instant::now();
        let taken = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| first_touch(each))).collect();
            workers
                .into_iter()
                .map(|worker| {
                    worker.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
                })
                .collect::<io::Result<Vec<_>>>()
        });
        let elapsed = seconds(began);
        self.held.extend(taken?.into_iter().flatten());
        let rate = (each * threads) as f64 / elapsed;
        self.rates.push(rate);
        Ok(rate)
    }

    /// The rates so far. None if nothing was touched.
    pub fn rates(&self) -> Option<FirstTouchRates> {
        FirstTouchRates::of(&self.rates, self.step)
    }
}

/// First-touch bandwidth: page faults included. Some memory is prefaulted: the host of a virtual
/// machine has backed it already. Backing more takes many times as long.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstTouchRates {
    /// Bytes that were prefaulted; zero if all came at one speed.
    pub prefaulted_bytes: u64,
    /// Bytes per second of these.
    pub prefaulted_bytes_per_second: f64,
    /// Bytes per second of the rest.
    pub bytes_per_second: f64,
}

/// Prefaulted memory is at least so many times as fast as the rest.
const PREFAULTED: f64 = 2.0;

impl FirstTouchRates {
    /// Of steps of equal size, in their order.
    fn of(rates: &[f64], step: usize) -> Option<Self> {
        let together = |rates: &[f64]| {
            let times: f64 = rates.iter().map(|rate| 1.0 / rate).sum();
            rates.len() as f64 / times
        };
        let found = together(rates.get(rates.len() / 2..).filter(|half| !half.is_empty())?);
        let prefaulted = rates.iter().take_while(|rate| **rate >= PREFAULTED * found).count();
        Some(Self {
            prefaulted_bytes: (prefaulted * step) as u64,
            prefaulted_bytes_per_second: match prefaulted {
                0 => found,
                _ => together(&rates[..prefaulted]),
            },
            bytes_per_second: together(&rates[prefaulted..]),
        })
    }

    /// Seconds that the first touch of `bytes` takes.
    pub fn seconds(&self, bytes: f64) -> f64 {
        let prefaulted = bytes.min(self.prefaulted_bytes as f64);
        prefaulted / self.prefaulted_bytes_per_second + (bytes - prefaulted) / self.bytes_per_second
    }
}

/// Allocates and touches `bytes`, a weight at a time.
fn first_touch(bytes: usize) -> io::Result<Vec<Region>> {
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

/// Seconds since then, never zero: a clock may not tick.
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
    fn touched_memory_is_held() {
        let mut probe = FirstTouchProbe::new(40 << 20);
        assert_eq!(probe.rates(), None);
        for _ in 0..2 {
            probe.touch(2).unwrap();
        }
        let rates = probe.rates().unwrap();
        let rate = rates.bytes_per_second;
        assert!(rate.is_finite() && rate > 1e5, "{rate}");
        let held: usize = probe.held.iter().map(|part| part.as_ref().len()).sum();
        assert_eq!(held, 2 * (40 << 20));
    }

    #[test]
    fn prefaulted_memory_is_separated() {
        let rates = FirstTouchRates::of(&[1000.0, 1000.0, 100.0, 80.0, 120.0, 100.0], 100).unwrap();
        assert_eq!(rates.prefaulted_bytes, 200);
        assert_eq!(rates.prefaulted_bytes_per_second, 1000.0);
        assert!((95.0..100.0).contains(&rates.bytes_per_second));
        assert_eq!(rates.seconds(100.0), 0.1);
        let rest = 300.0 / rates.bytes_per_second;
        assert!((rates.seconds(500.0) - 0.2 - rest).abs() < 1e-9);
        // One speed, with some noise.
        let even = FirstTouchRates::of(&[120.0, 80.0, 100.0], 100).unwrap();
        assert_eq!(even.prefaulted_bytes, 0);
        assert_eq!(even.seconds(100.0), 100.0 / even.bytes_per_second);
        // A single step has one speed.
        assert_eq!(FirstTouchRates::of(&[100.0], 5).unwrap().prefaulted_bytes, 0);
    }

    #[test]
    fn no_room_is_an_error() {
        assert!(MemoryProbe::new(usize::MAX / 4, 2).is_err());
        assert!(Region::new(usize::MAX / 4).is_err());
    }
}
