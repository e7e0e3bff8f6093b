//! Products with weights that are fetched anew, and the loss under a head of which only a part
//! exists at a time, against the operations that hold all of it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::values;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use outsize_kernels::{
    ActivationDtype, FetchedHead, FetchedOperand, FetchedWeight, GradientRows, TokenScore,
    WeightTiles, cross_entropy, fetched_linear, head_gradient, head_loss, head_scores, linear_with,
};

/// A weight in tiles of so many rows.
#[derive(Debug)]
struct Tiled {
    weight: Tensor<2>,
    rows: usize,
    fetched: AtomicUsize,
    gradient: Option<Sum>,
}

/// A gradient of a weight of so many columns.
#[derive(Debug)]
struct Sum(usize, Mutex<Vec<f32>>);

impl GradientRows for Sum {
    fn add(&self, rows: Range<usize>, gradient: &[f32]) {
        let mut sum = self.1.lock().unwrap();
        let to = &mut sum[rows.start * self.0..rows.end * self.0];
        assert_eq!(to.len(), gradient.len());
        to.iter_mut().zip(gradient).for_each(|(to, more)| *to += more);
    }
}

impl Tiled {
    fn new(weight: &Tensor<2>, rows: usize) -> Arc<Self> {
        Arc::new(Self {
            weight: weight.clone(),
            rows,
            fetched: AtomicUsize::new(0),
            gradient: None,
        })
    }

    fn learning(weight: &Tensor<2>, rows: usize) -> Arc<Self> {
        let [height, columns] = weight.dims();
        let gradient = Some(Sum(columns, Mutex::new(vec![0.0; height * columns])));
        Arc::new(Self { gradient, ..Arc::into_inner(Self::new(weight, rows)).unwrap() })
    }

    fn learned(&self) -> Vec<f32> {
        self.gradient.as_ref().unwrap().1.lock().unwrap().clone()
    }
}

impl FetchedWeight for Tiled {
    fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }

    fn tiles(&self) -> WeightTiles<'_> {
        self.fetched.fetch_add(1, Ordering::Relaxed);
        let all = self.weight.dims()[0];
        Box::new((0..all).step_by(self.rows).map(move |start| {
            let range = start..all.min(start + self.rows);
            let tile = self.weight.clone().narrow(0, start, range.len());
            (range, tile.into())
        }))
    }

    fn learner(&self) -> Option<&dyn GradientRows> {
        self.gradient.as_ref().map(|sum| sum as _)
    }
}

fn tensor(dims: [usize; 2], seed: u64, dtype: DType) -> Tensor<2> {
    let data = TensorData::new(values(dims[0] * dims[1], seed), dims);
    Tensor::<2>::from_data(data, (&Device::flex(), DType::F32)).cast(dtype)
}

fn elements(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

fn near(what: &str, found: &[f32], want: &[f32]) {
    let largest = want.iter().fold(0.0f32, |largest, want| largest.max(want.abs()));
    assert!(largest > 0.0 && found.len() == want.len(), "{what}");
    for (found, want) in found.iter().zip(want) {
        assert!((found - want).abs() <= 2e-6 * largest, "{what}: {found} for {want}");
    }
}

/// A product of leaves, and their gradient for a sum in which each output counts differently.
fn product(x: &Tensor<2>, work: impl Fn(Tensor<2>) -> Tensor<2>) -> [Vec<f32>; 2] {
    let x = x.clone().autodiff().require_grad();
    let y = work(x.clone());
    let weights = tensor(y.dims(), 99, DType::F32).autodiff();
    let grads = (y.clone() * weights).sum().backward();
    [elements(y.inner()), elements(x.grad(&grads).expect("x is tracked"))]
}

#[test]
fn products_and_gradients_are_those_of_a_weight_that_is_held() {
    let compute = ActivationDtype::F32;
    for (rows, [out, inputs]) in [(1, [7, 5]), (3, [33, 64]), (70, [130, 48])] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (x, weight) =
                (tensor([rows, inputs], 1, DType::F32), tensor([out, inputs], 2, dtype));
            let held = weight.clone().autodiff();
            let [y, dx] = product(&x, |x| linear_with(compute, x, held.clone()));
            let turned = weight.clone().transpose().cast(DType::F32).cast(dtype);
            for tile in [1, 4, 40, 1000] {
                let what = format!("{rows} rows, [{out}, {inputs}] {dtype:?}, tiles of {tile}");
                let tiled = Tiled::new(&weight, tile);
                let operand = FetchedOperand { weight: tiled.clone(), in_out: false };
                let found = product(&x, |x| fetched_linear(compute, x, operand.clone()));
                assert_eq!(found[0], y, "{what}");
                near(&what, &found[1], &dx);
                assert_eq!(tiled.fetched.load(Ordering::Relaxed), 2, "{what}");
                let whole = FetchedOperand { weight: Tiled::new(&weight, out), in_out: false };
                let same = product(&x, |x| fetched_linear(compute, x, whole.clone()));
                assert_eq!(found, same, "{what}");

                let operand = FetchedOperand { weight: Tiled::new(&turned, tile), in_out: true };
                let found = product(&x, |x| fetched_linear(compute, x, operand.clone()));
                near(&what, &found[0], &y);
                near(&what, &found[1], &dx);
                let whole = FetchedOperand { weight: Tiled::new(&turned, inputs), in_out: true };
                assert_eq!(
                    found,
                    product(&x, |x| fetched_linear(compute, x, whole.clone())),
                    "{what}"
                );
            }
        }
    }
}

#[test]
fn a_weight_that_learns_gets_the_gradient_of_one_that_is_held() {
    let compute = ActivationDtype::F32;
    // The last in more than one piece.
    for (rows, [out, inputs]) in [(1, [7, 5]), (6, [33, 64]), (2, [300, 4_000])] {
        let (x, weight) =
            (tensor([rows, inputs], 1, DType::F32), tensor([out, inputs], 2, DType::F32));
        let leaf = weight.clone().autodiff().require_grad();
        let factors = tensor([rows, out], 99, DType::F32).autodiff();
        let y = linear_with(compute, x.clone().autodiff(), leaf.clone());
        let want = elements(leaf.grad(&(y * factors).sum().backward()).unwrap());
        let turned = weight.clone().transpose();
        let want_turned = elements(tensor_of(&want, [out, inputs]).transpose());
        for tile in [3, 1000] {
            let what = format!("{rows} rows, [{out}, {inputs}], tiles of {tile}");
            let tiled = Tiled::learning(&weight, tile);
            let operand = FetchedOperand { weight: tiled.clone(), in_out: false };
            // As rows of a batch.
            product(&x, |x| {
                let x = x.reshape([1, rows, inputs]);
                fetched_linear(compute, x, operand.clone()).reshape([rows, out])
            });
            near(&what, &tiled.learned(), &want);
            let tiled = Tiled::learning(&turned, tile);
            let operand = FetchedOperand { weight: tiled.clone(), in_out: true };
            product(&x, |x| fetched_linear(compute, x, operand.clone()));
            near(&what, &tiled.learned(), &want_turned);
        }
    }
}

fn tensor_of(values: &[f32], dims: [usize; 2]) -> Tensor<2> {
    Tensor::from_data(TensorData::new(values.to_vec(), dims), (&Device::flex(), DType::F32))
}

#[test]
fn rounded_gradients_do_not_depend_on_tiles() {
    let compute = ActivationDtype::Bf16;
    for (rows, [out, inputs]) in [(1, [7, 5]), (3, [33, 64]), (70, [131, 48])] {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let (x, weight) =
                (tensor([rows, inputs], 1, DType::F32), tensor([out, inputs], 2, dtype));
            let tiled = |rows| FetchedOperand { weight: Tiled::new(&weight, rows), in_out: false };
            let whole = product(&x, |x| fetched_linear(compute, x, tiled(out)));
            for tile in [1, 2, 3, 40] {
                let found = product(&x, |x| fetched_linear(compute, x, tiled(tile)));
                assert_eq!(found, whole, "{rows} rows, [{out}, {inputs}] {dtype:?} by {tile}");
            }
            // The gradient of rounded numbers, which are those of the sum in `product`.
            let weights = tensor([rows, out], 99, DType::F32);
            let rounded = weights.clone().cast(DType::BF16).cast(DType::F32);
            let wide = weight.clone().cast(DType::F32);
            let [exact, of_rounded] =
                [weights, rounded].map(|dy| elements(dy.matmul(wide.clone())));
            let largest = exact.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
            let near = |want: &[f32]| {
                let pairs = whole[1].iter().zip(want);
                pairs.map(|(found, want)| (found - want).abs()).fold(0.0, f32::max)
                    <= 2e-6 * largest
            };
            assert!(near(&exact) || near(&of_rounded), "{rows} rows, [{out}, {inputs}] {dtype:?}");
        }
    }
}

#[test]
fn nothing_is_fetched_for_a_gradient_that_nobody_asks_for() {
    let tiled = Tiled::new(&tensor([6, 4], 1, DType::F32), 2);
    let operand = FetchedOperand { weight: tiled.clone(), in_out: false };
    let x = tensor([3, 4], 2, DType::F32);
    let y = fetched_linear(ActivationDtype::F32, x.clone().autodiff(), operand.clone());
    assert!(!y.is_tracked());
    let plain = fetched_linear(ActivationDtype::F32, x, operand);
    assert_eq!(elements(y.inner()), elements(plain));
    assert_eq!(tiled.fetched.load(Ordering::Relaxed), 2);
}

#[test]
fn the_loss_under_a_head_is_that_of_all_logits() {
    // More tokens than there are logits at once, and rows that no tile ends at.
    let (rows, width, vocabulary) = (5, 24, 2_500);
    let hidden = tensor([rows, width], 1, DType::F32) * 3.0;
    let weight = tensor([vocabulary, width], 2, DType::BF16);
    let bias = values(vocabulary, 3);
    let targets = [0, 2_499, 1_024, 1_023, 7];
    for (bias, softcap) in
        [(None, None), (Some(&bias), None), (None, Some(2.5)), (Some(&bias), Some(4.0))]
    {
        let leaf = hidden.clone().autodiff().require_grad();
        let weight_leaf = weight.clone().cast(DType::F32).autodiff().require_grad();
        let mut logits = linear_with(ActivationDtype::F32, leaf.clone(), weight_leaf.clone());
        let bias_leaf = bias.map(|bias| tensor_of(bias, [1, vocabulary]).autodiff().require_grad());
        if let Some(bias) = &bias_leaf {
            logits = logits + bias.clone();
        }
        if let Some(cap) = softcap {
            logits = (logits / cap).tanh() * cap;
        }
        let ids = Tensor::<1, Int>::from_data(targets, &Device::flex().autodiff());
        let mean = cross_entropy(logits.clone(), ids);
        let grads = mean.backward();
        let want_of = |leaf: &Tensor<2>| elements(leaf.grad(&grads).unwrap() * rows as f32);
        let mean = mean.into_scalar::<f32>();

        let run = |tile| {
            let tiled = Tiled::learning(&weight, tile);
            let head = FetchedHead {
                weight: &*tiled,
                bias: bias.map(Vec::as_slice),
                softcap,
                compute: ActivationDtype::F32,
            };
            let targets = targets.map(|target: i64| target as u32);
            let loss = head_loss(&hidden, &targets, head);
            let scores = head_scores(&hidden, &targets, 3, head);
            let sum: f32 = scores.iter().map(|score| -score.logprob).sum();
            assert!((loss.sum as f32 - sum).abs() <= 1e-6 * sum, "{sum} for {}", loss.sum);
            let gradient = head_gradient(&loss, &hidden, &targets, head);
            (loss.sum, elements(gradient.hidden), gradient.bias, tiled.learned(), scores)
        };
        let (loss, gradient, by_bias, by_weight, scores) = run(vocabulary);
        assert!((loss as f32 / rows as f32 - mean).abs() <= 2e-6 * mean, "{loss} for {mean}");
        near("the gradient", &gradient, &want_of(&leaf));
        near("that of the weight", &by_weight, &want_of(&weight_leaf));
        assert_eq!(by_bias.is_some(), bias_leaf.is_some());
        for (found, leaf) in by_bias.iter().zip(&bias_leaf) {
            near("that of the bias", found, &want_of(leaf));
        }
        let values = elements(logits.inner());
        for ((score, target), logits) in scores.iter().zip(targets).zip(values.chunks(vocabulary)) {
            let of_logits = TokenScore::of_logits(logits, target as u32, 3);
            assert_eq!((score.token, score.top.len()), (of_logits.token, 3));
            let tokens = |score: &TokenScore| score.top.iter().map(|top| top.0).collect::<Vec<_>>();
            assert_eq!(tokens(score), tokens(&of_logits));
            assert!((score.logprob - of_logits.logprob).abs() <= 2e-6 * score.logprob.abs());
        }
        for tile in [1, 300, 1_024, 1_025] {
            let scores = scores.clone();
            let want = (loss, gradient.clone(), by_bias.clone(), by_weight.clone(), scores);
            assert_eq!(run(tile), want, "tiles of {tile}");
        }
    }
}
