//! `y = x · Wᵀ` over slices.
//!
//! [`linear_into`] shares the matmul among the threads of the current rayon pool and runs each
//! share with the widest instructions at hand. The loops are written once, in `tile`, over a vector
//! type that each set of instructions supplies.

mod activations;
#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512bf16;
mod blocks;
pub(crate) mod broadcast;
mod claims;
mod convolution;
mod element;
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only loops of x86-64 take rounded activations packed")
)]
mod gemm;
mod in_out;
mod integers;
mod pack;
mod packed;
#[cfg(target_arch = "x86_64")]
mod packed_few_rows;
#[cfg(target_arch = "x86_64")]
mod paired_rows;
#[cfg(target_arch = "x86_64")]
mod pairs;
pub(crate) mod panel;
mod panels;
mod small_m;
mod strided;
mod tile;
mod widened_panels;

use std::mem::{Discriminant, discriminant};
use std::ops::Range;

use half::{bf16, f16};
use outsize_checkpoint::Dtype;

#[cfg(target_arch = "x86_64")]
use crate::packed_bf16::avx512;
use crate::simd::{Vector, for_each_isa};
use crate::{ActivationDtype, BlockWeight, Isa, Weight};
pub use activations::MatmulActivations;
#[cfg(target_arch = "x86_64")]
pub(crate) use amx::{TileProducts, TileRows, TileSums, cut, rounds as tile_rounds};
#[cfg(target_arch = "x86_64")]
use avx512bf16::Bf16x32;
#[cfg(target_arch = "x86_64")]
pub(crate) use blocks::FAR;
pub(crate) use blocks::OutputPtr;
pub(crate) use claims::Claims;
pub use convolution::{
    ConvolutionOutputs, ConvolutionShape, ConvolutionWindow, PackedPictures, convolution_bytes,
};
pub(crate) use element::Element;
pub use in_out::{InOutMatmul, add_linear_in_out_into};
use pack::RowBlocks;
pub(crate) use pack::Scratch;
use packed::PackedLoops;
#[cfg(target_arch = "x86_64")]
pub(crate) use packed::for_each_unpacked;
#[cfg(target_arch = "x86_64")]
pub(crate) use paired_rows::PairedRows;
pub(crate) use strided::{Strided, add_product};
pub use strided::{input_gradient_into, weight_gradient_into};
use tile::Kernel;

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

/// Writes `x · Wᵀ` to `y`, with a chosen set of instructions: `x [m, k]`, `weight [n, k]`, `y [m,
/// n]`, all row-major without gaps.
///
/// Runs on the current rayon pool when the matmul is large enough to share. The
/// [contract](crate#the-contract) says what a result depends on.
///
/// Each thread that calls this keeps memory for activations in the form in which the loops read
/// them: see [`packed_bytes`].
///
/// # Panics
///
/// If a slice does not have the length that `size` asks for, or if this processor does not have
/// `isa`.
pub fn linear_into(
    isa: Isa,
    compute: ActivationDtype,
    x: &[f32],
    weight: Weight<'_>,
    Size { m, n, k }: Size,
    y: &mut [f32],
) {
    linear_each_into(isa, compute, x, [m, k], &mut [Matmul { weight, n, y, stride: n }]);
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
    /// Elements of `y` from one row to the next: `n`, or more if it is a part of the columns of
    /// another.
    pub stride: usize,
}

/// Several matmuls of the same activations `x [m, k]`, each as [`linear_into`] computes it, bit
/// for bit. Threads share a few rows' matmuls as one piece of work: they meet once, and `x` is
/// packed once.
///
/// # Panics
///
/// If a slice does not have the length that the sizes ask for, or if this processor does not have
/// `isa`.
pub fn linear_each_into(
    isa: Isa,
    compute: ActivationDtype,
    x: &[f32],
    [m, k]: [usize; 2],
    matmuls: &mut [Matmul],
) {
    MatmulActivations::new(isa, compute, x, [m, k]).multiply(matmuls);
}

/// What weights have in common that one loop multiplies.
fn kind(isa: Isa, weight: Weight) -> (Discriminant<Weight>, Option<Dtype>, bool) {
    #[cfg(target_arch = "x86_64")]
    let dtype = pairs::dtype(isa, weight);
    #[cfg(not(target_arch = "x86_64"))]
    let dtype = None;
    (discriminant(&weight), dtype, weight.is_packed_bf16())
}

/// Matmuls with weights of one dtype, widened to f32.
fn widened(isa: Isa, x: &[f32], size @ [m, _]: [usize; 2], matmuls: &mut [Matmul]) {
    let [max_rows, lanes] = blocking(isa);
    if m < small_m::ROWS {
        let x = &small_m::packed(x, size, max_rows, lanes);
        return match matmuls[0].weight {
            weight if weight.is_packed_bf16() => {
                packed::share(isa, Widened(isa), x, size, matmuls);
            }
            Weight::Bf16(_) => small_m::share::<_, bf16>(Widened(isa), x, size, matmuls),
            Weight::F16(_) => small_m::share::<_, f16>(Widened(isa), x, size, matmuls),
            Weight::F32(_) => small_m::share::<_, f32>(Widened(isa), x, size, matmuls),
            Weight::Blocks(_) => small_m::share_blocks(isa, x, size, matmuls),
        };
    }
    let row_blocks = RowBlocks::of_many(m, max_rows);
    match matmuls[0].weight {
        weight if weight.is_packed_bf16() => {
            packed::share_many(isa, Widened(isa), row_blocks, x, size, matmuls);
        }
        Weight::Bf16(_) => gemm::share::<_, bf16>(Widened(isa), row_blocks, x, size, matmuls),
        Weight::F16(_) => gemm::share::<_, f16>(Widened(isa), row_blocks, x, size, matmuls),
        Weight::F32(_) => gemm::share::<_, f32>(Widened(isa), row_blocks, x, size, matmuls),
        Weight::Blocks(_) => gemm::share_blocks(isa, row_blocks, x, size, matmuls),
    }
}

/// An upper bound on the bytes that a thread keeps for the activations of its largest matmul so
/// far, which has so many `rows` of `width`, on this processor; with the weights in tiles, or
/// widened, that it and its helpers keep. Gated blocks have inputs of the width `gated`, which are
/// kept beside what is made of them: 0 if there are none.
pub fn packed_bytes(compute: ActivationDtype, rows: u64, width: u64, gated: u64) -> u64 {
    let isa = Isa::detected();
    let beside = match isa {
        Isa::AmxBf16 => {
            let values = padded(rows).saturating_mul(padded(gated));
            values.saturating_mul(2 * compute.parts() as u64).saturating_add(64)
        }
        _ => 0,
    };
    packed_bytes_with(isa, compute, rows, width).saturating_add(beside)
}

/// An upper bound on the bytes that a thread keeps for rows of weights in blocks, dequantised or
/// unpacked, of up to so many columns.
pub fn panel_bytes(columns: u64) -> u64 {
    blocks::panel_bytes(columns).max(packed::panel_bytes(columns))
}

/// Rows or values in whole tiles or vectors, which begin with a cache line.
fn padded(count: u64) -> u64 {
    count.checked_next_multiple_of(32).unwrap_or(u64::MAX)
}

fn packed_bytes_with(isa: Isa, compute: ActivationDtype, rows: u64, width: u64) -> u64 {
    let small = rows.min(small_m::ROWS as u64).saturating_mul(padded(width));
    let small = small.saturating_mul(4).saturating_add(64);
    let widened = match rows >= small_m::ROWS as u64 {
        true => widened_panels::panel_bytes(isa, width).saturating_mul(crate::threads() as u64),
        false => 0,
    };
    let small = small.saturating_add(widened);
    let bytes = match (isa, compute) {
        // Three parts of bf16.
        (Isa::AmxBf16, ActivationDtype::F32) => 6,
        // As they are, a few rows packed.
        (_, ActivationDtype::F32) => return small,
        // One part of bf16 with sums of it, and, for weights that are neither bf16 nor of 4 or 6
        // bits, rounded and widened again.
        (_, ActivationDtype::Bf16) => 7,
    };
    let values = padded(rows).saturating_mul(padded(width));
    let all = values.saturating_mul(bytes).saturating_add(64);
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::AmxBf16 {
        // A panel of weights of each thread, and its sums.
        let most = amx::most_bytes(rows.try_into().unwrap_or(usize::MAX));
        let panels = (most as u64 + 192).saturating_mul(crate::threads() as u64);
        return all.saturating_add(small).saturating_add(panels);
    }
    all.saturating_add(small)
}

/// Loops of some instruction set over activations of type `X` and weights of type `E`.
trait MatmulLoops<X: 'static, E>: Copy + Sync {
    /// Computes `y[rows, columns]`.
    ///
    /// # Safety
    ///
    /// - This processor has the instructions.
    /// - `weight` points to rows of `k` elements, `y` to `m` rows that are `n` elements apart, and
    ///   `x` to `m` rows as these loops read them: row after row, or packed for row blocks of which
    ///   some make up `rows`; valid to read (`x`, `weight`) or write (`y`) for the whole call.
    /// - `rows` lies within `0..m` and `columns` among the weight's rows, and during the call
    ///   nothing else reads or writes `y[rows, columns]`.
    unsafe fn region(self, operands: &Operands<X, E>, rows: Range<usize>, columns: Range<usize>);

    /// Computes `y[.., columns]` of a matmul of fewer than [`small_m::ROWS`] rows.
    ///
    /// # Safety
    ///
    /// As for [`region`](MatmulLoops::region), with `x` packed for such matmuls.
    unsafe fn small_m(self, operands: &Operands<X, E>, columns: Range<usize>);

    /// Rows of weights that such a matmul's loops take side by side, for `m` rows of activations.
    fn small_m_unit(self, m: usize) -> usize {
        small_m::unit(m)
    }

    /// The runs in which threads claim the rows of weights of `element` bytes in such a matmul.
    fn claims(self, size: Size, element: usize, threads: usize) -> Claims {
        Claims::new(size, element, threads, self.small_m_unit(size.m))
    }
}

/// Loops that widen weights to f32.
#[derive(Clone, Copy)]
struct Widened(Isa);

impl<E: Element> MatmulLoops<f32, E> for Widened {
    unsafe fn region(self, operands: &Operands<f32, E>, rows: Range<usize>, columns: Range<usize>) {
        // SAFETY: the caller's promises.
        unsafe { region(self.0, operands, rows, columns) }
    }

    unsafe fn small_m(self, operands: &Operands<f32, E>, columns: Range<usize>) {
        // SAFETY: the caller's promises.
        unsafe { small_m(self.0, operands, columns) }
    }
}

impl PackedLoops<f32> for Widened {
    unsafe fn few_rows(
        self,
        m: usize,
        x: *const f32,
        weight: BlockWeight<&[u8]>,
        y: *mut f32,
        stride: usize,
    ) -> bool {
        #[cfg(target_arch = "x86_64")]
        if m <= blocks::FEW
            && matches!(self.0, Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16)
            && avx512::is_available()
        {
            // SAFETY: the caller's promises; the processor has these instructions.
            unsafe { packed_few_rows::singles(m, x, weight, y, stride) };
            return true;
        }
        let _ = (m, x, weight, y, stride);
        false
    }
}

for_each_isa! {
    /// See [`MatmulLoops::region`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn region<V, E: Element>(
        operands: &Operands<f32, E>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        // SAFETY: the caller's promises.
        unsafe { widened_panels::region::<V, E>(operands, rows, columns) }
    }
}

for_each_isa! {
    /// See [`MatmulLoops::small_m`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn small_m<V, E: Element>(operands: &Operands<f32, E>, columns: Range<usize>) {
        // SAFETY: the caller's promises.
        unsafe { small_m::columns::<V, E>(operands, columns) }
    }
}

for_each_isa! {
    /// A few rows of activations by a weight in blocks; see [`blocks::few_rows`].
    ///
    /// # Safety
    ///
    /// As there; and `x` is packed for this set of instructions.
    unsafe fn few_rows_of_blocks<V>(
        m: usize,
        x: *const f32,
        weight: BlockWeight<&[u8]>,
        y: *mut f32,
        stride: usize,
        others: &dyn Fn(Range<usize>),
    ) {
        // SAFETY: the caller's promises.
        unsafe {
            match weight.integer_groups() {
                Some(groups) => integers::few_rows::<V>(m, x, weight, groups, y, stride, others),
                None => blocks::few_rows::<V>(m, x, weight, y, stride, others),
            }
        }
    }
}

for_each_isa! {
    /// The most rows of a row block of [`Widened`], and the lanes of a vector.
    fn blocking<V>() -> [usize; 2] {
        [<V as Kernel<f32>>::MAX_ROWS, <V as Vector>::LANES]
    }
}

/// Loops that multiply pairs of bf16. Activations are packed.
#[cfg(target_arch = "x86_64")]
impl MatmulLoops<bf16, bf16> for Bf16x32 {
    unsafe fn region(
        self,
        operands: &Operands<bf16, bf16>,
        rows: Range<usize>,
        columns: Range<usize>,
    ) {
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
        unsafe fn region(
            operands: &Operands<bf16, bf16>,
            rows: Range<usize>,
            columns: Range<usize>,
        ) {
            // SAFETY: the caller's promises, here and below.
            unsafe { tile::region::<Bf16x32, bf16, _>(operands, tile::Packed, rows, columns) }
        }
        // SAFETY: as above.
        unsafe { region(operands, rows, columns) }
    }

    unsafe fn small_m(self, operands: &Operands<bf16, bf16>, columns: Range<usize>) {
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512bf16")]
        unsafe fn small_m(operands: &Operands<bf16, bf16>, columns: Range<usize>) {
            // SAFETY: the caller's promises, here and below.
            unsafe { small_m::columns::<Bf16x32, bf16>(operands, columns) }
        }
        // SAFETY: as above.
        unsafe { small_m(operands, columns) }
    }
}

#[cfg(target_arch = "x86_64")]
impl PackedLoops<bf16> for Bf16x32 {
    unsafe fn few_rows(
        self,
        m: usize,
        x: *const bf16,
        weight: BlockWeight<&[u8]>,
        y: *mut f32,
        stride: usize,
    ) -> bool {
        if m > blocks::FEW || !avx512::is_available() {
            return false;
        }
        // SAFETY: the caller's promises; the processor has these instructions.
        unsafe { packed_few_rows::pairs(m, x, weight, y, stride) };
        true
    }
}

/// One matmul as the loops see it: activations, and two matrices, row-major. `size.n` is how far
/// the rows of `y` are apart, which may be more than the weight has rows.
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
