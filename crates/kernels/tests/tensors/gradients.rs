//! Backward passes against Burn's own operations in f64, and against finite differences.

use crate::common::values;
use burn::tensor::activation::{gelu, log_softmax, relu, sigmoid, silu, softmax};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use outsize_kernels::attention::{Alibi, AttentionMask, RingLayout};
use outsize_kernels::{
    ActivationDtype, ActivationFunction, KvTensors, RotaryPairs, activate, add_layer_norm,
    add_linear_in_out, add_rms_norm, attend, cross_entropy, embedding, gated, gated_linear,
    layer_norm, linear, linear_qkv, rms_norm, rotate,
};

/// How far a gradient may be off, of the largest magnitude in it.
const TOLERANCE: f64 = 1e-5;

fn device() -> Device {
    Device::flex().autodiff()
}

/// A leaf that asks for its gradient.
fn leaf<const D: usize>(dims: [usize; D], seed: u64, dtype: DType) -> Tensor<D> {
    let data = TensorData::new(values(dims.iter().product(), seed), dims);
    Tensor::<D>::from_data(data, (&device(), DType::F32)).cast(dtype).detach().require_grad()
}

fn elements<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

/// A number that depends on each element of `y` in its own way.
fn loss<const D: usize>(y: Tensor<D>) -> Tensor<1> {
    let weights = values(y.dims().iter().product(), 99);
    let weights =
        Tensor::<D>::from_data(TensorData::new(weights, y.dims()), (&device(), DType::F32));
    let dtype = y.dtype();
    (y * weights.cast(dtype)).sum()
}

/// Checks the gradients of leaves of these sizes: `work` in f32, which has kernels, against `own`
/// in f64, for which there are Burn's own operations alone.
fn check<const D: usize, const N: usize, const E: usize>(
    what: &str,
    dims: [[usize; D]; N],
    work: impl Fn([Tensor<D>; N]) -> Tensor<E>,
    own: impl Fn([Tensor<D>; N]) -> Tensor<E>,
) {
    let run = |dtype, work: &dyn Fn([Tensor<D>; N]) -> Tensor<E>| {
        let mut seed = 0;
        let leaves = dims.map(|dims| {
            seed += 1;
            leaf(dims, seed, dtype)
        });
        let y = work(leaves.clone());
        let grads = loss(y.clone()).backward();
        let grads = leaves.map(|leaf| {
            let grad = leaf.grad(&grads).unwrap_or_else(|| panic!("{what}: no gradient"));
            assert_eq!((grad.dims(), grad.dtype()), (leaf.dims(), dtype), "{what}");
            elements(grad)
        });
        (elements(y), grads)
    };
    let (y, found) = run(DType::F32, &work);
    let (y_own, want) = run(DType::F64, &own);
    near(&format!("{what}: result"), &y, &y_own, TOLERANCE);
    for (index, (found, want)) in found.iter().zip(&want).enumerate() {
        near(&format!("{what}: gradient {index}"), found, want, TOLERANCE);
    }
}

fn near(what: &str, found: &[f64], want: &[f64], tolerance: f64) {
    let largest = want.iter().fold(0.0f64, |largest, want| largest.max(want.abs()));
    assert!(largest > 0.0, "{what}: all zero");
    for (at, (found, want)) in found.iter().zip(want).enumerate() {
        assert!((found - want).abs() <= tolerance * largest, "{what}, {at}: {found} for {want}");
    }
}

#[test]
fn matmuls() {
    for [m, n, k] in [[1, 3, 5], [7, 19, 53], [70, 130, 66], [300, 200, 33]] {
        let product = |[x, weight]: [Tensor<2>; 2]| linear(x, weight);
        check(&format!("{m} {n} {k}"), [[m, k], [n, k]], product, product);
        let added = |[y, x, weight]: [Tensor<2>; 3]| {
            add_linear_in_out(ActivationDtype::F32, y, x, 0, weight)
        };
        check(&format!("in, out: {m} {n} {k}"), [[m, n], [m, k], [k, n]], added, added);
    }
    let part =
        |[y, x, weight]: [Tensor<2>; 3]| add_linear_in_out(ActivationDtype::F32, y, x, 2, weight);
    check("some columns", [[7, 4], [7, 9], [5, 4]], part, part);
    let three = |[x, a, b, c]: [Tensor<2>; 4]| {
        let [a, b, c] = linear_qkv(ActivationDtype::F32, x, [a, b, c]);
        a * 0.5 + b * c
    };
    check("three", [[9, 21], [17, 21], [17, 21], [17, 21]], three, three);
}

#[test]
fn a_weight_s_gradient_has_its_dtype() {
    for (dtype, tolerance) in [(DType::BF16, 1.0 / 128.0), (DType::F16, 1.0 / 1024.0)] {
        let run = |kept: DType| {
            let (x, weight) = (leaf([9, 21], 1, DType::F32), leaf([17, 21], 2, dtype));
            let weight = weight.cast(kept).detach().require_grad();
            let grads = loss(linear(x.clone(), weight.clone())).backward();
            let grad = weight.grad(&grads).unwrap();
            assert_eq!(grad.dtype(), kept);
            (elements(x.grad(&grads).unwrap()), elements(grad))
        };
        let ((x, weight), (x_want, want)) = (run(dtype), run(DType::F32));
        near("x", &x, &x_want, TOLERANCE);
        near("weight", &weight, &want, tolerance);
    }
}

#[test]
fn what_does_not_learn_gets_no_gradient() {
    let (x, weight) = (leaf([3, 4], 1, DType::F32), leaf([5, 4], 2, DType::F32));
    let frozen = weight.clone().set_require_grad(false);
    let grads = loss(linear(x.clone(), frozen.clone())).backward();
    assert!(x.grad(&grads).is_some() && frozen.grad(&grads).is_none());
    let grads = loss(linear(x.clone().set_require_grad(false), weight.clone())).backward();
    assert!(weight.grad(&grads).is_some());
    let constant = linear(x.set_require_grad(false), weight.set_require_grad(false));
    assert!(!constant.is_tracked());
}

#[test]
fn norms() {
    for width in [5, 64, 100] {
        let dims = [[3, 30, width], [1, 1, width], [1, 1, width], [3, 30, width]];
        let flat = |weight: Tensor<3>| weight.reshape([width]);
        let rms = |[x, weight, bias, add]: [Tensor<3>; 4]| {
            let (sum, norm) = add_rms_norm(x, add.clone(), flat(weight.clone()), 1e-2);
            rms_norm(sum, flat(weight + bias), 1e-5) + norm * add
        };
        check(&format!("rms {width}"), dims, rms, rms);
        let layer = |[x, weight, bias, add]: [Tensor<3>; 4]| {
            let (sum, norm) = add_layer_norm(
                x,
                add.clone(),
                flat(weight.clone()),
                Some(flat(bias.clone())),
                1e-2,
            );
            layer_norm(sum, flat(weight + bias), None, 1e-5) + norm * add
        };
        check(&format!("layer {width}"), dims, layer, layer);
    }
}

#[test]
fn rotations() {
    for pairs in [RotaryPairs::Halves, RotaryPairs::Interleaved] {
        for width in [16, 20] {
            let angles = |seed, dtype| leaf([1, 5, 1, 8], seed, dtype).detach();
            let turned = |[x]: [Tensor<4>; 1]| {
                let dtype = x.dtype();
                rotate(x, pairs, angles(7, dtype), angles(8, dtype))
            };
            check(&format!("{pairs:?} {width}"), [[2, 5, 3, width]], turned, turned);
        }
    }
}

fn own(function: ActivationFunction, x: Tensor<2>) -> Tensor<2> {
    match function {
        ActivationFunction::Silu => silu(x),
        ActivationFunction::Gelu => gelu(x),
        ActivationFunction::GeluTanh => {
            let cube = x.clone() * x.clone() * x.clone() * 0.044715;
            let slope = (2.0 / std::f64::consts::PI).sqrt();
            ((x.clone() + cube) * slope).tanh().add_scalar(1.0) * x * 0.5
        }
        ActivationFunction::QuickGelu => sigmoid(x.clone() * 1.702) * x,
        ActivationFunction::Relu => relu(x),
        ActivationFunction::Relu2 => relu(x.clone()) * relu(x),
    }
}

#[test]
fn activations_and_gates() {
    for function in ActivationFunction::ALL {
        // From -4 to 4.
        let wide = |x: Tensor<2>| x * 4.0;
        check(
            &format!("{function:?}"),
            [[7, 33]],
            |[x]| activate(function, wide(x)),
            |[x]| own(function, wide(x)),
        );
        check(
            &format!("gate {function:?}"),
            [[7, 33], [7, 33]],
            |[x, up]| gated(function, wide(x), up),
            |[x, up]| own(function, wide(x)) * up,
        );
        let product = |[x, gate, up]: [Tensor<2>; 3]| {
            gated_linear(ActivationDtype::F32, x, gate, up, function)
        };
        check(
            &format!("gated {function:?}"),
            [[7, 33], [20, 33], [20, 33]],
            product,
            |[x, gate, up]| own(function, linear(x.clone(), gate)) * linear(x, up),
        );
    }
}

#[test]
fn rows_of_a_table() {
    let ids = || Tensor::<1, Int>::from_data([3i64, 0, 3, 6, 3], &device());
    let rows = |[table]: [Tensor<2>; 1]| embedding(table, ids());
    check("rows", [[9, 20]], rows, |[table]| table.select(0, ids()));
}

#[test]
fn losses() {
    for (rows, width) in [(1, 2), (5, 33), (40, 500)] {
        let target = |row: usize| if row % 4 == 3 { -1 } else { (row * 7 % width) as i64 };
        let targets: Vec<i64> = (0..rows).map(target).collect();
        let ids =
            || Tensor::<1, Int>::from_data(TensorData::new(targets.clone(), [rows]), &device());
        check(
            &format!("cross entropy {rows} {width}"),
            [[rows, width]],
            |[logits]| cross_entropy(logits * 9.0, ids()),
            |[logits]| {
                let counted = targets.iter().filter(|target| **target >= 0).count() as f64;
                let chances = log_softmax(logits * 9.0, 1);
                let ids = ids().clamp_min(0).unsqueeze_dim(1);
                let some = Tensor::<2>::from_data(
                    TensorData::new(
                        targets.iter().map(|t| f64::from(*t >= 0)).collect::<Vec<_>>(),
                        [rows, 1],
                    ),
                    (&device(), DType::F64),
                );
                -(chances.gather(1, ids) * some).sum() / counted
            },
        );
    }
}

#[test]
fn nothing_that_counts_is_no_loss() {
    let logits = leaf([2, 5], 1, DType::F32);
    let loss = cross_entropy(logits.clone(), Tensor::from_data([-1i64, -100], &device()));
    assert_eq!(elements(loss.clone()), [0.0]);
    assert_eq!(elements(logits.grad(&loss.backward()).unwrap()), [0.0; 10]);
}

/// Queries `[batch, tokens, heads, width]`, keys and values `[batch, tokens, key_heads, width]`.
fn composed([q, k, v]: [Tensor<4>; 3], mask: &AttentionMask, scale: f64) -> Tensor<4> {
    let ([batch, tokens, heads, width], key_heads) = (q.dims(), k.dims()[2]);
    let spread = |held: Tensor<4>| {
        let held = held.swap_dims(1, 2).unsqueeze_dim::<5>(2);
        held.repeat_dim(2, heads / key_heads).reshape([batch, heads, tokens, width])
    };
    let scores = q.swap_dims(1, 2).matmul(spread(k).swap_dims(2, 3)) * scale;
    let mut bias = Vec::new();
    for sequence in 0..batch {
        let padding = mask.padding[sequence];
        for head in 0..heads {
            for (query, key) in (0..tokens).flat_map(|q| (0..tokens).map(move |k| (q, k))) {
                let end = mask.end.unwrap_or(query + 1);
                let start = if mask.end.is_some() { 0 } else { end.saturating_sub(mask.window) };
                let same_chunk = mask.chunk.is_none_or(|chunk| {
                    let [query, key] = [query, key].map(|column| column.saturating_sub(padding));
                    query / chunk == key / chunk
                });
                let sees = (start.max(padding)..end).contains(&key) && same_chunk;
                let alibi = mask.alibi.as_ref().map_or(0.0, |alibi| {
                    alibi.bias(
                        head,
                        query.saturating_sub(padding),
                        key.saturating_sub(padding),
                        scale as f32,
                    )
                });
                bias.push(if sees { f64::from(alibi) } else { -1e300 });
            }
        }
    }
    let bias = TensorData::new(bias, [batch, heads, tokens, tokens]);
    let weights = softmax(scores + Tensor::from_data(bias, (&device(), DType::F64)), 3);
    weights.matmul(spread(v)).swap_dims(1, 2)
}

#[test]
fn attention() {
    let plain = |batch, window| AttentionMask {
        window,
        padding: vec![0; batch],
        ..AttentionMask::default()
    };
    let alibi = |heads| AttentionMask { alibi: Some(Alibi::new(heads)), ..plain(1, usize::MAX) };
    let all = AttentionMask { end: Some(19), ..plain(2, usize::MAX) };
    let cases = [
        ([2, 7, 3, 3, 5], plain(2, usize::MAX), None),
        ([1, 70, 4, 2, 32], plain(1, usize::MAX), Some(0.3)),
        ([1, 130, 2, 1, 20], plain(1, 9), None),
        ([1, 130, 2, 1, 20], AttentionMask { chunk: Some(50), ..plain(1, usize::MAX) }, None),
        ([1, 40, 6, 2, 16], alibi(6), None),
        ([2, 19, 2, 2, 8], all, None),
        // Rows of queries in several pieces.
        ([1, 900, 1, 1, 8], plain(1, usize::MAX), None),
    ];
    for ([batch, tokens, heads, key_heads, width], mask, scale) in cases {
        let of_keys = [batch, tokens, key_heads, width];
        let factor = scale.unwrap_or((width as f64).powf(-0.5));
        check(
            &format!("{tokens} tokens, window {}", mask.window),
            [[batch, tokens, heads, width], of_keys, of_keys],
            |[queries, keys, values]| {
                let ring = RingLayout { first: 0, end: tokens, capacity: tokens, origin: 0 };
                let [keys, values] = [keys, values].map(|held| held.swap_dims(1, 2));
                let held = KvTensors { keys, values, ring };
                attend(
                    ActivationDtype::F32,
                    queries * 2.0,
                    None,
                    held,
                    mask.clone(),
                    scale.map(|scale| scale as f32),
                )
            },
            |[q, k, v]| composed([q * 2.0, k, v], &mask, factor),
        );
    }
}

#[test]
fn padding_sees_nothing_and_nothing_sees_it() {
    let dims = [2, 9, 2, 4];
    let leaves = [1, 2, 3].map(|seed| leaf(dims, seed, DType::F32));
    let [queries, keys, values] = leaves.clone();
    let mask = AttentionMask { window: usize::MAX, padding: vec![0, 4], ..Default::default() };
    let ring = RingLayout { first: 0, end: 9, capacity: 9, origin: 0 };
    let held = KvTensors { keys: keys.swap_dims(1, 2), values: values.swap_dims(1, 2), ring };
    let grads = loss(attend(ActivationDtype::F32, queries, None, held, mask, None)).backward();
    for leaf in leaves {
        let grad = leaf.grad(&grads).unwrap();
        let padded = grad.clone().slice([1..2, 0..4, 0..2, 0..4]);
        assert!(elements(padded).iter().all(|grad| *grad == 0.0));
        assert!(elements(grad).iter().all(|grad| grad.is_finite()));
    }
}

/// A step along a gradient changes the loss by as much as it says.
#[test]
fn finite_differences() {
    let network = |[x, w, v]: &[Tensor<2>; 3]| {
        let hidden = gated_linear(
            ActivationDtype::F32,
            x.clone(),
            w.clone(),
            v.clone(),
            ActivationFunction::Silu,
        );
        let width = hidden.dims()[1];
        let normed = rms_norm(hidden, Tensor::ones([width], &device()), 1e-5);
        cross_entropy(normed, Tensor::from_data([1i64, 4, 0, 2], &device()))
    };
    let leaves =
        [([4, 12], 1), ([6, 12], 2), ([6, 12], 3)].map(|(dims, seed)| leaf(dims, seed, DType::F32));
    let grads = network(&leaves).backward();
    for at in 0..3 {
        let grad = leaves[at].grad(&grads).unwrap();
        let square: f64 = elements(grad.clone()).iter().map(|g| g * g).sum();
        let step = 1e-2 / square.sqrt();
        let value = |sign: f64| {
            let mut moved = leaves.clone().map(|leaf| leaf.detach());
            let grad = Tensor::from_data(grad.clone().into_data(), (&device(), DType::F32));
            moved[at] = moved[at].clone() + grad * (sign * step);
            elements(network(&moved))[0]
        };
        let slope = (value(1.0) - value(-1.0)) / (2.0 * step);
        assert!((slope / square - 1.0).abs() < 2e-3, "leaf {at}: {slope} for {square}");
    }
}
