//! The backward passes of what a decoder layer does between its matmuls.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::flex::FlexTensor;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Flex, TensorMetadata};
use burn::tensor::{FloatDType, Shape};

use super::linear::cast;
use crate::attention::{AttentionMask, AttentionShape, RingLayout};
use crate::buffer;
use crate::extension::{contiguous, dims, f32_elements, f32_elements_mut, stored, whole};
use crate::gradient::{
    AttentionGradients, AttentionOperands, activation_gradient_in_place, attention_gradients_into,
    gate_gradients_in_place, norm_gradients_into,
};
use crate::layer_extension::{LayerOps, NormOperand};
use crate::norm::{NormKind, NormParameters};
use crate::{ActivationDtype, ActivationFunction, Isa, RotaryPairs};

impl<C: CheckpointStrategy> LayerOps for Autodiff<Flex, C> {
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
    ) -> FloatTensor<Self> {
        drop((older_keys, older_values));
        let ([queries, keys, values], nodes) = split::<C, 3>([queries, keys, values]);
        let attend = |queries, keys: FlexTensor, values: FlexTensor, mask| {
            let (older_keys, older_values) = (keys.clone(), values.clone());
            Flex::attention(
                compute,
                queries,
                older_keys,
                older_values,
                keys,
                values,
                None,
                ring,
                mask,
                scale,
            )
        };
        assert!(
            older_ring.is_none() && ring.origin == 0 && ring.first == 0,
            "attention: gradients flow to keys and values of one pass alone"
        );
        match Attention.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let state = AttentionState {
                    queries: queries.clone(),
                    keys: keys.clone(),
                    values: values.clone(),
                    mask: mask.clone(),
                    scale,
                };
                prep.finish(state, attend(queries, keys, values, mask))
            }
            OpsKind::UnTracked(prep) => prep.finish(attend(queries, keys, values, mask)),
        }
    }

    fn norm(
        x: FloatTensor<Self>,
        weights: NormOperand<Self>,
        kind: NormKind,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let (weight, bias) = match weights {
            NormOperand::Weight(weight) => (weight, None),
            NormOperand::Biased(weight, bias) => (weight, Some(bias)),
        };
        let ([x, weight], nodes) = split::<C, 2>([x, weight]);
        let normed = |x, weight| Flex::norm(x, NormOperand::Weight(weight), kind, epsilon);
        let y = match Norm.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let state = (x.clone(), weight.clone(), kind, epsilon);
                prep.finish(state, normed(x, weight))
            }
            OpsKind::UnTracked(prep) => prep.finish(normed(x, weight)),
        };
        let Some(bias) = bias else { return y };
        let mut shape = vec![1; y.rank()];
        shape[y.rank() - 1] = bias.shape()[0];
        let bias = Self::float_cast(bias, FloatDType::F32);
        Self::float_add(y, Self::float_reshape(bias, Shape::from(shape)))
    }

    fn add_norm(
        x: FloatTensor<Self>,
        add: FloatTensor<Self>,
        weights: NormOperand<Self>,
        kind: NormKind,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let sum = Self::float_add(x, add);
        (sum.clone(), Self::norm(sum, weights, kind, epsilon))
    }

    fn rotary(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        pairs: RotaryPairs,
    ) -> FloatTensor<Self> {
        let ([x], nodes) = split::<C, 1>([x]);
        let [cos, sin] = [cos, sin].map(|angles| angles.into_primitive());
        let y = Flex::rotary(x, cos.clone(), sin.clone(), pairs);
        match Rotary.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => prep.finish((cos, sin, pairs), y),
            OpsKind::UnTracked(prep) => prep.finish(y),
        }
    }

    fn activation(x: FloatTensor<Self>, function: ActivationFunction) -> FloatTensor<Self> {
        let ([x], nodes) = split::<C, 1>([x]);
        match Activation.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                prep.finish((x.clone(), function), Flex::activation(x, function))
            }
            OpsKind::UnTracked(prep) => prep.finish(Flex::activation(x, function)),
        }
    }

    fn gated(
        x: FloatTensor<Self>,
        up: FloatTensor<Self>,
        gate: ActivationFunction,
    ) -> FloatTensor<Self> {
        let ([x, up], nodes) = split::<C, 2>([x, up]);
        match Gated.prepare::<C>(nodes).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                prep.finish((x.clone(), up.clone(), gate), Flex::gated(x, up, gate))
            }
            OpsKind::UnTracked(prep) => prep.finish(Flex::gated(x, up, gate)),
        }
    }
}

/// The tensors, and what holds their places in the graph.
fn split<C: CheckpointStrategy, const N: usize>(
    tensors: [FloatTensor<Autodiff<Flex, C>>; N],
) -> ([FlexTensor; N], [burn::backend::autodiff::ops::NodeGuard; N]) {
    let mut primitives = Vec::with_capacity(N);
    let nodes = tensors.map(|tensor| {
        let (primitive, node) = tensor.into_parts();
        primitives.push(primitive);
        node
    });
    (primitives.try_into().expect("as many"), nodes)
}

#[derive(Debug)]
struct Attention;

#[derive(Clone, Debug)]
struct AttentionState {
    queries: FlexTensor,
    keys: FlexTensor,
    values: FlexTensor,
    mask: AttentionMask,
    scale: Option<f32>,
}

impl Backward<Flex, 3> for Attention {
    type State = AttentionState;

    fn backward(
        self,
        ops: Ops<Self::State, 3>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = contiguous(grads.consume::<Flex>(&ops.node));
        let AttentionState { queries, keys, values, mask, scale } = ops.state;
        let queries = contiguous(queries);
        // As layers make them, before heads come first.
        let [keys, values] = [keys, values].map(|held| contiguous(held.transpose(1, 2)));
        let [batch, tokens, heads, width] = dims(&queries, "attention: queries");
        let [_, columns, key_heads, _] = dims(&keys, "attention: keys");
        let of_keys = batch * columns * key_heads * width;
        let mut dq = buffer::zeroed(batch * tokens * heads * width);
        let [mut dk, mut dv] = [of_keys; 2].map(buffer::zeroed);
        attention_gradients_into(
            Isa::detected(),
            AttentionOperands {
                queries: f32_elements(&queries, "attention: queries"),
                keys: f32_elements(&keys, "attention: keys"),
                values: f32_elements(&values, "attention: values"),
                shape: AttentionShape { batch, tokens, heads, key_heads, width },
                columns,
                mask: &mask,
                scale,
            },
            f32_elements(&dy, "attention: gradient"),
            AttentionGradients { queries: &mut dq, keys: &mut dk, values: &mut dv },
        );
        let tensor = |values, tokens, heads| {
            FlexTensor::from_data(buffer::data(values, [batch, tokens, heads, width]))
        };
        let gradients = [
            tensor(dq, tokens, heads),
            tensor(dk, columns, key_heads).transpose(1, 2),
            tensor(dv, columns, key_heads).transpose(1, 2),
        ];
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                grads.register::<Flex>(node.id, gradient);
            }
        }
    }
}

#[derive(Debug)]
struct Norm;

impl Backward<Flex, 2> for Norm {
    /// What the norm is of, its weight, its kind and its epsilon.
    type State = (FlexTensor, FlexTensor, NormKind, f64);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = contiguous(grads.consume::<Flex>(&ops.node));
        let (x, weight, kind, epsilon) = ops.state;
        let (x, weight) = (contiguous(x), contiguous(weight));
        let from = f32_elements(&x, "norm: x");
        let [width] = dims(&weight, "norm: weight");
        let (mut dx, mut dw) = (buffer::zeroed(from.len()), buffer::zeroed(width));
        let parameters =
            NormParameters { kind, weight: stored(&weight, "norm: weight"), bias: None, epsilon };
        let dy = f32_elements(&dy, "norm: gradient");
        norm_gradients_into(Isa::detected(), from, dy, parameters, (&mut dx, &mut dw));
        let [x_node, weight_node] = ops.parents;
        if let Some(node) = x_node {
            let dx = FlexTensor::from_data(buffer::data(dx, x.shape()));
            grads.register::<Flex>(node.id, dx);
        }
        if let Some(node) = weight_node {
            let dw = FlexTensor::from_data(buffer::data(dw, [width]));
            grads.register::<Flex>(node.id, cast(dw, weight.dtype()));
        }
    }
}

/// The gradient of a rotation is rotated back.
#[derive(Debug)]
struct Rotary;

impl Backward<Flex, 1> for Rotary {
    /// Cosines and sines, and what is rotated together.
    type State = (FlexTensor, FlexTensor, RotaryPairs);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = grads.consume::<Flex>(&ops.node);
        let (cos, sin, pairs) = ops.state;
        if let [Some(node)] = ops.parents {
            let dx = Flex::rotary(dy, cos, Flex::float_neg(sin), pairs);
            grads.register::<Flex>(node.id, dx);
        }
    }
}

#[derive(Debug)]
struct Activation;

impl Backward<Flex, 1> for Activation {
    type State = (FlexTensor, ActivationFunction);

    fn backward(
        self,
        ops: Ops<Self::State, 1>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = contiguous(grads.consume::<Flex>(&ops.node));
        let ([Some(node)], (x, function)) = (ops.parents, ops.state) else { return };
        let mut x = whole(x);
        activation_gradient_in_place(
            Isa::detected(),
            function,
            f32_elements_mut(&mut x, "activation: x"),
            f32_elements(&dy, "activation: gradient"),
        );
        grads.register::<Flex>(node.id, x);
    }
}

#[derive(Debug)]
struct Gated;

impl Backward<Flex, 2> for Gated {
    /// Gate, what goes through it, and the gate's function.
    type State = (FlexTensor, FlexTensor, ActivationFunction);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        _checkpointer: &mut Checkpointer,
    ) {
        let dy = contiguous(grads.consume::<Flex>(&ops.node));
        let (x, up, function) = ops.state;
        let (mut x, mut up) = (whole(x), whole(up));
        gate_gradients_in_place(
            Isa::detected(),
            function,
            f32_elements_mut(&mut x, "gate: x"),
            f32_elements_mut(&mut up, "gate: up"),
            f32_elements(&dy, "gate: gradient"),
        );
        for (node, gradient) in ops.parents.into_iter().zip([x, up]) {
            if let Some(node) = node {
                grads.register::<Flex>(node.id, gradient);
            }
        }
    }
}
