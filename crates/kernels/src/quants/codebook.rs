//! Eight numbers at a time out of a codebook, with a sign for each, or less or more by an eighth.

use super::f16_at;
use super::unpacked::Unpacked;
use crate::simd::Vector;

/// The entries of all codebooks, 16 bits each, as ggml's sources list them
/// (`scripts/fixtures/gguf_codebooks.py`).
static ENTRIES: &[u8; 9216] = include_bytes!("codebooks.bin");

static TWO_XXS: [u64; 256] = codebook(0, 2, &[8, 25, 43]);
static TWO_XS: [u64; 512] = codebook(256, 2, &[8, 25, 43]);
static TWO_S: [u64; 1024] = codebook(768, 2, &[8, 25, 43]);
/// Four numbers each.
static THREE_XXS: [u64; 256] = codebook(1792, 4, &[4, 12, 20, 28, 36, 44, 52, 62]);
static THREE_S: [u64; 512] = codebook(2048, 4, &[1, 3, 5, 7, 9, 11, 13, 15]);
/// Eight times the numbers, more by one and less by one.
static ONE: [[u64; 2048]; 2] = [codebook(2560, 2, &[-7, 1, 9]), codebook(2560, 2, &[-9, -1, 7])];

/// The entries from `first` on, of which each so many bits number one of `values`: as bytes with a
/// sign, the first in the lowest.
const fn codebook<const LEN: usize>(first: usize, bits: usize, values: &[i8]) -> [u64; LEN] {
    let mut entries = [0; LEN];
    let (mut at, width) = (0, 16 / bits);
    while at < width * LEN {
        let (number, place) = (at / width, at % width);
        let start = 2 * (first + number);
        let entry = u16::from_le_bytes([ENTRIES[start], ENTRIES[start + 1]]);
        let value = entry >> (bits * place) & ((1 << bits) - 1);
        entries[number] |= (values[value as usize] as u8 as u64) << (8 * place);
        at += 1;
    }
    entries
}

/// Of eight numbers those that change their sign: all bits of a byte.
static SIGNS: [u64; 256] = {
    let mut signs = [0; 256];
    let mut at = 0;
    while at < 256 * 8 {
        let (bits, place) = (at / 8, at % 8);
        signs[bits] |= (((bits >> place) & 1) as u64 * 255) << (8 * place);
        at += 1;
    }
    signs
};

/// Seven bits, and an eighth that makes the number of those that are set even.
static EVEN: [u8; 128] = {
    let mut even = [0; 128];
    let mut at = 0;
    while at < 128 {
        even[at] = at as u8 | ((at.count_ones() & 1) << 7) as u8;
        at += 1;
    }
    even
};

/// Eight numbers above zero, those whose bits are set with the sign changed.
#[inline(always)]
fn signed(numbers: u64, bits: u8) -> u64 {
    let signs = SIGNS[usize::from(bits)];
    // One more than all bits changed. No byte of them is full, so that nothing is carried over.
    (numbers ^ signs).wrapping_add(signs & 0x0101_0101_0101_0101)
}

/// The same with the sign of the last such that an even number changes it: number `at % 4` of those
/// in a word.
#[inline(always)]
fn evenly_signed(numbers: u64, word: u32, at: usize) -> u64 {
    signed(numbers, EVEN[(word >> (at % 4 * 7)) as usize & 127])
}

#[inline(always)]
fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

#[inline(always)]
fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from(u16_at(block, at)) | u32::from(u16_at(block, at + 2)) << 16
}

/// A half of a byte, of which each has two, the lower first.
#[inline(always)]
fn half_at(block: &[u8], at: usize, number: usize) -> u8 {
    block[at + number / 2] >> (number % 2 * 4) & 15
}

/// A format with a codebook: 256 numbers.
pub(crate) trait Codebook {
    /// The bytes of a block.
    type Block: AsRef<[u8]>;

    /// Elements that share a scale.
    const GROUP: usize;

    /// What all scales are multiplied by: a power of two.
    const UNIT: f32;

    /// The factor of all scales.
    ///
    /// # Safety
    ///
    /// The processor has the instructions of `V`.
    #[inline(always)]
    unsafe fn factor<V: Vector>(block: &[u8]) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { f16_at::<V>(block, 0) }
    }

    /// The scale of a group, less one and halved.
    fn scale(block: &[u8], group: usize) -> u8;

    /// Eight of the 32 times eight numbers: bytes with a sign.
    fn eight(block: &[u8], at: usize) -> u64;
}

impl<C: Codebook> Unpacked for C {
    type Block = C::Block;
    type Factors = [f32; 16];
    type Numbers = [[u8; 8]; 16];
    const ELEMENTS: [usize; 2] = [256, 128];
    const GROUP: usize = C::GROUP;

    #[inline(always)]
    unsafe fn factors<V: Vector>(block: &C::Block) -> [f32; 16] {
        let block = block.as_ref();
        // SAFETY: the caller's promise.
        let mut factors = [unsafe { C::factor::<V>(block) } * C::UNIT; 16];
        for (group, factor) in factors[..256 / C::GROUP].iter_mut().enumerate() {
            *factor *= f32::from(2 * C::scale(block, group) + 1);
        }
        factors
    }

    #[inline(always)]
    unsafe fn numbers<V: Vector>(block: &C::Block, step: usize) -> [[u8; 8]; 16] {
        let mut numbers = [[0; 8]; 16];
        for (at, numbers) in numbers.iter_mut().enumerate() {
            *numbers = C::eight(block.as_ref(), 16 * step + at).to_le_bytes();
        }
        numbers
    }
}

/// A factor; and for each 32 numbers four bytes that number entries, and in 32 bits four times
/// seven signs and a scale.
pub(crate) struct Iq2Xxs;

impl Codebook for Iq2Xxs {
    type Block = [u8; 66];
    const GROUP: usize = 32;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn scale(block: &[u8], group: usize) -> u8 {
        block[9 + 8 * group] >> 4
    }

    #[inline(always)]
    fn eight(block: &[u8], at: usize) -> u64 {
        let first = 2 + at / 4 * 8;
        let entry = TWO_XXS[usize::from(block[first + at % 4])];
        evenly_signed(entry, u32_at(block, first + 4), at)
    }
}

/// A factor; for each eight numbers 9 bits that number an entry, and seven signs; and scales of 4
/// bits.
pub(crate) struct Iq2Xs;

impl Codebook for Iq2Xs {
    type Block = [u8; 74];
    const GROUP: usize = 16;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn scale(block: &[u8], group: usize) -> u8 {
        half_at(block, 66, group)
    }

    #[inline(always)]
    fn eight(block: &[u8], at: usize) -> u64 {
        let word = u16_at(block, 2 + 2 * at);
        evenly_signed(TWO_XS[usize::from(word & 511)], u32::from(word >> 9), 0)
    }
}

/// A factor; of the numbers of 32 entries the lower bytes; as many bytes of signs; the upper 2 bits
/// of the entries' numbers; and scales of 4 bits.
pub(crate) struct Iq2S;

impl Codebook for Iq2S {
    type Block = [u8; 82];
    const GROUP: usize = 16;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn scale(block: &[u8], group: usize) -> u8 {
        half_at(block, 74, group)
    }

    #[inline(always)]
    fn eight(block: &[u8], at: usize) -> u64 {
        let high = usize::from(block[66 + at / 4] >> (at % 4 * 2) & 3);
        signed(TWO_S[usize::from(block[2 + at]) | high << 8], block[34 + at])
    }
}

/// A factor; the numbers of 64 entries of four; and for each 32 numbers 32 bits as in [`Iq2Xxs`].
pub(crate) struct Iq3Xxs;

impl Codebook for Iq3Xxs {
    type Block = [u8; 98];
    const GROUP: usize = 32;
    const UNIT: f32 = 0.25;

    #[inline(always)]
    fn scale(block: &[u8], group: usize) -> u8 {
        block[69 + 4 * group] >> 4
    }

    #[inline(always)]
    fn eight(block: &[u8], at: usize) -> u64 {
        let entry = |number: usize| THREE_XXS[usize::from(block[2 + number])];
        let word = u32_at(block, 66 + at / 4 * 4);
        evenly_signed(entry(2 * at) | entry(2 * at + 1) << 32, word, at)
    }
}

/// A factor; of the numbers of 64 entries of four the lower bytes, and the ninth bits; 32 bytes of
/// signs; and scales of 4 bits.
pub(crate) struct Iq3S;

impl Codebook for Iq3S {
    type Block = [u8; 110];
    const GROUP: usize = 32;
    const UNIT: f32 = 1.0;

    #[inline(always)]
    fn scale(block: &[u8], group: usize) -> u8 {
        half_at(block, 106, group)
    }

    #[inline(always)]
    fn eight(block: &[u8], at: usize) -> u64 {
        let entry = |number: usize| {
            let high = usize::from(block[66 + number / 8] >> (number % 8) & 1);
            THREE_S[usize::from(block[2 + number]) | high << 8]
        };
        signed(entry(2 * at) | entry(2 * at + 1) << 32, block[74 + at])
    }
}

/// A factor; of the numbers of 32 entries the lower bytes; and for each 32 numbers 16 bits: four
/// times three that number entries, a scale of three, and whether numbers are less.
pub(crate) struct Iq1S;

impl Codebook for Iq1S {
    type Block = [u8; 50];
    const GROUP: usize = 32;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    fn scale(block: &[u8], group: usize) -> u8 {
        block[35 + 2 * group] >> 4 & 7
    }

    #[inline(always)]
    fn eight(block: &[u8], at: usize) -> u64 {
        let word = u16_at(block, 34 + at / 4 * 2);
        let high = usize::from(word >> (at % 4 * 3) & 7);
        ONE[usize::from(word >> 15)][usize::from(block[2 + at]) | high << 8]
    }
}

/// Of the numbers of 32 entries the lower bytes; for each entry three more bits, and whether its
/// numbers are less; and four times 16 bits: four scales of three, and a quarter of the factor.
pub(crate) struct Iq1M;

impl Codebook for Iq1M {
    type Block = [u8; 56];
    const GROUP: usize = 16;
    const UNIT: f32 = 0.125;

    #[inline(always)]
    unsafe fn factor<V: Vector>(block: &[u8]) -> f32 {
        let quarter = |at: usize| u16::from(block[49 + 2 * at] >> 4) << (4 * at);
        // SAFETY: the caller's promise.
        unsafe { V::widen_f16(quarter(0) | quarter(1) | quarter(2) | quarter(3)) }
    }

    #[inline(always)]
    fn scale(block: &[u8], group: usize) -> u8 {
        (u16_at(block, 48 + group / 4 * 2) >> (group % 4 * 3) & 7) as u8
    }

    #[inline(always)]
    fn eight(block: &[u8], at: usize) -> u64 {
        let high = usize::from(half_at(block, 32, at));
        ONE[high >> 3][usize::from(block[at]) | (high & 7) << 8]
    }
}
