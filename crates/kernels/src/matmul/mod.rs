//! `y = x · Wᵀ` over slices.
//!
//! [`linear_into`] shares the matmul among the threads of the current rayon pool and runs each
//! share with the widest instructions at hand. The loops are written once, in `tile`, over a vector
//! type that `portable`, `avx2` and `avx512` each supply.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
mod blocks;
mod claims;
mod element;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only loops of x86-64 take rounded activations packed")
)]
mod gemm;
mod in_out;
mod pack;
mod panels;
mod portable;
mod small_m;

mod tile;
#[cfg(target_arch = "x86_64")]
mod transpose;
mod vector;

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use half::bf16;

use crate::{ActivationDtype, BlockWeight, Isa, Weight};
#[cfg(target_arch = "x86_64")]
pub(crate) use amx::rounds as tile_rounds;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::F32x8;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::F32x16;
#[cfg(target_arch = "x86_64")]
use avx512bf16::Bf16x32;
pub use blocks::panel_bytes;
pub(crate) use element::Element;
#[cfg(target_arch = "x86_64")]
pub use in_out::{InOutMatmul, add_linear_in_out_into, add_linear_in_out_into_with};
use pack::RowBlocks;
use pack::Scratch;
pub(crate) use portable::F32x4;
#[cfg(target_arch = "x86_64")]
use tile::Kernel;
pub(crate) use vector::Vector;

/// The sizes of one matmul: `x [m, k]`, `W [n, k]`, `y [m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Rows of `x` and of `y`: tokens.
    pub m: usize,
    /// Rows of `W`, columns of `y`: output features.
    pub n: usize,
    /// Columns of `x` and of `W`: input features.
    pub k: usize,
}

/// Writes `x · Wᵀ` to `y`: `x [m, k]`, `weight [n, k]`, `y [m, n]`, all row-major without gaps.
///
/// Runs on the current rayon pool when the matmul is large enough to share. The
/// [contract](crate#the-contract) says what a result depends on.
///
/// Each thread that calls this keeps memory for activations in the form in which the loops read
/// them: see [`packed_bytes`].
///
/// # Panics
///
/// If a slice does not have the length that `size` asks for.
pub fn linear_into(
    compute: ActivationDtype,
    x: &[f32],
    weight: Weight<'_>,
    size: Size,
    y: &mut [f32],
) {
    linear_into_with(Isa::detected(), compute, x, weight, size, y);
}

/// [`linear_into`] with a chosen set of instructions, to compare one with another.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`linear_into`] does.
pub fn linear_into_with(
    isa: Isa,
    compute: ActivationDtype,
    x: &[f32],
    weight: Weight<'_>,
    size: Size,
    y: &mut [f32],
) {
    let Size { m, n, k } = size;
    let matmul = Matmul { weight, n, y };
    linear_each_into_with(isa, compute, x, [m, k], &mut [matmul]);
}

/// One of several matmuls of the same activations `x [m, k]`.
#[derive(Debug)]
pub struct Matmul<'a> {
    /// `[n, k]`.
    pub weight: Weight<'a>,
    /// Rows of the weight: output features.
    pub n: usize,
    /// `[m, n]`, where the matmul goes.
    pub y: &'a mut [f32],
}

/// Several matmuls of the same activations `x [m, k]`, each as [`linear_into`] computes it, bit
/// for bit. Threads share a few rows' matmuls as one piece of work: they meet once, and `x` is
/// packed once.
///
/// # Panics
///
/// If a slice does not have the length that the sizes ask for.
pub fn linear_each_into(
    compute: ActivationDtype,
    x: &[f32],
    size: [usize; 2],
    matmuls: &mut [Matmul],
) {
    linear_each_into_with(Isa::detected(), compute, x, size, matmuls);
}

/// [`linear_each_into`] with a chosen set of instructions.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`linear_each_into`] does.
pub fn linear_each_into_with(
    isa: Isa,
    compute: ActivationDtype,
    x: &[f32],
    [m, k]: [usize; 2],
    matmuls: &mut [Matmul],
) {
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    for matmul in matmuls.iter() {
        let size = Size { m, n: matmul.n, k };
        assert_eq!(Some(x.len()), m.checked_mul(k), "x must hold m * k elements, for {size:?}");
        assert_eq!(
            Some(matmul.weight.len()),
            size.n.checked_mul(k),
            "weight must hold n * k elements, for {size:?}"
        );
        assert_eq!(
            Some(matmul.y.len()),
            m.checked_mul(size.n),
            "y must hold m * n elements, for {size:?}"
        );
    }
    if m == 0 {
        return;
    }
    if m < small_m::ROWS {
        return small_m::matmuls(isa, compute, x, [m, k], matmuls);
    }
    for Matmul { weight, n, y } in matmuls {
        checked(isa, compute, x, *weight, Size { m, n: *n, k }, y);
    }
}

/// The matmul of many rows, or in tiles of AMX, with an `isa` that is there and slices that have
/// the lengths that `size` asks for.
fn checked(
    isa: Isa,
    compute: ActivationDtype,
    x: &[f32],
    weight: Weight<'_>,
    size: Size,
    y: &mut [f32],
) {
    match (weight, compute) {
        // SAFETY: this processor has these instructions, as was asserted.
        #[cfg(target_arch = "x86_64")]
        (Weight::Bf16(weight), _) if isa == Isa::AmxBf16 => unsafe {
            amx::matmul(compute, x, weight, size, y)
        },
        #[cfg(target_arch = "x86_64")]
        (Weight::Bf16(weight), ActivationDtype::Bf16) if isa == Isa::Avx512Bf16 => {
            let row_blocks = RowBlocks::of_many(size.m, <Bf16x32 as Kernel<bf16>>::MAX_ROWS);
            let x = pack::packed(x, size, row_blocks, <Bf16x32 as Kernel<bf16>>::LANES);
            gemm::share(Pairs, row_blocks, &x, weight, size, y);
        }
        (weight, ActivationDtype::Bf16) => gemm::widened(isa, &pack::rounded(x), weight, size, y),
        (weight, ActivationDtype::F32) => gemm::widened(isa, x, weight, size, y),
    }
}

/// An upper bound on the bytes that a thread keeps for the activations of its largest matmul so
/// far, which has so many `rows` of `width`, on this processor.
pub fn packed_bytes(compute: ActivationDtype, rows: u64, width: u64) -> u64 {
    packed_bytes_with(Isa::detected(), compute, rows, width)
}

fn packed_bytes_with(isa: Isa, compute: ActivationDtype, rows: u64, width: u64) -> u64 {
    // Whole tiles or vectors, which begin with a cache line.
    let padded = |count: u64| count.checked_next_multiple_of(32).unwrap_or(u64::MAX);
    let small = rows.min(small_m::ROWS as u64).saturating_mul(padded(width));
    let small = small.saturating_mul(4).saturating_add(64);
    let bytes = match (isa, compute) {
        // Three parts of bf16.
        (Isa::AmxBf16, ActivationDtype::F32) => 6,
        // As they are, a few rows packed.
        (_, ActivationDtype::F32) => return small,
        // One part of bf16; or, for weights that are not, rounded and widened again.
        (_, ActivationDtype::Bf16) => 4,
    };
    let values = padded(rows).saturating_mul(padded(width));
    let all = values.saturating_mul(bytes).saturating_add(64);
    all.saturating_add(small)
}

/// Loops of some instruction set over activations of type `X` and weights of type `E`.
trait MatmulLoops<X: 'static, E>: Copy + Sync {
    /// Computes `y[rows, columns]`.
    ///
    /// # Safety
    ///
    /// - This processor has the instructions.
    /// - `weight` and `y` point to `n * k` and `m * n` elements, and `x` to `m` rows as these loops
    ///   read them: row after row, or packed for row blocks of which some make up `rows`; valid to
    ///   read (`x`, `weight`) or write (`y`) for the whole call.
    /// - `rows` lies within `0..m` and `columns` within `0..n`, and during the call nothing else
    ///   reads or writes `y[rows, columns]`.
    unsafe fn region(self, operands: &Operands<X, E>, rows: Range<usize>, columns: Range<usize>);

    /// Computes `y[.., columns]` of a matmul of fewer than [`small_m::ROWS`] rows.
    ///
    /// # Safety
    ///
    /// As for [`region`](MatmulLoops::region), with `x` from
    /// [`pack_small_m`](MatmulLoops::pack_small_m).
    unsafe fn small_m(self, operands: &Operands<X, E>, columns: Range<usize>);

    /// The activations of such a matmul, packed.
    fn pack_small_m(self, x: &[f32], size: Size) -> Scratch<X>;

    /// Rows of weights that such a matmul's loops take side by side, for `m` rows of activations.
    fn small_m_unit(self, m: usize) -> usize {
        small_m::unit(m)
    }
}

/// Loops that widen weights to f32.
#[derive(Clone, Copy)]
struct Widened(Isa);

impl<E: Element> MatmulLoops<f32, E> for Widened {
    unsafe fn region(self, operands: &Operands<f32, E>, rows: Range<usize>, columns: Range<usize>) {
        // SAFETY: the caller's promises are those that each of these asks for.
        unsafe {
            match self.0 {
                Isa::Portable => portable::region(operands, rows, columns),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::region(operands, rows, columns),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => {
                    avx512::region(operands, rows, columns)
                }
                #[cfg(not(target_arch = "x86_64"))]
                _ => portable::region(operands, rows, columns),
            }
        }
    }

    unsafe fn small_m(self, operands: &Operands<f32, E>, columns: Range<usize>) {
        // SAFETY: the caller's promises are those that each of these asks for.
        unsafe {
            match self.0 {
                Isa::Portable => portable::small_m(operands, columns),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::small_m(operands, columns),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => avx512::small_m(operands, columns),
                #[cfg(not(target_arch = "x86_64"))]
                _ => portable::small_m(operands, columns),
            }
        }
    }

    fn pack_small_m(self, x: &[f32], size: Size) -> Scratch<f32> {
        match self.0 {
            Isa::Portable => small_m::packed::<portable::F32x4, E>(x, size),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => small_m::packed::<avx2::F32x8, E>(x, size),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => {
                small_m::packed::<avx512::F32x16, E>(x, size)
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => small_m::packed::<portable::F32x4, E>(x, size),
        }
    }
}

/// One row of activations by a weight in blocks; see [`blocks::gemv`].
///
/// # Safety
///
/// As there; and this processor has `isa`, for which `x` is packed.
unsafe fn gemv_blocks(
    isa: Isa,
    x: *const f32,
    weight: BlockWeight<&[u8]>,
    y: *mut f32,
    others: &dyn Fn(Range<usize>),
) {
    // SAFETY: the caller's promises.
    unsafe {
        match isa {
            Isa::Portable => portable::gemv_blocks(x, weight, y, others),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::gemv_blocks(x, weight, y, others),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => {
                avx512::gemv_blocks(x, weight, y, others)
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => portable::gemv_blocks(x, weight, y, others),
        }
    }
}

/// Loops that multiply pairs of bf16. Activations are packed.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Pairs;

#[cfg(target_arch = "x86_64")]
impl MatmulLoops<bf16, bf16> for Pairs {
    unsafe fn region(
        self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        // SAFETY: the caller's promises.
        unsafe { avx512bf16::region(operands, rows, columns) }
    }

    unsafe fn small_m(self, operands: &Operands<bf16, bf16>, columns: Range<usize>) {
        // SAFETY: the caller's promises.
        unsafe { avx512bf16::small_m(operands, columns) }
    }

    fn pack_small_m(self, x: &[f32], size: Size) -> Scratch<bf16> {
        small_m::packed::<Bf16x32, bf16>(x, size)
    }
}

/// One matmul as the loops see it: activations, and two matrices, row-major without gaps.
#[derive(Clone, Copy)]
pub(crate) struct Operands<X, E> {
    x: *const X,
    weight: *const E,
    y: *mut f32,
    size: Size,
}

// SAFETY: a job is three addresses and three sizes. What threads may do with the addresses is the
// contract of `MatmulLoops::region`.
unsafe impl<X: Sync, E: Sync> Sync for Operands<X, E> {}
