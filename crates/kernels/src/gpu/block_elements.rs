//! Elements of weights in blocks, decoded in registers.

use burn_cubecl::cubecl;
use cubecl::prelude::*;
use outsize_checkpoint::Dtype;

use super::products::widened_f16;

/// How elements lie in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockFormat {
    /// Numbers of 8 bits in floating point, with a scale for some rows and columns elsewhere.
    E4m3,
    /// GGUF's blocks of 32 numbers of 8 bits.
    Q8_0,
    /// Of 32 numbers of 4 bits.
    Q4_0,
    /// The same with an offset.
    Q4_1,
    /// Of 32 numbers of 5 bits.
    Q5_0,
    /// The same with an offset.
    Q5_1,
    /// Of 256 numbers of 2 bits.
    Q2K,
    /// Of 256 numbers of 3 bits.
    Q3K,
    /// Of 256 numbers of 4 bits.
    Q4K,
    /// Of 256 numbers of 5 bits.
    Q5K,
    /// Of 256 numbers of 6 bits.
    Q6K,
    /// Of 32 numbers of 4 bits that stand for those of a table.
    Iq4Nl,
    /// Of 256 such numbers.
    Iq4Xs,
    /// Of 32 numbers of 4 bits in floating point.
    Mxfp4,
    /// Such numbers by themselves, neighbours in a byte, with a scale for some elsewhere.
    F4,
}

impl BlockFormat {
    /// All, with the types of their elements.
    const ALL: [(Self, Dtype); 15] = [
        (Self::E4m3, Dtype::F8E4M3),
        (Self::Q8_0, Dtype::Q8_0),
        (Self::Q4_0, Dtype::Q4_0),
        (Self::Q4_1, Dtype::Q4_1),
        (Self::Q5_0, Dtype::Q5_0),
        (Self::Q5_1, Dtype::Q5_1),
        (Self::Q2K, Dtype::Q2K),
        (Self::Q3K, Dtype::Q3K),
        (Self::Q4K, Dtype::Q4K),
        (Self::Q5K, Dtype::Q5K),
        (Self::Q6K, Dtype::Q6K),
        (Self::Iq4Nl, Dtype::Iq4Nl),
        (Self::Iq4Xs, Dtype::Iq4Xs),
        (Self::Mxfp4, Dtype::Mxfp4),
        (Self::F4, Dtype::F4),
    ];

    /// The format of elements of a type, if it is known here.
    pub(super) fn of(dtype: Dtype) -> Option<Self> {
        Self::ALL.into_iter().find_map(|(format, of)| (of == dtype).then_some(format))
    }

    /// The type of its elements.
    pub(super) fn dtype(self) -> Dtype {
        // In the order of declaration.
        Self::ALL[self as usize].1
    }

    /// Whether scales are elsewhere.
    pub(super) fn has_scales_apart(self) -> bool {
        matches!(self, Self::E4m3 | Self::F4)
    }

    /// Whether the last sixteen bytes of a block are the lower 4 bits of 32 numbers.
    fn is_halves(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Iq4Nl)
    }
}

/// The four elements of a row from `column` on, a multiple of 4; without scales that are elsewhere.
/// Elements behind the last are anything.
#[cube]
pub(super) fn decode(
    words: &[u32],
    row: u32,
    column: u32,
    width: u32,
    four: &mut Array<f32>,
    #[comptime] format: BlockFormat,
) {
    if comptime!(format == BlockFormat::E4m3) {
        let bytes = word_at(words, row as usize * width as usize + column as usize);
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = widened_e4m3((bytes >> (8u32 * at)) & 0xffu32);
        }
    } else if comptime!(format == BlockFormat::Q8_0) {
        let block = block_of(row, column, width, 32u32, 34usize);
        let scale = f16_at(words, block);
        let bytes = word_at(words, block + 2 + (column % 32u32) as usize);
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = scale * signed((bytes >> (8u32 * at)) & 0xffu32);
        }
    } else if comptime!(format.is_halves()) {
        let size = comptime!(format.dtype().size());
        let block = block_of(row, column, width, 32u32, size);
        let scale = f16_at(words, block);
        let bytes = word_at(words, block + comptime!(size - 16) + (column % 16u32) as usize);
        let shift = column % 32u32 / 16u32 * 4u32;
        let mut fifths = 0u32;
        if comptime!(matches!(format, BlockFormat::Q5_0 | BlockFormat::Q5_1)) {
            fifths = word_at(words, block + comptime!(size - 20)) >> (column % 32u32);
        }
        #[unroll]
        for at in 0..4u32 {
            let fifth = ((fifths >> at) & 1u32) << 4u32;
            let number = ((bytes >> (8u32 * at + shift)) & 15u32) | fifth;
            let mut value = f32::cast_from(number);
            if comptime!(format == BlockFormat::Q4_0) {
                value -= 8.0f32;
            } else if comptime!(format == BlockFormat::Q5_0) {
                value -= 16.0f32;
            } else if comptime!(format == BlockFormat::Iq4Nl) {
                value = uneven(number);
            }
            value *= scale;
            if comptime!(matches!(format, BlockFormat::Q4_1 | BlockFormat::Q5_1)) {
                value += f16_at(words, block + 2);
            }
            four[at as usize] = value;
        }
    } else if comptime!(matches!(format, BlockFormat::Q4K | BlockFormat::Q5K)) {
        let size = comptime!(format.dtype().size());
        let block = block_of(row, column, width, 256u32, size);
        let inside = column % 256u32;
        let part = inside / 32u32;
        // Six bits each: those of the last four parts are in two places.
        let mut scale = byte_at(words, block + 4 + part as usize) & 63u32;
        let mut offset = byte_at(words, block + 8 + part as usize) & 63u32;
        if part >= 4u32 {
            let both = byte_at(words, block + 8 + part as usize);
            let upper = byte_at(words, block + part as usize) >> 6u32;
            scale = (both & 15u32) | (upper << 4u32);
            offset = (both >> 4u32) | (byte_at(words, block + 4 + part as usize) >> 6u32 << 4u32);
        }
        let factor = f16_at(words, block) * f32::cast_from(scale);
        let less = f16_at(words, block + 2) * f32::cast_from(offset);
        let first = block + comptime!(size - 128);
        let bytes = word_at(words, first + (inside / 64u32 * 32u32 + inside % 32u32) as usize);
        let shift = part % 2u32 * 4u32;
        let mut fifths = 0u32;
        if comptime!(format == BlockFormat::Q5K) {
            fifths = word_at(words, block + 16 + (inside % 32u32) as usize) >> part;
        }
        #[unroll]
        for at in 0..4u32 {
            let fifth = ((fifths >> (8u32 * at)) & 1u32) << 4u32;
            let number = ((bytes >> (8u32 * at + shift)) & 15u32) | fifth;
            four[at as usize] = factor * f32::cast_from(number) - less;
        }
    } else if comptime!(matches!(format, BlockFormat::Q2K | BlockFormat::Q3K)) {
        let size = comptime!(format.dtype().size());
        let block = block_of(row, column, width, 256u32, size);
        let inside = column % 256u32;
        let (group, part) = (inside / 16u32, inside / 32u32);
        let place = (inside / 128u32 * 32u32 + inside % 32u32) as usize;
        let shift = part % 4u32 * 2u32;
        if comptime!(format == BlockFormat::Q2K) {
            let both = byte_at(words, block + group as usize);
            let factor = f16_at(words, block + 80) * f32::cast_from(both & 15u32);
            let less = f16_at(words, block + 82) * f32::cast_from(both >> 4u32);
            let bytes = word_at(words, block + 16 + place);
            #[unroll]
            for at in 0..4u32 {
                let number = (bytes >> (8u32 * at + shift)) & 3u32;
                four[at as usize] = factor * f32::cast_from(number) - less;
            }
        } else {
            let low = byte_at(words, block + 96 + (group % 8u32) as usize) >> (group / 8u32 * 4u32);
            let high =
                byte_at(words, block + 104 + (group % 4u32) as usize) >> (group / 4u32 * 2u32);
            let scale = (low & 15u32) | ((high & 3u32) << 4u32);
            let factor = f16_at(words, block + 108) * (f32::cast_from(scale) - 32.0f32);
            let bytes = word_at(words, block + 32 + place) >> shift;
            let thirds = word_at(words, block + (inside % 32u32) as usize) >> part;
            #[unroll]
            for at in 0..4u32 {
                let third = ((thirds >> (8u32 * at)) & 1u32) << 2u32;
                let number = ((bytes >> (8u32 * at)) & 3u32) | third;
                four[at as usize] = factor * (f32::cast_from(number) - 4.0f32);
            }
        }
    } else if comptime!(format == BlockFormat::Iq4Xs) {
        let block = block_of(row, column, width, 256u32, 136usize);
        let inside = column % 256u32;
        let part = inside / 32u32;
        let low = word_at(words, block + 4) >> (4u32 * part);
        let high = word_at(words, block + 2) >> (2u32 * part);
        let scale = (low & 15u32) | ((high & 3u32) << 4u32);
        let factor = f16_at(words, block) * (f32::cast_from(scale) - 32.0f32);
        let bytes = word_at(words, block + 8 + (part * 16u32 + inside % 16u32) as usize);
        let shift = inside % 32u32 / 16u32 * 4u32;
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = factor * uneven((bytes >> (8u32 * at + shift)) & 15u32);
        }
    } else if comptime!(format == BlockFormat::Mxfp4) {
        let block = block_of(row, column, width, 32u32, 17usize);
        let scale = widened_e8m0(byte_at(words, block));
        let bytes = word_at(words, block + 1 + (column % 16u32) as usize);
        let shift = column % 32u32 / 16u32 * 4u32;
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = scale * widened_e2m1((bytes >> (8u32 * at + shift)) & 15u32);
        }
    } else if comptime!(format == BlockFormat::F4) {
        // Rows have an even number of elements, and begin with a byte.
        let bytes = word_at(words, (row as usize * width as usize + column as usize) / 2usize);
        #[unroll]
        for at in 0..4u32 {
            four[at as usize] = widened_e2m1((bytes >> (4u32 * at)) & 15u32);
        }
    } else {
        let block = block_of(row, column, width, 256u32, 210usize);
        let half = column % 256u32 / 128u32;
        let inside = column % 128u32;
        let low = word_at(words, block + (64u32 * half + inside % 64u32) as usize);
        let high = word_at(words, block + 128 + (32u32 * half + inside % 32u32) as usize);
        let low_shift = inside / 64u32 * 4u32;
        let high_shift = inside / 32u32 * 2u32;
        let scale = signed(byte_at(words, block + 192 + (8u32 * half + inside / 16u32) as usize));
        let factor = f16_at(words, block + 208) * scale;
        #[unroll]
        for at in 0..4u32 {
            let lower = (low >> (8u32 * at + low_shift)) & 15u32;
            let upper = (high >> (8u32 * at + high_shift)) & 3u32;
            let number = lower | (upper << 4u32);
            four[at as usize] = factor * (f32::cast_from(number) - 32.0f32);
        }
    }
}

/// Where the block of so many elements begins that has a column of a row.
#[cube]
fn block_of(
    row: u32,
    column: u32,
    width: u32,
    #[comptime] elements: u32,
    #[comptime] bytes: usize,
) -> usize {
    (row as usize * (width / elements) as usize + (column / elements) as usize) * bytes
}

/// Four bytes from any one on; those behind the last word are zero.
#[cube]
fn word_at(words: &[u32], byte: usize) -> u32 {
    let shift = (byte % 4usize) as u32 * 8u32;
    let at = byte / 4usize;
    let mut word = words[at] >> shift;
    if shift > 0u32 && at + 1 < words.len() {
        word |= words[at + 1] << (32u32 - shift);
    }
    word
}

#[cube]
fn byte_at(words: &[u32], byte: usize) -> u32 {
    (words[byte / 4usize] >> ((byte % 4usize) as u32 * 8u32)) & 0xffu32
}

/// The f16 at an even byte.
#[cube]
fn f16_at(words: &[u32], byte: usize) -> f32 {
    widened_f16((words[byte / 4usize] >> ((byte % 4usize) as u32 * 8u32)) & 0xffffu32)
}

/// A byte as a number with a sign.
#[cube]
fn signed(byte: u32) -> f32 {
    f32::cast_from(byte ^ 0x80u32) - 128.0f32
}

/// What a number of IQ4_NL and IQ4_XS stands for: a byte with a sign.
#[cube]
fn uneven(number: u32) -> f32 {
    let mut four = 0xbfad_9881u32;
    if number >= 12u32 {
        four = 0x7159_4535u32;
    } else if number >= 8u32 {
        four = 0x2619_0d01u32;
    } else if number >= 4u32 {
        four = 0xf6ea_ddcfu32;
    }
    signed((four >> (number % 4u32 * 8u32)) & 0xffu32)
}

/// An E2M1 (no infinity, no NaN) as f32.
#[cube]
fn widened_e2m1(number: u32) -> f32 {
    let magnitude = number & 7u32;
    // The fields in place, the exponent is too small by 127 - 1.
    let mut value = f32::from_bits((magnitude << 22u32) + 1_056_964_608u32);
    if magnitude < 2u32 {
        value = f32::cast_from(magnitude) * 0.5f32;
    }
    if number >= 8u32 {
        value = -value;
    }
    value
}

/// An E8M0, a power of two, as f32; the last is taken for infinity.
#[cube]
fn widened_e8m0(byte: u32) -> f32 {
    let mut bits = byte << 23u32;
    if byte == 0u32 {
        // 2⁻¹²⁷ is subnormal.
        bits = 4_194_304u32;
    }
    f32::from_bits(bits)
}

/// An E4M3 (no infinity, one NaN of each sign) as f32.
#[cube]
fn widened_e4m3(byte: u32) -> f32 {
    let magnitude = byte & 0x7fu32;
    // The fields in place, the exponent is too small by 127 - 7.
    let mut value = f32::from_bits((magnitude << 20u32) + 1_006_632_960u32);
    if magnitude < 8u32 {
        // Eighths of the least normal number, 2⁻⁶.
        value = f32::cast_from(magnitude) * 0.001953125f32;
    }
    if magnitude == 0x7fu32 {
        value = f32::from_bits(0x7f800000u32 | (magnitude << 16u32));
    }
    if byte >= 0x80u32 {
        value = -value;
    }
    value
}
