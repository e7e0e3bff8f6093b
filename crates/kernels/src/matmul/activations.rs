//! Activations that are multiplied by one weight after the other.

use std::ops::Range;

use half::bf16;

#[cfg(target_arch = "x86_64")]
use super::avx512bf16::Bf16x32;
use super::pack::{self, RowBlocks, Scratch};
#[cfg(target_arch = "x86_64")]
use super::tile::Kernel;
use super::{Matmul, kind, small_m, widened};
#[cfg(target_arch = "x86_64")]
use super::{amx, gemm, packed, pairs};
use crate::activation::{ActivationFunction, gate_columns, gate_in_place};
use crate::buffer::{self, Buffer};
use crate::{ActivationDtype, Isa, Weight};

/// Activations `[m, k]`, for matmuls with weights that need not be there at the same time. They are
/// rounded and packed once for all.
#[allow(missing_debug_implementations, reason = "memory of its thread")]
pub struct MatmulActivations<'a> {
    isa: Isa,
    compute: ActivationDtype,
    x: Numbers<'a>,
    size: [usize; 2],
    /// As the loops of this set of instructions want them for weights in bf16, if such came.
    packed: Option<Scratch<bf16>>,
    /// Rounded, and widened again, if weights came that want them so.
    rounded: Option<Scratch<f32>>,
}

/// Where activations are.
enum Numbers<'a> {
    /// Row by row, with their owner.
    Given(&'a [f32]),
    /// Nowhere yet, or row by row once they are made.
    Made(Option<Buffer>),
    /// Packed, as tiles are.
    #[cfg(target_arch = "x86_64")]
    InTiles(Scratch<bf16>),
}

impl Numbers<'_> {
    /// Row by row.
    fn rows(&self) -> &[f32] {
        match self {
            Self::Given(x) => x,
            Self::Made(Some(x)) => x,
            Self::Made(None) => &[],
            #[cfg(target_arch = "x86_64")]
            Self::InTiles(_) => unreachable!("they are unpacked before"),
        }
    }
}

impl<'a> MatmulActivations<'a> {
    /// Of `x [m, k]`, row-major without gaps.
    ///
    /// # Panics
    ///
    /// If `x` does not have that length, or if this processor does not have `isa`.
    pub fn new(isa: Isa, compute: ActivationDtype, x: &'a [f32], size: [usize; 2]) -> Self {
        assert!(isa.is_available(), "this processor does not have {isa:?}");
        let [m, k] = size;
        assert_eq!(Some(x.len()), m.checked_mul(k), "x must hold m * k elements, for [{m}, {k}]");
        Self { isa, compute, x: Numbers::Given(x), size, packed: None, rounded: None }
    }

    /// Activations `[m, k]` that [`multiply_gated_to`](MatmulActivations::multiply_gated_to) makes.
    ///
    /// # Panics
    ///
    /// If this processor does not have `isa`.
    pub fn to_be_made(isa: Isa, compute: ActivationDtype, size: [usize; 2]) -> Self {
        Self { x: Numbers::Made(None), size, ..Self::new(isa, compute, &[], [0, size[1]]) }
    }

    /// Writes `x · Wᵀ` for some `rows` of a weight of `n`, which are `weight`, to those columns of
    /// `y [m, n]`.
    ///
    /// # Panics
    ///
    /// If a slice does not have the length that the sizes ask for, or if there are no such rows.
    pub fn multiply_rows(
        &mut self,
        weight: Weight<'_>,
        rows: Range<usize>,
        n: usize,
        y: &mut [f32],
    ) {
        let y = self.columns(&rows, n, y);
        self.multiply(&mut [Matmul { weight, n: rows.len(), y, stride: n }]);
    }

    /// From the first of the columns on that some `rows` of a weight of `n` give of `y [m, n]`.
    fn columns<'y>(&self, rows: &Range<usize>, n: usize, y: &'y mut [f32]) -> &'y mut [f32] {
        assert!(rows.start <= rows.end && rows.end <= n, "rows {rows:?} of a weight of {n}");
        assert_eq!(Some(y.len()), self.size[0].checked_mul(n), "y must hold m * n elements");
        &mut y[rows.start.min(self.size[0] * n)..]
    }

    /// A matmul whose outputs go through a gate, in tiles; `y` has the length that the sizes ask
    /// for.
    #[cfg(target_arch = "x86_64")]
    fn multiply_through(&mut self, gate: amx::Gate, up: Matmul) {
        let len = up.n.checked_mul(self.size[1]);
        for weight in gate.weight.map(<[bf16]>::len).into_iter().chain([up.weight.len()]) {
            assert_eq!(Some(weight), len, "weight must hold n * k elements");
        }
        self.multiply_in_tiles(Some(gate), &mut [up]);
    }

    /// Matmuls in tiles; slices have the lengths that the sizes ask for.
    #[cfg(target_arch = "x86_64")]
    fn multiply_in_tiles(&mut self, gate: Option<amx::Gate>, matmuls: &mut [Matmul]) {
        let Self { compute, x, size, packed, .. } = self;
        let x = match x {
            Numbers::InTiles(tiles) => &**tiles,
            x => &**packed.get_or_insert_with(|| {
                let beside = gate.is_some_and(|gate| gate.made.is_some());
                // SAFETY: this processor has these instructions, as was asserted.
                unsafe { amx::packed(*compute, x.rows(), *size, beside) }
            }),
        };
        // SAFETY: as above; these are packed for this type and size.
        unsafe { amx::matmuls(*compute, x, *size, gate, matmuls) }
    }

    /// Has activations row by row that are in tiles.
    #[cfg(target_arch = "x86_64")]
    fn unpack(&mut self) {
        let Self { compute, size: size @ [m, k], .. } = *self;
        if let Numbers::InTiles(tiles) = &self.x {
            let mut rows = buffer::take(m * k);
            for (to, row) in rows.chunks_mut(k.max(1)).zip(amx::made_rows(compute, size, tiles)) {
                to.copy_from_slice(&row);
            }
            self.x = Numbers::Made(Some(rows));
        }
    }

    /// Whether outputs of a weight go through their gate before they are written: not of few rows,
    /// whose threads are to meet once.
    #[cfg(target_arch = "x86_64")]
    fn gates_as_it_writes(&self, up: Weight) -> bool {
        self.isa == Isa::AmxBf16 && is_bf16(up) && self.size[0] >= small_m::ROWS
    }

    /// As [`linear_each_into`](super::linear_each_into).
    ///
    /// # Panics
    ///
    /// As there.
    pub fn multiply(&mut self, matmuls: &mut [Matmul]) {
        let [m, k] = self.size;
        for matmul in matmuls.iter() {
            let (n, stride) = (matmul.n, matmul.stride);
            assert_eq!(
                Some(matmul.weight.len()),
                n.checked_mul(k),
                "weight must hold n * k elements, for [{n}, {k}]"
            );
            let (rows, len) = (m.saturating_sub(1), matmul.y.len());
            let fits = match n == stride {
                true => m.checked_mul(n) == Some(len),
                // What is behind the last row's columns is another's.
                false => {
                    let last = rows.checked_mul(stride).and_then(|at| at.checked_add(n));
                    n < stride && (m == 0 || last.is_some_and(|last| last <= len))
                }
            };
            assert!(fits, "y must hold m * n elements, for [{m}, {n}]");
        }
        if m == 0 {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if matmuls.iter().any(|matmul| !is_bf16(matmul.weight)) {
            self.unpack();
        }
        let isa = self.isa;
        for alike in matmuls.chunk_by_mut(|a, b| kind(isa, a.weight) == kind(isa, b.weight)) {
            self.multiply_alike(alike);
        }
    }

    /// Writes `function(x · Gᵀ) · (x · Uᵀ)` for some `rows` of weights of `n`, which are `gate` and
    /// `up`, to those columns of `y [m, n]`: the same bits as multiplying and
    /// [gating](crate::activation::gate_in_place) one after the other.
    ///
    /// # Panics
    ///
    /// As [`multiply_rows`](Self::multiply_rows).
    pub fn multiply_gated(
        &mut self,
        function: ActivationFunction,
        [gate, up]: [Weight<'_>; 2],
        rows: Range<usize>,
        n: usize,
        y: &mut [f32],
    ) {
        let (y, columns) = (self.columns(&rows, n, y), rows.len());
        let (isa, m) = (self.isa, self.size[0]);
        if m == 0 || columns == 0 {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if self.gates_as_it_writes(up) {
            let weight = match (gate, up) {
                (Weight::Bf16(weight), Weight::Bf16(_)) => Some(weight),
                _ => {
                    self.multiply(&mut [Matmul { weight: gate, n: columns, y, stride: n }]);
                    None
                }
            };
            let up = Matmul { weight: up, n: columns, y, stride: n };
            return self.multiply_through(amx::Gate { function, weight, made: None }, up);
        }
        let mut other = buffer::take(m * columns);
        self.multiply(&mut [
            Matmul { weight: gate, n: columns, y, stride: n },
            Matmul { weight: up, n: columns, y: &mut other, stride: columns },
        ]);
        match columns == n {
            true => gate_in_place(isa, function, y, &other),
            false => gate_columns(isa, function, (y, n), (&other, columns)),
        }
    }

    /// Makes activations of `function(x · Gᵀ) · (x · Uᵀ)`: those from `rows.start` to `rows.end` of
    /// each row of `made [m, k]`, of as many rows of weights, which are `gate` and `up`.
    ///
    /// # Panics
    ///
    /// As [`multiply_rows`](Self::multiply_rows), and if what is made is of another set of
    /// instructions or type.
    pub fn multiply_gated_to(
        &mut self,
        function: ActivationFunction,
        weights: [Weight<'_>; 2],
        rows: Range<usize>,
        made: &mut MatmulActivations<'_>,
    ) {
        let [m, k] = made.size;
        assert_eq!(m, self.size[0], "as many rows are made as there are");
        assert_eq!(
            (made.isa, made.compute),
            (self.isa, self.compute),
            "one type is made of another"
        );
        assert!(rows.start <= rows.end && rows.end <= k, "{rows:?} of rows of {k}");
        // Of what they were before.
        (made.packed, made.rounded) = (None, None);
        #[cfg(target_arch = "x86_64")]
        match weights {
            [Weight::Bf16(weight), up @ Weight::Bf16(_)]
                if self.gates_as_it_writes(up)
                    && self.size[1] > 0
                    && !matches!(made.x, Numbers::Given(_) | Numbers::Made(Some(_))) =>
            {
                if rows.is_empty() {
                    return;
                }
                let y = made.tiles_to_make();
                let made = Some(amx::Made::new(self.compute, [m, k], rows.start));
                let up = Matmul { weight: up, n: rows.len(), y, stride: rows.len() };
                let gate = amx::Gate { function, weight: Some(weight), made };
                return self.multiply_through(gate, up);
            }
            _ => made.unpack(),
        }
        if !matches!(made.x, Numbers::Made(Some(_))) {
            made.x = Numbers::Made(Some(buffer::take(m * k)));
        }
        if let Numbers::Made(Some(y)) = &mut made.x {
            self.multiply_gated(function, weights, rows, k, y);
        }
    }

    /// Memory for activations in tiles, as that of half as many numbers.
    #[cfg(target_arch = "x86_64")]
    fn tiles_to_make(&mut self) -> &mut [f32] {
        if !matches!(self.x, Numbers::InTiles(_)) {
            self.x = Numbers::InTiles(amx::room(self.compute, self.size));
        }
        let Numbers::InTiles(tiles) = &mut self.x else { unreachable!("they were just made") };
        // SAFETY: an f32 holds two bf16, and all bits are of either.
        let (before, tiles, after) = unsafe { tiles.align_to_mut() };
        assert!(before.is_empty() && after.is_empty(), "tiles begin with a cache line");
        tiles
    }

    /// Matmuls with weights that one loop multiplies.
    fn multiply_alike(&mut self, matmuls: &mut [Matmul]) {
        let Self { isa, compute, size, .. } = *self;
        #[cfg(target_arch = "x86_64")]
        if isa == Isa::AmxBf16 && is_bf16(matmuls[0].weight) {
            return self.multiply_in_tiles(None, matmuls);
        }
        let x = self.x.rows();
        match (matmuls[0].weight, compute) {
            #[cfg(target_arch = "x86_64")]
            (weight, ActivationDtype::Bf16) if isa == Isa::Avx512Bf16 && is_bf16(weight) => {
                let is_packed = weight.is_packed_bf16();
                if size[0] < small_m::ROWS {
                    let x = &small_m::packed(x, size, Bf16x32::MAX_ROWS, Bf16x32::LANES);
                    return match is_packed {
                        true => packed::share(isa, Bf16x32, x, size, matmuls),
                        false => small_m::share::<_, bf16>(Bf16x32, x, size, matmuls),
                    };
                }
                let row_blocks = RowBlocks::of_many(size[0], Bf16x32::MAX_ROWS);
                let x = self
                    .packed
                    .get_or_insert_with(|| pack::packed(x, size, row_blocks, Bf16x32::LANES));
                match is_packed {
                    true => packed::share_many(isa, Bf16x32, row_blocks, x, size, matmuls),
                    false => gemm::share::<_, bf16>(Bf16x32, row_blocks, x, size, matmuls),
                }
            }
            #[cfg(target_arch = "x86_64")]
            (weight, ActivationDtype::Bf16) if let Some(dtype) = pairs::dtype(isa, weight) => {
                pairs::share(dtype, x, size, matmuls);
            }
            (_, ActivationDtype::Bf16) => {
                let x = self.rounded.get_or_insert_with(|| pack::rounded(x));
                widened(isa, x, size, matmuls);
            }
            (_, ActivationDtype::F32) => widened(isa, x, size, matmuls),
        }
    }
}

/// Whether a weight is bf16, as it is or packed.
#[cfg(target_arch = "x86_64")]
fn is_bf16(weight: Weight) -> bool {
    matches!(weight, Weight::Bf16(_)) || weight.is_packed_bf16()
}
