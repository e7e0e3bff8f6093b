//! Weights on a GPU, as stored: the same values as on the CPU, and products of them.
#![cfg(feature = "gpu")]

use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use bytes::Bytes as Shared;
use half::{bf16, f16};
use outsize_checkpoint::{Dtype, StorageFormat};
use outsize_kernels::gpu::{PackedWeight, gpus};
use outsize_kernels::matmul::ConvolutionWindow;
use outsize_kernels::{
    ActivationDtype, ActivationFunction, BlockWeight, RotaryPairs, add_layer_norm, add_rms_norm,
    attend_tokens, convolution_into, gated, layer_norm, linear, rms_norm, rotate, unwritten,
};

/// Of the first GPU. Without one it is said on standard error, and where `OUTSIZE_GPU_TESTS` is set
/// it is a failure.
fn device() -> Option<Device> {
    let device = gpus().first().map(|gpu| gpu.device.clone());
    if device.is_none() {
        assert!(std::env::var_os("OUTSIZE_GPU_TESTS").is_none(), "no GPU");
        eprintln!("skipped: no GPU");
    }
    device
}

fn packed(bytes: Vec<u8>, dtype: DType, shape: [usize; 2], device: &Device) -> PackedWeight {
    PackedWeight::upload(Bytes::from_bytes_vec(bytes), dtype, shape, device).unwrap()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let number = |i: usize| {
        let hash = (i as u32 + seed).wrapping_mul(2_654_435_761) >> 8;
        hash as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(number).collect()
}

#[test]
fn every_number_is_widened_exactly() {
    let Some(device) = device() else { return };
    for dtype in [DType::BF16, DType::F16] {
        let bytes = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let found = values(packed(bytes, dtype, [256, 256], &device).floats());
        for (bits, found) in (0..=u16::MAX).zip(found) {
            let expected = match dtype {
                DType::BF16 => bf16::from_bits(bits).to_f32(),
                _ => f16::from_bits(bits).to_f32(),
            };
            // Subnormal f32 may be zero on a GPU.
            let tiny = expected.is_subnormal() && found.abs() <= expected.abs();
            let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
            assert!(same || tiny, "{dtype:?} {bits:#x}: {found:e}, not {expected:e}");
        }
    }
}

#[test]
fn rows_are_those_of_their_ids_and_slices_those_of_their_range() {
    let Some(device) = device() else { return };
    // An odd number of columns, and of elements.
    let (rows, columns) = (7, 5);
    let elements: Vec<f32> = (0..rows * columns).map(|n| n as f32).collect();
    let bytes = elements.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect();
    let weight = packed(bytes, DType::BF16, [rows, columns], &device);
    let row = |row: usize| elements[row * columns..][..columns].to_vec();
    assert_eq!(values(weight.select(&[6, 0, 3])), [row(6), row(0), row(3)].concat());
    assert_eq!(values(weight.slice(2..5).floats()), [row(2), row(3), row(4)].concat());
    assert_eq!(values(weight.slice(2..5).select(&[2])), row(4));
}

/// Through one buffer and through several, again and again; of odd sizes, so that a word is cut;
/// and from several threads.
#[test]
fn copies_of_all_sizes_arrive_as_they_were() {
    let Some(device) = device() else { return };
    let check = &|seed: usize| {
        let sizes = [3, 40_000, 300_001, 2_200_001, 3 << 20, 11_000_003];
        let weights: Vec<_> = (sizes.into_iter().chain([40_001; 8]))
            .map(|count| {
                let elements = (0..count).map(|i| bf16::from_f32(((i + seed) % 251) as f32));
                let bytes = elements.flat_map(bf16::to_le_bytes).collect();
                (count, packed(bytes, DType::BF16, [count, 1], &device))
            })
            .collect();
        for (count, weight) in weights {
            let found = values(weight.floats());
            let wrong =
                (found.iter().enumerate()).find(|(i, found)| **found != ((i + seed) % 251) as f32);
            assert_eq!((found.len(), wrong), (count, None));
        }
    };
    std::thread::scope(|scope| {
        for seed in [0, 7] {
            scope.spawn(move || check(seed));
        }
    });
}

#[test]
fn products_are_those_of_the_cpu_whatever_the_tile() {
    let Some(device) = device() else { return };
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (rows, columns, m) in [
            (1, 2, 1),
            (37, 64, 1),
            (130, 130, 3),
            (37, 64, 8),
            (19, 33, 2),
            (64, 96, 33),
            (300, 200, 150),
        ] {
            let weight = numbers(rows * columns, 7);
            let bytes: Vec<u8> = match dtype {
                DType::BF16 => {
                    weight.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
                }
                DType::F16 => weight.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
                _ => weight.iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            let x = numbers(m * columns, 99);
            let data = || TensorData::new(x.clone(), [m, columns]);
            let on_cpu = Tensor::<2>::from_data(
                TensorData::from_bytes_vec(bytes.clone(), [rows, columns], dtype),
                (&Device::flex(), dtype),
            );
            let expected = values(linear(
                Tensor::<2>::from_data(data(), (&Device::flex(), DType::F32)),
                on_cpu,
            ));
            let weight = packed(bytes, dtype, [rows, columns], &device);
            let x = Tensor::<2>::from_data(data(), (&device, DType::F32));
            let found = values(weight.linear(x.clone()));
            let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                assert!(
                    (found - expected).abs() <= 1e-5 * largest,
                    "{dtype:?}: {found} {expected}"
                );
            }
            // Three in one launch have the same bits, each.
            let parts = [weight.clone(), weight.slice(rows / 2..rows), weight.slice(0..1)];
            let at_once = PackedWeight::linear_three(&x, parts.each_ref());
            assert_eq!(at_once.is_some(), m <= 8 && (columns % 2 == 0 || dtype == DType::F32));
            for (part, at_once) in parts.iter().zip(at_once.into_iter().flatten()) {
                let alone = values(part.linear(x.clone()));
                let same =
                    values(at_once).iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{dtype:?} [{rows}, {columns}] by {m}");
            }
            if rows > 8 {
                let tile = values(weight.slice(5..rows).linear(x));
                let kept = |row: usize| &found[row * rows + 5..(row + 1) * rows];
                let all: Vec<f32> = (0..m).flat_map(kept).copied().collect();
                assert!(
                    tile.iter().zip(&all).all(|(a, b)| a.to_bits() == b.to_bits()),
                    "{dtype:?}"
                );
            }
        }
    }
}

/// Values of this shape on a device.
fn tensor<const D: usize>(shape: [usize; D], seed: u32, device: &Device) -> Tensor<D> {
    let data = TensorData::new(numbers(shape.iter().product(), seed), shape);
    Tensor::from_data(data, (device, DType::F32))
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(
            (found - expected).abs() <= 5e-6 * expected.abs().max(1.0),
            "{what}: {found} {expected}"
        );
    }
}

#[test]
fn operations_of_a_layer_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let both = [&device, &Device::flex()];
    for (rows, width) in [(1, 1), (3, 5), (7, 64), (2, 1000)] {
        let [there, here] = both.map(|device| {
            let (x, weight) = (tensor([rows, 1, width], 1, device), tensor([width], 2, device));
            let bias = || Some(tensor([width], 3, device));
            let norm = layer_norm(x.clone(), weight.clone(), bias(), 1e-5);
            let add = tensor([rows, 1, width], 4, device);
            let (sum, behind) = add_rms_norm(x.clone(), add.clone(), weight.clone(), 1e-6);
            let alone = rms_norm(x.clone() + add.clone(), weight.clone(), 1e-6);
            assert!(values(alone).iter().zip(values(behind.clone())).all(|(a, b)| *a == b));
            let (_, centred) = add_layer_norm(x.clone(), add, weight.clone(), bias(), 1e-5);
            [
                rms_norm(x.clone(), weight, 1e-6),
                norm,
                sum,
                behind,
                centred,
                gated(ActivationFunction::Silu, x.clone() * 9.0, x),
            ]
            .map(values)
        });
        for (found, expected) in there.iter().zip(&here) {
            assert_close(found, expected, &format!("{rows} rows of {width}"));
        }
    }
    for (pairs, half) in
        [(RotaryPairs::Halves, 4), (RotaryPairs::Interleaved, 4), (RotaryPairs::Halves, 2)]
    {
        for batch in [1, 2] {
            let [there, here] = both.map(|device| {
                // A view, and elements that are not rotated.
                let x = tensor([2, 3, 5, 10], 4, device).narrow(3, 1, 9).narrow(3, 0, 8);
                let angles = [5, 6].map(|seed| tensor([batch, 3, 1, half], seed, device));
                let [cos, sin] = angles;
                values(rotate(x, pairs, cos, sin))
            });
            assert_close(&there, &here, &format!("{pairs:?} of {half}, {batch}"));
        }
    }
}

/// What each query sees, weighed in f64.
fn attended(
    [queries, keys, values]: [&[f32]; 3],
    [batch, tokens, heads, key_heads, columns, width]: [usize; 6],
    (bias, bias_dims): (Option<&[f32]>, [usize; 2]),
    sinks: Option<&[f32]>,
    (scale, softcap): (f32, Option<f32>),
) -> Vec<f32> {
    let mut y = Vec::new();
    for (text, token, head) in (0..batch).flat_map(|text| {
        (0..tokens).flat_map(move |token| (0..heads).map(move |head| (text, token, head)))
    }) {
        let query = &queries[((text * tokens + token) * heads + head) * width..][..width];
        let row = |of: &[f32], column: usize| {
            let at = (text * key_heads + head / (heads / key_heads)) * columns + column;
            of[at * width..][..width].iter().map(|v| f64::from(*v)).collect::<Vec<_>>()
        };
        let scores = (0..columns).map(|column| {
            let dot: f64 =
                query.iter().zip(row(keys, column)).map(|(a, b)| f64::from(*a) * b).sum();
            let mut score = dot * f64::from(scale);
            if let Some(cap) = softcap.map(f64::from) {
                score = (score / cap).tanh() * cap;
            }
            let at = (text % bias_dims[0] * bias_dims[1] + head % bias_dims[1]) * tokens + token;
            score + bias.map_or(0.0, |bias| f64::from(bias[at * columns + column]))
        });
        let weights: Vec<f64> = scores.map(f64::exp).collect();
        let sink = sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let sum: f64 = weights.iter().sum::<f64>() + sink;
        let mut mixed = vec![0.0; width];
        for (column, weight) in weights.iter().enumerate() {
            for (to, value) in mixed.iter_mut().zip(row(values, column)) {
                *to += weight / sum * value;
            }
        }
        y.extend(mixed.into_iter().map(|v| v as f32));
    }
    y
}

#[test]
fn few_tokens_attend_as_they_should() {
    let Some(device) = device() else { return };
    for (sizes, bias_dims, has_sinks, softcap) in [
        ([1, 1, 4, 2, 1, 4], None, false, None),
        ([2, 1, 4, 4, 127, 8], Some([2, 1]), false, None),
        ([1, 3, 6, 2, 300, 64], Some([1, 6]), true, Some(2.0)),
        ([2, 8, 2, 1, 129, 80], Some([2, 2]), true, None),
        ([1, 2, 2, 2, 1000, 256], None, false, Some(0.5)),
    ] {
        let [batch, tokens, heads, key_heads, columns, width] = sizes;
        let queries = tensor([batch, tokens, heads, width], 1, &device) * 3.0;
        // Views of a longer cache.
        let held = |seed| {
            let all = tensor([batch, key_heads, columns + 9, width], seed, &device);
            all.narrow(2, 5, columns)
        };
        let (keys, held_values) = (held(2), held(3));
        let bias = bias_dims.map(|[texts, of_heads]| {
            let mut bias = numbers(texts * of_heads * tokens * columns, 4);
            // Some are not seen; each query sees the first.
            for (at, bias) in bias.iter_mut().enumerate() {
                if at % columns % 3 == 1 {
                    *bias = f32::NEG_INFINITY;
                }
            }
            let data = TensorData::new(bias, [texts, of_heads, tokens, columns]);
            Tensor::<4>::from_data(data, (&device, DType::F32))
        });
        let sinks = has_sinks.then(|| tensor([heads], 5, &device));
        let how = (0.3, softcap);
        let found =
            attend_tokens(&queries, [&keys, &held_values], bias.as_ref(), sinks.as_ref(), how);
        let expected = attended(
            [&values(queries), &values(keys), &values(held_values)].map(|v| &v[..]),
            sizes,
            (bias.map(values).as_deref(), bias_dims.unwrap_or([1, 1])),
            sinks.map(values).as_deref(),
            how,
        );
        assert_close(&values(found.expect("it is taken")), &expected, &format!("{sizes:?}"));
    }
}

/// Bytes that look random.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A weight in blocks whose scales are ordinary numbers.
fn in_blocks(format: StorageFormat, shape: [usize; 2], skipped: usize) -> BlockWeight<Shared> {
    let block = format.encoding.block();
    let mut data = noise(block.row_bytes(shape[1]).unwrap() as usize * shape[0], 5);
    let mut scales = Vec::new();
    // An E8M0 from 2⁻⁷ to 1.
    let power = |byte: u8| 120 + byte % 8;
    match format.scales {
        Some(grid) if grid.dtype == Dtype::F8E8M0 => {
            let count = grid.shape(shape).iter().product();
            scales = noise(count, 3).into_iter().map(power).collect();
        }
        Some(grid) => {
            data.iter_mut().filter(|byte| **byte & 0x7f == 0x7f).for_each(|byte| *byte = 3);
            let count = grid.shape([shape[0] + skipped, shape[1]]).iter().product();
            let scale = |value: &f32| value.to_le_bytes()[4 - grid.dtype.size()..].to_vec();
            scales = numbers(count, 3).iter().flat_map(scale).collect();
        }
        None if format.encoding.dtype() == Dtype::Mxfp4 => {
            data.chunks_mut(block.bytes).for_each(|block| block[0] = power(block[0]));
        }
        None => {
            // An f16 from 2⁻⁸ to 2⁻⁷, where each type has it.
            let places: &[usize] = match format.encoding.dtype() {
                Dtype::Q4_1 | Dtype::Q5_1 | Dtype::Q4K | Dtype::Q5K => &[0, 2],
                Dtype::Q2K => &[80, 82],
                Dtype::Q3K => &[108],
                Dtype::Q6K => &[208],
                _ => &[0],
            };
            for block in data.chunks_mut(block.bytes) {
                places.iter().for_each(|at| block[at + 1] = 0x1c | block[at + 1] & 0x83);
            }
        }
    }
    BlockWeight::new(format, shape, data.into(), scales.into(), skipped).unwrap()
}

#[test]
fn blocks_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    let all = 1 << 30;
    // Those that are no codebook and not of numbers from -1 to 1.
    let own = Dtype::GGUF_BLOCKS[..13]
        .iter()
        .map(|dtype| (StorageFormat::plain(*dtype), dtype.block().elements));
    let others = [
        (StorageFormat::mxfp4(), 32),
        // The last block of a row is cut.
        (StorageFormat::mxfp4(), 38),
        (StorageFormat::fp8([16, 16]), 24),
        (StorageFormat::fp8([3, 5]), 24),
        (StorageFormat::fp8([2, 3]), 7),
        (StorageFormat::fp8([128, 128]).with_scales(Dtype::BF16), 144),
        (StorageFormat::compressed_fp8(true), 40),
        (StorageFormat::compressed_fp8(false), all),
    ];
    for (format, columns) in own.chain(others) {
        let columns = if columns == all { 36 } else { columns };
        for (rows, times, m) in [(1, 1, 1), (37, 3, 1), (21, 2, 8), (130, 5, 5), (64, 2, 33)] {
            let skipped = if format.scales.is_some_and(|grid| grid.block[0] > 1) { 1 } else { 0 };
            let columns = columns * times;
            let weight = in_blocks(format, [rows, columns], skipped);
            let mut expected = vec![0.0; rows * columns];
            weight.dequantize(0..rows, &mut expected);
            let there = PackedWeight::upload_blocks(&weight, &device).unwrap();
            let what = format!("{format:?} {rows} x {columns}");
            let near = |found: &[f32], expected: &[f32], what: &str| {
                let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                for (found, expected) in found.iter().zip(expected) {
                    assert!(
                        (found - expected).abs() <= 1e-5 * largest,
                        "{what}: {found} {expected}"
                    );
                }
                assert_eq!(found.len(), expected.len(), "{what}");
            };
            near(&values(there.floats()), &expected, &what);
            let row = |row: usize| expected[row * columns..][..columns].to_vec();
            near(
                &values(there.select(&[rows as u32 - 1, 0])),
                &[row(rows - 1), row(0)].concat(),
                &what,
            );
            let x = numbers(m * columns, 99);
            let data = || TensorData::new(x.clone(), [m, columns]);
            let on_cpu = Tensor::<2>::from_data(data(), (&Device::flex(), DType::F32));
            let product = values(linear(on_cpu, weight.clone()));
            let x = Tensor::<2>::from_data(data(), (&device, DType::F32));
            let found = values(there.linear(x.clone()));
            near(&found, &product, &format!("{what} by {m}"));
            // The same rows uploaded by themselves, and put together of parts.
            let cut = 4.min(rows);
            let part = PackedWeight::upload_blocks(&weight.rows(cut..rows), &device).unwrap();
            let empty = PackedWeight::empty_blocks(
                format,
                [rows, columns],
                weight.scales(),
                skipped,
                &device,
            );
            let first = PackedWeight::upload_blocks(&weight.rows(0..cut), &device).unwrap();
            let whole = empty.unwrap().with_rows(0, first).with_rows(cut, part.clone());
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
            assert_eq!(bits(values(whole.floats())), bits(values(there.floats())), "{what}");
            let slice = there.slice(cut..rows);
            assert_eq!(bits(values(part.floats())), bits(values(slice.floats())), "{what}");
            assert_eq!(
                bits(values(part.linear(x.clone()))),
                bits(values(slice.linear(x))),
                "{what}"
            );
        }
    }
}

/// In both forms: every number with every scale that leaves it normal.
#[test]
fn every_mxfp4_is_widened_exactly() {
    let Some(device) = device() else { return };
    let (numbers, scales): (Vec<u8>, Vec<u8>) =
        ((0..16).map(|at| at * 0x11).collect(), (2..=252).collect());
    let rows = scales.len();
    let apart = (StorageFormat::mxfp4(), numbers.repeat(rows), scales.clone());
    let own = scales.iter().flat_map(|scale| [&[*scale], &numbers[..]].concat()).collect();
    let own = (StorageFormat::plain(Dtype::Mxfp4), own, vec![]);
    for (format, data, apart) in [apart, own] {
        let weight = BlockWeight::new(format, [rows, 32], data.into(), apart.into(), 0).unwrap();
        let mut expected = vec![0.0; rows * 32];
        weight.dequantize(0..rows, &mut expected);
        let found = values(PackedWeight::upload_blocks(&weight, &device).unwrap().floats());
        for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
            assert_eq!(found, expected, "{format:?} at {at}");
        }
    }
}

#[test]
fn convolutions_are_those_of_the_cpu() {
    let Some(device) = device() else { return };
    for (sides, n, stride, ends) in [
        ([1, 1, 1, 1], 1, 1, [true, true]),
        ([2, 7, 5, 3], 4, 1, [true, true]),
        ([2, 7, 6, 3], 4, 2, [true, true]),
        ([1, 8, 5, 4], 3, 1, [false, true]),
        ([1, 8, 5, 4], 3, 1, [true, false]),
        ([1, 300, 130, 16], 5, 1, [true, true]),
    ] {
        let window = ConvolutionWindow::Three { stride, above: ends[0], below: ends[1] };
        let channels = sides[3];
        let [x, weight, bias] =
            [sides.iter().product(), n * channels * 9, n].map(|count| numbers(count, 11));
        let run = |device: &Device| {
            let x = Tensor::<4>::from_data(TensorData::new(x.clone(), sides), (device, DType::F32));
            let weight = TensorData::new(weight.clone(), [n, channels * 9]);
            let weight = Tensor::<2>::from_data(weight, (device, DType::F32));
            let bias = TensorData::new(bias.clone(), [n]);
            let bias = Tensor::<1>::from_data(bias, (device, DType::F32));
            let [rows, columns] = window.output(sides[1], sides[2]);
            // In two parts.
            let cut = n / 2;
            let mut y = unwritten([sides[0], rows, columns, n], device);
            for outputs in [0..cut, cut..n].into_iter().filter(|outputs| !outputs.is_empty()) {
                let (weight, bias) = (
                    weight.clone().narrow(0, outputs.start, outputs.len()),
                    bias.clone().narrow(0, outputs.start, outputs.len()),
                );
                let (compute, start) = (ActivationDtype::F32, outputs.start);
                y = convolution_into(compute, y, x.clone(), weight, bias, window, start);
            }
            values(y)
        };
        let (expected, found) = (run(&Device::flex()), run(&device));
        let largest = expected.iter().fold(0.0f32, |most, v| most.max(v.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() <= 1e-5 * largest, "{sides:?}: {found} {expected}");
        }
    }
}
