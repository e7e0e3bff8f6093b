//! Convolutions, group norms and gates of pictures: beside plain loops in f64, and the same bits
//! however the work is cut.

use crate::common::{COMPUTES, DTYPES, Dtype, Stored, available, bits, multiplied, values};
use outsize_kernels::activation::{ActivationFunction, gate_halves_into, gate_in_place};
use outsize_kernels::group_norm::{GroupSums, normalize_groups_into, row_sums};
use outsize_kernels::matmul::{
    ConvolutionOutputs, ConvolutionShape, ConvolutionWindow, PackedPictures,
};
use outsize_kernels::{ActivationDtype, Isa};
use proptest::prelude::*;

fn on<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build().expect("threads can be started").install(work)
}

fn shape(sides: [usize; 4], window: ConvolutionWindow) -> ConvolutionShape {
    let [batch, rows, columns, channels] = sides;
    ConvolutionShape { batch, rows, columns, channels, window }
}

fn three(stride: usize, [above, below]: [bool; 2]) -> ConvolutionWindow {
    ConvolutionWindow::Three { stride, above, below }
}

/// The convolution in f64, with what the sum of magnitudes is.
fn reference(x: &[f32], shape: &ConvolutionShape, weight: &[f32], n: usize) -> Vec<[f64; 2]> {
    let ConvolutionShape { batch, rows, columns, channels, window } = *shape;
    let [height, width] = shape.output();
    let (side, stride, above, left) = match window {
        ConvolutionWindow::One => (1, 1, false, 0),
        ConvolutionWindow::Three { stride, above, .. } => (3, stride, above, 1),
    };
    let mut found = Vec::with_capacity(batch * height * width * n);
    let pixel = |picture: usize, row: usize, column: usize| {
        let row = row.checked_sub(usize::from(above)).filter(|row| *row < rows)?;
        let column = column.checked_sub(left).filter(|column| *column < columns)?;
        Some(&x[((picture * rows + row) * columns + column) * channels..][..channels])
    };
    for picture in 0..batch {
        for (row, column) in (0..height).flat_map(|row| (0..width).map(move |at| (row, at))) {
            for output in 0..n {
                let mut sums = [0.0; 2];
                for (tap, (down, right)) in
                    (0..side).flat_map(|down| (0..side).map(move |right| (down, right))).enumerate()
                {
                    let seen = pixel(picture, row * stride + down, column * stride + right);
                    for (channel, x) in seen.into_iter().flatten().enumerate() {
                        let weight = weight[(output * channels + channel) * window.taps() + tap];
                        let product = f64::from(*x) * f64::from(weight);
                        sums = [sums[0] + product, sums[1] + product.abs()];
                    }
                }
                found.push(sums);
            }
        }
    }
    found
}

fn convolved(
    (isa, compute): (Isa, ActivationDtype),
    x: &[f32],
    shape: ConvolutionShape,
    stored: &Stored,
    bias: &[f32],
    n: usize,
) -> Vec<f32> {
    let bias = Some(bias);
    let [height, width] = shape.output();
    let mut y = vec![f32::NAN; shape.batch * height * width * n];
    let weight = stored.weight();
    let outputs = ConvolutionOutputs { weight, bias, y: &mut y, n, outputs: 0..n };
    PackedPictures::new(isa, compute, x, shape).convolve_into(outputs);
    y
}

fn check(
    dtype: Dtype,
    sides: [usize; 4],
    n: usize,
    window: ConvolutionWindow,
    seed: u64,
) -> Result<(), TestCaseError> {
    let shape = shape(sides, window);
    let x = values(sides.iter().product(), seed);
    let k = sides[3] * window.taps();
    let stored = Stored::new(dtype, &values(n * k, seed + 1));
    let bias = values(n, seed + 2);
    for isa in available() {
        for compute in COMPUTES {
            let y = convolved((isa, compute), &x, shape, &stored, &bias, n);
            // Where pairs of bf16 are multiplied, weights are rounded too.
            let pairs = [Isa::Avx512Bf16, Isa::AmxBf16].contains(&isa);
            let weight = match (compute, pairs) {
                (ActivationDtype::Bf16, true) => multiplied(compute, &stored.values()),
                _ => stored.values(),
            };
            let expected = reference(&multiplied(compute, &x), &shape, &weight, n);
            for (index, (y, [sum, magnitude])) in y.iter().zip(&expected).enumerate() {
                let bias = f64::from(bias[index % n]);
                let allowed = (k as f64 / 4.0 + 4.0) * 2f64.powi(-23) * magnitude
                    + 2f64.powi(-23) * (sum + bias).abs();
                let error = (f64::from(*y) - sum - bias).abs();
                prop_assert!(
                    error <= allowed,
                    "{isa:?} {compute:?} {dtype:?} {shape:?} at {index}: {y} for {}",
                    sum + bias
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_convolution_agrees_with_f64(
        sides in (1usize..3, 2usize..9, 1usize..20, 1usize..40), n in 1usize..30,
        stride in 1usize..3, ends in any::<[bool; 2]>(), seed in any::<u32>(),
    ) {
        let (batch, rows, columns, channels) = sides;
        for dtype in DTYPES {
            let sides = [batch, rows, columns, channels];
            check(dtype, sides, n, three(stride, ends), seed.into())?;
            check(dtype, sides, n, ConvolutionWindow::One, seed.into())?;
        }
    }

    /// Bands of rows, tiles of outputs and any number of threads.
    #[test]
    fn a_convolution_has_the_same_bits_however_it_is_cut(
        rows in 3usize..12, columns in 1usize..20, channels in 1usize..20, n in 2usize..40,
        cut in any::<prop::sample::Index>(), threads in 1usize..4, seed in any::<u32>(),
    ) {
        let (cut_rows, cut_outputs) = (1 + cut.index(rows - 2), 1 + cut.index(n - 1));
        let whole = shape([1, rows, columns, channels], three(1, [true; 2]));
        let x = values(rows * columns * channels, seed.into());
        let stored = Stored::new(Dtype::F16, &values(n * channels * 9, u64::from(seed) + 1));
        let bias = values(n, u64::from(seed) + 2);
        let row = columns * channels;
        for way in available().flat_map(|isa| COMPUTES.map(|compute| (isa, compute))) {
            let y = convolved(way, &x, whole, &stored, &bias, n);
            let top = shape([1, cut_rows + 1, columns, channels], three(1, [true, false]));
            let below = shape([1, rows - cut_rows + 1, columns, channels], three(1, [false, true]));
            let mut parts = on(threads, || {
                convolved(way, &x[..(cut_rows + 1) * row], top, &stored, &bias, n)
            });
            parts.extend(convolved(way, &x[(cut_rows - 1) * row..], below, &stored, &bias, n));
            prop_assert_eq!(bits(&parts), bits(&y), "{:?} cut at row {}", way, cut_rows);
            let mut tiles = vec![f32::NAN; y.len()];
            let mut packed = PackedPictures::new(way.0, way.1, &x, whole);
            for outputs in [0..cut_outputs, cut_outputs..n] {
                let k = channels * 9;
                let weight = stored.weight().slice(outputs.start * k, outputs.end * k);
                let (bias, y) = (Some(&bias[outputs.clone()]), &mut tiles[..]);
                packed.convolve_into(ConvolutionOutputs { weight, bias, y, n, outputs });
            }
            prop_assert_eq!(bits(&tiles), bits(&y), "{:?} cut at output {}", way, cut_outputs);
        }
    }

    #[test]
    fn a_group_norm_follows_the_formula(
        sides in (1usize..3, 1usize..6, 1usize..9), width in 1usize..7, groups in 1usize..5,
        silu in any::<bool>(), shift in -3.0f32..3.0, cut in any::<prop::sample::Index>(), seed in any::<u32>(),
    ) {
        let ((batch, rows, columns), channels) = (sides, width * groups);
        let shape = [batch, rows, columns, channels];
        let picture = rows * columns * channels;
        let x: Vec<f32> = values(batch * picture, seed.into()).iter().map(|x| x + shift).collect();
        let [weight, bias] = [1, 2].map(|more| values(channels, u64::from(seed) + more));
        let row_values = columns * width;
        let mut first = None;
        for isa in available() {
            let mut sums = GroupSums::default();
            sums.add(&row_sums(isa, &x, shape, groups), batch, groups, row_values);
            let moments = sums.moments(1e-3);
            let mut y = vec![f32::NAN; x.len()];
            normalize_groups_into(isa, &x, shape, &moments, (&weight, &bias), silu, &mut y);
            prop_assert_eq!(first.get_or_insert_with(|| bits(&y)), &bits(&y), "{:?}", isa);
            if batch == 1 {
                let (above, below) = x.split_at(cut.index(rows) * columns * channels);
                let mut in_bands = GroupSums::default();
                for band in [above, below] {
                    let band_rows = band.len() / (columns * channels);
                    let shape = [1, band_rows, columns, channels];
                    in_bands.add(&row_sums(isa, band, shape, groups), 1, groups, row_values);
                }
                prop_assert_eq!(&in_bands, &sums);
            }
            for (index, y) in y.iter().enumerate() {
                let (picture_index, channel) = (index / picture, index % channels);
                let group = channel / width;
                let all: Vec<f64> = (x[picture_index * picture..][..picture].chunks(channels))
                    .flat_map(|pixel| &pixel[group * width..][..width])
                    .map(|x| f64::from(*x))
                    .collect();
                let mean = all.iter().sum::<f64>() / all.len() as f64;
                let variance = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / all.len() as f64;
                let normed = (f64::from(x[index]) - mean) / (variance + 1e-3).sqrt();
                let expected = normed * f64::from(weight[channel]) + f64::from(bias[channel]);
                let expected = if silu { expected / (1.0 + (-expected).exp()) } else { expected };
                let scale = 1.0 / (variance + 1e-3).sqrt() * f64::from(weight[channel]).abs();
                let allowed = 2f64.powi(-20) * (1.0 + expected.abs() + 4.0 * scale);
                prop_assert!((f64::from(*y) - expected).abs() <= allowed, "{y} for {expected}");
            }
        }
    }

    #[test]
    fn halves_are_gated_as_one_after_the_other(
        rows in 1usize..5, n in 1usize..60, seed in any::<u32>(),
    ) {
        let x = values(rows * 2 * n, seed.into());
        let half = |first: usize| {
            let row = |row: usize| x[row * 2 * n + first..][..n].to_vec();
            (0..rows).flat_map(row).collect::<Vec<f32>>()
        };
        for isa in available() {
            let (mut y, mut expected) = (vec![f32::NAN; rows * n], half(n));
            gate_halves_into(isa, ActivationFunction::Gelu, &x, (&mut y, n));
            gate_in_place(isa, ActivationFunction::Gelu, &mut expected, &half(0));
            prop_assert_eq!(bits(&y), bits(&expected), "{:?}", isa);
        }
    }
}

/// Several panels of outputs, and groups of rows that threads share.
#[test]
fn large_convolutions_agree_with_f64() {
    let whole = |stride| three(stride, [true; 2]);
    for (sides, n, window) in [
        ([2, 16, 37, 33], 50, whole(1)),
        ([1, 9, 64, 70], 30, whole(2)),
        ([1, 2, 3, 500], 13, whole(1)),
        ([1, 3, 5, 1500], 13, whole(1)),
        ([1, 3, 50, 6000], 33, ConvolutionWindow::One),
    ] {
        check(Dtype::F16, sides, n, window, 5).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Not finite in, not finite out, in what sees it alone.
#[test]
fn a_nan_reaches_what_sees_it_alone() {
    let shape = shape([1, 7, 8, 5], three(1, [true; 2]));
    let mut x = vec![1.0; 7 * 8 * 5];
    x[(3 * 8 + 4) * 5 + 2] = f32::NAN;
    let stored = Stored::new(Dtype::F32, &vec![1.0; 3 * 5 * 9]);
    for isa in available() {
        let y = convolved((isa, ActivationDtype::F32), &x, shape, &stored, &[], 3);
        for (index, y) in y.iter().enumerate() {
            let (row, column) = (index / 3 / 8, index / 3 % 8);
            let sees = (2..=4).contains(&row) && (3..=5).contains(&column);
            assert_eq!(y.is_nan(), sees, "{isa:?} at {row}, {column}");
        }
    }
}

#[test]
#[should_panic(expected = "weight must hold 2 rows of 3 channels")]
fn a_weight_of_another_size_is_refused() {
    let shape = shape([1, 2, 2, 3], three(1, [true; 2]));
    let stored = Stored::new(Dtype::F32, &[1.0; 9]);
    convolved((Isa::detected(), ActivationDtype::F32), &[1.0; 12], shape, &stored, &[], 2);
}
