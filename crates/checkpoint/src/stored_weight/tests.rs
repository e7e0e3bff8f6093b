use proptest::prelude::*;

use super::*;
use crate::dtype::ElementBlock;
use crate::integers::{IntegerOrder, IntegerWidth, ZeroPoints};

fn tensor(name: &str, dtype: Dtype, shape: &[usize], offset: u64) -> TensorInfo {
    TensorInfo {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
        file: 0,
        offset,
        len: dtype.bytes_of(shape).unwrap(),
    }
}

fn fp8(shape: [usize; 2], block: [usize; 2]) -> StoredWeight {
    let format = StorageFormat::fp8(block);
    let scales = format.scales.unwrap().shape(shape);
    let scales = tensor("w_scale_inv", Dtype::F32, &scales, 1 << 40);
    StoredWeight::new(format, tensor("w", Dtype::F8E4M3, &shape, 1000), Some(scales)).unwrap()
}

#[test]
fn blocks_need_not_divide_anything() {
    // GGUF's Q4_0 and Q6_K.
    for (elements, bytes) in [(32, 18), (256, 210)] {
        let block = ElementBlock { elements, bytes };
        assert_eq!(block.row_bytes(0), Some(0));
        assert_eq!(block.row_bytes(3 * elements), Some(3 * bytes as u64));
        assert_eq!(block.row_bytes(elements + 1), None);
        assert_eq!(block.row_bytes(usize::MAX / elements * elements).is_some(), bytes <= elements);
    }
    let nothing = ElementBlock { elements: 0, bytes: 1 };
    assert_eq!(nothing.row_bytes(8), None);
}

#[test]
fn ragged_edges_have_scales_of_their_own() {
    let weight = fp8([200, 130], [128, 128]);
    assert_eq!(weight.scales().unwrap().shape, [2, 2]);
    assert_eq!(weight.bytes(), 200 * 130 + 16);
    assert_eq!((weight.rows(), weight.row_bytes()), (200, 130));
    let last = weight.slice(190..1000);
    assert_eq!(last.data().shape, [10, 130]);
    assert_eq!(last.data().offset, 1000 + 190 * 130);
    assert_eq!(last.scales().unwrap().shape, [1, 2]);
    assert_eq!(last.scales().unwrap().offset, (1 << 40) + 8);
    assert_eq!(last.skipped_rows(), 62);
    assert_eq!(weight.format().scales_name("a.weight").unwrap(), "a.weight_scale_inv");
}

#[test]
fn plain_weights_may_have_any_shape() {
    for shape in [&[][..], &[5], &[3, 4, 5], &[0, 7]] {
        let weight = StoredWeight::plain(tensor("w", Dtype::BF16, shape, 8));
        assert!(weight.format().is_plain());
        assert_eq!(weight.bytes(), weight.data().len);
        assert_eq!(weight.slice(0..usize::MAX), weight);
    }
    let matrix = StoredWeight::plain(tensor("w", Dtype::F32, &[4, 3], 8));
    assert_eq!(matrix.slice(1..3).data().offset, 8 + 12);
    assert_eq!(matrix.slice(1..3).data().len, 24);
}

#[test]
fn what_does_not_fit_is_named() {
    let format = StorageFormat::fp8([128, 128]);
    let data = |dtype, shape: &[usize]| tensor("a.weight", dtype, shape, 0);
    let scales = |dtype, shape: &[usize]| Some(tensor("a.weight_scale_inv", dtype, shape, 0));
    let good = data(Dtype::F8E4M3, &[200, 130]);
    let mut short = good.clone();
    short.len -= 1;
    for (data, scales, wanted) in [
        (data(Dtype::BF16, &[200, 130]), None, "`a.weight` is of type BF16"),
        (data(Dtype::F8E4M3, &[200]), None, "matrices"),
        (short, None, "25999 bytes"),
        (good.clone(), None, "`a.weight_scale_inv`, which"),
        (good.clone(), scales(Dtype::BF16, &[2, 2]), "`a.weight_scale_inv` is of type BF16"),
        (good.clone(), scales(Dtype::F32, &[2, 1]), "need [2, 2]"),
        (good.clone(), scales(Dtype::F32, &[4]), "need [2, 2]"),
    ] {
        let error = StoredWeight::new(format, data, scales).unwrap_err().to_string();
        assert!(error.contains(wanted) && error.contains("a.weight"), "{error}");
    }
    let nothing = StorageFormat::fp8([0, 128]);
    assert!(StoredWeight::new(nothing, good, scales(Dtype::F32, &[200, 2])).is_err());
}

#[test]
fn experts_of_deepseek_v4_are_told_by_their_type() {
    let format = StorageFormat::deepseek_v4_fp8([128, 128]);
    let read = |data: &TensorInfo, scales: Option<TensorInfo>| {
        StoredWeight::of_data(data, Some(format), None, |name| {
            assert_eq!(name, "a.scale");
            scales.clone()
        })
    };
    let scales = |shape: &[usize]| Some(tensor("a.scale", Dtype::F8E8M0, shape, 0));
    let linear = read(&tensor("a.weight", Dtype::F8E4M3, &[200, 130], 0), scales(&[2, 2]));
    assert_eq!(linear.unwrap().format(), format);
    let bytes = tensor("a.weight", Dtype::I8, &[6, 32], 100);
    let expert = read(&bytes, scales(&[6, 2])).unwrap();
    assert_eq!(expert.format(), StorageFormat::deepseek_v4_fp4());
    assert_eq!((expert.data().dtype, &*expert.data().shape), (Dtype::F4, &[6, 64][..]));
    assert_eq!((expert.rows(), expert.row_bytes(), expert.bytes()), (6, 32, 6 * 34));
    let some = expert.slice(2..4);
    assert_eq!((some.data().offset, some.scales().unwrap().offset), (100 + 2 * 32, 2 * 2));
    for (data, scales, wanted) in [
        (&bytes, None, "needs its scales, `a.scale`"),
        (&bytes, scales(&[6, 1]), "need [6, 2]"),
        (&bytes, Some(tensor("a.scale", Dtype::F32, &[6, 2], 0)), "is of type F32"),
        (&tensor("a.weight", Dtype::F8E4M3, &[200, 130], 0), scales(&[2, 1]), "need [2, 2]"),
    ] {
        let error = read(data, scales).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    // As it is written.
    let tensors = expert.format().tensors("a.weight", [6, 64]);
    let wanted = [("a.weight", Dtype::I8, vec![6, 32]), ("a.scale", Dtype::F8E8M0, vec![6, 2])];
    assert_eq!(tensors, wanted.map(|(name, dtype, shape)| (name.to_owned(), dtype, shape)));
}

#[test]
fn four_bits_are_stored_as_bytes() {
    let format = StorageFormat::mxfp4();
    let blocks = |shape: &[usize]| tensor("experts.up_blocks", Dtype::U8, shape, 1000);
    let scales = |shape: &[usize]| tensor("experts.up_scales", Dtype::U8, shape, 1 << 20);
    let read = |data: &TensorInfo, scales: Option<TensorInfo>| {
        StoredWeight::of_data(data, Some(format), None, |name| {
            assert_eq!(name, "experts.up_scales");
            scales.clone()
        })
    };
    // Three of five rows of 64 elements.
    let stack = read(&blocks(&[3, 5, 2, 16]), Some(scales(&[3, 5, 2]))).unwrap();
    assert_eq!((stack.rows(), stack.row_bytes(), stack.bytes()), (15, 32, 15 * 34));
    assert_eq!((stack.data().dtype, &*stack.data().shape), (Dtype::F4, &[15, 64][..]));
    let second = stack.slice(5..10);
    assert_eq!((second.data().offset, second.data().len), (1000 + 5 * 32, 5 * 32));
    let of_second = second.scales().unwrap();
    assert_eq!((of_second.offset, of_second.len), ((1 << 20) + 10, 10));
    assert_eq!((of_second.dtype, second.skipped_rows()), (Dtype::F8E8M0, 0));
    for (scales, wanted) in [
        (None, "needs its scales, `experts.up_scales`"),
        (Some(scales(&[3, 5])), "need [15, 2]"),
        (Some(scales(&[])), "is of type U8"),
        (Some(tensor("s", Dtype::F32, &[15, 2], 0)), "is of type F32"),
    ] {
        let error = read(&blocks(&[3, 5, 2, 16]), scales).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
    // Other bytes are what they are.
    for other in [blocks(&[3, 5, 2, 15]), blocks(&[16]), tensor("up", Dtype::U8, &[5, 2, 16], 0)] {
        let plain = StoredWeight::of_data(&other, Some(format), None, |_| None).unwrap();
        assert_eq!(plain, StoredWeight::plain(other));
    }
    let wanted = [("w_blocks", vec![3, 2, 16]), ("w_scales", vec![3, 2])]
        .map(|(name, shape)| (name.to_owned(), Dtype::U8, shape));
    assert_eq!(format.tensors("w", [3, 64]), wanted);
    let wanted = [
        ("w".to_owned(), Dtype::F8E4M3, vec![200, 130]),
        ("w_scale_inv".to_owned(), Dtype::F32, vec![2, 2]),
    ];
    assert_eq!(StorageFormat::fp8([128, 128]).tensors("w", [200, 130]), wanted);
}

proptest! {
    /// Any tiles cover data and scales, each row with the scales that it has in the whole.
    #[test]
    fn slices_of_slices_keep_their_scales(
        shape in (0usize..600, 1usize..600), block in (1usize..300, 1usize..300),
        outer in (0usize..700, 0usize..700), inner in (0usize..700, 0usize..700),
    ) {
        let weight = fp8([shape.0, shape.1], [block.0, block.1]);
        let some = weight.slice(outer.0..outer.1);
        let tile = some.slice(inner.0..inner.1);
        prop_assert_eq!(some.rows(), outer.1.min(shape.0).saturating_sub(outer.0));
        prop_assert_eq!(tile.rows(), inner.1.min(some.rows()).saturating_sub(inner.0));
        prop_assert_eq!(tile.data().len, (tile.rows() * shape.1) as u64);
        let (all, scales) = (weight.scales().unwrap(), tile.scales().unwrap());
        let row = (shape.1.div_ceil(block.1) * 4) as u64;
        prop_assert_eq!(scales.len, scales.shape[0] as u64 * row);
        prop_assert!(scales.offset >= all.offset && scales.offset + scales.len <= all.offset + all.len);
        for at in 0..tile.rows() {
            // The row's number in the whole, by where its data lies; and its scales by where they
            // lie.
            let number = (tile.data().offset - 1000) as usize / shape.1 + at;
            let mine = scales.offset + ((tile.skipped_rows() + at) / block.0) as u64 * row;
            prop_assert_eq!(mine, all.offset + (number / block.0) as u64 * row);
            prop_assert!((tile.skipped_rows() + at) / block.0 < scales.shape[0]);
        }
    }

    /// The same of numbers of 4 bits that are stored as bytes; what is no such tensor is left
    /// alone.
    #[test]
    fn any_bytes_are_refused_or_right(
        data in prop::collection::vec(0usize..40, 0..5), is_blocks: bool,
        scales in prop::option::of(prop::collection::vec(0usize..40, 0..4)), fits: bool, part in 0usize..50,
    ) {
        let mut data = data;
        if is_blocks && let Some(last) = data.last_mut() {
            *last = 16;
        }
        let scales = if fits { data.split_last().map(|(_, most)| most.to_vec()) } else { scales };
        let bytes = tensor("w_blocks", Dtype::U8, &data, 5000);
        let scales = scales.map(|shape| tensor("w_scales", Dtype::U8, &shape, 1 << 30));
        let found = StoredWeight::of_data(&bytes, Some(StorageFormat::mxfp4()), None, |_| scales.clone());
        let is_weight = data.len() > 1 && data.last() == Some(&16);
        prop_assert!(found.is_ok() || is_weight && !fits);
        match found {
            Ok(weight) if is_weight => {
                let scales = scales.unwrap();
                let [rows, columns] = weight.data().shape[..] else { panic!("no matrix") };
                prop_assert_eq!((rows * columns / 2) as u64, bytes.len);
                prop_assert_eq!((rows * columns / 32) as u64, scales.len);
                let some = weight.slice(part..part + 7);
                prop_assert!(some.data().offset + some.data().len <= bytes.offset + bytes.len);
                let of_some = some.scales().unwrap();
                prop_assert!(of_some.offset + of_some.len <= scales.offset + scales.len);
                prop_assert_eq!(of_some.len * 16, some.data().len);
            }
            Ok(weight) => prop_assert_eq!(weight, StoredWeight::plain(bytes)),
            Err(_) => {}
        }
    }

    /// Whatever shapes a hostile file claims: an error or a weight whose scales are as many as its
    /// blocks.
    #[test]
    fn any_shapes_are_refused_or_right(
        data in prop::collection::vec(0usize..5000, 0..4), scales in prop::collection::vec(0usize..50, 0..4),
        block in (0usize..300, 0usize..300),
    ) {
        let format = StorageFormat::fp8([block.0, block.1]);
        let scales = tensor("s", Dtype::F32, &scales, 0);
        let found = StoredWeight::new(format, tensor("w", Dtype::F8E4M3, &data, 0), Some(scales.clone()));
        if let Ok(weight) = found {
            let wanted = format.scales.unwrap().shape([data[0], data[1]]);
            // One scale may be written as a scalar.
            let is_one = wanted == [1, 1] && scales.shape.iter().product::<usize>() == 1;
            prop_assert!(is_one || scales.shape == wanted, "{:?} is not {wanted:?}", scales.shape);
            prop_assert_eq!(weight.rows(), data[0]);
        }
    }
}

/// The tensors of a weight of integers, one after the other.
fn of_integers(format: StorageFormat, shape: [usize; 2]) -> Vec<TensorInfo> {
    let mut offset = 100;
    let with_offset = |(name, dtype, shape): (String, Dtype, Vec<usize>)| {
        let tensor = tensor(&name, dtype, &shape, offset);
        offset += tensor.len;
        tensor
    };
    format.tensors("a.weight", shape).into_iter().map(with_offset).collect()
}

fn found(
    format: StorageFormat,
    columns: Option<usize>,
    tensors: &[TensorInfo],
) -> Result<StoredWeight, FormatFault> {
    StoredWeight::of_data(&tensors[0], Some(format), columns, |name| {
        tensors.iter().find(|tensor| tensor.name == name).cloned()
    })
}

/// Every way of storing integers in groups of so many columns.
fn integer_formats(group: usize) -> Vec<StorageFormat> {
    let widths = [IntegerWidth::U4, IntegerWidth::U8, IntegerWidth::I8];
    let packed = widths.into_iter().flat_map(|width| {
        [false, true].map(|zeros| StorageFormat::packed_integers(width, group, zeros))
    });
    let zeros = [ZeroPoints::Stored, ZeroPoints::StoredLessOne];
    let gptq = widths[..2]
        .iter()
        .flat_map(|width| zeros.map(|zeros| StorageFormat::gptq(*width, group, zeros)));
    packed.chain(gptq).chain([StorageFormat::awq(group)]).collect()
}

#[test]
fn integers_have_the_names_that_are_published() {
    let names = |format: StorageFormat| -> Vec<String> {
        format.tensors("a.b.weight", [16, 64]).into_iter().map(|(name, ..)| name).collect()
    };
    let packed = StorageFormat::packed_integers;
    let weight =
        |ends: &[&str]| -> Vec<String> { ends.iter().map(|end| format!("a.b.{end}")).collect() };
    assert_eq!(
        names(packed(IntegerWidth::U4, 32, true)),
        weight(&["weight_packed", "weight_scale", "weight_zero_point", "weight_shape"])
    );
    assert_eq!(names(packed(IntegerWidth::I8, 0, false)), weight(&["weight", "weight_scale"]));
    for format in [
        StorageFormat::awq(32),
        StorageFormat::gptq(IntegerWidth::U8, 32, ZeroPoints::StoredLessOne),
    ] {
        assert_eq!(names(format), weight(&["qweight", "scales", "qzeros"]));
        assert_eq!(format.weight_name("a.b.qweight"), "a.b.weight");
        assert_eq!(format.data_name("a.b.weight"), "a.b.qweight");
    }
}

proptest! {
    /// A weight is known by its tensors, and rows of it by theirs.
    #[test]
    fn integers_are_as_large_as_their_tensors(
        rows in 1usize..80, columns in 1usize..200, group in prop_oneof![Just(0), 1usize..70],
        which in any::<prop::sample::Index>(), cut in (0usize..90, 0usize..90),
    ) {
        let formats = integer_formats(group);
        let format = formats[which.index(formats.len())];
        let integers = format.as_integers().unwrap();
        let rows = if integers.order == IntegerOrder::Interleaved { rows.next_multiple_of(8) } else { rows };
        let tensors = of_integers(format, [rows, columns]);
        let weight = found(format, Some(columns), &tensors).unwrap();
        prop_assert_eq!(&weight.data().shape, &[rows, columns]);
        let has_zeros = integers.zeros != ZeroPoints::Middle;
        prop_assert_eq!(weight.zeros().is_some(), has_zeros);
        let groups = format.scales.unwrap().shape([rows, columns])[1];
        let bytes = |rows: usize| {
            let row = integers.width.row_bytes(columns).unwrap();
            let zeros = if has_zeros { rows * groups } else { 0 };
            [row * rows as u64, (4 * rows * groups) as u64, zeros as u64]
        };
        prop_assert_eq!(weight.bytes_in_memory(), bytes(rows));
        let (start, end) = (cut.0.min(rows), cut.1.min(rows));
        let some = weight.slice(start..end);
        prop_assert_eq!(some.rows(), end.saturating_sub(start));
        prop_assert_eq!(some.bytes_in_memory(), bytes(some.rows()));
        prop_assert_eq!(some.first_row(), start.min(end));
        for (part, whole) in some.tensors().zip(weight.tensors()) {
            prop_assert!(part.offset >= whole.offset && part.offset + part.len <= whole.offset + whole.len);
        }
        if let (false, Some(zeros)) = (weight.is_turned(), some.zeros()) {
            let each = integers.width.per_word();
            prop_assert!(zeros.shape[0] * each + some.first_row() / each * each >= some.first_row() + some.rows());
        }
        // Of a part a part.
        let again = some.slice(1..some.rows());
        if some.rows() > 1 {
            prop_assert_eq!(again, weight.slice(start + 1..end));
        }
    }

    /// Anything else is refused, and nothing overflows.
    #[test]
    fn integers_of_other_shapes_are_refused(
        which in any::<prop::sample::Index>(), wrong in 0usize..3, change in 0usize..6,
        size in prop_oneof![Just(0), Just(1), Just(usize::MAX), Just(usize::MAX / 8 + 1), 2usize..50],
    ) {
        let formats = integer_formats(32);
        let format = formats[which.index(formats.len())];
        let mut tensors = of_integers(format, [16, 64]);
        let at = wrong.min(tensors.len() - 1);
        let before = tensors.clone();
        match change {
            0 => tensors[at].shape[0] = size,
            1 => tensors[at].shape = vec![size],
            2 => tensors[at].dtype = Dtype::I64,
            3 => tensors[at].shape.push(size),
            4 => *tensors[at].shape.last_mut().unwrap() = size,
            _ => tensors[at].name.push('x'),
        }
        let is_shape = tensors[at].name.contains("_shape");
        match found(format, Some(64), &tensors) {
            // What is not the data of one is a plain tensor.
            Ok(weight) => prop_assert!(
                tensors == before || is_shape || weight.format().is_plain() && at == 0,
                "{tensors:?}"
            ),
            Err(fault) => prop_assert!(fault.to_string().contains("`a."), "{fault}"),
        }
    }
}

#[test]
fn orders_are_of_as_many_columns() {
    let format = StorageFormat::gptq(IntegerWidth::U4, 32, ZeroPoints::Stored);
    let mut tensors = of_integers(format, [16, 64]);
    tensors.push(tensor("a.g_idx", Dtype::I32, &[64], 9000));
    assert_eq!(found(format, None, &tensors).unwrap().order(), tensors.last());
    tensors[3].shape = vec![63];
    let fault = found(format, None, &tensors).unwrap_err().to_string();
    assert!(fault.contains("`a.g_idx` has the shape [63]") && fault.contains("[64]"), "{fault}");
    tensors[3] = tensor("a.g_idx", Dtype::I64, &[64], 9000);
    let fault = found(format, None, &tensors).unwrap_err().to_string();
    assert!(fault.contains("`a.g_idx` is of type I64"), "{fault}");
}
