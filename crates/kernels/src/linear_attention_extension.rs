//! Linear attention, over a backend's own tensors: a Burn backend extension for Flex.
//!
//! [`causal_convolution`](crate::causal_convolution()), [`delta_rule`](crate::delta_rule()) and
//! [`state_space`](crate::state_space()) choose between this and Burn's own operations; call them
//! unless you write an extension yourself.

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Flex, backend_extension};

use crate::causal_convolution::{CausalConvolution, convolve_causally};
use crate::delta_rule::{DeltaGates, DeltaRule, delta_rule_into};
use crate::extension::{contiguous, dims, f32_elements, f32_elements_mut, whole};
use crate::state_space::{StateRule, StateSpace, state_space_into};
use crate::{Isa, LinearAttentionHeads, StateRows, buffer};

/// What linear attention is made of. What has no other owner is written in place.
#[backend_extension(Flex)]
pub trait LinearAttentionOps: Backend {
    /// The convolution of `x [texts, tokens, channels]` with `weight [channels, taps]` and
    /// `bias [channels]` behind the inputs of `state [rows, taps - 1, channels]`, all f32, or SiLU
    /// of it; and the state afterwards.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    fn causal_convolution(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
        state: FloatTensor<Self>,
        rows: StateRows,
        is_activated: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// What the delta rule gives of `x [texts, tokens, channels]`, with `forget` and `write`
    /// `[texts, tokens, value_heads]`, `rates` and `forget_bias` `[value_heads]`, or `key_dim`
    /// times as many of what is forgotten, and matrices `state [rows, ..]`, all f32:
    /// `[texts, tokens, value_heads, value_dim]`; and the state afterwards.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    #[allow(clippy::too_many_arguments, reason = "tensors cannot be passed in a list")]
    fn delta_rule(
        heads: LinearAttentionHeads,
        gates: DeltaGates,
        x: FloatTensor<Self>,
        forget: FloatTensor<Self>,
        write: FloatTensor<Self>,
        rates: FloatTensor<Self>,
        forget_bias: FloatTensor<Self>,
        state: FloatTensor<Self>,
        rows: StateRows,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// What a state space model gives of `x [texts, tokens, channels]`, with
    /// `step [texts, tokens, steps]`, `rates`, `step_bias` and `skip` as
    /// [`StateSpace`] has them, and states `state [rows, ..]`, all f32:
    /// `[texts, tokens, value_heads, value_dim]`; and the state afterwards.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    #[allow(clippy::too_many_arguments, reason = "tensors cannot be passed in a list")]
    fn state_space(
        heads: LinearAttentionHeads,
        x: FloatTensor<Self>,
        step: FloatTensor<Self>,
        rates: FloatTensor<Self>,
        step_bias: FloatTensor<Self>,
        skip: FloatTensor<Self>,
        rule: StateRule,
        state: FloatTensor<Self>,
        rows: StateRows,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

impl LinearAttentionOps for Flex {
    fn causal_convolution(
        x: FlexTensor,
        weight: FlexTensor,
        bias: FlexTensor,
        state: FlexTensor,
        rows: StateRows,
        is_activated: bool,
    ) -> (FlexTensor, FlexTensor) {
        let (mut x, mut state) = (whole(x), whole(state));
        let [weight, bias] = [weight, bias].map(contiguous);
        let [texts, _, channels] = dims(&x, "convolution: x");
        assert_eq!(texts, rows.begins.len(), "convolution: texts");
        convolve_causally(
            Isa::detected(),
            CausalConvolution {
                x: f32_elements_mut(&mut x, "convolution: x"),
                channels,
                weight: f32_elements(&weight, "convolution: weight"),
                bias: f32_elements(&bias, "convolution: bias"),
                state: f32_elements_mut(&mut state, "convolution: state"),
                rows: &rows,
                is_activated,
            },
        );
        (x, state)
    }

    fn delta_rule(
        heads: LinearAttentionHeads,
        gates: DeltaGates,
        x: FlexTensor,
        forget: FlexTensor,
        write: FlexTensor,
        rates: FlexTensor,
        forget_bias: FlexTensor,
        state: FlexTensor,
        rows: StateRows,
    ) -> (FlexTensor, FlexTensor) {
        let (mut x, mut state) = (whole(x), whole(state));
        let [forget, write, rates, forget_bias] =
            [forget, write, rates, forget_bias].map(contiguous);
        let [texts, tokens, _] = dims(&x, "delta rule: x");
        assert_eq!(texts, rows.begins.len(), "delta rule: texts");
        let mut y = buffer::take(texts * tokens * heads.value_heads * heads.value_dim);
        delta_rule_into(
            Isa::detected(),
            DeltaRule {
                heads,
                gates,
                x: f32_elements_mut(&mut x, "delta rule: x"),
                forget: f32_elements(&forget, "delta rule: what is forgotten"),
                write: f32_elements(&write, "delta rule: what is written"),
                rates: f32_elements(&rates, "delta rule: rates"),
                forget_bias: f32_elements(&forget_bias, "delta rule: bias"),
                state: f32_elements_mut(&mut state, "delta rule: state"),
                rows: &rows,
                y: &mut y,
            },
        );
        let shape = [texts, tokens, heads.value_heads, heads.value_dim];
        (FlexTensor::from_data(buffer::data(y, shape)), state)
    }

    fn state_space(
        heads: LinearAttentionHeads,
        x: FlexTensor,
        step: FlexTensor,
        rates: FlexTensor,
        step_bias: FlexTensor,
        skip: FlexTensor,
        rule: StateRule,
        state: FlexTensor,
        rows: StateRows,
    ) -> (FlexTensor, FlexTensor) {
        let mut state = whole(state);
        let [x, step, rates, step_bias, skip] = [x, step, rates, step_bias, skip].map(contiguous);
        let [texts, tokens, _] = dims(&x, "state space: x");
        assert_eq!(texts, rows.begins.len(), "state space: texts");
        let mut y = buffer::take(texts * tokens * heads.value_heads * heads.value_dim);
        state_space_into(
            Isa::detected(),
            StateSpace {
                heads,
                x: f32_elements(&x, "state space: x"),
                step: f32_elements(&step, "state space: steps"),
                rates: f32_elements(&rates, "state space: rates"),
                step_bias: f32_elements(&step_bias, "state space: bias"),
                skip: f32_elements(&skip, "state space: what is added"),
                rule,
                state: f32_elements_mut(&mut state, "state space: state"),
                rows: &rows,
                y: &mut y,
            },
        );
        let shape = [texts, tokens, heads.value_heads, heads.value_dim];
        (FlexTensor::from_data(buffer::data(y, shape)), state)
    }
}
