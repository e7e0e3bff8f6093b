//! From the checkpoint's types to Burn's, and conversions on the way in.

use crate::integers;
use crate::loaded_scales::Scales;
use burn::tensor::{BoolStore, DType};
use half::{bf16, f16};
use outsize_checkpoint::{Dtype, StoredWeight};
use outsize_kernels::{BlockWeight, widen_e4m3};
use outsize_stream::Convert;

/// Burn's name for a type of a checkpoint.
pub(crate) fn burn_type(dtype: Dtype) -> DType {
    match dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        // Burn has no floats of 8 bits; all of these are floats of 16 bits.
        Dtype::F8E4M3 | Dtype::F8E5M2 => DType::BF16,
        // `float` refuses these, and what they are called here means nothing.
        Dtype::U8 | Dtype::F8E8M0 => DType::U8,
        Dtype::Bool => DType::Bool(BoolStore::Native),
        // Nor are blocks.
        _ => DType::U8,
    }
}

/// A function over whole elements from one over a single element, in little-endian bytes.
macro_rules! each {
    ($from:ty => $to:ty, $one:expr) => {{
        fn run(from: &[u8], to: &mut [u8]) {
            let one: fn($from) -> $to = $one;
            let (from, _) = from.as_chunks();
            let (to, _) = to.as_chunks_mut();
            for (from, to) in from.iter().zip(to) {
                *to = one(<$from>::from_le_bytes(*from)).to_le_bytes();
            }
        }
        run
    }};
}

/// Rounded to odd: one of the two f32 beside a value that is none, that with an odd last bit.
/// Rounded once more, to 16 bits and the nearest, it becomes what the value itself would (Boldo and
/// Melquiond 2008). `half` cuts an f64 first.
fn odd(value: f64) -> f32 {
    let nearest = value as f32;
    if f64::from(nearest) == value || value.is_nan() {
        return nearest;
    }
    let beyond = u32::from(f64::from(nearest).abs() > value.abs());
    f32::from_bits((nearest.to_bits() - beyond) | 1)
}

/// The bf16 that an f32 is, if it is one.
fn upper(value: f32) -> u16 {
    (value.to_bits() >> 16) as u16
}

/// The f32 of an E5M2, which is the upper half of an f16.
fn widen_e5m2(byte: u8) -> f32 {
    f16::from_bits(u16::from(byte) << 8).to_f32()
}

/// The conversion of floats from the type in the file to the type in memory. `Ok(None)` if they are
/// the same, an error if there is no such conversion.
pub(crate) fn float(from: Dtype, to: DType) -> Result<Option<Convert>, NoConversion> {
    let run: fn(&[u8], &mut [u8]) = match (from, to) {
        (Dtype::F64, DType::F64)
        | (Dtype::F32, DType::F32)
        | (Dtype::F16, DType::F16)
        | (Dtype::BF16, DType::BF16) => return Ok(None),
        // A bf16 is the upper half of an f32.
        (Dtype::BF16, DType::F32) => each!(u16 => u32, |bits| u32::from(bits) << 16),
        (Dtype::F16, DType::F32) => each!(f16 => f32, f16::to_f32),
        (Dtype::F64, DType::F32) => each!(f64 => f32, |value| value as f32),
        (Dtype::F32, DType::BF16) => each!(f32 => bf16, bf16::from_f32),
        (Dtype::F32, DType::F16) => each!(f32 => f16, f16::from_f32),
        (Dtype::F16, DType::BF16) => each!(f16 => bf16, |value| bf16::from_f32(value.to_f32())),
        (Dtype::BF16, DType::F16) => each!(bf16 => f16, |value| f16::from_f32(value.to_f32())),
        (Dtype::F64, DType::BF16) => each!(f64 => bf16, |value| bf16::from_f32(odd(value))),
        (Dtype::F64, DType::F16) => each!(f64 => f16, |value| f16::from_f32(odd(value))),
        (Dtype::F32, DType::F64) => each!(f32 => f64, f64::from),
        (Dtype::F16, DType::F64) => each!(f16 => f64, f16::to_f64),
        (Dtype::BF16, DType::F64) => each!(bf16 => f64, bf16::to_f64),
        // Exact in both, as they have fewer bits of each kind than a bf16.
        (Dtype::F8E4M3, DType::BF16) => each!(u8 => u16, |byte| upper(widen_e4m3(byte))),
        (Dtype::F8E5M2, DType::BF16) => each!(u8 => u16, |byte| upper(widen_e5m2(byte))),
        (Dtype::F8E4M3, DType::F32) => each!(u8 => f32, widen_e4m3),
        (Dtype::F8E5M2, DType::F32) => each!(u8 => f32, widen_e5m2),
        _ => return Err(NoConversion),
    };
    let convert = Convert::new(from.size(), to.size(), move |_, from, to| run(from, to));
    Ok(Some(convert))
}

/// The same of a convolution of films of so many `frames`, each a `window` of numbers, of which the
/// last frame is held. A number takes so many bytes in the file and in memory.
pub(crate) fn last_frame(
    convert: Option<Convert>,
    [from, to]: [usize; 2],
    window: usize,
    frames: usize,
) -> Convert {
    let (film, last) = (from * window * frames, from * window * (frames - 1));
    Convert::new(film, to * window, move |_, raw, held| {
        for (film, held) in raw.chunks_exact(film).zip(held.chunks_exact_mut(to * window)) {
            match &convert {
                Some(convert) => convert.run(0, &film[last..], held),
                None => held.copy_from_slice(&film[last..]),
            }
        }
    })
}

/// The conversion of a weight in blocks to floats, which needs its scales.
pub(crate) fn dequantize(
    weight: &StoredWeight,
    to: DType,
    scales: &Scales,
) -> Result<Convert, NoConversion> {
    let narrow = float(Dtype::F32, to)?;
    if weight.format().as_integers().is_some() {
        return integers::dequantize(weight, to.size(), narrow, scales).ok_or(NoConversion);
    }
    let (weight, scales) = (weight.clone(), scales.clone());
    let block = weight.format().encoding.block();
    let (from, size) = (block.bytes, block.elements * to.size());
    Ok(Convert::new(from, size, move |offset, raw, held| {
        let scales = scales.get().map_or(&[][..], |loaded| &loaded.scales);
        let first = (offset - weight.data().offset) as usize / block.bytes * block.elements;
        for_each_scale(&weight, first, raw, scales, |at, values| {
            let held = &mut held[at * to.size()..][..values.len() * to.size()];
            let (wide, _) = held.as_chunks_mut::<4>();
            match &narrow {
                None => {
                    (wide.iter_mut().zip(values)).for_each(|(to, from)| *to = from.to_le_bytes())
                }
                Some(narrow) => {
                    let raw: Vec<u8> =
                        values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    narrow.run(0, &raw, held);
                }
            }
        });
    }))
}

/// Dequantizes elements from number `first` of the weight on, and gives them to `write` scale by
/// scale, each with its number among these.
fn for_each_scale(
    weight: &StoredWeight,
    first: usize,
    raw: &[u8],
    scales: &[u8],
    mut write: impl FnMut(usize, &[f32]),
) {
    let format = weight.format();
    let block = format.encoding.block();
    let &[_, columns] = &weight.data().shape[..] else {
        return;
    };
    // Blocks that hold their scales have none here, of no bytes.
    let [height, width] = format.scales.map_or([1, columns], |grid| grid.block);
    let size = format.scales.map_or(0, |grid| grid.dtype.size());
    let count = raw.len() / block.bytes * block.elements;
    let mut values = vec![0.0; width.min(columns)];
    let mut at = 0;
    while at < count {
        let (row, column) = ((first + at) / columns, (first + at) % columns);
        let len = (width - column % width).min(columns - column).min(count - at);
        let raw = &raw[at / block.elements * block.bytes..][..len / block.elements * block.bytes];
        let scale =
            (weight.skipped_rows() + row) / height * columns.div_ceil(width) + column / width;
        let scale = scales.get(scale * size..(scale + 1) * size);
        let values = &mut values[..len];
        // Without scales, which are read before anything else, there is no value.
        match scale.and_then(|scale| BlockWeight::new(format, [1, len], raw, scale, 0)) {
            Some(one) => one.dequantize(0..1, values),
            None => values.fill(f32::NAN),
        }
        write(at, values);
        at += len;
    }
}

/// One integer of a checkpoint; nothing if it is of another type.
pub(crate) fn integer(dtype: Dtype, raw: &[u8]) -> Option<i64> {
    Some(match (dtype, raw) {
        (Dtype::I64, raw) => i64::from_le_bytes(raw.try_into().ok()?),
        (Dtype::I32, raw) => i32::from_le_bytes(raw.try_into().ok()?).into(),
        (Dtype::I16, raw) => i16::from_le_bytes(raw.try_into().ok()?).into(),
        (Dtype::I8, raw) => i8::from_le_bytes(raw.try_into().ok()?).into(),
        (Dtype::U64, raw) => u64::from_le_bytes(raw.try_into().ok()?).try_into().ok()?,
        (Dtype::U32, raw) => u32::from_le_bytes(raw.try_into().ok()?).into(),
        (Dtype::U16, raw) => u16::from_le_bytes(raw.try_into().ok()?).into(),
        (Dtype::U8, [byte]) => (*byte).into(),
        _ => return None,
    })
}

/// Writes an integer as the device holds it; nothing if it does not fit.
pub(crate) fn push_integer(value: i64, to: DType, out: &mut Vec<u8>) -> Option<()> {
    match to {
        DType::I64 => out.extend(value.to_le_bytes()),
        DType::I32 => out.extend(i32::try_from(value).ok()?.to_le_bytes()),
        DType::I16 => out.extend(i16::try_from(value).ok()?.to_le_bytes()),
        DType::I8 => out.extend(i8::try_from(value).ok()?.to_le_bytes()),
        DType::U64 => out.extend(u64::try_from(value).ok()?.to_le_bytes()),
        DType::U32 => out.extend(u32::try_from(value).ok()?.to_le_bytes()),
        DType::U16 => out.extend(u16::try_from(value).ok()?.to_le_bytes()),
        DType::U8 => out.extend(u8::try_from(value).ok()?.to_le_bytes()),
        _ => return None,
    }
    Some(())
}

/// There is no conversion between these types.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoConversion;

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: Dtype, to: DType, bytes: &[u8]) -> Vec<u8> {
        let convert = float(from, to).unwrap().unwrap();
        let mut out = vec![0; bytes.len() / convert.from * convert.to];
        convert.run(0, bytes, &mut out);
        out
    }

    #[test]
    fn every_half_value_survives_widening() {
        for bits in 0..=u16::MAX {
            let raw = bits.to_le_bytes();
            let from_bf16 = run(Dtype::BF16, DType::F32, &raw);
            assert_eq!(from_bf16, (u32::from(bits) << 16).to_le_bytes());
            let from_f16 = run(Dtype::F16, DType::F32, &raw);
            assert_eq!(from_f16, f16::from_bits(bits).to_f32().to_le_bytes());
        }
    }

    #[test]
    fn every_value_of_8_bits_is_one_of_16() {
        for byte in 0..=u8::MAX {
            let e4m3 = run(Dtype::F8E4M3, DType::BF16, &[byte]);
            let found = bf16::from_le_bytes([e4m3[0], e4m3[1]]).to_f32();
            let (sign, exponent) = (f32::from(1 - 2 * i8::from(byte > 0x7f)), byte >> 3 & 15);
            let (mantissa, power) = match exponent {
                0 => (f32::from(byte & 7) / 8.0, -6),
                _ => (1.0 + f32::from(byte & 7) / 8.0, i32::from(exponent) - 7),
            };
            match byte & 0x7f {
                0x7f => assert!(found.is_nan()),
                _ => assert_eq!(found, sign * mantissa * 2f32.powi(power), "{byte:x}"),
            }
            let e5m2 = run(Dtype::F8E5M2, DType::BF16, &[byte]);
            let found = bf16::from_le_bytes([e5m2[0], e5m2[1]]).to_f32();
            let wanted = f16::from_le_bytes([0, byte]).to_f32();
            assert!(found == wanted || found.is_nan() && wanted.is_nan(), "{byte:x}");
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        // Half-way between two bf16 values: the even one.
        for (value, wanted) in [(1.0 + 1.0 / 256.0, 0x3f80_u16), (1.0 + 3.0 / 256.0, 0x3f82)] {
            let value: f32 = value;
            assert_eq!(run(Dtype::F32, DType::BF16, &value.to_le_bytes()), wanted.to_le_bytes());
        }
    }

    /// Whether `bits` are those of the nearest of all 16-bit values, the even one of two.
    fn is_nearest(value: f64, bits: u16, to_f64: impl Fn(u16) -> f64) -> bool {
        let error = |bits: u16| (to_f64(bits) - value).abs();
        let beside = [bits.checked_sub(1), bits.checked_add(1)];
        beside.into_iter().flatten().filter(|other| to_f64(*other).is_finite()).all(|other| {
            error(bits) < error(other) || error(bits) == error(other) && bits.is_multiple_of(2)
        })
    }

    proptest::proptest! {
        /// Beside the middle of two values, by as little as an f64 can be.
        #[test]
        fn f64_is_rounded_once(bits in 1u16..0x7a00, step in -3i64..4, wide: bool) {
            let (bf16, half) = (|bits| bf16::from_bits(bits).to_f64(), |bits| f16::from_bits(bits).to_f64());
            for (to, to_f64) in [(DType::BF16, &bf16 as &dyn Fn(u16) -> f64), (DType::F16, &half)] {
                let middle = (to_f64(bits) + to_f64(bits + 1)) / 2.0;
                let step = if wide { step << 20 } else { step };
                let value = f64::from_bits(middle.to_bits().wrapping_add_signed(step));
                for sign in [1.0, -1.0] {
                    let found = run(Dtype::F64, to, &(sign * value).to_le_bytes());
                    let found = u16::from_le_bytes([found[0], found[1]]);
                    proptest::prop_assert_eq!(found >> 15 == 1, sign < 0.0);
                    proptest::prop_assert!(is_nearest(value, found & 0x7fff, to_f64), "{value:e} {found:x}");
                }
            }
        }
    }

    #[test]
    fn of_films_the_last_frame_is_held() {
        let film: Vec<u8> = (0..3u16 * 2 * 2).flat_map(|n| (n << 7).to_le_bytes()).collect();
        for (to, size) in [(DType::BF16, 2), (DType::F32, 4)] {
            let convert = last_frame(float(Dtype::BF16, to).unwrap(), [2, size], 2, 3);
            assert_eq!((convert.from, convert.to), (12, 2 * size));
            let mut held = vec![0; 2 * 2 * size];
            convert.run(0, &film, &mut held);
            let kept = [4u16, 5, 10, 11].map(|n| (n << 7).to_le_bytes());
            // A bf16 is the upper half of an f32.
            let wanted = kept.map(|bits| [vec![0; size - 2], bits.to_vec()].concat());
            assert_eq!(held, wanted.concat());
        }
    }

    #[test]
    fn integers_are_no_floats() {
        assert_eq!(float(Dtype::I32, DType::F32).unwrap_err(), NoConversion);
    }
}
