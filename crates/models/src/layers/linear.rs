//! A linear layer.

use std::ops::Range;

use burn::module::{Module, Param, ParamId};
use burn::tensor::{DType, Device, Distribution, Tensor};
use outsize_core::{Access, LowRank, Streamed};
use outsize_kernels::{
    ActivationDtype, ActivationFunction, ConvolutionWindow, FetchedWeight, WeightTensor,
    WeightTiles, add_linear_in_out, fetched_linear, gated_linear, gated_linear_tiles,
    gated_mlp_tiles, has_kernels, is_flex, is_gpu, linear_qkv, linear_three, linear_tiles,
    linear_two_tiles, linear_with,
};

use super::convolution::{convolved, convolved_parts};
use super::entered::entered;
use crate::Init;

/// Standard deviation of weights that nothing loads.
const INIT_STD: f64 = 0.02;

/// `y = x · Wᵀ + b`, weight and bias kept as stored: in bf16, f16 or f32, the weight also in
/// blocks.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[out, in]`; of a layer that was [made so](Self::in_out) `[in, out]`.
    pub weight: Param<Tensor<2>>,
    /// `[out]`.
    pub bias: Option<Param<Tensor<1>>>,
    #[module(skip)]
    pub(crate) compute: ActivationDtype,
    is_in_out: bool,
}

impl Linear {
    /// A layer without storage; unless loaded, its weight is drawn from a normal distribution of
    /// deviation 0.02, and its bias is 0.
    pub fn new(inputs: usize, outputs: usize, bias: bool, init: &Init) -> Self {
        Self {
            weight: matrix([outputs, inputs], &init.device),
            bias: bias.then(|| zeros(outputs, &init.device)),
            compute: init.compute,
            is_in_out: false,
        }
    }

    /// The same whose weight is stored the other way round, and not in blocks.
    pub fn in_out(inputs: usize, outputs: usize, bias: bool, init: &Init) -> Self {
        let weight = matrix([inputs, outputs], &init.device);
        Self { weight, is_in_out: true, ..Self::new(inputs, outputs, bias, init) }
    }

    /// Values that it gives of a row, and takes.
    pub(crate) fn widths(&self) -> [usize; 2] {
        let [rows, columns]: [usize; 2] = self.weight.lazy_shape().dims();
        if self.is_in_out { [columns, rows] } else { [rows, columns] }
    }

    /// Whether it was [made so](Self::in_out).
    pub(crate) fn is_in_out(&self) -> bool {
        self.is_in_out
    }

    /// `[.., in]` f32 to `[.., out]` f32.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        if self.is_in_out {
            return product_in_out(self.compute, x, &self.weight, self.bias.as_ref());
        }
        let x = entered(x, &self.weight);
        biased(product(self.compute, x, &self.weight), self.bias.as_ref())
    }

    /// The same as a convolution of one pixel, which is faster for many rows; its last bits are
    /// others.
    pub(crate) fn forward_pixels<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let x = entered(x, &self.weight);
        if is_gpu(&x.device()) {
            return biased(product(self.compute, x, &self.weight), self.bias.as_ref());
        }
        match &self.bias {
            Some(bias) => self.product_pixels(x, bias.val().cast(DType::F32)),
            None => {
                let bias = Tensor::zeros([self.weight.lazy_shape()[0]], (&x.device(), DType::F32));
                self.product_pixels(x, bias)
            }
        }
    }

    /// The same with another bias `[out]`.
    pub(crate) fn product_pixels<const D: usize>(
        &self,
        x: Tensor<D>,
        bias: Tensor<1>,
    ) -> Tensor<D> {
        let mut dims = x.dims();
        let [rows, inputs] = [dims[..D - 1].iter().product(), dims[D - 1]];
        let x = x.reshape([1, 1, rows, inputs]);
        let y = convolved(self.compute, x, &self.weight, bias, ConvolutionWindow::One);
        dims[D - 1] = self.weight.lazy_shape()[0];
        y.reshape(dims)
    }

    /// [`forward_pixels`](Self::forward_pixels) of a layer without a bias, what it gives in parts
    /// of so many values each, which are all of it: each in memory of its own.
    pub(crate) fn parts_pixels<const N: usize>(
        &self,
        x: Tensor<3>,
        parts: [usize; N],
    ) -> [Tensor<3>; N] {
        let [batch, rows, inputs] = x.dims();
        let x = x.reshape([1, 1, batch * rows, inputs]);
        let mut made = convolved_parts(self.compute, x, &self.weight, &parts).into_iter();
        parts.map(|width| {
            let part = made.next().expect("there is one for each width");
            part.reshape([batch, rows, width])
        })
    }
}

/// What a product is with a bias `[out]`, if there is one.
pub(super) fn biased<const D: usize>(y: Tensor<D>, bias: Option<&Param<Tensor<1>>>) -> Tensor<D> {
    match bias {
        // A bias is a thousandth of its weight: a cast on every use costs nothing.
        Some(bias) => {
            let bias = bias.val().cast(DType::F32).to_device(&y.device());
            y + bias.unsqueeze()
        }
        None => y,
    }
}

/// What each of three layers of one input gives; with their weights in memory, of one product.
pub(crate) fn three<const D: usize>(layers: [&Linear; 3], x: Tensor<D>) -> [Tensor<D>; 3] {
    let [first, second, third] = layers;
    let x = entered(x, &first.weight);
    if let [Some(a), Some(b), Some(c)] = layers.map(|layer| kept_on(layer, &x))
        && let Some([a, b, c]) = linear_three(&x, [&a, &b, &c])
    {
        return [(first, a), (second, b), (third, c)]
            .map(|(layer, y)| biased(y, layer.bias.as_ref()));
    }
    let alone = differentiated(&x, &first.weight).is_some() || is_observed(&first.weight);
    if alone || is_gpu(&x.device()) || !layers.iter().all(|layer| is_plain(&layer.weight)) {
        return layers.map(|layer| layer.forward(x.clone()));
    }
    let [a, b, c] = match layers.iter().all(|layer| is_held(&layer.weight)) {
        true => linear_qkv(first.compute, x, layers.map(|layer| whole(&layer.weight))),
        false => linear_tiles(first.compute, x, layers.map(|layer| tiles(&layer.weight))),
    };
    [(first, a), (second, b), (third, c)].map(|(layer, y)| biased(y, layer.bias.as_ref()))
}

/// What two layers of one input give, if one launch on its GPU makes both.
pub(crate) fn both<const D: usize>(layers: [&Linear; 2], x: &Tensor<D>) -> Option<[Tensor<D>; 2]> {
    let [first, second] = layers.map(|layer| kept_on(layer, x));
    let (first, second) = (first?, second?);
    // One row more, as a launch is for three.
    let [a, b, _] = linear_three(x, [&first, &second, &second.slice(0..1)])?;
    Some([biased(a, layers[0].bias.as_ref()), biased(b, layers[1].bias.as_ref())])
}

/// The weight of a layer, if it is all that the layer multiplies and is kept on the GPU of `x`.
fn kept_on<const D: usize>(layer: &Linear, x: &Tensor<D>) -> Option<WeightTensor> {
    let weight = Streamed::of(&layer.weight).filter(|_| is_gpu(&x.device()) && !layer.is_in_out)?;
    if weight.low_rank().is_some() || weight.is_observed() {
        return None;
    }
    weight.on_gpu()
}

/// `act(gate(x)) · up(x)` of activations that are packed once, on a device that computes so, if
/// neither layer has a bias.
pub(crate) fn gated<const D: usize>(
    [gate, up]: [&Linear; 2],
    act: ActivationFunction,
    x: &Tensor<D>,
) -> Option<Tensor<D>> {
    if !are_fused([gate, up], x) {
        return None;
    }
    let (compute, x, weights) = (gate.compute, x.clone(), [&gate.weight, &up.weight]);
    match weights.map(is_held) {
        [true, true] => {
            let [gate, up] = weights.map(whole);
            Some(gated_linear(compute, x, gate, up, act))
        }
        _ if !come_together([gate, up]) => None,
        _ => {
            let [(out, gate), (_, up)] = weights.map(tiles);
            Some(gated_linear_tiles(compute, x, out, [gate, up], act))
        }
    }
}

/// Whether a gate and what goes through it are multiplied at once.
fn are_fused<const D: usize>(layers @ [gate, _]: [&Linear; 2], x: &Tensor<D>) -> bool {
    let on_gpu = Streamed::of(&gate.weight).is_some_and(|weight| is_gpu(weight.device()));
    if on_gpu || differentiated(x, &gate.weight).is_some() || is_observed(&gate.weight) {
        return false;
    }
    let plain = |layer: &Linear| layer.bias.is_none() && is_plain(&layer.weight);
    has_kernels(&x.device()) && layers.into_iter().all(plain)
}

/// Whether [`gated_mlp`] has operations for these layers: what lies between is not a tensor then.
pub(crate) fn is_one_mlp<const D: usize>([gate, up, down]: [&Linear; 3], x: &Tensor<D>) -> bool {
    let is_alone = is_plain(&down.weight) && !is_observed(&down.weight) && !down.is_in_out;
    come_together([gate, up]) && is_alone && is_flex(&x.device()) && are_fused([gate, up], x)
}

/// `down(act(gate(x)) · up(x))` of activations that are packed as they are made.
pub(crate) fn gated_mlp<const D: usize>(
    layers @ [gate, _, down]: [&Linear; 3],
    act: ActivationFunction,
    x: Tensor<D>,
) -> Tensor<D> {
    let [(inner, gated), (_, up), (out, last)] = layers.map(|layer| tiles(&layer.weight));
    let y = gated_mlp_tiles(gate.compute, x, [inner, out], [gated, up, last], act);
    biased(y, down.bias.as_ref())
}

/// What a gate and what goes through it give.
pub(crate) fn two<const D: usize>([gate, up]: [&Linear; 2], x: Tensor<D>) -> [Tensor<D>; 2] {
    interleaved([gate, up], &x).unwrap_or_else(|| [gate.forward(x.clone()), up.forward(x)])
}

/// What a gate and what goes through it give, if their tiles come in turns.
pub(crate) fn interleaved<const D: usize>(
    layers @ [gate, up]: [&Linear; 2],
    x: &Tensor<D>,
) -> Option<[Tensor<D>; 2]> {
    let x = entered(x.clone(), &gate.weight);
    let is_here = has_kernels(&x.device()) && differentiated(&x, &gate.weight).is_none();
    if !is_here || !is_interleaved(&up.weight) {
        return None;
    }
    let [(out, first), (_, second)] = layers.map(|layer| tiles(&layer.weight));
    let [first, second] = linear_two_tiles(gate.compute, x.clone(), out, [first, second]);
    Some([(gate, first), (up, second)].map(|(layer, y)| {
        let y = with_adapter(layer.compute, y, &x, &layer.weight);
        biased(y, layer.bias.as_ref())
    }))
}

/// Whether rows of a gate and of what goes through it are in memory at the same time.
fn come_together([gate, up]: [&Linear; 2]) -> bool {
    is_held(&gate.weight) || is_held(&up.weight) || is_interleaved(&up.weight)
}

/// Whether the tiles of what goes through a gate come in turns with the gate's.
fn is_interleaved(up: &Param<Tensor<2>>) -> bool {
    Streamed::of(up).is_some_and(Streamed::is_interleaved)
}

/// Whether a weight is all that its layer multiplies.
fn is_plain(weight: &Param<Tensor<2>>) -> bool {
    Streamed::of(weight).is_none_or(|weight| weight.low_rank().is_none())
}

/// Whether a weight is in memory. More than one such may be had at a time.
fn is_held(weight: &Param<Tensor<2>>) -> bool {
    Streamed::of(weight).is_none_or(Streamed::is_resident)
}

/// Whether somebody is shown what a weight is multiplied with.
fn is_observed(weight: &Param<Tensor<2>>) -> bool {
    Streamed::of(weight).is_some_and(Streamed::is_observed)
}

/// The handle of a weight that gradients flow through; those of the weight itself are for who
/// records the pass.
pub(crate) fn differentiated<'a, const D: usize>(
    x: &Tensor<D>,
    weight: &'a Param<Tensor<2>>,
) -> Option<&'a Streamed> {
    Streamed::of(weight).filter(|_| x.is_autodiff())
}

/// A weight that is in memory, as it is held: of floats, or in blocks.
pub(crate) fn whole(weight: &Param<Tensor<2>>) -> WeightTensor {
    match Streamed::of(weight) {
        Some(streamed) => streamed.weight(),
        None => weight.val().into(),
    }
}

/// How many rows a weight has, and these as they come.
fn tiles(weight: &Param<Tensor<2>>) -> (usize, WeightTiles<'_>) {
    let [rows, _] = weight.lazy_shape().dims();
    let tiles = match Streamed::of(weight) {
        Some(streamed) => FetchedWeight::tiles(streamed),
        None => Box::new(std::iter::once_with(move || (0..rows, whole(weight)))),
    };
    (rows, tiles)
}

/// `x · Wᵀ`, and what an adapter adds to it.
pub(crate) fn product<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: &Param<Tensor<2>>,
) -> Tensor<D> {
    let y = product_alone(compute, x.clone(), weight);
    with_adapter(compute, y, &x, weight)
}

/// `x · Wᵀ`, which is `y`, and what an adapter adds to it; `x` is shown to who observes it.
fn with_adapter<const D: usize>(
    compute: ActivationDtype,
    y: Tensor<D>,
    x: &Tensor<D>,
    weight: &Param<Tensor<2>>,
) -> Tensor<D> {
    let Some(streamed) = Streamed::of(weight) else { return y };
    streamed.observe(x);
    match streamed.low_rank() {
        Some(adapter) => adapted(compute, y, x.clone(), adapter),
        None => y,
    }
}

/// `y + (scale · x · downᵀ) · upᵀ`.
pub(super) fn adapted<const D: usize>(
    compute: ActivationDtype,
    y: Tensor<D>,
    x: Tensor<D>,
    LowRank { down, up, scale, .. }: LowRank,
) -> Tensor<D> {
    let [down, up] = [down, up].map(|part| part.to_device(&x.device()));
    y + linear_with(compute, linear_with(compute, x, down) * scale, up)
}

/// `x · Wᵀ` with a weight that is in memory, or that comes tile by tile: the same bits either way,
/// since each output depends on its own row of the weight alone.
fn product_alone<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: &Param<Tensor<2>>,
) -> Tensor<D> {
    if let Some(streamed) = differentiated(&x, weight) {
        return fetched_linear(compute, x, streamed.operand(false));
    }
    match Streamed::of(weight) {
        Some(streamed) if is_gpu(&x.device()) => match streamed.on_gpu() {
            Some(weight) => linear_with(compute, x, weight),
            None => {
                let tiles = streamed.tiles_on(&x.device());
                joined(tiles.map(|(_, tile)| linear_with(compute, x.clone(), tile)).collect())
            }
        },
        Some(streamed) if !streamed.is_resident() => {
            let [y] = linear_tiles(compute, x, [tiles(weight)]);
            y
        }
        _ => linear_with(compute, x, whole(weight)),
    }
}

/// `x · W + b` with a weight `[in, out]` and perhaps a bias `[out]`, and what an adapter adds to
/// it.
pub(super) fn product_in_out<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
) -> Tensor<D> {
    let x = entered(x, weight);
    match Streamed::of(weight).and_then(Streamed::low_rank) {
        Some(adapter) => {
            let y = product_in_out_alone(compute, x.clone(), weight, bias);
            adapted(compute, y, x, adapter)
        }
        None => product_in_out_alone(compute, x, weight, bias),
    }
}

fn product_in_out_alone<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
) -> Tensor<D> {
    let mut dims = x.dims();
    dims[D - 1] = weight.lazy_shape()[1];
    if let Some(streamed) = differentiated(&x, weight) {
        return biased(fetched_linear(compute, x, streamed.operand(true)), bias);
    }
    let y = match bias {
        Some(bias) => {
            let bias = bias.val().cast(DType::F32).to_device(&x.device());
            bias.unsqueeze::<D>().expand(dims)
        }
        None => Tensor::zeros(dims, (&x.device(), DType::F32)),
    };
    let add =
        |y, x, (rows, tile): (Range<usize>, _)| add_linear_in_out(compute, y, x, rows.start, tile);
    match Streamed::of(weight) {
        Some(streamed) if is_gpu(&x.device()) => {
            streamed.tiles_on(&x.device()).fold(y, |y, tile| add(y, x.clone(), tile))
        }
        // One tile at a time: the next one may need its memory.
        Some(streamed) if !streamed.is_resident() && streamed.access() == Access::Tiles => {
            streamed.tiles().fold(y, |y, tile| add(y, x.clone(), tile))
        }
        _ => add_linear_in_out(compute, y, x, 0, whole(weight)),
    }
}

/// Parts of a product, side by side.
fn joined<const D: usize>(mut parts: Vec<Tensor<D>>) -> Tensor<D> {
    match parts.len() {
        1 => parts.remove(0),
        _ => Tensor::cat(parts, D - 1),
    }
}

/// A lazy parameter of the given shape; unless loaded, it is drawn from a normal distribution of
/// deviation 0.02.
pub(crate) fn matrix(shape: [usize; 2], device: &Device) -> Param<Tensor<2>> {
    lazy(shape, device, normal)
}

/// Numbers of a normal distribution of deviation 0.02.
pub(crate) fn normal<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::random(shape, Distribution::Normal(0.0, INIT_STD), device)
}

/// A lazy scale of a norm; unless loaded, it is 1.
pub(crate) fn ones(width: usize, device: &Device) -> Param<Tensor<1>> {
    lazy([width], device, |shape, device| Tensor::ones(shape, device))
}

/// A lazy bias; unless loaded, it is 0.
pub(crate) fn zeros(outputs: usize, device: &Device) -> Param<Tensor<1>> {
    lazy([outputs], device, |shape, device| Tensor::zeros(shape, device))
}

/// A lazy parameter of the given shape, which learns where there is autodiff.
pub(crate) fn lazy<const D: usize>(
    shape: [usize; D],
    device: &Device,
    make: impl Fn([usize; D], &Device) -> Tensor<D> + Send + Sync + 'static,
) -> Param<Tensor<D>> {
    let make = move |device: &Device, grad| make(shape, device).set_require_grad(grad);
    Param::uninitialized(ParamId::new(), make, device.clone(), true, shape.into())
}
