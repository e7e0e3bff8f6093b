use std::path::Path;

use outsize_checkpoint::Checkpoint;
use proptest::prelude::*;

use super::*;

/// The value of an E4M3 by its definition.
fn value_of(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f64::NAN,
        (0, _) => mantissa / 8.0 * 2f64.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

#[test]
fn every_e4m3_widens_exactly() {
    assert_eq!(value_of(0x7e), 448.0);
    for byte in 0..=255 {
        let (found, wanted) = (widen_e4m3(byte), value_of(byte));
        assert_eq!(found.is_nan(), wanted.is_nan());
        assert_eq!(found.is_sign_negative(), byte & 0x80 != 0);
        assert!(found.is_nan() || f64::from(found) == wanted, "{byte:#x}");
    }
}

proptest! {
    #[test]
    fn narrowing_takes_the_nearest(value in prop_oneof![-500f32..500.0, -0.05f32..0.05]) {
        let found = narrow_e4m3(value);
        let wanted = f64::from(value.clamp(-448.0, 448.0));
        let distance = |byte: u8| (value_of(byte) - wanted).abs();
        let finite = || (0..=255u8).filter(|byte| byte & 0x7f != 0x7f);
        for byte in finite() {
            prop_assert!(distance(found) <= distance(byte), "{value}: {found:#x}, not {byte:#x}");
            let tie = distance(found) == distance(byte) && value_of(found) != value_of(byte);
            prop_assert!(!tie || found & 1 == 0, "{value}: {found:#x} is odd");
        }
    }
}

#[test]
fn quantizing_keeps_the_largest_of_each_block() {
    let format = StorageFormat::fp8([2, 3]);
    let values: Vec<f32> = (0..15).map(|at| (at as f32 - 7.0) * 0.3).collect();
    let weight = BlockWeight::quantize(format, [3, 5], &values).unwrap();
    assert_eq!((weight.data().len(), weight.scales().len()), (15, 4 * 4));
    let mut found = vec![0.0; 15];
    weight.dequantize(0..3, &mut found);
    for (found, wanted) in found.iter().zip(&values) {
        assert!((found - wanted).abs() <= 0.07 * wanted.abs(), "{found} {wanted}");
    }
    assert!(BlockWeight::quantize(format, [3, 4], &values).is_none());
    let zeros = BlockWeight::quantize(format, [2, 2], &[0.0; 4]).unwrap();
    assert!(zeros.data().iter().all(|byte| *byte == 0));
}

proptest! {
    /// Of the numbers of 4 bits times the scale the nearest, and the scale as the format's
    /// specification has it.
    #[test]
    fn quantizing_to_four_bits_takes_the_nearest(
        values in prop::collection::vec(-3f32..3.0, 64), power in -126i32..120, code in 0u8..16,
    ) {
        let values: Vec<f32> = values.iter().map(|value| value * 2f32.powi(power)).collect();
        let format = StorageFormat::mxfp4();
        let weight = BlockWeight::quantize(format, [2, 32], &values).unwrap();
        let mut found = vec![0.0; 64];
        weight.dequantize(0..2, &mut found);
        for (row, (values, found)) in values.chunks(32).zip(found.chunks(32)).enumerate() {
            let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
            let scale = 2f64.powi((largest.log2().floor() as i32 - 2).max(-127));
            prop_assert_eq!(2f64.powi(i32::from(weight.scales()[row]) - 127), scale);
            let other = value_of_e2m1(code) * scale;
            for (value, found) in values.iter().zip(found) {
                let [found, value] = [*found, *value].map(f64::from);
                let value = value.clamp(-6.0 * scale, 6.0 * scale);
                prop_assert!((found - value).abs() <= (other - value).abs(), "{value:e}: {found:e}, not {other:e}");
            }
        }
        prop_assert!(BlockWeight::quantize(format, [1, 33], &values[..33]).is_none());
    }
}

proptest! {
    /// Of numbers of 8 bits times a power of two: as near as they can be, the largest not cut.
    #[test]
    fn scales_may_be_powers_of_two(
        values in prop::collection::vec(-3f32..3.0, 60), power in -100i32..100,
    ) {
        let values: Vec<f32> = values.iter().map(|value| value * 2f32.powi(power)).collect();
        let format = StorageFormat::deepseek_v4_fp8([2, 4]);
        let weight = BlockWeight::quantize(format, [6, 10], &values).unwrap();
        prop_assert_eq!(weight.scales().len(), 3 * 3);
        let mut found = vec![0.0; 60];
        weight.dequantize(0..6, &mut found);
        for (at, (value, found)) in values.iter().zip(found).enumerate() {
            let scale = weight.scales()[at / 10 / 2 * 3 + at % 10 / 4];
            // Three bits behind the point, or steps of the least number.
            let least = 2f32.powi(i32::from(scale) - 127 - 9);
            prop_assert!((found - value).abs() <= (value.abs() / 16.0).max(least / 2.0) * 1.001);
        }
    }
}

#[test]
fn four_bits_of_nothing_and_ties() {
    let ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].map(narrow::narrow_e2m1);
    assert_eq!(ties, [0, 2, 2, 4, 4, 6, 6]);
    let nothing = BlockWeight::quantize(StorageFormat::mxfp4(), [1, 32], &[0.0; 32]).unwrap();
    assert_eq!((nothing.data(), nothing.scales()), (&[0; 16][..], &[0][..]));
}

/// A scale of any size, and now and then one that no checkpoint has.
fn scale() -> impl Strategy<Value = f32> {
    prop_oneof![8 => 1e-6f32..10.0, 1 => any::<u32>().prop_map(f32::from_bits)]
}

proptest! {
    /// Every element is its value times its scale, rounded once, with every set of instructions
    /// and in any rows of the whole.
    #[test]
    fn elements_are_scaled_by_their_block(
        (rows, columns) in (1usize..20, 1usize..300), block in (1usize..9, 1usize..150), skipped in 0usize..9,
        bytes in prop::collection::vec(any::<u8>(), 6000), scales in prop::collection::vec(scale(), 600),
        cut in (0usize..20, 0usize..20),
    ) {
        let format = StorageFormat::fp8([block.0, block.1]);
        let [height, width] = format.scales.unwrap().shape([rows + skipped, columns]);
        let data: Vec<u8> = bytes.iter().copied().cycle().take(rows * columns).collect();
        let scales: Vec<f32> = scales.iter().copied().cycle().take(height * width).collect();
        let raw: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let weight = BlockWeight::new(format, [rows, columns], &data[..], &raw[..], skipped).unwrap();
        let start = cut.0.min(rows);
        let some = start..(start + cut.1).min(rows);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut found = vec![1.0; some.len() * columns];
            weight.slice(some.clone()).dequantize_with(isa, &mut found);
            for (at, found) in found.iter().enumerate() {
                let (row, column) = (some.start + at / columns, at % columns);
                let scale = scales[(skipped + row) / block.0 * width + column / block.1];
                // Exact in f64 but for the scale, which is an f32: rounded once.
                let wanted = (value_of(data[row * columns + column]) * f64::from(scale)) as f32;
                prop_assert!(
                    found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
                    "{isa:?}: {found} is not {wanted}"
                );
            }
        }
    }
}

/// Random blocks of every type, and what `gguf` makes of them (`scripts/fixtures/gguf_blocks.py`).
#[test]
fn blocks_of_gguf_are_those_of_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/gguf_blocks.safetensors");
    let fixture = Checkpoint::open(Path::new(path)).unwrap();
    let read = |name: String| fixture.read(fixture.get(&name).unwrap()).unwrap();
    for dtype in Dtype::GGUF_BLOCKS {
        let (data, wanted) = (read(format!("{dtype}.blocks")), read(format!("{dtype}.values")));
        let wanted: Vec<f32> =
            wanted.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect();
        let format = StorageFormat::plain(dtype);
        let weight = BlockWeight::new(format, [1, wanted.len()], &data[..], &[], 0).unwrap();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut found = vec![1.0; wanted.len()];
            weight.dequantize_with(isa, &mut found);
            for (at, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                // Its zeros have a sign only here.
                let zeros = dtype == Dtype::Mxfp4 && [*found, *wanted] == [0.0; 2];
                let nans = found.is_nan() && wanted.is_nan();
                let same = found.to_bits() == wanted.to_bits() || zeros || nans;
                assert!(same, "{dtype}, {isa:?} at {at}: {found} is not {wanted}");
            }
        }
    }
}

#[test]
fn wrong_lengths_are_refused() {
    let format = StorageFormat::fp8([2, 2]);
    let (data, scales) = ([0; 15], [0; 16]);
    let new = |shape, data, scales, skipped| {
        BlockWeight::<&[u8]>::new(format, shape, data, scales, skipped).is_some()
    };
    assert!(new([3, 4], &data[..12], &scales, 0));
    assert!(!new([3, 4], &data[..11], &scales, 0));
    assert!(!new([3, 4], &data[..12], &scales[..15], 0));
    assert!(!new([3, 4], &data[..12], &scales, 2));
    assert!(!new([usize::MAX, 4], &data, &scales, 0));
    assert!(!new([3, 4], &data[..12], &scales, usize::MAX));
    let plain = StorageFormat::plain(Dtype::F8E4M3);
    assert!(BlockWeight::new(plain, [3, 4], &data[..12], &scales[..], 0).is_none());
}

/// The values of E2M1 by their bits: 2 of exponent, of bias 1, and 1 of mantissa, under a sign.
fn value_of_e2m1(bits: u8) -> f64 {
    let magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let magnitude = magnitudes[usize::from(bits & 7)];
    if bits & 8 == 0 { magnitude } else { -magnitude }
}

/// The value of an E8M0, of which the last stands for no number.
fn value_of_e8m0(byte: u8) -> f64 {
    if byte == 255 { f64::INFINITY } else { 2f64.powi(i32::from(byte) - 127) }
}

/// The value of an element of 32 whose bytes are these, in GGUF's order or in that of neighbours.
fn value_in_mxfp4(format: StorageFormat, bytes: &[u8], scale: u8, at: usize) -> f32 {
    let (byte, is_upper) = match format.scales {
        None => (bytes[at % 16], at >= 16),
        Some(_) => (bytes[at / 2], at % 2 == 1),
    };
    // Exact in f64: rounded once.
    (value_of_e2m1(if is_upper { byte >> 4 } else { byte & 15 }) * value_of_e8m0(scale)) as f32
}

/// A weight in one of the forms of MXFP4, of blocks that each have a scale.
fn mxfp4(
    format: StorageFormat,
    shape: [usize; 2],
    blocks: &[([u8; 16], u8)],
) -> BlockWeight<Vec<u8>> {
    let (mut data, mut scales) = (vec![], vec![]);
    let across = shape[1].div_ceil(32);
    for (at, (numbers, scale)) in blocks.iter().cycle().take(shape[0] * across).enumerate() {
        let cut = shape[1] - at % across * 32;
        match format.scales {
            None => data.push(*scale),
            Some(_) => scales.push(*scale),
        }
        data.extend(&numbers[..cut.min(32) / 2]);
    }
    BlockWeight::new(format, shape, data, scales, 0).unwrap()
}

/// Both forms.
const MXFP4: [StorageFormat; 2] = [StorageFormat::mxfp4(), StorageFormat::plain(Dtype::Mxfp4)];

/// Checks the rows `some` with every set of instructions.
fn check_mxfp4(weight: &BlockWeight<Vec<u8>>, blocks: &[([u8; 16], u8)], some: Range<usize>) {
    let columns = weight.shape()[1];
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let mut found = vec![1.0; some.len() * columns];
        weight.view().slice(some.clone()).dequantize_with(isa, &mut found);
        for (at, found) in found.iter().enumerate() {
            let (row, column) = (some.start + at / columns, at % columns);
            let block = row * columns.div_ceil(32) + column / 32;
            let (bytes, scale) = blocks[block % blocks.len()];
            let wanted = value_in_mxfp4(weight.format(), &bytes, scale, column % 32);
            assert!(
                found.to_bits() == wanted.to_bits() || found.is_nan() && wanted.is_nan(),
                "{isa:?} [{row}, {column}]: {found} is not {wanted}"
            );
        }
    }
}

/// Every number with every scale, in every place.
#[test]
fn every_mxfp4_is_its_number_times_its_scale() {
    for format in MXFP4 {
        let numbers = |first: u8| std::array::from_fn(|at| (at as u8 + first).wrapping_mul(0x11));
        let blocks: Vec<_> =
            (0..=255).flat_map(|scale| (0..16).map(move |first| (numbers(first), scale))).collect();
        check_mxfp4(&mxfp4(format, [256, 16 * 32], &blocks), &blocks, 0..256);
    }
}

proptest! {
    /// Rows of any bytes, of which those with scales apart may end inside of a block.
    #[test]
    fn rows_of_mxfp4_are_those_of_the_whole(
        (rows, columns) in (1usize..20, 1usize..150), cut in (0usize..20, 0usize..20),
        blocks in prop::collection::vec((any::<[u8; 16]>(), prop_oneof![
            any::<u8>(), prop::sample::select(vec![0, 1, 254, 255])
        ]), 1..60),
    ) {
        for format in MXFP4 {
            let whole = if format.scales.is_some() { 2 } else { 32 };
            let weight = mxfp4(format, [rows, columns.next_multiple_of(whole)], &blocks);
            let start = cut.0.min(rows);
            check_mxfp4(&weight, &blocks, start..(start + cut.1).min(rows));
        }
    }
}

#[test]
fn mxfp4_of_wrong_lengths_is_refused() {
    let new = |format, shape, data: usize, scales: usize, skipped| {
        BlockWeight::new(format, shape, vec![0; data], vec![0; scales], skipped).is_some()
    };
    let [apart, own] = MXFP4;
    assert!(new(apart, [3, 64], 96, 6, 0));
    assert!(!new(apart, [3, 64], 95, 6, 0));
    assert!(!new(apart, [3, 64], 96, 5, 0));
    assert!(!new(apart, [3, 64], 96, 9, 1));
    assert!(!new(apart, [2, 33], 34, 4, 0));
    assert!(!new(apart.with_scales(Dtype::BF16), [3, 64], 96, 12, 0));
    assert!(!new(StorageFormat::plain(Dtype::F4), [3, 64], 96, 6, 0));
    assert!(!new(StorageFormat::fp8([1, 32]).with_scales(Dtype::F8E8M0), [3, 64], 96, 24, 0));
    let bytes = StorageFormat { scales: apart.scales, ..StorageFormat::plain(Dtype::U8) };
    assert!(!new(bytes, [3, 64], 192, 6, 0));
    let grid = ScaleGrid { block: [1, 16], ..apart.scales.unwrap() };
    assert!(!new(StorageFormat { scales: Some(grid), ..apart }, [3, 64], 96, 12, 0));
    assert!(new(own, [3, 64], 102, 0, 0));
    assert!(!new(own, [3, 64], 101, 0, 0));
    assert!(!new(own, [3, 64], 102, 0, 1));
    assert!(!new(own, [3, 48], 102, 0, 0));
}
