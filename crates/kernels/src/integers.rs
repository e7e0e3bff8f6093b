//! Integers of 4 or 8 bits, less the zero point and times the scale of their group.
//!
//! A value is rounded once, from a difference that is exact. Of 4 bits with a scale of 16, what
//! each of the sixteen is worth is the difference of two products that are exact too.

use std::mem::MaybeUninit;

use outsize_checkpoint::{Dtype, IntegerWidth};

use crate::simd::{Vector, for_each_isa};

/// Integers of a step: a multiple of any vector's lanes.
pub(crate) const STEP: usize = 32;

/// Integers of one width, decoded a step at a time.
pub(crate) trait Decode {
    /// Bytes of a step.
    const BYTES: usize;

    /// A group, from its scale and what was made of its zero point.
    type Group<V: Vector>: Copy;

    /// The integers of a step, or where they are.
    type Numbers<V: Vector>: Copy;

    /// What is made of the zero points of groups: scales and zero points to as many numbers.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    unsafe fn offset<V: Vector>(scales: V, zeros: V) -> V;

    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    unsafe fn group<V: Vector>(scale: f32, offset: f32) -> Self::Group<V>;

    /// # Safety
    ///
    /// The processor has the instructions of `V`; `from` points to a step, which lives as long.
    unsafe fn numbers<V: Vector>(from: *const u8) -> Self::Numbers<V>;

    /// As many elements of a step as a vector has lanes, from number `at` on.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`; the step has these elements.
    unsafe fn elements<V: Vector>(
        numbers: &Self::Numbers<V>,
        at: usize,
        group: &Self::Group<V>,
    ) -> V;

    /// One element: the same bits.
    fn element(row: &[u8], at: usize, scale: f32, zero: f32) -> f32;
}

/// 4 bits, neighbours in the halves of a byte, with scales of 16 bits.
pub(crate) struct Nibbles;

/// The same with scales of 32 bits.
pub(crate) struct WideNibbles;

/// 8 bits, with or without a sign.
pub(crate) struct Bytes<const SIGNED: bool>;

fn nibble(row: &[u8], at: usize) -> f32 {
    f32::from(row[at / 2] >> (at % 2 * 4) & 15)
}

impl Decode for Nibbles {
    const BYTES: usize = STEP / 2;
    type Group<V: Vector> = V::Sixteen;
    type Numbers<V: Vector> = [V::Bytes; 8];

    #[inline(always)]
    unsafe fn offset<V: Vector>(scales: V, zeros: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { zeros.mul(scales) }
    }

    #[inline(always)]
    unsafe fn group<V: Vector>(scale: f32, offset: f32) -> V::Sixteen {
        // SAFETY: the caller's promise.
        unsafe { V::sixteen::<0>(scale, offset) }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(from: *const u8) -> [V::Bytes; 8] {
        // SAFETY: the caller's promise.
        unsafe { V::neighbours(&*from.cast()) }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>(numbers: &[V::Bytes; 8], at: usize, sixteen: &V::Sixteen) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::halves::<false, 0>(numbers[at / V::LANES], *sixteen) }
    }

    fn element(row: &[u8], at: usize, scale: f32, zero: f32) -> f32 {
        nibble(row, at) * scale - zero * scale
    }
}

impl Decode for WideNibbles {
    const BYTES: usize = STEP / 2;
    type Group<V: Vector> = (V::Sixteen, V);
    type Numbers<V: Vector> = [V::Bytes; 8];

    #[inline(always)]
    unsafe fn offset<V: Vector>(_scales: V, zeros: V) -> V {
        zeros
    }

    #[inline(always)]
    unsafe fn group<V: Vector>(scale: f32, offset: f32) -> (V::Sixteen, V) {
        // SAFETY: the caller's promise.
        unsafe { (V::sixteen::<0>(1.0, offset), V::splat(scale)) }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(from: *const u8) -> [V::Bytes; 8] {
        // SAFETY: the caller's promise.
        unsafe { V::neighbours(&*from.cast()) }
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>(
        numbers: &[V::Bytes; 8],
        at: usize,
        (sixteen, scale): &(V::Sixteen, V),
    ) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::halves::<false, 0>(numbers[at / V::LANES], *sixteen).mul(*scale) }
    }

    fn element(row: &[u8], at: usize, scale: f32, zero: f32) -> f32 {
        (nibble(row, at) - zero) * scale
    }
}

impl<const SIGNED: bool> Decode for Bytes<SIGNED> {
    const BYTES: usize = STEP;
    /// The zero point, negated, and the scale.
    type Group<V: Vector> = [V; 2];
    type Numbers<V: Vector> = *const u8;

    #[inline(always)]
    unsafe fn offset<V: Vector>(_scales: V, zeros: V) -> V {
        // SAFETY: the caller's promise.
        unsafe { zeros.mul(V::splat(-1.0)) }
    }

    #[inline(always)]
    unsafe fn group<V: Vector>(scale: f32, offset: f32) -> [V; 2] {
        // SAFETY: the caller's promise.
        unsafe { [V::splat(offset), V::splat(scale)] }
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(from: *const u8) -> *const u8 {
        from
    }

    #[inline(always)]
    unsafe fn elements<V: Vector>(from: &*const u8, at: usize, [zero, scale]: &[V; 2]) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let numbers = if SIGNED { V::i8(from.add(at)) } else { V::u8(from.add(at)) };
            zero.fma(numbers, V::splat(1.0)).mul(*scale)
        }
    }

    fn element(row: &[u8], at: usize, scale: f32, zero: f32) -> f32 {
        let number = if SIGNED { f32::from(row[at] as i8) } else { f32::from(row[at]) };
        (-zero + number) * scale
    }
}

#[inline(always)]
fn widen_zero(width: IntegerWidth, zero: u8) -> f32 {
    match width {
        IntegerWidth::I8 => f32::from(zero as i8),
        _ => f32::from(zero),
    }
}

/// Runs code with the [`Decode`] of integers of a width with scales of a type.
macro_rules! with_integers {
    ($width:expr, $scales:expr, $D:ident => $body:expr) => {
        match ($width, $scales) {
            (outsize_checkpoint::IntegerWidth::U4, outsize_checkpoint::Dtype::F32) => {
                type $D = $crate::integers::WideNibbles;
                $body
            }
            (outsize_checkpoint::IntegerWidth::U4, _) => {
                type $D = $crate::integers::Nibbles;
                $body
            }
            (outsize_checkpoint::IntegerWidth::U8, _) => {
                type $D = $crate::integers::Bytes<false>;
                $body
            }
            (outsize_checkpoint::IntegerWidth::I8, _) => {
                type $D = $crate::integers::Bytes<true>;
                $body
            }
        }
    };
}

pub(crate) use with_integers;

/// The f32 that an integer is worth, as [`BlockWeight`](crate::BlockWeight) has it: `zero` is a
/// byte as the integer.
pub fn integer_value(width: IntegerWidth, scales: Dtype, number: u8, zero: u8, scale: f32) -> f32 {
    let zero = widen_zero(width, zero);
    with_integers!(width, scales, D => D::element(&[number], 0, scale, zero))
}

/// Scales and zero points of a weight.
#[derive(Clone, Copy)]
pub(crate) struct Groups<'a> {
    /// That of the integers.
    pub(crate) width: IntegerWidth,
    /// The type of scales.
    pub(crate) dtype: Dtype,
    /// Columns of a group.
    pub(crate) columns: usize,
    /// Groups of a row.
    pub(crate) count: usize,
    /// Row after row.
    pub(crate) scales: &'a [u8],
    /// The same; none if they are in the middle.
    pub(crate) zeros: &'a [u8],
}

/// Groups of a row that are made ready at once: a multiple of any vector's lanes.
pub(crate) const GROUPS: usize = 64;

/// Scales of groups, and behind all of them the offsets that [`Decode`] makes of their zero points.
pub(crate) type Ready = [MaybeUninit<f32>; 2 * GROUPS];

/// Room for them.
pub(crate) const ROOM: Ready = [MaybeUninit::uninit(); 2 * GROUPS];

impl Groups<'_> {
    /// Writes scales and offsets of up to [`GROUPS`] groups of a row, from number `first` on;
    /// behind the last come arbitrary ones.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`; the weight has this row, and rows the first
    /// group.
    #[inline(always)]
    pub(crate) unsafe fn ready<V: Vector, D: Decode>(
        &self,
        row: usize,
        first: usize,
        to: &mut Ready,
    ) {
        let (start, count) = (row * self.count + first, GROUPS.min(self.count - first));
        let size = self.dtype.size();
        // Copied, since they may lie anywhere.
        let (mut words, mut zeros) = ([0u32; GROUPS], [0u8; GROUPS]);
        let from = &self.scales[start * size..(start + count) * size];
        let (scales, middle) = (words.as_mut_ptr(), self.width.middle());
        let to = to.as_mut_ptr().cast::<f32>();
        if !self.zeros.is_empty() {
            zeros[..count].copy_from_slice(&self.zeros[start..start + count]);
        }
        // SAFETY: the caller's promise; all are whole vectors, of which there are as many.
        unsafe {
            from.as_ptr().copy_to_nonoverlapping(scales.cast(), from.len());
            for at in (0..count).step_by(V::LANES) {
                let scale = match self.dtype {
                    Dtype::F16 => V::f16(scales.cast::<u16>().add(at)),
                    Dtype::BF16 => V::bf16(scales.cast::<u16>().add(at)),
                    _ => V::f32(scales.cast::<f32>().add(at)),
                };
                let zero = match (self.zeros, self.width) {
                    ([], _) => V::splat(widen_zero(self.width, middle)),
                    (_, IntegerWidth::I8) => V::i8(zeros.as_ptr().add(at)),
                    _ => V::u8(zeros.as_ptr().add(at)),
                };
                scale.store(to.add(at));
                D::offset(scale, zero).store(to.add(GROUPS + at));
            }
        }
    }

    /// The zero point of a group of a row.
    fn zero(&self, row: usize, group: usize) -> f32 {
        let zero = self.zeros.get(row * self.count + group);
        widen_zero(self.width, zero.copied().unwrap_or(self.width.middle()))
    }
}

for_each_isa! {
    /// Writes the f32 of every element of rows of so many bytes and columns.
    pub(crate) fn dequantize_integers<V>(
        data: &[u8],
        row: [usize; 2],
        groups: Groups<'_>,
        to: &mut [f32],
    ) {
        // SAFETY: this is compiled for the instructions of `V`.
        with_integers!(groups.width, groups.dtype, D => unsafe {
            dequantize::<V, D>(data, row, groups, to);
        });
    }
}

/// Writes the f32 of every element.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
unsafe fn dequantize<V: Vector, D: Decode>(
    data: &[u8],
    [row_bytes, columns]: [usize; 2],
    groups: Groups<'_>,
    to: &mut [f32],
) {
    let rows = data.chunks_exact(row_bytes);
    let mut ready = ROOM;
    for (number, (row, to)) in rows.zip(to.chunks_exact_mut(columns)).enumerate() {
        for (group, to) in to.chunks_mut(groups.columns).enumerate() {
            let (start, at) = (group * groups.columns, group % GROUPS);
            if at == 0 {
                // SAFETY: the caller's promise; these are a row and a group of it.
                unsafe { groups.ready::<V, D>(number, group, &mut ready) };
            }
            // SAFETY: this group is among those that were made ready last.
            let [scale, offset] =
                unsafe { [ready[at], ready[GROUPS + at]].map(|it| it.assume_init()) };
            let zero = groups.zero(number, group);
            let whole = if start.is_multiple_of(STEP) { to.len() / STEP * STEP } else { 0 };
            // SAFETY: the caller's promise.
            let of_group = unsafe { D::group::<V>(scale, offset) };
            let (steps, rest) = to.split_at_mut(whole);
            for (step, to) in steps.chunks_exact_mut(STEP).enumerate() {
                let from = &row[(start / STEP + step) * D::BYTES..][..D::BYTES];
                // SAFETY: the caller's promise; these are the bytes of a step, and as many
                // elements.
                unsafe {
                    let numbers = D::numbers::<V>(from.as_ptr());
                    for at in (0..STEP).step_by(V::LANES) {
                        D::elements::<V>(&numbers, at, &of_group).store(to.as_mut_ptr().add(at));
                    }
                }
            }
            for (at, to) in rest.iter_mut().enumerate() {
                *to = D::element(row, start + whole + at, scale, zero);
            }
        }
    }
}
