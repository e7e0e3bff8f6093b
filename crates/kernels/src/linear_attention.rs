//! Linear attention, over Burn tensors.

use burn::backend::Dispatch;
use burn::tensor::activation::{sigmoid, silu, softplus};
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};

use crate::delta_rule::{DeltaGates, LENGTH_EPSILON};
use crate::device::is_flex;
use crate::linear_attention_extension::LinearAttentionOps;
use crate::state_matrix::{LinearAttentionHeads, STATE_COLUMNS};
use crate::state_rows::StateRows;
use crate::state_space::StateRule;

/// A convolution over the last tokens, of each channel by itself, or SiLU of it:
/// `x [texts, tokens, channels]` with `weight [channels, taps]`, of which the last tap is that of
/// the token itself, and perhaps a bias `[channels]`, behind the inputs of
/// `state [rows, taps - 1, channels]`, the oldest first; all f32. Gives the shape of `x`, and the
/// state with the last inputs. Zero where a text has not begun.
///
/// On Flex this is [one operation](crate::causal_convolution::convolve_causally); elsewhere Burn's
/// own ones.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn causal_convolution(
    x: Tensor<3>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    state: Tensor<3>,
    rows: StateRows,
    is_activated: bool,
) -> (Tensor<3>, Tensor<3>) {
    let ([_, tokens, channels], device) = (x.dims(), x.device());
    if [device.clone(), weight.device(), state.device()].iter().all(is_flex) {
        let none = || Tensor::zeros([channels], (&device, DType::F32));
        let (y, state) = Dispatch::causal_convolution(
            x.into_dispatch(),
            weight.into_dispatch(),
            bias.unwrap_or_else(none).into_dispatch(),
            state.into_dispatch(),
            rows,
            is_activated,
        );
        return (Tensor::from_dispatch(y), Tensor::from_dispatch(state));
    }
    let taps = weight.dims()[1];
    let before = before(&state, &rows);
    let begun = begun(&rows, tokens, &device);
    let inputs = Tensor::cat(vec![before, x * begun.clone()], 1);
    let tap = |tap: usize| {
        let weight = weight.clone().narrow(1, tap, 1).reshape([1, 1, channels]);
        inputs.clone().narrow(1, tap, tokens) * weight
    };
    let sum = (1..taps).fold(tap(0), |sum, next| sum + tap(next));
    let sum = match bias {
        Some(bias) => sum + bias.unsqueeze(),
        None => sum,
    };
    let last = inputs.clone().narrow(1, tokens, taps - 1);
    let sum = if is_activated { silu(sum) } else { sum };
    (sum * begun, placed(state, rows.first, last))
}

/// The gated delta rule, token by token: of `x [texts, tokens, channels]`, which is queries, keys
/// and values of all heads, with `forget` and `write` `[texts, tokens, value_heads]`, `rates` and
/// `forget_bias` `[value_heads]`, and matrices `state [rows, ..]` of
/// [`LinearAttentionHeads::state`]; all f32. Where rows of a matrix are forgotten by themselves,
/// `forget` and `forget_bias` have `value_heads · key_dim` in the place of `value_heads`. Gives
/// `[texts, tokens, value_heads, value_dim]`, and the matrices afterwards. Zero where a text has
/// not begun.
///
/// On Flex this is [one operation](crate::delta_rule::delta_rule_into); elsewhere Burn's own ones.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn delta_rule(
    heads: LinearAttentionHeads,
    gates: DeltaGates,
    x: Tensor<3>,
    [forget, write]: [Tensor<3>; 2],
    [rates, forget_bias]: [Tensor<1>; 2],
    state: Tensor<4>,
    rows: StateRows,
) -> (Tensor<4>, Tensor<4>) {
    let tensors = [&x, &forget, &write].map(Tensor::device);
    let others = [rates.device(), forget_bias.device(), state.device()];
    if tensors.iter().chain(&others).all(is_flex) {
        let (y, state) = Dispatch::delta_rule(
            heads,
            gates,
            x.into_dispatch(),
            forget.into_dispatch(),
            write.into_dispatch(),
            rates.into_dispatch(),
            forget_bias.into_dispatch(),
            state.into_dispatch(),
            rows,
        );
        return (Tensor::from_dispatch(y), Tensor::from_dispatch(state));
    }
    let ([texts, tokens, _], device) = (x.dims(), x.device());
    let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, in_turns } = heads;
    let (blocks, width) = (heads.blocks(), key_heads * key_dim);
    let begun = begun(&rows, tokens, &device);
    let x = x * begun.clone();
    // Each block of columns has the query, the key and the gates of its head.
    let vectors = |from: usize| {
        let vectors = x.clone().narrow(2, from, width).reshape([texts, tokens, key_heads, key_dim]);
        let length = (vectors.clone() * vectors.clone()).sum_dim(3).add_scalar(LENGTH_EPSILON);
        let (vectors, copies) = (vectors / length.sqrt(), value_heads / key_heads);
        let (vectors, copies) = match in_turns {
            true => (vectors.repeat_dim(2, copies), blocks),
            false => (vectors, copies * blocks),
        };
        let vectors = vectors.unsqueeze_dim::<5>(3).repeat_dim(3, copies);
        vectors.reshape([texts, tokens, value_heads * blocks, key_dim, 1])
    };
    let queries = vectors(0).mul_scalar((key_dim as f64).sqrt().recip());
    let keys = vectors(width);
    let values = in_blocks(x.narrow(2, 2 * width, value_heads * value_dim), &heads);
    let rows_of_head = forget_bias.dims()[0] / value_heads;
    let forget = forget + forget_bias.unsqueeze();
    let forget = forget.reshape([texts, tokens, value_heads, rows_of_head]);
    let rates = rates.reshape([1, 1, value_heads, 1]);
    let kept = match gates.bound {
        None => (softplus(forget, 1.0) * rates).neg(),
        Some(bound) => sigmoid(forget * rates) * bound,
    };
    let write = sigmoid(write).mul_scalar(gates.most).unsqueeze_dim(3);
    let (keep, write) = (of_blocks(kept.exp(), blocks), of_blocks(write, blocks));
    let mut matrices = before(&state, &rows);
    let mut mixed = Vec::with_capacity(tokens);
    for token in 0..tokens {
        let of = |all: &Tensor<5>| all.clone().narrow(1, token, 1).squeeze_dim::<4>(1);
        let (key, query) = (of(&keys), of(&queries));
        let kept = matrices * of(&keep);
        let held = (kept.clone() * key.clone()).sum_dim(2);
        let change = (of(&values) - held) * of(&write);
        matrices = kept + key * change;
        mixed.push((matrices.clone() * query).sum_dim(2));
    }
    let mixed = out_of_blocks(mixed, &heads) * begun.unsqueeze_dim::<4>(3);
    (mixed, placed(state, rows.first, matrices))
}

/// A selective state space model, token by token: of `x [texts, tokens, channels]`, which is
/// values, keys and queries of all heads, with `step [texts, tokens, value_heads]`, which is within
/// the rule's limits after a softplus; `rates` as the rule has them, `step_bias` and `skip`
/// `[value_heads]`; and matrices `state [rows, ..]` of [`LinearAttentionHeads::state`]; all f32.
/// Where each column of a matrix has a step of its own, the last three and `step` have
/// `value_heads · value_dim` in the place of `value_heads`, and there are as many rates as elements
/// of a matrix. Gives `[texts, tokens, value_heads, value_dim]`, and the matrices afterwards. Zero
/// where a text has not begun.
///
/// On Flex this is [one operation](crate::state_space::state_space_into); elsewhere Burn's own
/// ones.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn state_space(
    heads: LinearAttentionHeads,
    x: Tensor<3>,
    step: Tensor<3>,
    [rates, step_bias, skip]: [Tensor<1>; 3],
    rule: StateRule,
    state: Tensor<4>,
    rows: StateRows,
) -> (Tensor<4>, Tensor<4>) {
    let of_heads = [&rates, &step_bias, &skip].map(Tensor::device);
    if of_heads.iter().chain(&[x.device(), step.device(), state.device()]).all(is_flex) {
        let (y, state) = Dispatch::state_space(
            heads,
            x.into_dispatch(),
            step.into_dispatch(),
            rates.into_dispatch(),
            step_bias.into_dispatch(),
            skip.into_dispatch(),
            rule,
            state.into_dispatch(),
            rows,
        );
        return (Tensor::from_dispatch(y), Tensor::from_dispatch(state));
    }
    let ([texts, tokens, _], device) = (x.dims(), x.device());
    let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, .. } = heads;
    let (blocks, values) = (heads.blocks(), value_heads * value_dim);
    let begun = begun(&rows, tokens, &device);
    let x = x * begun.clone();
    let vectors = |at: usize| {
        let (from, width) = (values + at * key_heads * key_dim, key_heads * key_dim);
        let vectors = x.clone().narrow(2, from, width).reshape([texts, tokens, key_heads, key_dim]);
        let vectors = vectors.unsqueeze_dim::<5>(3);
        let vectors = vectors.repeat_dim(3, value_heads / key_heads * blocks);
        vectors.reshape([texts, tokens, value_heads * blocks, key_dim, 1])
    };
    let (keys, queries) = (vectors(0), vectors(1));
    let in_values = in_blocks(x.narrow(2, 0, values), &heads);
    let [least, greatest] = rule.limits;
    let step = softplus(step + step_bias.unsqueeze(), 1.0).clamp_min(least);
    let step = if greatest.is_finite() { step.clamp_max(greatest) } else { step };
    let rates = if rule.rates_are_negated { rates.neg() } else { rates.exp() };
    let (step, keep, skip) = match rates.dims()[0] == value_heads {
        true => {
            let step = step.unsqueeze_dim::<4>(3);
            let keep = (step.clone() * rates.reshape([1, 1, value_heads, 1])).neg().exp();
            let skip = skip.reshape([1, 1, value_heads, 1]);
            let [step, keep, skip] = [step, keep, skip].map(|it| of_blocks(it, blocks));
            (step, keep, skip)
        }
        // Of each element of a block: `[1, 1, blocks, key_dim, columns]`.
        false => {
            let rates = rates.reshape([1, values, key_dim]).swap_dims(1, 2);
            let rates = in_blocks(rates, &heads).swap_dims(1, 3);
            let step = in_blocks(step, &heads);
            let keep = (step.clone() * rates).neg().exp();
            (step, keep, in_blocks(skip.reshape([1, 1, values]), &heads))
        }
    };
    let (added, skipped) = (in_values.clone() * step, in_values * skip);
    let mut matrices = before(&state, &rows);
    let mut mixed = Vec::with_capacity(tokens);
    for token in 0..tokens {
        let of = |all: &Tensor<5>| all.clone().narrow(1, token, 1).squeeze_dim::<4>(1);
        matrices = matrices * of(&keep) + of(&keys) * of(&added);
        mixed.push((matrices.clone() * of(&queries)).sum_dim(2) + of(&skipped));
    }
    let mixed = out_of_blocks(mixed, &heads) * begun.unsqueeze_dim::<4>(3);
    (mixed, placed(state, rows.first, matrices))
}

/// Values `[texts, tokens, value_heads · value_dim]` as blocks of a matrix have them:
/// `[texts, tokens, blocks, 1, columns]`.
fn in_blocks(values: Tensor<3>, heads: &LinearAttentionHeads) -> Tensor<5> {
    let ([texts, tokens, _], device) = (values.dims(), values.device());
    let LinearAttentionHeads { value_heads, value_dim, .. } = *heads;
    let values = values.reshape([texts, tokens, value_heads, value_dim]);
    let more = heads.blocks() * STATE_COLUMNS - value_dim;
    let values = match more {
        0 => values,
        _ => {
            let zeros = Tensor::zeros([texts, tokens, value_heads, more], (&device, DType::F32));
            Tensor::cat(vec![values, zeros], 3)
        }
    };
    values.reshape([texts, tokens, value_heads * heads.blocks(), 1, STATE_COLUMNS])
}

/// What each head has, or each row of its matrix, `[texts, tokens, value_heads, rows]`, of each of
/// its blocks.
fn of_blocks(of_heads: Tensor<4>, blocks: usize) -> Tensor<5> {
    let [texts, tokens, value_heads, rows] = of_heads.dims();
    let of_heads = of_heads.unsqueeze_dim::<5>(3).repeat_dim(3, blocks);
    of_heads.reshape([texts, tokens, value_heads * blocks, rows, 1])
}

/// What comes of each token's blocks, `[texts, blocks, 1, columns]`, of all:
/// `[texts, tokens, value_heads, value_dim]`.
fn out_of_blocks(mixed: Vec<Tensor<4>>, heads: &LinearAttentionHeads) -> Tensor<4> {
    let mixed: Tensor<4> = Tensor::cat(mixed, 2).swap_dims(1, 2);
    let [texts, tokens, ..] = mixed.dims();
    let columns = heads.blocks() * STATE_COLUMNS;
    let mixed = mixed.reshape([texts, tokens, heads.value_heads, columns]);
    mixed.narrow(3, 0, heads.value_dim)
}

/// The texts' rows of a state: zeros where a text begins in this pass.
fn before<const D: usize>(state: &Tensor<D>, rows: &StateRows) -> Tensor<D> {
    let state = state.clone().narrow(0, rows.first, rows.begins.len());
    let begin: Vec<bool> = rows.begins.iter().map(Option::is_some).collect();
    let mut dims = [1; D];
    dims[0] = begin.len();
    let begin = Tensor::<D, Bool>::from_data(TensorData::new(begin, dims), &state.device());
    let begin = begin.expand(state.dims());
    state.mask_fill(begin, 0.0)
}

/// `[texts, tokens, 1]`: one where a text has begun, zero before.
fn begun(rows: &StateRows, tokens: usize, device: &Device) -> Tensor<3> {
    let begins = rows.begins.iter().map(|begin| begin.unwrap_or(0));
    let values: Vec<f32> =
        begins.flat_map(|begin| (0..tokens).map(move |token| f32::from(token >= begin))).collect();
    let shape = [rows.begins.len(), tokens, 1];
    Tensor::from_data(TensorData::new(values, shape), (device, DType::F32))
}

/// The state with other rows from `first` on.
fn placed<const D: usize>(state: Tensor<D>, first: usize, rows: Tensor<D>) -> Tensor<D> {
    let dims = rows.dims();
    if state.dims() == dims {
        return rows;
    }
    let mut ranges = dims.map(|size| 0..size);
    ranges[0] = first..first + dims[0];
    state.slice_assign(ranges, rows)
}
