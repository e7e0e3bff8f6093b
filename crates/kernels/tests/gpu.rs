//! Weights on a GPU, as stored: the same values as on the CPU, and products of them.
#![cfg(feature = "gpu")]

use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use half::{bf16, f16};
use outsize_kernels::gpu::{PackedWeight, gpus};
use outsize_kernels::linear;

/// Of the first GPU. Without one it is said on standard error, and where `OUTSIZE_GPU_TESTS` is set it is a failure.
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

#[test]
fn products_are_those_of_the_cpu_whatever_the_tile() {
    let Some(device) = device() else { return };
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        for (rows, columns, m) in
            [(1, 2, 1), (37, 64, 1), (130, 130, 3), (37, 64, 8), (19, 33, 2), (64, 96, 33)]
        {
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
            if m <= 8 && columns % 2 == 0 && rows > 8 {
                // Few rows take the words as they are, whose bits do not depend on the tile.
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
