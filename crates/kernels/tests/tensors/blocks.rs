//! Matmuls with weights in blocks give the bits that the same weights give in f32, but for those in
//! pairs of bf16.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use bytes::Bytes;
use half::{bf16, f16};
use outsize_checkpoint::{Dtype, IntegerWidth, StorageFormat};
use outsize_kernels::matmul::{Matmul, linear_each_into};
use outsize_kernels::{
    ActivationDtype, ActivationFunction, BlockWeight, IntegerRounding, Isa, Weight, embedding,
    gated_linear, linear_qkv, linear_with,
};
use proptest::prelude::*;

/// Bytes that look random, a NaN among them if there should be one; and scales.
fn blocks(
    shape: [usize; 2],
    block: [usize; 2],
    skipped: usize,
    seed: u64,
    nan: bool,
) -> BlockWeight<Bytes> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as u32
    };
    let scale_dtype = if seed & 2 == 0 { Dtype::F32 } else { Dtype::BF16 };
    let format = StorageFormat::fp8(block).with_scales(scale_dtype);
    let mut data: Vec<u8> =
        (0..shape[0] * shape[1]).map(|_| ((next() % 127) | ((next() & 1) << 7)) as u8).collect();
    if nan && !data.is_empty() {
        let at = next() as usize % data.len();
        data[at] = 0xff;
    }
    let [height, width] = format.scales.unwrap().shape([shape[0] + skipped, shape[1]]);
    let scales = (0..height * width).flat_map(|at| {
        let large = if nan && at == 1 { 1e5 } else { 1.0 };
        let scale = (next() as f32 * large * 1e-12).to_le_bytes();
        scale[4 - scale_dtype.size()..].to_vec()
    });
    BlockWeight::new(format, shape, data.into(), scales.collect::<Vec<u8>>().into(), skipped)
        .unwrap()
}

/// Blocks of any bytes, of one of [`QUANTIZED`].
fn quantized(dtype: Dtype, [rows, columns]: [usize; 2], seed: u64) -> BlockWeight<Bytes> {
    let format = match dtype {
        Dtype::F4 => StorageFormat::mxfp4(),
        _ => StorageFormat::plain(dtype),
    };
    let len = format.encoding.block().row_bytes(columns).unwrap() as usize * rows;
    let mut state = seed | 1;
    let mut data = vec![0; len];
    for byte in &mut data {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    // Powers of two that leave something of the others in a sum, and now and then the first and
    // last.
    let scale = |byte: u8, at: usize| match at % 401 {
        17 => [0, 1, 254, 255][usize::from(byte % 4)],
        _ => 120 + byte % 8,
    };
    if dtype == Dtype::Mxfp4 {
        let blocks = data.chunks_exact_mut(17).enumerate();
        blocks.for_each(|(at, block)| block[0] = scale(block[0], at));
    }
    let scales = match format.scales {
        Some(grid) => {
            let count = grid.shape([rows, columns]).iter().product();
            (0..count).map(|at| scale(data[at], at)).collect()
        }
        None => vec![],
    };
    BlockWeight::new(format, [rows, columns], data.into(), scales.into(), 0).unwrap()
}

/// Integers of any bytes in groups of so many columns, with scales of a type; some have zero
/// points.
fn integers(
    (width, scales): (IntegerWidth, Dtype),
    group: usize,
    [rows, columns]: [usize; 2],
    seed: u64,
) -> BlockWeight<Bytes> {
    let format = StorageFormat::packed_integers(width, group, seed & 1 == 0).with_scales(scales);
    let groups = rows * format.scales.unwrap().shape([rows, columns])[1];
    let mut state = seed | 1;
    let mut bytes = |len: usize| -> Vec<u8> {
        let next = |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        (0..len).map(next).collect()
    };
    let data = bytes(rows * width.row_bytes(columns).unwrap() as usize);
    let scale = |byte: &u8| match scales {
        Dtype::F16 => f16::from_f32((f32::from(*byte) - 100.0) * 1.7e-3).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32((f32::from(*byte) - 100.0) * 1.7e-3).to_le_bytes().to_vec(),
        _ => ((f32::from(*byte) - 100.0) * 1.7e-3).to_le_bytes().to_vec(),
    };
    let scales = bytes(groups).iter().flat_map(scale).collect::<Vec<u8>>();
    let weight = BlockWeight::new(format, [rows, columns], data.into(), scales.into(), 0).unwrap();
    match seed & 1 {
        0 => {
            let most = if width == IntegerWidth::U4 { 15 } else { 255 };
            let zeros = bytes(groups).into_iter().map(|zero| zero & most);
            weight.with_zeros(zeros.collect::<Vec<u8>>().into()).unwrap()
        }
        _ => weight,
    }
}

/// All kinds of integers.
const INTEGERS: [(IntegerWidth, Dtype); 9] = {
    use {Dtype::*, IntegerWidth as W};
    [
        (W::U4, F16),
        (W::U4, BF16),
        (W::U4, F32),
        (W::U8, F16),
        (W::U8, BF16),
        (W::U8, F32),
        (W::I8, F16),
        (W::I8, BF16),
        (W::I8, F32),
    ]
};

/// Types of elements in blocks that are multiplied alike, with the number of elements of a block;
/// the last block of a row may be cut if scales lie apart.
const QUANTIZED: [(Dtype, usize); 24] = [
    (Dtype::Q8_0, 32),
    (Dtype::Q4_0, 32),
    (Dtype::Q4_1, 32),
    (Dtype::Q5_0, 32),
    (Dtype::Q5_1, 32),
    (Dtype::Q2K, 256),
    (Dtype::Q3K, 256),
    (Dtype::Q4K, 256),
    (Dtype::Q5K, 256),
    (Dtype::Q6K, 256),
    (Dtype::Iq4Nl, 32),
    (Dtype::Iq4Xs, 256),
    (Dtype::Iq1S, 256),
    (Dtype::Iq1M, 256),
    (Dtype::Iq2Xxs, 256),
    (Dtype::Iq2Xs, 256),
    (Dtype::Iq2S, 256),
    (Dtype::Iq3Xxs, 256),
    (Dtype::Iq3S, 256),
    (Dtype::Tq1_0, 256),
    (Dtype::Tq2_0, 256),
    (Dtype::Mxfp4, 32),
    (Dtype::F4, 32),
    (Dtype::F4, 2),
];

fn wide(weight: &BlockWeight<Bytes>) -> Vec<f32> {
    let [rows, columns] = weight.shape();
    let mut wide = vec![0.0; rows * columns];
    weight.dequantize(0..rows, &mut wide);
    wide
}

/// Types that are multiplied in pairs of bf16.
const IN_PAIRS: [Dtype; 4] = [Dtype::Q3K, Dtype::Q4K, Dtype::Q5K, Dtype::Q6K];

/// Whether a weight is multiplied in pairs of bf16.
fn in_pairs(isa: Isa, compute: ActivationDtype, dtype: Option<Dtype>) -> bool {
    compute == ActivationDtype::Bf16
        && matches!(isa, Isa::Avx512Bf16 | Isa::AmxBf16)
        && dtype.is_some_and(|dtype| IN_PAIRS.contains(&dtype))
}

/// One product in bf16.
fn in_bf16(isa: Isa, x: &[f32], weight: &BlockWeight<Bytes>) -> Vec<f32> {
    let [n, k] = weight.shape();
    let m = x.len() / k;
    let mut y = vec![f32::NAN; m * n];
    let matmul = Matmul { weight: Weight::Blocks(weight.view()), n, y: &mut y, stride: n };
    linear_each_into(isa, ActivationDtype::Bf16, x, [m, k], &mut [matmul]);
    y
}

fn input(len: usize) -> Vec<f32> {
    (0..len).map(|at| ((at * 37 % 101) as f32 - 50.0) * 0.01).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn matmuls_are_those_of_the_weights_in_f32(
        m in 0usize..40, k in 1usize..400, rows in prop::collection::vec((0usize..90, 0usize..9), 1..4),
        block in (1usize..9, prop_oneof![1usize..200, Just(16), Just(128)]), seed in any::<u64>(),
        (rounded, nan) in any::<(bool, bool)>(), own in prop::option::of(prop::sample::select(&QUANTIZED[..])),
    ) {
        let compute = if rounded { ActivationDtype::Bf16 } else { ActivationDtype::F32 };
        let k = own.map_or(k, |(_, elements)| k.next_multiple_of(elements));
        let weights: Vec<_> = rows.iter()
            .map(|(rows, skipped)| match own {
                Some((dtype, _)) => quantized(dtype, [*rows, k], seed ^ *rows as u64),
                None => blocks([*rows, k], [block.0, block.1], *skipped, seed, nan),
            })
            .collect();
        let (x, twins) = (input(m * k), weights.iter().map(wide).collect::<Vec<_>>());
        let isas = Isa::ALL.into_iter().filter(|isa| isa.is_available());
        for isa in isas.filter(|isa| !in_pairs(*isa, compute, own.map(|(dtype, _)| dtype))) {
            let run = |operands: Vec<Weight>| {
                let mut ys: Vec<_> = rows.iter().map(|(n, _)| vec![f32::NAN; m * n]).collect();
                let mut matmuls: Vec<_> = operands.into_iter().zip(&mut ys).zip(&rows)
                    .map(|((weight, y), (n, _))| Matmul { weight, n: *n, y, stride: *n })
                    .collect();
                linear_each_into(isa, compute, &x, [m, k], &mut matmuls);
                // Of a NaN only that it is one counts.
                let bits = |y: f32| if y.is_nan() { f32::NAN.to_bits() } else { y.to_bits() };
                ys.concat().into_iter().map(bits).collect::<Vec<_>>()
            };
            let found = run(weights.iter().map(|weight| Weight::Blocks(weight.view())).collect());
            let wanted = run(twins.iter().map(|twin| Weight::F32(twin)).collect());
            prop_assert!(found == wanted, "{isa:?} {compute:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    /// The same of integers: an element is worth `(number - zero) * scale`, rounded once.
    #[test]
    fn integers_are_multiplied_as_their_f32(
        m in 0usize..20, k in prop_oneof![1usize..300, (1usize..9).prop_map(|n| 32 * n)], n in 0usize..40,
        group in prop_oneof![Just(0), Just(32), Just(64), Just(128), 1usize..70], seed in any::<u64>(),
        kind in prop::sample::select(&INTEGERS[..]), rounded in any::<bool>(),
    ) {
        let compute = if rounded { ActivationDtype::Bf16 } else { ActivationDtype::F32 };
        let weight = integers(kind, group, [n, k], seed);
        let (width, columns) = (kind.0, if group == 0 { k } else { group });
        let groups = k.div_ceil(columns);
        let (row, size) = (width.row_bytes(k).unwrap() as usize, kind.1.size());
        let mut twin = Vec::new();
        for at in 0..n * k {
            let (i, j) = (at / k, at % k);
            let group = i * groups + j / columns;
            let byte = weight.data()[i * row + if width == IntegerWidth::U4 { j / 2 } else { j }];
            let number = match width {
                IntegerWidth::U4 => f64::from(byte >> (j % 2 * 4) & 15),
                IntegerWidth::U8 => f64::from(byte),
                IntegerWidth::I8 => f64::from(byte as i8),
            };
            let zero = weight.zeros().get(group).copied().unwrap_or(width.middle());
            let zero = if width == IntegerWidth::I8 { f64::from(zero as i8) } else { f64::from(zero) };
            let scale = &weight.scales()[group * size..][..size];
            let scale = match kind.1 {
                Dtype::F16 => f16::from_le_bytes([scale[0], scale[1]]).to_f64(),
                Dtype::BF16 => bf16::from_le_bytes([scale[0], scale[1]]).to_f64(),
                _ => f64::from(f32::from_le_bytes(scale.try_into().unwrap())),
            };
            twin.push(((number - zero) * scale) as f32);
        }
        // Zeros of either sign are the same.
        prop_assert!(wide(&weight) == twin, "values");
        let some = n / 3..n;
        prop_assert!(wide(&weight.rows(some.clone())) == twin[some.start * k..], "some rows");
        let x = input(m * k);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let run = |weight| {
                let mut y = vec![f32::NAN; m * n];
                let matmul = Matmul { weight, n, y: &mut y, stride: n };
                linear_each_into(isa, compute, &x, [m, k], &mut [matmul]);
                y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            };
            prop_assert!(run(Weight::Blocks(weight.view())) == run(Weight::F32(&twin)), "{isa:?} {compute:?}");
        }
    }
}

#[test]
fn integers_without_all_their_bytes_are_none() {
    let format = |zeros| StorageFormat::packed_integers(IntegerWidth::U4, 32, zeros);
    let new = |format, shape, data: usize, scales: usize| {
        BlockWeight::new(format, shape, vec![0; data], vec![0; scales], 0)
    };
    assert!(new(format(true), [3, 70], 3 * 36, 3 * 3 * 4).is_some());
    assert!(new(format(true), [3, 70], 3 * 35, 3 * 3 * 4).is_none());
    assert!(new(format(true), [3, 70], 3 * 36, 3 * 3 * 4 - 1).is_none());
    assert!(new(format(true), [usize::MAX, 70], 0, 0).is_none());
    assert!(new(format(true), [3, usize::MAX], 0, 0).is_none());
    assert!(new(StorageFormat::awq(32), [8, 64], 8 * 32, 8 * 2 * 4).is_none());
    let zeros = |has_zeros, count| {
        let weight = new(format(has_zeros), [3, 70], 3 * 36, 3 * 3 * 4).unwrap();
        weight.with_zeros(vec![0; count]).is_some()
    };
    assert!(zeros(true, 9) && !zeros(true, 8) && !zeros(true, 10) && !zeros(false, 9));
}

/// What integers made of floats are worth is no further off than half a step.
#[test]
fn floats_become_the_nearest_integers() {
    let values: Vec<f32> = input(5 * 70).iter().map(|value| value * value * value).collect();
    for width in [IntegerWidth::U4, IntegerWidth::U8, IntegerWidth::I8] {
        for scales in [Dtype::BF16, Dtype::F16, Dtype::F32] {
            let format = StorageFormat::packed_integers(width, 32, false).with_scales(scales);
            let weight = BlockWeight::quantize(format, [5, 70], &values).unwrap();
            let mut found = vec![0.0; 5 * 70];
            weight.dequantize(0..5, &mut found);
            for (row, found) in values.chunks(70).zip(found.chunks(70)) {
                for (values, found) in row.chunks(32).zip(found.chunks(32)) {
                    let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
                    let step = largest / if width == IntegerWidth::U4 { 7.0 } else { 127.0 };
                    for (value, found) in values.iter().zip(found) {
                        // A rounded scale adds as much as half a step at the most.
                        assert!((value - found).abs() <= step * 1.02, "{value} {found} {step}");
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// The scale of a group is as it is stored, and no worse than the usual one, whatever the
    /// values.
    #[test]
    fn scales_lose_no_more_than_usual(
        values in prop::collection::vec(-1e3f32..1e3, 1..80), power in -30i32..10, wide in any::<bool>(),
    ) {
        let values: Vec<f32> = values.iter().map(|value| value * 2f32.powi(power)).collect();
        let scales = if wide { Dtype::F32 } else { Dtype::BF16 };
        let format = StorageFormat::packed_integers(IntegerWidth::U4, 0, false).with_scales(scales);
        let rounding = IntegerRounding::of(format).unwrap();
        let lost = |scale: f32| -> f64 {
            let error = |value: &f32| f64::from(rounding.integer(*value, scale) * scale - value);
            values.iter().map(|value| error(value).powi(2)).sum()
        };
        let (scale, largest) = (rounding.scale(&values), values.iter().fold(0f32, |a, b| a.max(b.abs())));
        let usual = largest / 7.0;
        let usual = if wide { usual } else { bf16::from_f32(usual).to_f32() };
        prop_assert!(lost(scale) <= lost(usual) * 1.0001, "{scale} {usual}");
        prop_assert!(wide || bf16::from_f32(scale).to_f32() == scale);
        // What is stored is what was chosen.
        let weight = BlockWeight::quantize(format, [1, values.len()], &values).unwrap();
        let mut found = vec![0.0; values.len()];
        weight.dequantize(0..1, &mut found);
        let chosen: Vec<f32> = values.iter().map(|it| rounding.integer(*it, scale) * scale).collect();
        prop_assert_eq!(found, chosen);
    }

    /// Numbers of 3 to 6 bits in pairs of bf16: near the exact products of rounded activations, and
    /// the same bits whatever is computed beside them.
    #[test]
    fn pairs_of_bf16_are_right_and_alone_as_in_a_matrix(
        m in 1usize..40, blocks in 1usize..12, n in 1usize..60, seed in any::<u64>(),
        dtype in prop::sample::select(&IN_PAIRS[..]),
    ) {
        let k = 256 * blocks;
        // Random numbers, and factors of ordinary size.
        let random = quantized(dtype, [n, k], seed);
        let mut data = random.data().to_vec();
        let block = dtype.block().bytes;
        let with_offsets = matches!(dtype, Dtype::Q4K | Dtype::Q5K);
        let factors = if with_offsets { 0..4 } else { block - 2..block };
        for (at, block) in data.chunks_exact_mut(block).enumerate() {
            for factor in block[factors.clone()].chunks_exact_mut(2) {
                factor.copy_from_slice(&(0x1c00 + 7 * at as u16 % 1024).to_le_bytes());
            }
        }
        let weight = BlockWeight::new(random.format(), [n, k], data.into(), Bytes::new(), 0).unwrap();
        let (x, wide) = (input(m * k), wide(&weight));
        let rounded: Vec<f64> = x.iter().map(|x| bf16::from_f32(*x).to_f64()).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let y = in_bf16(isa, &x, &weight);
            for (i, y) in y.chunks(n).enumerate() {
                let x = &rounded[i * k..][..k];
                for (j, y) in y.iter().enumerate() {
                    let w = &wide[j * k..][..k];
                    let largest = w.iter().fold(0f32, |most, w| most.max(w.abs()));
                    let exact: f64 = x.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum();
                    let size: f64 = x.iter().map(|x| x.abs() * f64::from(largest)).sum();
                    let bound = (k / 16 + 16) as f64 * f64::from(f32::EPSILON) * size;
                    let error = (f64::from(*y) - exact).abs();
                    prop_assert!(error <= bound, "{isa:?} [{i}, {j}]: {y}, not {exact}, by {error}");
                }
                let alone = in_bf16(isa, &input(m * k)[i * k..][..k], &weight);
                prop_assert!(alone == y, "{isa:?}: row {i} alone");
            }
            let middle = n / 3..n;
            let some = in_bf16(isa, &x, &weight.rows(middle.clone()));
            for (some, y) in some.chunks(middle.len()).zip(y.chunks(n)) {
                prop_assert!(some == &y[middle.clone()], "{isa:?}: some rows of the weight");
            }
        }
    }
}

/// Large enough for several threads and several panels.
#[test]
fn large_matmuls_are_too() {
    let (n, k) = (700, 2816);
    let own = QUANTIZED.map(|(dtype, _)| quantized(dtype, [n, k], 7));
    let integers = [32, 128].map(|group| INTEGERS.map(|kind| integers(kind, group, [n, k], 8)));
    let fp8 = blocks([n, k], [128, 128], 5, 9, false);
    for weight in own.into_iter().chain(integers.into_iter().flatten()).chain([fp8]) {
        let twin = wide(&weight);
        for m in [1, 2, 5, 64] {
            let x = input(m * k);
            let run = |weight| {
                let mut y = vec![0.0; m * n];
                let compute = ActivationDtype::F32;
                let matmul = Matmul { weight, n, y: &mut y, stride: n };
                linear_each_into(Isa::detected(), compute, &x, [m, k], &mut [matmul]);
                y.into_iter().map(|y| if y.is_nan() { 0 } else { y.to_bits() }).collect::<Vec<_>>()
            };
            assert!(run(Weight::Blocks(weight.view())) == run(Weight::F32(&twin)), "{m} rows");
        }
    }
}

#[test]
fn tensors_in_blocks_are_multiplied_and_looked_up() {
    let (device, compute) = (Device::flex(), ActivationDtype::F32);
    let weights = [1, 2, 3].map(|seed| blocks([24, 150], [16, 64], 3, seed, false));
    let twins = weights.each_ref().map(|weight| {
        Tensor::<2>::from_data(TensorData::new(wide(weight), [24, 150]), (&device, DType::F32))
    });
    let same = |found: Tensor<2>, wanted: Tensor<2>| {
        assert_eq!(found.into_data(), wanted.into_data());
    };
    let x = Tensor::<2>::from_data(TensorData::new(input(300), [2, 150]), (&device, DType::F32));
    same(
        linear_with(compute, x.clone(), weights[0].clone()),
        linear_with(compute, x.clone(), twins[0].clone()),
    );
    let found = linear_qkv(compute, x.clone(), weights.clone());
    let wanted = linear_qkv(compute, x.clone(), twins.clone());
    found.into_iter().zip(wanted).for_each(|(found, wanted)| same(found, wanted));
    let [gate, up, _] = weights.clone();
    let act = ActivationFunction::Silu;
    let found = gated_linear(compute, x.clone(), gate, up, act);
    let [gate, up, _] = twins.clone();
    same(found, gated_linear(compute, x, gate, up, act));
    let ids = Tensor::<1, Int>::from_data([23, 0, 7, 7], &device);
    same(embedding(weights[0].clone(), ids.clone()), embedding(twins[0].clone(), ids));
}
