//! What a decoder layer does between its matmuls, over Burn tensors.

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Tensor};

use crate::attention::{AttentionMask, RingLayout};
use crate::device::{has_kernels, is_gpu, is_stored};
use crate::layer_extension::{LayerOps, NormOperand};
use crate::norm::NormKind;
use crate::rotary::RotaryPairs;
use crate::{ActivationDtype, ActivationFunction};

/// Keys and values of consecutive columns, `[batch, key_heads, capacity, width]` each, in f32, bf16
/// or f16.
#[derive(Clone, Debug)]
pub struct KvTensors {
    /// Of each column.
    pub keys: Tensor<4>,
    /// In the type of the keys.
    pub values: Tensor<4>,
    /// Which column is where.
    pub ring: RingLayout,
}

/// Attention: queries `[batch, tokens, heads, width]` f32 over what is held, to the same. See
/// [`attention`](crate::attention) for what is computed, how exactly, and what its bits depend on.
/// Older columns, if they are apart, come with `older`. Under [`ActivationDtype::Bf16`] products
/// may be of rounded numbers. Scores are multiplied by `scale`, which is `1 / √width` if none is
/// given.
///
/// With autodiff, gradients flow to queries, keys and values. These must then be all columns, from
/// the first on, in f32, and there may be neither relative bias nor sinks.
///
/// # Panics
///
/// If a tensor is not on a device that [`has_kernels`], if sizes or types do not fit each other, or
/// if a column that a token sees is not held, or if the scale is not above zero and finite.
pub fn attend(
    compute: ActivationDtype,
    queries: Tensor<4>,
    older: Option<KvTensors>,
    held: KvTensors,
    mask: AttentionMask,
    scale: Option<f32>,
) -> Tensor<4> {
    let ring = older.as_ref().map(|older| older.ring);
    let older = older.unwrap_or_else(|| held.clone());
    for tensor in [&queries, &held.keys, &held.values, &older.keys, &older.values] {
        assert!(has_kernels(&tensor.device()), "attention: tensors must be on Flex");
    }
    Tensor::from_dispatch(Dispatch::attention(
        compute,
        queries.into_dispatch(),
        older.keys.into_dispatch(),
        older.values.into_dispatch(),
        held.keys.into_dispatch(),
        held.values.into_dispatch(),
        ring,
        held.ring,
        mask,
        scale,
    ))
}

/// Attention of few tokens in one operation of a GPU: of queries `[batch, tokens, heads, width]`
/// over keys and values `[batch, key_heads, columns, width]`, all of which are seen but for what
/// the bias, `[1 or batch, 1 or heads, tokens, columns]`, says, with sinks `[heads]` if there are
/// such, to `[batch, tokens, heads · width]`. Scores are multiplied by the scale, and capped if
/// there is a soft cap, before the bias is added.
///
/// `None` where there is no such operation: on other devices, for many tokens, for other types than
/// f32, or for rows that are not whole vectors.
pub fn attend_tokens(
    queries: &Tensor<4>,
    keys_and_values: [&Tensor<4>; 2],
    bias: Option<&Tensor<4>>,
    sinks: Option<&Tensor<1>>,
    scale_and_softcap: (f32, Option<f32>),
) -> Option<Tensor<3>> {
    #[cfg(feature = "gpu")]
    if is_gpu(&queries.device()) {
        return crate::gpu::attend_tokens(queries, keys_and_values, bias, sinks, scale_and_softcap);
    }
    let _ = (queries, keys_and_values, bias, sinks, scale_and_softcap);
    None
}

/// `x / √(mean(x²) + epsilon) · weight` over the last dimension: `x [.., width]`, `weight [width]`,
/// to the shape of `x`.
///
/// On Flex and on GPUs, with `x` in f32 and the weight in bf16, f16 or f32, this is [one
/// operation](crate::norm); else Burn's own ones, with the weight cast to the dtype of `x`.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    norm(x, weight, None, NormKind::Rms, epsilon)
}

/// `x + add`, and the [`rms_norm`] of that.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn add_rms_norm<const D: usize>(
    x: Tensor<D>,
    add: Tensor<D>,
    weight: Tensor<1>,
    epsilon: f64,
) -> (Tensor<D>, Tensor<D>) {
    add_norm(x, add, weight, None, NormKind::Rms, epsilon)
}

/// `(x - mean(x)) / √(variance(x) + epsilon) · weight + bias` over the last dimension, with the
/// variance of all its elements: `x [.., width]`, `weight` and `bias` `[width]`, to the shape of
/// `x`. Computed as [`rms_norm`] is.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    norm(x, weight, bias, NormKind::Layer, epsilon)
}

/// `x + add`, and the [`layer_norm`] of that.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn add_layer_norm<const D: usize>(
    x: Tensor<D>,
    add: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    epsilon: f64,
) -> (Tensor<D>, Tensor<D>) {
    add_norm(x, add, weight, bias, NormKind::Layer, epsilon)
}

fn norm<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
    epsilon: f64,
) -> Tensor<D> {
    if is_plain(&x) && are_stored_here(&weight, &bias) {
        return Tensor::from_dispatch(Dispatch::norm(
            x.into_dispatch(),
            operand(weight, bias),
            kind,
            epsilon,
        ));
    }
    let dtype = x.dtype();
    #[cfg(feature = "gpu")]
    if is_gpu(&x.device()) && dtype == DType::F32 {
        return crate::gpu::norm_of(x, weight, bias, kind, epsilon);
    }
    let x = match kind {
        NormKind::Rms => x,
        NormKind::Layer => x.clone() - x.mean_dim(D - 1),
    };
    let variance = (x.clone() * x.clone()).mean_dim(D - 1);
    // A weight that is kept elsewhere is small.
    let device = x.device();
    let here = |weight: Tensor<1>| weight.cast(dtype).to_device(&device).unsqueeze();
    let norm = x * (variance + epsilon).sqrt().recip() * here(weight);
    match bias {
        Some(bias) => norm + here(bias),
        None => norm,
    }
}

fn add_norm<const D: usize>(
    x: Tensor<D>,
    add: Tensor<D>,
    weight: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
    epsilon: f64,
) -> (Tensor<D>, Tensor<D>) {
    let plain = is_plain(&x) && is_plain(&add) && x.dims() == add.dims();
    if plain && are_stored_here(&weight, &bias) {
        let (sum, norm) = Dispatch::add_norm(
            x.into_dispatch(),
            add.into_dispatch(),
            operand(weight, bias),
            kind,
            epsilon,
        );
        return (Tensor::from_dispatch(sum), Tensor::from_dispatch(norm));
    }
    #[cfg(feature = "gpu")]
    if is_gpu(&x.device())
        && x.device() == add.device()
        && x.dims() == add.dims()
        && [x.dtype(), add.dtype()] == [DType::F32; 2]
    {
        return crate::gpu::add_norm_of(x, add, weight, bias, kind, epsilon);
    }
    let sum = x + add;
    (sum.clone(), norm(sum, weight, bias, kind, epsilon))
}

fn operand(weight: Tensor<1>, bias: Option<Tensor<1>>) -> NormOperand<Dispatch> {
    let weight = weight.into_dispatch();
    match bias {
        None => NormOperand::Weight(weight),
        Some(bias) => NormOperand::Biased(weight, bias.into_dispatch()),
    }
}

/// Whether these are activations that kernels take.
fn is_plain<const D: usize>(x: &Tensor<D>) -> bool {
    has_kernels(&x.device()) && x.dtype() == DType::F32
}

/// Whether these are weights that kernels take.
fn are_stored_here(weight: &Tensor<1>, bias: &Option<Tensor<1>>) -> bool {
    let stored = |weight: &Tensor<1>| has_kernels(&weight.device()) && is_stored(weight.dtype());
    stored(weight) && bias.as_ref().is_none_or(stored)
}

/// Rotary embedding of `x [batch, tokens, heads, width]`: of each head the first `r` elements are
/// rotated, in `pairs`, by the angles of `cos` and `sin`, `[1 or batch, tokens, 1, r / 2]`. The
/// elements beyond `r` stay as they are.
///
/// On Flex and in f32 this is [one operation](crate::rotary), in place where `x` has no other
/// owner; one on GPUs too; else Burn's own ones.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn rotate(x: Tensor<4>, pairs: RotaryPairs, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    if [&x, &cos, &sin].into_iter().all(is_plain) {
        return Tensor::from_dispatch(Dispatch::rotary(
            x.into_dispatch(),
            cos.into_dispatch(),
            sin.into_dispatch(),
            pairs,
        ));
    }
    #[cfg(feature = "gpu")]
    if [&x, &cos, &sin].into_iter().all(|x| is_gpu(&x.device()) && x.dtype() == DType::F32) {
        return crate::gpu::rotated(x, pairs, cos, sin);
    }
    let [batch, tokens, heads, width] = x.dims();
    let half = cos.dims()[3];
    let [left, right] = match pairs {
        RotaryPairs::Halves => [0, half].map(|start| x.clone().narrow(3, start, half)),
        RotaryPairs::Interleaved => [0, 1].map(|first| {
            let pairs = x.clone().narrow(3, 0, 2 * half);
            let pairs = pairs.reshape([batch, tokens, heads, half, 2]);
            pairs.narrow(4, first, 1).squeeze_dim(4)
        }),
    };
    let turned =
        [left.clone() * cos.clone() - right.clone() * sin.clone(), right * cos + left * sin];
    let turned = match pairs {
        RotaryPairs::Halves => Tensor::cat(turned.to_vec(), 3),
        RotaryPairs::Interleaved => {
            Tensor::stack::<5>(turned.to_vec(), 4).reshape([batch, tokens, heads, 2 * half])
        }
    };
    match width - 2 * half {
        0 => turned,
        rest => Tensor::cat(vec![turned, x.narrow(3, 2 * half, rest)], 3),
    }
}

/// `function(x)`, element by element, in f32; in place where `x` has no other owner.
///
/// # Panics
///
/// If `x` is not on a device that [`has_kernels`], or not in f32.
pub fn activate<const D: usize>(function: ActivationFunction, x: Tensor<D>) -> Tensor<D> {
    assert!(has_kernels(&x.device()), "activation: x must be on Flex");
    Tensor::from_dispatch(Dispatch::activation(x.into_dispatch(), function))
}

/// Whether there is [one operation](gated) for a gate on a device: all have one on Flex,
/// [`Silu`](ActivationFunction::Silu) on GPUs too.
pub fn has_gate(device: &Device, gate: ActivationFunction) -> bool {
    has_kernels(device) || is_gpu(device) && gate == ActivationFunction::Silu
}

/// `gate(x) · up`, element by element, in f32; on Flex in place where `x` has no other owner.
///
/// # Panics
///
/// If a tensor is not on a device that [has such a gate](has_gate), is not in f32, or if shapes
/// differ.
pub fn gated<const D: usize>(gate: ActivationFunction, x: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "gpu")]
    if is_gpu(&x.device()) && gate == ActivationFunction::Silu {
        return crate::gpu::silu_gated(x, up);
    }
    assert!(has_kernels(&x.device()) && has_kernels(&up.device()), "gate: tensors must be on Flex");
    Tensor::from_dispatch(Dispatch::gated(x.into_dispatch(), up.into_dispatch(), gate))
}
