//! The operations over Burn tensors.

use std::cell::RefCell;
use std::ops::Range;

use crate::common::{bits, reference, values};
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use outsize_kernels::{
    ActivationDtype, ActivationFunction, ConvolutionWindow, RotaryPairs, WeightTiles, activate,
    add_convolution, add_layer_norm, add_linear_in_out, attend_pixels, convolution_into,
    convolution_tiles, embedding, gate_halves, gated, gated_linear, gated_linear_tiles, group_norm,
    layer_norm, linear, linear_qkv, linear_tiles, linear_two_tiles, linear_with, rotate, unwritten,
    upsample_nearest,
};

const STORED: [DType; 3] = [DType::BF16, DType::F16, DType::F32];

fn tensor<const D: usize>(dims: [usize; D], seed: u64) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values(dims.iter().product(), seed), dims), &Device::flex())
}

fn elements<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    assert_eq!(tensor.dtype(), DType::F32);
    tensor.into_data().try_to_vec().expect("an f32 tensor holds f32")
}

/// Checks `y` against the matmul in f64 of the same tensors, flattened.
fn check<const D: usize>(y: Tensor<D>, x: Tensor<D>, weight: Tensor<2>) {
    let [n, k] = weight.dims();
    let mut dims = x.dims();
    let m = dims[..D - 1].iter().product();
    dims[D - 1] = n;
    assert_eq!(y.dims(), dims);
    let (want, allowed) = reference(&elements(x), &elements(weight.cast(DType::F32)), [m, n, k]);
    for ((y, want), allowed) in elements(y).into_iter().zip(want).zip(allowed) {
        assert!((f64::from(y) - want).abs() <= allowed, "{y} for {want}");
    }
}

#[test]
fn linear_is_the_product_for_any_rank_and_dtype() {
    for dtype in STORED {
        let weight = tensor([19, 53], 1).cast(dtype);
        let (one, two, three) = (tensor([53], 2), tensor([7, 53], 3), tensor([2, 3, 53], 4));
        check(linear(one.clone(), weight.clone()), one, weight.clone());
        check(linear(two.clone(), weight.clone()), two, weight.clone());
        check(linear(three.clone(), weight.clone()), three, weight);
    }
}

#[test]
fn three_products_have_the_bits_of_each() {
    for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
        for rows in [1, 5, 20] {
            let x = tensor([rows, 2, 53], 4);
            let weights = [(19, DType::BF16), (7, DType::F16), (300, DType::BF16)]
                .map(|(n, dtype)| tensor([n, 53], n as u64).cast(dtype));
            let three = linear_qkv(compute, x.clone(), weights.clone());
            for (y, weight) in three.into_iter().zip(weights) {
                let alone = linear_with(compute, x.clone(), weight);
                assert_eq!(y.dims(), alone.dims());
                assert_eq!(bits(&elements(y)), bits(&elements(alone)));
            }
        }
    }
}

#[test]
fn three_products_of_other_dtypes_are_burn_s_own() {
    let x = tensor([3, 53], 1);
    let weights = [19, 7, 8].map(|n| tensor([n, 53], n as u64).cast(DType::F64));
    let three = linear_qkv(ActivationDtype::F32, x.clone(), weights.clone());
    for (y, weight) in three.into_iter().zip(weights) {
        check(y, x.clone(), weight);
    }
}

#[test]
fn a_gated_product_has_the_bits_of_its_parts() {
    for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
        for rows in [1, 5, 20] {
            let x = tensor([rows, 2, 53], 4);
            let [gate, up] = [1, 2].map(|seed| tensor([37, 53], seed).cast(DType::BF16));
            for act in ActivationFunction::ALL {
                let parts =
                    [&gate, &up].map(|weight| linear_with(compute, x.clone(), weight.clone()));
                let [gate_part, up_part] = parts;
                let want = gated(act, gate_part, up_part);
                let found = gated_linear(compute, x.clone(), gate.clone(), up.clone(), act);
                assert_eq!(found.dims(), want.dims());
                assert_eq!(bits(&elements(found)), bits(&elements(want)));
            }
        }
    }
}

#[test]
#[should_panic(expected = "gate: sides of other shapes")]
fn sides_of_other_heights_are_refused() {
    let [gate, up] = [37, 38].map(|n| tensor([n, 53], 1).cast(DType::BF16));
    gated_linear(ActivationDtype::F32, tensor([2, 53], 2), gate, up, ActivationFunction::Silu);
}

#[test]
fn linear_of_no_rows_is_empty() {
    let y = linear(tensor([0, 53], 1), tensor([19, 53], 1).cast(DType::BF16));
    assert_eq!(y.dims(), [0, 19]);
}

#[test]
fn some_rows_of_a_weight_give_those_columns_bit_for_bit() {
    for dtype in STORED {
        let (x, weight) = (tensor([2, 5, 33], 1), tensor([40, 33], 2).cast(dtype));
        let whole = linear(x.clone(), weight.clone());
        for rows in [0..9, 7..24, 39..40] {
            let some = linear(x.clone(), weight.clone().slice([rows.clone(), 0..33]));
            let want = whole.clone().slice([0..2, 0..5, rows]);
            assert_eq!(bits(&elements(some)), bits(&elements(want)));
        }
    }
}

#[test]
fn strided_tensors_give_the_same_bits() {
    for dtype in STORED {
        let (x, weight) =
            (tensor([33, 5], 1).transpose(), tensor([66, 12], 2).cast(dtype).transpose());
        let weight = weight.slice([0..12, 20..53]);
        let copy = |tensor: Tensor<2>| {
            Tensor::<2>::from_data(tensor.clone().into_data(), (&Device::flex(), tensor.dtype()))
        };
        let want = linear(copy(x.clone()), copy(weight.clone()));
        assert_eq!(bits(&elements(linear(x.clone(), weight.clone()))), bits(&elements(want)));
        check(linear(x.clone(), weight.clone()), x, weight);
    }
}

#[test]
fn other_dtypes_take_the_dtype_of_x() {
    let (x, weight) = (tensor([3, 8], 1), tensor([5, 8], 2));
    check(linear(x.clone(), weight.clone().cast(DType::F64)), x.clone(), weight.clone());
    let y = linear(x.clone().cast(DType::F64), weight.clone().cast(DType::BF16));
    assert_eq!(y.dtype(), DType::F64);
    check(y.cast(DType::F32), x, weight.cast(DType::BF16));
}

#[test]
fn gradients_flow_on_an_autodiff_device() {
    let device = Device::flex().autodiff();
    let weight =
        Tensor::<2>::random([4, 6], Distribution::Default, &device).cast(DType::F32).require_grad();
    let x = Tensor::<3>::ones([2, 3, 6], &device).require_grad();
    let y = linear(x.clone(), weight.clone());
    let gradients = y.sum().backward();
    // d(sum)/dW[j, l] = the sum of x[.., l] over its six rows; d(sum)/dx[.., l] = the sum of W[j,
    // l] over j.
    let for_weight = weight.grad(&gradients).expect("the weight has a gradient");
    assert_eq!(elements(for_weight), vec![6.0; 24]);
    let for_x = x.grad(&gradients).expect("x has a gradient");
    let want = weight.inner().sum_dim(0).unsqueeze::<3>().expand([2, 3, 6]);
    for (got, want) in elements(for_x).into_iter().zip(elements(want)) {
        assert!((got - want).abs() <= 4.0 * f32::EPSILON * want.abs(), "{got} for {want}");
    }
}

#[test]
#[should_panic(
    expected = "linear: the last dimension of x [3, 7] must be the second of the weight [5, 8]"
)]
fn sizes_that_do_not_match_are_refused() {
    linear(tensor([3, 7], 1), tensor([5, 8], 1));
}

#[test]
fn embedding_gives_the_rows_in_f32() {
    for dtype in STORED {
        let table = tensor([50, 12], 1).cast(dtype);
        for table in [table.clone(), table.clone().slice([7..40, 0..12]), table.transpose()] {
            let rows = elements(table.clone().cast(DType::F32));
            let width = table.dims()[1];
            for id_dtype in [DType::I64, DType::I32, DType::U32] {
                let ids =
                    Tensor::<1, Int>::from_data([3, 0, 11, 3], &Device::flex()).cast(id_dtype);
                let want: Vec<f32> = [3, 0, 11, 3]
                    .iter()
                    .flat_map(|&id| rows[id * width..][..width].to_vec())
                    .collect();
                let y = embedding(table.clone(), ids);
                assert_eq!(y.dims(), [4, width]);
                assert_eq!(elements(y), want);
            }
        }
    }
}

#[test]
fn embedding_of_no_ids_is_empty() {
    let ids = Tensor::<1, Int>::from_data(TensorData::new(Vec::<i64>::new(), [0]), &Device::flex());
    assert_eq!(embedding(tensor([5, 4], 1).cast(DType::BF16), ids).dims(), [0, 4]);
}

#[test]
fn embedding_takes_other_dtypes_and_autodiff() {
    let device = Device::flex().autodiff();
    let table = Tensor::<2>::ones([5, 4], &device).require_grad();
    let ids = Tensor::<1, Int>::from_data([2, 2], &device);
    let gradients = embedding(table.clone(), ids).sum().backward();
    let gradient = elements(table.grad(&gradients).expect("the table has a gradient"));
    assert_eq!(gradient, [[0.0; 4], [0.0; 4], [2.0; 4], [0.0; 4], [0.0; 4]].concat());

    let ids = Tensor::<1, Int>::from_data([1], &Device::flex());
    let table = tensor([5, 4], 3);
    let want = elements(table.clone())[4..8].to_vec();
    assert_eq!(elements(embedding(table.cast(DType::F64), ids)), want);
}

#[test]
#[should_panic(expected = "embedding: id 50 (number 1) is not a row of a table of 50 rows")]
fn an_id_beyond_the_table_is_refused() {
    embedding(tensor([50, 4], 1).cast(DType::BF16), Tensor::from_data([3, 50], &Device::flex()));
}

#[test]
#[should_panic(expected = "embedding: id -1 (number 0)")]
fn a_negative_id_is_refused() {
    embedding(tensor([50, 4], 1).cast(DType::BF16), Tensor::from_data([-1], &Device::flex()));
}

/// Asserts that a kernel's result is that of Burn's own operations in f64, which the same function
/// takes for other dtypes.
fn same_as_composed<const D: usize>(kernel: Tensor<D>, composed: Tensor<D>) {
    assert_eq!(composed.dtype(), DType::F64);
    let composed = composed.cast(DType::F32);
    assert_eq!(kernel.dims(), composed.dims());
    for (found, want) in elements(kernel).into_iter().zip(elements(composed)) {
        assert!((found - want).abs() <= 1e-5, "{found} for {want}");
    }
}

#[test]
fn rotations_are_those_of_burn_s_own_operations() {
    for pairs in [RotaryPairs::Halves, RotaryPairs::Interleaved] {
        for rotary in [2, 8, 12] {
            let (x, cos, sin) = (
                tensor([2, 3, 2, 12], 1),
                tensor([1, 3, 1, rotary / 2], 2),
                tensor([1, 3, 1, rotary / 2], 3),
            );
            let wide = [&x, &cos, &sin].map(|tensor| tensor.clone().cast(DType::F64));
            let [x64, cos64, sin64] = wide;
            same_as_composed(rotate(x, pairs, cos, sin), rotate(x64, pairs, cos64, sin64));
        }
    }
}

#[test]
fn layer_norms_are_those_of_burn_s_own_operations() {
    for dtype in STORED {
        for biased in [false, true] {
            let (x, add) = (tensor([2, 3, 37], 1), tensor([2, 3, 37], 2));
            let weight = tensor([37], 3).cast(dtype);
            let bias = biased.then(|| tensor([37], 4).cast(dtype));
            let [x64, add64] = [&x, &add].map(|tensor| tensor.clone().cast(DType::F64));
            same_as_composed(
                layer_norm(x.clone(), weight.clone(), bias.clone(), 1e-3),
                layer_norm(x64.clone(), weight.clone(), bias.clone(), 1e-3),
            );
            let (sum, norm) = add_layer_norm(x, add, weight.clone(), bias.clone(), 1e-3);
            let (sum64, norm64) = add_layer_norm(x64, add64, weight, bias, 1e-3);
            same_as_composed(sum, sum64);
            same_as_composed(norm, norm64);
        }
    }
}

/// `x · W` of a weight `[in, out]`.
fn linear_in_out<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: Tensor<2>,
) -> Tensor<D> {
    let mut dims = x.dims();
    dims[D - 1] = weight.dims()[1];
    let y = Tensor::zeros(dims, (&x.device(), x.dtype()));
    add_linear_in_out(compute, y, x, 0, weight)
}

#[test]
fn tiles_of_a_weight_stored_in_out_give_the_bits_of_the_whole() {
    for dtype in STORED {
        let (x, weight) = (tensor([2, 3, 53], 1), tensor([53, 19], 2).cast(dtype));
        for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
            let whole = linear_in_out(compute, x.clone(), weight.clone());
            let mut y = Tensor::zeros([2, 3, 19], &x.device());
            for rows in [0..20, 20..21, 21..53] {
                let tile = weight.clone().slice([rows.clone(), 0..19]);
                y = add_linear_in_out(compute, y, x.clone(), rows.start, tile);
            }
            assert_eq!(bits(&elements(y)), bits(&elements(whole)));
        }
        let y = linear_in_out(ActivationDtype::F32, x.clone(), weight.clone());
        let composed = linear_in_out(ActivationDtype::F32, x.cast(DType::F64), weight);
        same_as_composed(y, composed);
    }
}

/// A weight of some rows in tiles of other ones.
fn tiles(weight: &Tensor<2>) -> (usize, WeightTiles<'_>) {
    let [n, _] = weight.dims();
    let tiles = [0..7, 7..8, 8..n]
        .into_iter()
        .map(|rows: Range<usize>| (rows.clone(), weight.clone().slice([rows, 0..53]).into()));
    (n, Box::new(tiles))
}

#[test]
fn tiles_of_weights_give_the_bits_of_the_whole() {
    for device in [Device::flex(), Device::flex().autodiff()] {
        for dtype in STORED {
            let x = tensor([2, 11, 53], 1).to_device(&device);
            let weights = [19, 40].map(|n| tensor([n, 53], 2).to_device(&device).cast(dtype));
            for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
                let ys = linear_tiles(compute, x.clone(), weights.each_ref().map(tiles));
                for (y, weight) in ys.into_iter().zip(&weights) {
                    let whole = linear_with(compute, x.clone(), weight.clone());
                    assert_eq!(y.dims(), whole.dims());
                    assert_eq!(bits(&elements(y)), bits(&elements(whole)));
                }
            }
        }
    }
}

#[test]
fn a_gate_in_tiles_gives_the_bits_of_the_whole() {
    let act = ActivationFunction::Silu;
    for (rows, dtype) in [(1, DType::BF16), (11, DType::F32), (0, DType::BF16), (40, DType::BF16)] {
        let x = tensor([rows, 53], 4);
        let [gate, up] = &[1, 2].map(|seed| tensor([37, 53], seed).cast(dtype));
        for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
            let whole = gated_linear(compute, x.clone(), gate.clone(), up.clone(), act);
            let held = |weight: &Tensor<2>| -> WeightTiles<'_> {
                Box::new(std::iter::once((0..37, weight.clone().into())))
            };
            for pair in
                [[tiles(gate).1, tiles(up).1], [held(gate), tiles(up).1], [tiles(gate).1, held(up)]]
            {
                let y = gated_linear_tiles(compute, x.clone(), 37, pair, act);
                assert_eq!(y.dims(), whole.dims());
                assert_eq!(bits(&elements(y)), bits(&elements(whole.clone())));
            }
            let ys = linear_two_tiles(compute, x.clone(), 37, [tiles(gate).1, held(up)]);
            for (y, weight) in ys.into_iter().zip([gate, up]) {
                let whole = linear_with(compute, x.clone(), weight.clone());
                assert_eq!(y.dims(), whole.dims());
                assert_eq!(bits(&elements(y)), bits(&elements(whole)));
            }
        }
    }
}

/// A tile of each is held at a time, and the first weight's is asked for first.
#[test]
fn tiles_of_two_weights_come_in_turns() {
    let (x, weight) = (tensor([3, 53], 1), tensor([37, 53], 2));
    let asked = RefCell::new(Vec::new());
    let tiles = [0, 1].map(|which| {
        let asked = &asked;
        tiles(&weight).1.inspect(move |(rows, _)| asked.borrow_mut().push((which, rows.start)))
    });
    linear_two_tiles(ActivationDtype::F32, x, 37, tiles);
    let expected = [(0, 0), (1, 0), (0, 7), (1, 7), (0, 8), (1, 8)];
    assert_eq!(asked.into_inner(), expected);
}

#[test]
#[should_panic(expected = "tiles must be all of a weight")]
fn a_tile_that_is_missing_of_one_of_two_is_refused() {
    let weight = tensor([37, 53], 2);
    let [all, some] = [tiles(&weight).1, Box::new(tiles(&weight).1.take(2))];
    linear_two_tiles(ActivationDtype::F32, tensor([3, 53], 1), 37, [all, some]);
}

#[test]
#[should_panic(expected = "tiles must be all of a weight of 19 rows")]
fn a_tile_that_is_missing_is_refused() {
    let tile = (0..7, tensor([7, 53], 2).into());
    linear_tiles(ActivationDtype::F32, tensor([2, 53], 1), [(19, [tile].into_iter())]);
}

#[test]
fn an_activation_is_a_gate_of_ones() {
    let x = tensor([2, 3, 37], 1);
    for function in ActivationFunction::ALL {
        let alone = activate(function, x.clone());
        let want = gated(function, x.clone(), Tensor::ones_like(&x));
        assert_eq!(bits(&elements(alone)), bits(&elements(want)));
    }
}

/// Burn's own operations give what this crate's do.
#[test]
fn pictures_are_the_same_on_an_autodiff_device() {
    let here = Device::flex();
    let there = Device::flex().autodiff();
    let moved = |x: &Tensor<4>| x.clone().to_device(&there);
    let close = |what: &str, one: Tensor<4>, other: Tensor<4>| {
        assert_eq!(one.dims(), other.dims(), "{what}");
        for (one, other) in elements(one).into_iter().zip(elements(other)) {
            assert!((one - other).abs() <= 1e-5 * one.abs().max(1.0), "{what}: {one} and {other}");
        }
    };
    let x = tensor([2, 6, 5, 8], 1);
    let (three, one) = (tensor([9, 72], 2), tensor([9, 8], 2));
    let bias: Tensor<1> = tensor([9], 3);
    let windows = [(1, true, true), (1, false, true), (1, true, false), (2, true, true)]
        .map(|(stride, above, below)| ConvolutionWindow::Three { stride, above, below });
    for window in windows.into_iter().chain([ConvolutionWindow::One]) {
        let [height, width] = window.output(6, 5);
        let weight = if window == ConvolutionWindow::One { &one } else { &three };
        let convolved = |device: &Device| {
            let mut y = unwritten([2, height, width, 9], device);
            let x = x.clone().to_device(device);
            for (start, count) in [(0, 4), (4, 5)] {
                let weight = weight.clone().narrow(0, start, count).to_device(device);
                let bias = bias.clone().narrow(0, start, count).to_device(device);
                let compute = ActivationDtype::F32;
                y = convolution_into(compute, y, x.clone(), weight, bias, window, start);
            }
            y
        };
        close("convolution", convolved(&here), convolved(&there));
        let tiled = |device: &Device| {
            let tiles = [0..3, 3..9].map(|outputs| {
                let tile = weight.clone().narrow(0, outputs.start, outputs.len());
                (outputs, tile.to_device(device))
            });
            let (x, bias) = (x.clone().to_device(device), bias.clone().to_device(device));
            // A tile has outputs of both.
            let parts = [2, 7];
            let compute = ActivationDtype::F32;
            let made = convolution_tiles(compute, x, bias, window, &parts, tiles.into_iter());
            Tensor::cat(made, 3)
        };
        close("convolution by tiles", tiled(&here), tiled(&there));
        assert_eq!(elements(tiled(&here)), elements(convolved(&here)));
        let added = |device: &Device| {
            let (y, compute) = (convolved(device), ActivationDtype::F32);
            let weight = weight.clone().to_device(device);
            add_convolution(compute, y, x.clone().to_device(device), weight, window)
        };
        close("convolution added", added(&here), added(&there));
        // Without its bias, once more.
        let bias = bias.clone().reshape([1, 1, 1, 9]);
        close("twice", added(&here) + bias, convolved(&here) * 2.0);
    }
    let (scale, shift): (Tensor<1>, Tensor<1>) = (tensor([8], 4), tensor([8], 5));
    let affine = (scale.clone(), shift.clone());
    let affine_there = (scale.to_device(&there), shift.to_device(&there));
    for silu in [false, true] {
        let one = group_norm(x.clone(), 4, affine.clone(), 1e-3, silu);
        close("norm", one, group_norm(moved(&x), 4, affine_there.clone(), 1e-3, silu));
    }
    close("gate", gate_halves(x.clone()), gate_halves(moved(&x)));
    close("upsampling", upsample_nearest(x.clone()), upsample_nearest(moved(&x)));
    let attended = [x, tensor([2, 7, 5, 8], 6), tensor([2, 7, 5, 8], 7)];
    let there = attended.each_ref().map(moved);
    let compute = ActivationDtype::F32;
    close("attention", attend_pixels(compute, attended, 0.3), attend_pixels(compute, there, 0.3));
}
