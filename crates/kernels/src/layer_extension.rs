//! What a decoder layer does between its matmuls, over a backend's own tensors: a Burn backend
//! extension for Flex.
//!
//! [`rms_norm`](crate::rms_norm), [`rotate`](crate::rotate) and [`gated`](crate::gated) choose
//! between this and Burn's own operations; call them unless you write an extension yourself.

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, Flex, TensorMetadata, backend_extension};
use burn::tensor::DType;

use crate::activation::{ActivationFunction, activate_in_place, gate_in_place};
use crate::attention::{
    AttentionMask, AttentionShape, KvSegment, RingLayout, StridedRows, attend_into,
};
use crate::extension::{contiguous, dims, f32_elements, f32_elements_mut, stored, whole};
use crate::norm::{NormKind, NormParameters, add_norm_into, norm_into};
use crate::rotary::{RotaryPairs, RotaryShape, rotate_in_place};
use crate::{ActivationDtype, Isa, Weight, buffer};

/// Weight, or weight and bias, of a norm; `[width]` each.
#[derive(ExtensionType)]
pub enum NormOperand<B: Backend> {
    /// In bf16, f16 or f32.
    Weight(FloatTensor<B>),
    /// In bf16, f16 or f32 each.
    Biased(FloatTensor<B>, FloatTensor<B>),
}

/// What a decoder layer does between its matmuls.
#[backend_extension(Flex, Autodiff)]
pub trait LayerOps: Backend {
    /// Attention: queries `[batch, tokens, heads, width]` f32 over keys and values `[batch,
    /// key_heads, capacity, width]` of up to two parts, to `[batch, tokens, heads, width]` f32.
    /// Keys and values may be views; they are read in place.
    ///
    /// The older part counts only if it has `ring`.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another, or if what a token sees is not held.
    #[allow(clippy::too_many_arguments, reason = "tensors cannot be passed in a list")]
    fn attention(
        compute: ActivationDtype,
        queries: FloatTensor<Self>,
        older_keys: FloatTensor<Self>,
        older_values: FloatTensor<Self>,
        keys: FloatTensor<Self>,
        values: FloatTensor<Self>,
        older_ring: Option<RingLayout>,
        ring: RingLayout,
        mask: AttentionMask,
        scale: Option<f32>,
    ) -> FloatTensor<Self>;

    /// The norm of the rows of `x [.., width]` f32.
    ///
    /// # Panics
    ///
    /// If a size or a dtype is another.
    fn norm(
        x: FloatTensor<Self>,
        #[extension_type] weights: NormOperand<Self>,
        kind: NormKind,
        epsilon: f64,
    ) -> FloatTensor<Self>;

    /// `x + add`, and its norm as [`norm`](Self::norm) gives it. A tensor that has no other owner
    /// is written in place.
    ///
    /// # Panics
    ///
    /// As there.
    fn add_norm(
        x: FloatTensor<Self>,
        add: FloatTensor<Self>,
        #[extension_type] weights: NormOperand<Self>,
        kind: NormKind,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Rotates the first `r` elements of each head of `x [batch, tokens, heads, width]` f32, in
    /// `pairs`, by the angles of `cos` and `sin`, `[1 or batch, tokens, 1, r / 2]` f32.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    fn rotary(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        pairs: RotaryPairs,
    ) -> FloatTensor<Self>;

    /// `function(x)`, element by element, of an f32 tensor.
    ///
    /// # Panics
    ///
    /// If the dtype is another.
    fn activation(x: FloatTensor<Self>, function: ActivationFunction) -> FloatTensor<Self>;

    /// `gate(x) · up`, element by element, of f32 tensors of one shape.
    ///
    /// # Panics
    ///
    /// If a size or a dtype is another.
    fn gated(
        x: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gate: ActivationFunction,
    ) -> FloatTensor<Self>;
}

impl LayerOps for Flex {
    fn attention(
        compute: ActivationDtype,
        queries: FlexTensor,
        older_keys: FlexTensor,
        older_values: FlexTensor,
        keys: FlexTensor,
        values: FlexTensor,
        older_ring: Option<RingLayout>,
        ring: RingLayout,
        mask: AttentionMask,
        scale: Option<f32>,
    ) -> FlexTensor {
        let queries = contiguous(queries);
        let [batch, tokens, heads, width] = dims(&queries, "attention: queries");
        let tensors = [older_keys, older_values, keys, values].map(gapless_rows);
        let [sequences, key_heads, _, key_width] = dims(&tensors[2], "attention: keys");
        assert_eq!(
            (batch, width),
            (sequences, key_width),
            "attention: sequences and widths of queries and keys"
        );
        let heads = AttentionShape { batch, tokens, heads, key_heads, width };
        let part = |keys: usize, ring: RingLayout| KvSegment {
            keys: rows(&tensors[keys], "attention: keys"),
            values: rows(&tensors[keys + 1], "attention: values"),
            ring,
        };
        let held: Vec<KvSegment<'_>> =
            older_ring.map(|ring| part(0, ring)).into_iter().chain([part(2, ring)]).collect();
        let from = f32_elements(&queries, "attention: queries");
        let mut y = buffer::take(from.len());
        attend_into((Isa::detected(), compute), from, heads, &held, &mask, scale, &mut y);
        FlexTensor::from_data(buffer::data(y, [batch, tokens, heads.heads, width]))
    }

    fn norm(x: FlexTensor, weights: NormOperand<Self>, kind: NormKind, epsilon: f64) -> FlexTensor {
        let (x, weights) = (contiguous(x), weights.contiguous());
        let from = f32_elements(&x, "norm: x");
        let mut y = buffer::take(from.len());
        let parameters = weights.parameters(&x, kind, epsilon);
        norm_into(Isa::detected(), from, parameters, &mut y);
        FlexTensor::from_data(buffer::data(y, x.shape()))
    }

    fn add_norm(
        x: FlexTensor,
        add: FlexTensor,
        weights: NormOperand<Self>,
        kind: NormKind,
        epsilon: f64,
    ) -> (FlexTensor, FlexTensor) {
        assert_eq!(x.shape(), add.shape(), "norm: what is added has another shape");
        let (add, weights) = (contiguous(add), weights.contiguous());
        let mut x = whole(x);
        let shape = x.shape();
        let mut y = buffer::take(shape.num_elements());
        let parameters = weights.parameters(&x, kind, epsilon);
        let add = f32_elements(&add, "norm: what is added");
        let elements = f32_elements_mut(&mut x, "norm: x");
        add_norm_into(Isa::detected(), elements, add, parameters, &mut y);
        (x, FlexTensor::from_data(buffer::data(y, shape)))
    }

    fn rotary(x: FlexTensor, cos: FlexTensor, sin: FlexTensor, pairs: RotaryPairs) -> FlexTensor {
        let [batch, tokens, heads, width] = dims(&x, "rotary: x");
        let [_, _, _, half] = dims(&cos, "rotary: cosines");
        for (name, tensor) in [("cosines", &cos), ("sines", &sin)] {
            let [sequences, rotations, one, angles] = dims(tensor, name);
            assert!(
                (sequences == 1 || sequences == batch)
                    && (rotations, one, angles) == (tokens, 1, half)
                    && 2 * half <= width,
                "rotary: {name} {:?} do not fit {:?}",
                tensor.shape(),
                x.shape()
            );
        }
        let (mut x, cos, sin) = (whole(x), contiguous(cos), contiguous(sin));
        rotate_in_place(
            Isa::detected(),
            f32_elements_mut(&mut x, "rotary: x"),
            RotaryShape { heads, width, rotary: 2 * half, pairs },
            f32_elements(&cos, "rotary: cosines"),
            f32_elements(&sin, "rotary: sines"),
        );
        x
    }

    fn activation(x: FlexTensor, function: ActivationFunction) -> FlexTensor {
        let mut x = whole(x);
        activate_in_place(Isa::detected(), function, f32_elements_mut(&mut x, "activation: x"));
        x
    }

    fn gated(x: FlexTensor, up: FlexTensor, gate: ActivationFunction) -> FlexTensor {
        assert_eq!(x.shape(), up.shape(), "gate: sides of other shapes");
        let (mut x, up) = (whole(x), contiguous(up));
        let elements = f32_elements_mut(&mut x, "gate: x");
        gate_in_place(Isa::detected(), gate, elements, f32_elements(&up, "gate: up"));
        x
    }
}

impl NormOperand<Flex> {
    fn contiguous(self) -> Self {
        match self {
            Self::Weight(weight) => Self::Weight(contiguous(weight)),
            Self::Biased(weight, bias) => Self::Biased(contiguous(weight), contiguous(bias)),
        }
    }

    /// What a norm of `x` is made with.
    fn parameters(&self, x: &FlexTensor, kind: NormKind, epsilon: f64) -> NormParameters<'_> {
        let (Self::Weight(weight) | Self::Biased(weight, _)) = self;
        let (x, shape) = (x.shape(), weight.shape());
        assert!(
            shape.num_dims() == 1 && x.as_slice().last() == shape.as_slice().last(),
            "norm: x {x:?} needs a weight of its last dimension, but it is {shape:?}"
        );
        let bias = match self {
            Self::Weight(_) => None,
            Self::Biased(_, bias) => Some(stored(bias, "norm: bias")),
        };
        NormParameters { kind, weight: stored(weight, "norm: weight"), bias, epsilon }
    }
}

/// The tensor itself if the rows of its last dimension have no gaps; else a copy of which that is
/// true.
fn gapless_rows(tensor: FlexTensor) -> FlexTensor {
    let strides = tensor.layout().strides();
    let ahead = strides.iter().all(|&stride| stride >= 0);
    match strides.last() {
        Some(1) if ahead => tensor,
        _ => tensor.to_contiguous(),
    }
}

/// Keys or values of which the rows have no gaps, as they lie in memory.
fn rows<'a>(tensor: &'a FlexTensor, name: &str) -> StridedRows<'a> {
    let _: [usize; 4] = dims(tensor, name);
    let (start, strides) = (tensor.layout().start_offset(), tensor.layout().strides());
    let elements = match tensor.dtype() {
        DType::BF16 => Weight::Bf16(&tensor.storage()[start..]),
        DType::F16 => Weight::F16(&tensor.storage()[start..]),
        DType::F32 => Weight::F32(&tensor.storage()[start..]),
        other => panic!("{name} must be bf16, f16 or f32, but they are {other:?}"),
    };
    let stride = |dim: usize| strides[dim].unsigned_abs();
    StridedRows {
        elements,
        sequence_stride: stride(0),
        head_stride: stride(1),
        slot_stride: stride(2),
    }
}
