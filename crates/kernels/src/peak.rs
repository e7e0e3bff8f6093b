//! What this processor can do at most: the limits that matmuls are held against.

use std::hint::black_box;
use std::time::{Duration, Instant};

#[cfg(target_arch = "x86_64")]
use crate::matmul;
use crate::simd::{Vector, for_each_isa};
use crate::{ActivationDtype, Isa};

/// Multiply-adds of each sum between two looks at the clock.
const ROUNDS: usize = 20_000;

/// Sums side by side, enough to keep two units busy for as long as an instruction takes.
const CHAINS: usize = 12;

/// Operations per second of multiply-adds on registers, on as many threads as matmuls use: two
/// operations each. Goes on for about `seconds`. None if a thread came to a wrong sum.
///
/// For [`ActivationDtype::Bf16`] it is pairs of products of bf16 where the processor has an
/// instruction for them, and else the same as for [`ActivationDtype::F32`]. Where it has tiles of
/// them, both are counted in those, with three tiles for each of f32, as matmuls with bf16 weights
/// take them.
pub fn flops(compute: ActivationDtype, seconds: f64) -> Option<f64> {
    let isa = Isa::detected();
    let began = Instant::now();
    let end = began + Duration::from_secs_f64(seconds);
    let work = || {
        let mut operations = 0;
        while Instant::now() < end {
            operations += rounds(isa, compute)?;
        }
        Some(operations)
    };
    let done: Option<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..crate::threads()).map(|_| scope.spawn(work)).collect();
        let joined = threads.into_iter().map(|thread| thread.join().ok().flatten());
        joined.sum()
    });
    Some(done? as f64 / began.elapsed().as_secs_f64().max(1e-9))
}

/// What [`flops`] counts.
pub fn instructions(compute: ActivationDtype) -> &'static str {
    match (Isa::detected(), compute) {
        (Isa::AmxBf16, ActivationDtype::Bf16) => "tiles of bf16, AMX",
        (Isa::AmxBf16, ActivationDtype::F32) => "tiles of bf16, three for f32, AMX",
        (Isa::Avx512Bf16, ActivationDtype::Bf16) => "pairs of bf16, AVX-512",
        (Isa::Avx512 | Isa::Avx512Bf16, _) => "f32, AVX-512",
        (Isa::Avx2, _) => "f32, AVX2",
        (Isa::Portable, _) => "f32, no vector instructions of this crate",
    }
}

/// Copies bytes past the processor's caches where it can: faster than `memcpy` for what is larger
/// than they are.
///
/// # Panics
/// If the two are not equally long.
pub fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len(), "copy: as many bytes as there is room for");
    #[cfg(target_arch = "x86_64")]
    if Isa::Avx512.is_available() && to.as_ptr().addr().is_multiple_of(64) {
        let whole = to.len() / 64 * 64;
        // SAFETY: the processor has AVX-512; the place is aligned and as long as what is copied, in
        // whole vectors.
        unsafe { x86::copy(&mut to[..whole], &from[..whole]) };
        to[whole..].copy_from_slice(&from[whole..]);
        return;
    }
    to.copy_from_slice(from);
}

/// Reads all bytes, each thread of the current pool a part of its own, and does little else: how
/// fast that goes is what memory gives. Gives all of them mixed, so that nobody can leave the
/// reading out.
pub fn read(bytes: &[u8]) -> u64 {
    let part = bytes.len().div_ceil(crate::threads().max(1)).next_multiple_of(CHUNK);
    let mixed = rayon::broadcast(|context| {
        let start = bytes.len().min(part * context.index());
        let own = &bytes[start..bytes.len().min(start + part)];
        let mut sum = 0;
        mix(Isa::detected(), own, &mut sum);
        sum
    });
    mixed.into_iter().fold(0, |a, b| a ^ b)
}

/// Bytes per second that all threads together read of what stands in the caches of their cores: of
/// 512 KiB each, again and again. Goes on for about `seconds`.
pub fn cached_read(seconds: f64) -> f64 {
    const BYTES: usize = 512 << 10;
    let began = Instant::now();
    let end = began + Duration::from_secs_f64(seconds);
    let work = || {
        let (bytes, mut read) = (vec![1u8; BYTES], 0);
        while Instant::now() < end {
            let mut sum = 0;
            mix(Isa::detected(), black_box(&bytes), &mut sum);
            black_box(sum);
            read += BYTES;
        }
        read
    };
    let read: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..crate::threads()).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(0)).sum()
    });
    read as f64 / began.elapsed().as_secs_f64().max(1e-9)
}

/// Bytes that are mixed side by side.
const CHUNK: usize = 512;

for_each_isa! {
    fn mix(bytes: &[u8], sum: &mut u64) {
        let (chunks, rest) = bytes.as_chunks::<CHUNK>();
        let mut sums = [0u64; CHUNK / 8];
        for chunk in chunks {
            for (sum, word) in sums.iter_mut().zip(chunk.as_chunks::<8>().0) {
                *sum ^= u64::from_ne_bytes(*word);
            }
        }
        // Else the compiler takes the vectors apart in each chunk, and the loop is what limits.
        let sums = black_box(sums);
        *sum = rest.iter().map(|&byte| u64::from(byte)).chain(sums).fold(0, |a, b| a ^ b);
    }
}

/// Some multiply-adds: how many operations, or nothing if they came to a wrong sum.
fn rounds(isa: Isa, compute: ActivationDtype) -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::AmxBf16 {
        // SAFETY: `Isa::detected` found these instructions, and no matmul is under way here.
        return Some(unsafe { matmul::tile_rounds(ROUNDS) }? / compute.parts() as u64);
    }
    #[cfg(target_arch = "x86_64")]
    if (isa, compute) == (Isa::Avx512Bf16, ActivationDtype::Bf16) {
        // SAFETY: `Isa::detected` found these instructions.
        return unsafe { x86::pairs() }.then_some((ROUNDS * CHAINS * 64) as u64);
    }
    // SAFETY: as above.
    let lanes = unsafe { multiply_adds(isa) }?;
    Some((ROUNDS * CHAINS * 2 * lanes) as u64)
}

for_each_isa! {
    /// The lanes of a vector, if `x / 2 + 1` again and again comes to 2 in all of them.
    ///
    /// # Safety
    ///
    /// The processor has the instructions.
    unsafe fn multiply_adds<V>() -> Option<usize> {
        // SAFETY: the caller's promise; no vector has more lanes than the array has elements.
        unsafe {
            let (half, one) = (V::splat(black_box(0.5)), V::splat(black_box(1.0)));
            let mut sums = [V::zero(); CHAINS];
            for _ in 0..ROUNDS {
                for sum in &mut sums {
                    *sum = one.fma(*sum, half);
                }
            }
            let right = sums.into_iter().all(|sum| {
                let mut lanes = [0.0; 16];
                sum.store(lanes.as_mut_ptr());
                lanes[..V::LANES].iter().all(|lane| *lane == 2.0)
            });
            right.then_some(V::LANES)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{CHAINS, ROUNDS};
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Sums of `1 · 1 + 1 · 1`: even numbers, exact as long as they are below 2²⁴.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    pub fn pairs() -> bool {
        let ones = _mm512_set1_ps(black_box(1.0));
        let ones = _mm512_cvtne2ps_pbh(ones, ones);
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, ones, ones);
            }
        }
        let right = _mm512_set1_ps(2.0 * ROUNDS as f32);
        sums.into_iter().all(|sum| _mm512_cmpeq_ps_mask(sum, right) == 0xffff)
    }

    /// # Safety
    /// `to` begins at a multiple of 64 and is as long as `from`, a multiple of 64.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn copy(to: &mut [u8], from: &[u8]) {
        for at in (0..to.len()).step_by(64) {
            // SAFETY: both are as long, and `at + 64` is within them; the place is aligned.
            unsafe {
                let vector = _mm512_loadu_si512(from.as_ptr().add(at).cast());
                _mm512_stream_si512(to.as_mut_ptr().add(at).cast(), vector);
            }
        }
        // So that whoever reads it next, on any processor, finds it.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_instructions_comes_to_the_right_sum() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
                let operations = rounds(isa, compute).unwrap();
                assert!(operations >= (ROUNDS * 2 * CHAINS * 4) as u64, "{isa:?}");
            }
        }
    }

    #[test]
    fn rates_are_finite() {
        for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
            for seconds in [0.0, 1e-3] {
                let rate = flops(compute, seconds).unwrap();
                assert!(rate.is_finite() && rate >= 0.0, "{rate}");
            }
            assert!(!instructions(compute).is_empty());
        }
    }

    #[test]
    fn every_byte_is_read() {
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads);
        for threads in [1, 2, 3] {
            pool(threads).build().unwrap().install(|| {
                for len in [0, 1, 511, 512, 513, 5000] {
                    let mut bytes = vec![0; len];
                    assert_eq!(read(&bytes), 0);
                    for at in (0..len).step_by(37).chain(len.checked_sub(1)) {
                        bytes[at] = 7;
                        let found = read(&bytes);
                        assert_eq!(found.count_ones(), 3, "byte {at} of {len}");
                        bytes[at] = 0;
                    }
                }
            });
        }
    }

    #[test]
    fn every_byte_is_copied() {
        let from: Vec<u8> = (0..100_003usize).map(|at| (at % 251) as u8).collect();
        for begin in [0, 1, 7, 64] {
            for len in [0, 1, 63, 64, 65, 4096, 99_000] {
                let mut to = vec![255; 100_100];
                copy(&mut to[begin..begin + len], &from[begin..begin + len]);
                assert_eq!(to[begin..begin + len], from[begin..begin + len]);
                assert!(to[..begin].iter().chain(&to[begin + len..]).all(|byte| *byte == 255));
            }
        }
    }
}
