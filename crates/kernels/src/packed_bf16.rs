//! Packed bf16 ([`PackedBf16`]): packing and unpacking.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;

use half::bf16;
use outsize_checkpoint::PackedBf16;
use rayon::prelude::*;

use crate::{Isa, cast};

const GROUP: usize = PackedBf16::GROUP;

/// Finds how the rows of a bf16 matrix are packed, from all of its values.
#[derive(Clone, Debug)]
pub struct PackedBf16Scan {
    columns: usize,
    /// Elements of a block.
    block: usize,
    /// The most exponents of a block that are outside of its window, with three and with four bits.
    most_outside: [usize; 2],
}

impl PackedBf16Scan {
    /// Of a matrix with so many columns; none if these are no whole groups.
    pub fn new(columns: usize) -> Option<Self> {
        let block = PackedBf16::groups_of(columns)? * GROUP;
        Some(Self { columns, block, most_outside: [0; 2] })
    }

    /// Takes some blocks of the matrix into account.
    pub fn add(&mut self, values: &[bf16]) {
        let of_block = |values: &[bf16]| {
            let counts = counts(values);
            [3, 4].map(|bits| Window::best(&counts, bits).outside)
        };
        let most = |one: [usize; 2], other: [usize; 2]| [0, 1].map(|at| one[at].max(other[at]));
        let seen = values.par_chunks(self.block).map(of_block).reduce(|| [0; 2], most);
        self.most_outside = most(self.most_outside, seen);
    }

    /// How the rows are packed; none if that would save too little.
    pub fn finish(self) -> Option<PackedBf16> {
        PackedBf16::of_rows(self.columns, |bits| self.most_outside[bits - 3])
    }
}

/// Neighbouring exponents that take few bits.
struct Window {
    lowest: u8,
    /// How many exponents are none of them.
    outside: usize,
}

impl Window {
    /// The window of all numbers of so many bits but the last, that has the most exponents of which
    /// there are so many.
    fn best(counts: &[usize; 256], bits: usize) -> Self {
        let width = (1 << bits) - 1;
        let mut inside: usize = counts[..width].iter().sum();
        let (mut lowest, mut most) = (0, inside);
        for start in 1..=256 - width {
            inside = inside + counts[start + width - 1] - counts[start - 1];
            // Of those that have as many the last one: exponents below are rare.
            if inside >= most {
                (lowest, most) = (start, inside);
            }
        }
        Self { lowest: lowest as u8, outside: counts.iter().sum::<usize>() - most }
    }
}

/// How many values have each exponent.
fn counts(values: &[bf16]) -> [usize; 256] {
    let mut counts = [0; 256];
    for value in values {
        counts[usize::from(exponent(*value))] += 1;
    }
    counts
}

fn exponent(value: bf16) -> u8 {
    (value.to_bits() >> 7) as u8
}

/// Where element `at` of a group stands: turns four by four words of four around, and back again.
const fn position(at: usize) -> usize {
    (at % 4) | ((at >> 2) & 12) | ((at << 2) & 48)
}

/// Of an exponent, and a sign and mantissa.
fn unpacked(exponent: u8, number: u8) -> bf16 {
    let bits = u16::from(number & 0x80) << 8 | u16::from(exponent) << 7;
    bf16::from_bits(bits | u16::from(number & 0x7f))
}

/// Packs whole blocks.
///
/// # Panics
///
/// If these are no whole blocks, or if more exponents of one are outside of its window than there
/// is room for: [`PackedBf16Scan`] has seen other values.
pub fn pack_bf16(packed: PackedBf16, values: &[bf16]) -> Vec<u8> {
    let (elements, bytes) = sizes(packed);
    assert!(values.len().is_multiple_of(elements), "whole blocks of {elements}");
    let mut all = vec![0; values.len() / elements * bytes];
    let blocks = all.par_chunks_exact_mut(bytes).zip(values.par_chunks_exact(elements));
    blocks.for_each(|(to, values)| pack_block(packed, values, to));
    all
}

fn pack_block(packed: PackedBf16, values: &[bf16], to: &mut [u8]) {
    let bits = packed.exponent_bits();
    let Window { lowest, .. } = Window::best(&counts(values), bits);
    let (head, rest) = to.split_at_mut(packed.head());
    let (exponents, numbers) = rest.split_at_mut(packed.groups() * 8 * bits);
    let (first, mut outside) = head.split_first_mut().expect("a byte at least");
    *first = lowest;
    let all_ones = (1 << bits) - 1;
    let groups = exponents.chunks_exact_mut(8 * bits).zip(numbers.chunks_exact_mut(GROUP));
    for ((exponents, numbers), values) in groups.zip(values.chunks_exact(GROUP)) {
        let mut planes = [0u64; 4];
        for (place, number) in numbers.iter_mut().enumerate() {
            let value = values[position(place)];
            let exponent = exponent(value);
            let code = match exponent.checked_sub(lowest) {
                Some(code) if code < all_ones => code,
                _ => {
                    let (one, others) =
                        outside.split_first_mut().expect("room for all that are outside");
                    *one = exponent;
                    outside = others;
                    all_ones
                }
            };
            for (bit, plane) in planes.iter_mut().enumerate() {
                *plane |= u64::from(code >> bit & 1) << place;
            }
            *number = ((value.to_bits() >> 8) as u8 & 0x80) | (value.to_bits() as u8 & 0x7f);
        }
        for (to, plane) in exponents.chunks_exact_mut(8).zip(planes) {
            to.copy_from_slice(&plane.to_le_bytes());
        }
    }
}

/// Elements and bytes of a block.
fn sizes(packed: PackedBf16) -> (usize, usize) {
    let block = outsize_checkpoint::Dtype::PackedBf16(packed).block();
    (block.elements, block.bytes)
}

/// Unpacks whole blocks, of which there are as many as `to` has room for.
///
/// # Panics
///
/// If there are more or fewer, or if this processor does not have `isa`.
pub(crate) fn unpack(isa: Isa, packed: PackedBf16, blocks: &[u8], to: &mut [bf16]) {
    let (elements, bytes) = sizes(packed);
    assert!(isa.is_available(), "this processor does not have {isa:?}");
    assert!(to.len().is_multiple_of(elements), "whole blocks of {elements}");
    assert_eq!(blocks.len(), to.len() / elements * bytes, "as many blocks");
    let each = blocks.chunks_exact(bytes).zip(to.chunks_exact_mut(elements));
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 if avx512::is_available() => {
            for (block, to) in each {
                // SAFETY: the processor has these instructions; a block is as long as its sizes
                // say, and there is room for its elements.
                unsafe { avx512::unpack(packed, block, to) };
            }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => {
            for (block, to) in each {
                // SAFETY: as above.
                unsafe { avx2::unpack(packed, block, to) };
            }
        }
        _ => each.for_each(|(block, to)| unpack_block(packed, block, to)),
    }
}

/// The same, widened to f32.
pub(crate) fn widen(isa: Isa, packed: PackedBf16, blocks: &[u8], to: &mut [f32]) {
    let (elements, bytes) = sizes(packed);
    let mut narrow = vec![bf16::ZERO; elements];
    for (block, to) in blocks.chunks_exact(bytes).zip(to.chunks_exact_mut(elements)) {
        unpack(isa, packed, block, &mut narrow);
        cast::bf16_to_f32(&narrow, to);
    }
}

/// The same of one block, in plain Rust.
fn unpack_block(packed: PackedBf16, block: &[u8], to: &mut [bf16]) {
    let bits = packed.exponent_bits();
    let (head, rest) = block.split_at(packed.head());
    let (exponents, numbers) = rest.split_at(packed.groups() * 8 * bits);
    let all_ones = (1 << bits) - 1;
    let (lowest, mut outside) = (head[0], head[1..].iter());
    let groups = exponents.chunks_exact(8 * bits).zip(numbers.chunks_exact(GROUP));
    for ((exponents, numbers), to) in groups.zip(to.chunks_exact_mut(GROUP)) {
        let planes = exponents.as_chunks().0;
        let mut codes = [0u8; GROUP];
        for (bit, plane) in planes.iter().enumerate() {
            let plane = u64::from_le_bytes(*plane);
            for (place, code) in codes.iter_mut().enumerate() {
                *code |= ((plane >> place & 1) as u8) << bit;
            }
        }
        for (place, (code, number)) in codes.iter().zip(numbers).enumerate() {
            // There are no more where a file was damaged.
            let exponent = match *code == all_ones {
                true => outside.next().copied().unwrap_or_default(),
                false => lowest.wrapping_add(*code),
            };
            to[position(place)] = unpacked(exponent, *number);
        }
    }
}

#[cfg(test)]
mod tests;
