//! What a decoder layer does between its matmuls, over Burn tensors.

use burn::backend::{Dispatch, DispatchDevice};
use burn::tensor::{DType, Device, Tensor};

use crate::attention::{AttentionMask, RingLayout};
use crate::layer_extension::LayerOps;
use crate::{ActivationFunction, is_stored};

/// Whether a device is Flex itself, where this crate's operations run: not another backend, and not
/// autodiff around Flex.
pub fn is_flex(device: &Device) -> bool {
    matches!(device.as_dispatch(), DispatchDevice::Flex(_))
}

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
/// Older columns, if they are apart, come with `older`.
///
/// There is no backward pass.
///
/// # Panics
///
/// If a tensor is not on a device that [`is_flex`], if sizes or types do not fit each other, or if
/// a column that a token sees is not held.
pub fn attend(
    queries: Tensor<4>,
    older: Option<KvTensors>,
    held: KvTensors,
    mask: AttentionMask,
) -> Tensor<4> {
    let ring = older.as_ref().map(|older| older.ring);
    let older = older.unwrap_or_else(|| held.clone());
    for tensor in [
        &queries,
        &held.keys,
        &held.values,
        &older.keys,
        &older.values,
    ] {
        assert!(
            is_flex(&tensor.device()),
            "attention: tensors must be on Flex"
        );
    }
    Tensor::from_dispatch(Dispatch::attention(
        queries.into_dispatch(),
        older.keys.into_dispatch(),
        older.values.into_dispatch(),
        held.keys.into_dispatch(),
        held.values.into_dispatch(),
        ring,
        held.ring,
        mask,
    ))
}

/// `x / √(mean(x²) + epsilon) · weight` over the last dimension: `x [.., width]`, `weight [width]`,
/// to the shape of `x`.
///
/// On Flex, with `x` in f32 and the weight in bf16, f16 or f32, this is [one
/// operation](crate::norm); else Burn's own ones, with the weight cast to the dtype of `x`.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn rms_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, epsilon: f64) -> Tensor<D> {
    if is_flex(&x.device())
        && is_flex(&weight.device())
        && x.dtype() == DType::F32
        && is_stored(weight.dtype())
    {
        return Tensor::from_dispatch(Dispatch::rms_norm(
            x.into_dispatch(),
            weight.into_dispatch(),
            epsilon,
        ));
    }
    let mean_square = (x.clone() * x.clone()).mean_dim(D - 1);
    let weight = weight.cast(x.dtype());
    x * (mean_square + epsilon).sqrt().recip() * weight.unsqueeze()
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
    let here = is_flex(&x.device()) && is_flex(&add.device()) && is_flex(&weight.device());
    let plain = x.dtype() == DType::F32 && add.dtype() == DType::F32 && is_stored(weight.dtype());
    if here && plain && x.dims() == add.dims() {
        let (sum, norm) = Dispatch::add_rms_norm(
            x.into_dispatch(),
            add.into_dispatch(),
            weight.into_dispatch(),
            epsilon,
        );
        return (Tensor::from_dispatch(sum), Tensor::from_dispatch(norm));
    }
    let sum = x + add;
    let norm = rms_norm(sum.clone(), weight, epsilon);
    (sum, norm)
}

/// Rotary embedding: `x [batch, tokens, heads, width]`, element `i` of a head turned together with
/// element `i + width / 2` by the angle of `cos` and `sin`, `[1 or batch, tokens, 1, width / 2]`.
///
/// On Flex and in f32 this is [one operation](crate::rotary), in place where `x` has no other
/// owner; else Burn's own ones.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn rotate(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let plain = |tensor: &Tensor<4>| is_flex(&tensor.device()) && tensor.dtype() == DType::F32;
    if [&x, &cos, &sin].into_iter().all(plain) {
        return Tensor::from_dispatch(Dispatch::rotary(
            x.into_dispatch(),
            cos.into_dispatch(),
            sin.into_dispatch(),
        ));
    }
    let [_, _, _, width] = x.dims();
    let half = width / 2;
    let left = x.clone().narrow(3, 0, half);
    let right = x.narrow(3, half, half);
    let turned_left = left.clone() * cos.clone() - right.clone() * sin.clone();
    let turned_right = right * cos + left * sin;
    Tensor::cat(vec![turned_left, turned_right], 3)
}

/// `gate(x) · up`, element by element, in f32; in place where `x` has no other owner. There is no
/// backward pass.
///
/// # Panics
///
/// If a tensor is not on a device that [`is_flex`], is not in f32, or if shapes differ.
pub fn gated<const D: usize>(gate: ActivationFunction, x: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    assert!(
        is_flex(&x.device()) && is_flex(&up.device()),
        "gate: tensors must be on Flex"
    );
    Tensor::from_dispatch(Dispatch::gated(x.into_dispatch(), up.into_dispatch(), gate))
}
