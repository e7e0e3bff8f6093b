//! What the processor's cores compute on registers alone, all of them at once: the limit of a product of many rows.

use std::time::Instant;

use outsize_kernels::Isa;
use rayon::prelude::*;

/// Operations per second of all threads, GFLOP/s, a multiply-add counted as two; nothing where a processor does not have them.
pub struct Peaks {
    /// Fused multiply-adds of f32.
    pub fused: f64,
    /// Products of pairs of bf16 in vectors.
    pub pairs: Option<f64>,
    /// Products of pairs of bf16 in tiles.
    pub tiles: Option<f64>,
}

impl Peaks {
    pub fn measure() -> Peaks {
        let fused = match Isa::detected() {
            #[cfg(target_arch = "x86_64")]
            Isa::AmxBf16 | Isa::Avx512Bf16 | Isa::Avx512 => best(x86::avx512),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => best(x86::avx2),
            _ => best(portable),
        };
        #[cfg(target_arch = "x86_64")]
        let (pairs, tiles) = (
            Isa::Avx512Bf16.is_available().then(|| best(x86::pairs)),
            Isa::AmxBf16.is_available().then(|| best(x86::tiles)),
        );
        #[cfg(not(target_arch = "x86_64"))]
        let (pairs, tiles) = (None, None);
        Peaks {
            fused,
            pairs,
            tiles,
        }
    }

    /// The limit of products of bf16 weights, and its name.
    pub fn limit(&self, rounded: bool) -> (f64, &'static str) {
        match (rounded, self.tiles, self.pairs) {
            (true, Some(tiles), _) => (tiles, "AMX"),
            // Three products in place of one.
            (false, Some(tiles), _) => (tiles / 3.0, "AMX/3"),
            (true, None, Some(pairs)) => (pairs, "pairs"),
            _ => (self.fused, "FMA"),
        }
    }
}

/// The best of five times. Each takes some milliseconds: `work` gives the operations that it made in so many rounds.
fn best(work: fn(usize) -> usize) -> f64 {
    const ROUNDS: usize = 1_000_000;
    let once = |_| {
        let start = Instant::now();
        let operations: usize = (0..rayon::current_num_threads())
            .into_par_iter()
            .with_max_len(1)
            .map(|_| work(ROUNDS))
            .sum();
        operations as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    (0..5).map(once).fold(0.0, f64::max)
}

fn portable(rounds: usize) -> usize {
    let (a, b) = (std::hint::black_box(0.5f32), std::hint::black_box(1.0f32));
    let mut sums = [0.0f32; 48];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = *sum * a + b;
        }
    }
    std::hint::black_box(sums);
    rounds * 48 * 2
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    pub fn avx512(rounds: usize) -> usize {
        #[target_feature(enable = "avx512f")]
        fn run(rounds: usize) {
            let (a, b) = (
                _mm512_set1_ps(black_box(0.5)),
                _mm512_set1_ps(black_box(1.0)),
            );
            let mut sums = [_mm512_setzero_ps(); 16];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        // SAFETY: called where AVX-512 was found.
        unsafe { run(rounds) };
        rounds * 16 * 16 * 2
    }

    pub fn avx2(rounds: usize) -> usize {
        #[target_feature(enable = "avx2,fma")]
        fn run(rounds: usize) {
            let (a, b) = (
                _mm256_set1_ps(black_box(0.5)),
                _mm256_set1_ps(black_box(1.0)),
            );
            let mut sums = [_mm256_setzero_ps(); 12];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        // SAFETY: called where AVX2 was found.
        unsafe { run(rounds) };
        rounds * 12 * 8 * 2
    }

    pub fn pairs(rounds: usize) -> usize {
        #[target_feature(enable = "avx512f,avx512bf16")]
        fn run(rounds: usize) {
            let halves = _mm512_set1_epi32(black_box(0x3f00_3f00));
            // SAFETY: a vector of bf16 is a vector of bits.
            let halves = unsafe { std::mem::transmute::<__m512i, __m512bh>(halves) };
            let mut sums = [_mm512_setzero_ps(); 16];
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = _mm512_dpbf16_ps(*sum, halves, halves);
                }
            }
            black_box(sums);
        }
        // SAFETY: called where AVX-512 with bf16 was found.
        unsafe { run(rounds) };
        rounds * 16 * 32 * 2
    }

    pub fn tiles(rounds: usize) -> usize {
        #[repr(align(64))]
        struct Configuration([u8; 64]);
        let mut configuration = Configuration([0; 64]);
        configuration.0[0] = 1;
        for tile in 0..8 {
            configuration.0[16 + 2 * tile] = 64;
            configuration.0[48 + tile] = 16;
        }
        // SAFETY: called where AMX was found; the configuration is valid, eight full tiles, and all that changes is tiles.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &configuration.0, options(readonly, nostack));
            for _ in 0..rounds {
                asm!(
                    "tdpbf16ps tmm0, tmm4, tmm6",
                    "tdpbf16ps tmm1, tmm4, tmm7",
                    "tdpbf16ps tmm2, tmm5, tmm6",
                    "tdpbf16ps tmm3, tmm5, tmm7",
                    options(nomem, nostack)
                );
            }
            asm!("tilerelease", options(nomem, nostack));
        }
        rounds * 4 * 16 * 16 * 32 * 2
    }
}
