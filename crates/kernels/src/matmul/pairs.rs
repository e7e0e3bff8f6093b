//! Weights of 3 to 6 bits in GGUF's blocks, multiplied in pairs of bf16 with activations in bf16.
//!
//! A number of so few bits is exact in bf16. Numbers are looked up 32 at a time, in the order in
//! which their bits lie, and activations are packed in that order. A scale multiplies a sum of
//! products rather than each number, and an offset the sum of the activations that it is for. So
//! there are half as many instructions as in f32, and weights are never rounded.
//!
//! An output is one chain of operations, whatever is computed beside it.

mod formats;

use std::arch::x86_64::*;
use std::ops::Range;

use half::bf16;
use outsize_checkpoint::Dtype;

use super::blocks::{FAR, LINE, OutputPtr};
use super::claims::Claims;
use super::pack::{self, RowBlocks, Scratch};
use super::small_m::share_rows;
use super::{Matmul, Size};
use crate::quants::{Q3K, Q4K, Q5K, Q6K};
use crate::simd::{F32x16, Vector};
use crate::{BlockWeight, Isa, Weight, cast, loops};
use formats::{Pairs, element};

/// Elements of a block.
const BLOCK: usize = 256;

/// Elements whose lower 4 bits are in 64 bytes.
const STEP: usize = 128;

/// Scales of a block, or offsets and scales.
const SCALES: usize = 16;

/// Rows of activations that are multiplied side by side, at most.
const HEIGHT: usize = 6;

/// Rows of the weight that are multiplied side by side with one or two rows of activations, so that
/// their sums, each of which waits for itself, go on side by side.
const WIDTH: usize = 4;

/// Rows of the weight that stay in the first cache while all activations pass.
const PANEL: usize = 24;

/// The type of a weight that is multiplied here, if it is one.
pub(super) fn dtype(isa: Isa, weight: Weight) -> Option<Dtype> {
    let Weight::Blocks(weight) = weight else { return None };
    let has_pairs = matches!(isa, Isa::Avx512Bf16 | Isa::AmxBf16);
    let is_one = |dtype: &Dtype| matches!(dtype, Dtype::Q3K | Dtype::Q4K | Dtype::Q5K | Dtype::Q6K);
    weight.quantized().filter(|dtype| has_pairs && is_one(dtype))
}

/// Computes matmuls with weights of one of these types, run by run, on as many threads as they are
/// worth.
pub(super) fn share(dtype: Dtype, x: &[f32], size: [usize; 2], matmuls: &mut [Matmul]) {
    match dtype {
        Dtype::Q3K => share_pairs::<Q3K>(x, size, matmuls),
        Dtype::Q4K => share_pairs::<Q4K>(x, size, matmuls),
        Dtype::Q5K => share_pairs::<Q5K>(x, size, matmuls),
        _ => share_pairs::<Q6K>(x, size, matmuls),
    }
}

/// Activations `[m, k]` in bf16, blocks of rows side by side and in the order of the numbers; and
/// their sums, negated, where an offset is among scales, and zeros elsewhere.
struct Activations {
    rows: RowBlocks,
    k: usize,
    values: Scratch<bf16>,
    sums: Scratch<f32>,
}

impl Activations {
    fn new<Q: Pairs>(x: &[f32], [m, k]: [usize; 2]) -> Self {
        let rows = RowBlocks::new(m, HEIGHT);
        let sums = if Q::OFFSETS { m * k / BLOCK * SCALES } else { 0 };
        let (mut values, mut sums) = (pack::bf16s(m * k), pack::f32s(sums));
        let mut rest = (&mut values[..], &mut sums[..]);
        let parts = rows.all().map(|rows| {
            let (values, others) = std::mem::take(&mut rest.0).split_at_mut(rows.len() * k);
            let len = if Q::OFFSETS { values.len() / BLOCK * SCALES } else { 0 };
            let (sums, other_sums) = std::mem::take(&mut rest.1).split_at_mut(len);
            rest = (others, other_sums);
            (&x[rows.start * k..rows.end * k], rows.len(), values, sums)
        });
        let fill = |(x, height, values, sums)| Self::fill::<Q>(x, height, values, sums);
        match x.len() < pack::SHARED {
            true => parts.for_each(fill),
            false => loops::share(parts, fill),
        }
        Self { rows, k, values, sums }
    }

    /// Packs `height` rows.
    fn fill<Q: Pairs>(x: &[f32], height: usize, values: &mut [bf16], sums: &mut [f32]) {
        let blocks = x.len() / BLOCK / height;
        for (at, from) in x.as_chunks::<BLOCK>().0.iter().enumerate() {
            // Block after block, each of all rows.
            let to = at % blocks * height + at / blocks;
            let mut rounded = [bf16::ZERO; BLOCK];
            cast::f32_to_bf16(from, &mut rounded);
            let values = values[to * BLOCK..][..BLOCK].as_chunks_mut::<32>().0;
            for (vector, values) in values.iter_mut().enumerate() {
                let step = &rounded[vector / 4 * STEP..][..STEP];
                for (lane, value) in values.iter_mut().enumerate() {
                    *value = step[element(Q::DISTANCES, vector % 4, lane)];
                }
            }
            if Q::OFFSETS {
                let sums = &mut sums[to * SCALES..][..SCALES];
                sums.fill(0.0);
                for (part, values) in rounded.as_chunks::<32>().0.iter().enumerate() {
                    let mut four = [0.0; 4];
                    for values in values.as_chunks::<4>().0 {
                        four.iter_mut().zip(values).for_each(|(sum, value)| *sum -= value.to_f32());
                    }
                    sums[Q::SCALES_OF[2 * part] + 4] = four[0] + four[1] + four[2] + four[3];
                }
            }
        }
    }

    /// Where the values of a row begin, which is the first of its row block, and their sums.
    fn row(&self, row: usize) -> (*const bf16, *const f32) {
        let sums = row * self.k / BLOCK * SCALES;
        (self.values[row * self.k..].as_ptr(), self.sums[sums.min(self.sums.len())..].as_ptr())
    }
}

fn share_pairs<Q: Pairs>(x: &[f32], [m, k]: [usize; 2], matmuls: &mut [Matmul]) {
    let activations = Activations::new::<Q>(x, [m, k]);
    let rows: Vec<usize> = matmuls.iter().map(|matmul| matmul.n).collect();
    let jobs: Vec<_> = matmuls
        .iter_mut()
        .map(|matmul| match matmul.weight {
            Weight::Blocks(weight) => (weight, OutputPtr(matmul.y.as_mut_ptr()), matmul.stride),
            _ => unreachable!("weights in blocks"),
        })
        .collect();
    let size = Size { m, n: rows.iter().sum(), k };
    let unit = if m > HEIGHT { PANEL } else { 2 * WIDTH };
    let claims = Claims::new(size, size_of::<f32>(), rayon::current_num_threads(), unit);
    share_rows(claims, rows.into_iter(), |job, rows| {
        let (weight, output, stride) = &jobs[job];
        // SAFETY: `MatmulActivations` checked that `isa`, by which `dtype` chose this, is
        // available, and that slices have the lengths that their sizes ask for. All are borrowed
        // until this returns. Rows lie within the weight and no row is in two runs, so that no
        // element of `y` is written by two calls; nothing reads `y`.
        unsafe { run::<Q>(&activations, *weight, rows, output, *stride) };
    });
}

/// Computes the columns `rows` of an output whose rows are `n` elements apart.
///
/// # Safety
///
/// This processor has these instructions; the weight has these rows, of as many columns as the
/// activations have, and so does the output for each row of activations, which nothing else reads
/// or writes during the call.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
unsafe fn run<Q: Pairs>(
    activations: &Activations,
    weight: BlockWeight<&[u8]>,
    rows: Range<usize>,
    output: &OutputPtr,
    n: usize,
) {
    let k = activations.k;
    let row_bytes = k / BLOCK * size_of::<Q::Block>();
    let panel = if activations.rows.len() > 1 { PANEL } else { rows.len() };
    for start in rows.clone().step_by(panel.max(1)) {
        let end = rows.end.min(start + panel);
        for (index, block) in activations.rows.all().enumerate() {
            let (x, sums) = activations.row(block.start);
            let tile = Tile {
                x,
                sums,
                rows: weight.data().as_ptr().wrapping_add(start * row_bytes),
                row_bytes,
                blocks: k / BLOCK,
                fetch: index == 0,
                y: output.column(block.start * n + start),
                stride: n,
            };
            let count = end - start;
            // SAFETY: the caller's promises: these are rows of the weight, and those of `x` are
            // packed side by side.
            unsafe {
                match block.len() {
                    1 => tile.compute_all::<Q, 1, WIDTH>(count),
                    2 => tile.compute_all::<Q, 2, WIDTH>(count),
                    3 => tile.compute_all::<Q, 3, 1>(count),
                    4 => tile.compute_all::<Q, 4, 1>(count),
                    5 => tile.compute_all::<Q, 5, 1>(count),
                    _ => tile.compute_all::<Q, HEIGHT, 1>(count),
                }
            }
        }
    }
}

/// A few rows of activations, and of a weight.
#[derive(Clone, Copy)]
struct Tile {
    x: *const bf16,
    sums: *const f32,
    rows: *const u8,
    row_bytes: usize,
    blocks: usize,
    /// Whether the weight is to be fetched ahead of need.
    fetch: bool,
    y: *mut f32,
    /// From one row of the output to the next.
    stride: usize,
}

impl Tile {
    /// Writes the products with `count` rows of the weight, `N` side by side.
    ///
    /// # Safety
    ///
    /// As for [`compute`](Self::compute), with `count` rows of the weight.
    #[inline(always)]
    unsafe fn compute_all<Q: Pairs, const M: usize, const N: usize>(self, count: usize) {
        let from = |row: usize| Tile {
            rows: self.rows.wrapping_add(row * self.row_bytes),
            y: self.y.wrapping_add(row),
            ..self
        };
        // SAFETY: the caller's promises.
        unsafe {
            let several = count / N * N;
            (0..several).step_by(N).for_each(|row| from(row).compute::<Q, M, N>());
            (several..count).for_each(|row| from(row).compute::<Q, M, 1>());
        }
    }

    /// Writes the products of `M` rows of activations with `N` of the weight.
    ///
    /// # Safety
    ///
    /// This processor has AVX-512 with bf16; `x`, `sums`, `rows` and `y` have as many rows.
    #[inline(always)]
    unsafe fn compute<Q: Pairs, const M: usize, const N: usize>(self) {
        let bytes = size_of::<Q::Block>();
        let ahead = self.rows.wrapping_add(FAR.next_multiple_of((N * self.row_bytes).max(1)));
        // SAFETY: the caller's promises. What is fetched ahead of need may be any address.
        unsafe {
            let table = Q::table();
            let lanes =
                Q::LANES.map(|step| step.map(|odd| _mm512_loadu_si512(odd.as_ptr().cast())));
            let mut outputs = [[_mm512_setzero_ps(); M]; N];
            for block in 0..self.blocks {
                if self.fetch {
                    for line in 0..(N * bytes).div_ceil(LINE) {
                        F32x16::prefetch(ahead.wrapping_add(block * N * bytes + line * LINE));
                    }
                }
                let x = self.x.add(block * M * BLOCK);
                for (row, outputs) in outputs.iter_mut().enumerate() {
                    let data = self.rows.add(row * self.row_bytes + block * bytes);
                    let scales = <Q as Pairs>::scales(data);
                    if Q::OFFSETS {
                        for (i, output) in outputs.iter_mut().enumerate() {
                            let sums = self.sums.add((block * M + i) * SCALES);
                            *output = _mm512_fmadd_ps(scales, _mm512_loadu_ps(sums), *output);
                        }
                    }
                    for (step, [even, odd]) in lanes.into_iter().enumerate() {
                        let numbers = Q::numbers(data, step, table);
                        let even = _mm512_permutexvar_ps(even, scales);
                        let odd = _mm512_permutexvar_ps(odd, scales);
                        for (i, output) in outputs.iter_mut().enumerate() {
                            let x = x.add(i * BLOCK + step * STEP);
                            let zero = _mm512_setzero_ps();
                            let sum = pairs(pairs(zero, numbers[0], x), numbers[2], x.add(64));
                            *output = _mm512_fmadd_ps(sum, even, *output);
                            let sum =
                                pairs(pairs(zero, numbers[1], x.add(32)), numbers[3], x.add(96));
                            *output = _mm512_fmadd_ps(sum, odd, *output);
                        }
                    }
                }
            }
            for (row, outputs) in outputs.into_iter().enumerate() {
                for (i, output) in outputs.into_iter().enumerate() {
                    self.y.add(i * self.stride + row).write(F32x16(output).sum());
                }
            }
        }
    }
}

/// Adds products of 32 numbers with as many activations, in pairs.
///
/// # Safety
///
/// This processor has AVX-512 with bf16; `x` points to 32 elements.
#[inline(always)]
unsafe fn pairs(sum: __m512, numbers: __m512i, x: *const bf16) -> __m512 {
    // SAFETY: the caller's promises; a vector of bf16 is a vector of bits.
    unsafe {
        let x = _mm512_loadu_si512(x.cast());
        let [numbers, x] = [numbers, x].map(|bits| std::mem::transmute::<__m512i, __m512bh>(bits));
        _mm512_dpbf16_ps(sum, numbers, x)
    }
}
