//! Linear attention: beside the formulas in f64, the same bits however texts are cut, and Burn's
//! own operations on devices without kernels.

use crate::common::{available, bits, values};
use outsize_kernels::causal_convolution::{CausalConvolution, convolve_causally};
use outsize_kernels::delta_rule::{DeltaRule, delta_rule_into};
use outsize_kernels::state_space::{StateRule, StateSpace, state_space_into};
use outsize_kernels::{
    DeltaGates, Isa, LinearAttentionHeads, STATE_COLUMNS, StateRows, causal_convolution,
    delta_rule, state_space,
};

use burn::tensor::{Device, Tensor, TensorData};
use proptest::prelude::*;

fn on<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build().expect("threads can be started").install(work)
}

/// Texts side by side, each with its padding before the first token.
#[derive(Clone, Debug)]
struct Texts {
    tokens: usize,
    padding: Vec<usize>,
}

impl Texts {
    /// Passes of so many tokens at most, from column to column.
    fn passes(&self, tokens: usize) -> Vec<std::ops::Range<usize>> {
        let starts = (0..self.tokens).step_by(tokens);
        starts.map(|start| start..self.tokens.min(start + tokens)).collect()
    }

    fn rows(&self, first: usize, start: usize) -> StateRows {
        let begins = self.padding.iter().map(|padding| padding.checked_sub(start));
        StateRows { first, begins: begins.collect() }
    }

    /// The columns `range` of `[texts, tokens, width]`.
    fn cut(&self, all: &[f32], width: usize, range: &std::ops::Range<usize>) -> Vec<f32> {
        let texts = all.chunks(self.tokens * width);
        texts.flat_map(|text| &text[range.start * width..range.end * width]).copied().collect()
    }

    /// Puts them back.
    fn paste(&self, all: &mut [f32], width: usize, range: &std::ops::Range<usize>, part: &[f32]) {
        let texts = all.chunks_mut(self.tokens * width).zip(part.chunks(range.len() * width));
        for (text, part) in texts {
            text[range.start * width..range.end * width].copy_from_slice(part);
        }
    }
}

fn texts() -> impl Strategy<Value = Texts> {
    (1usize..9).prop_flat_map(|tokens| {
        let padding = prop::collection::vec(0..tokens, 1..4);
        padding.prop_map(move |padding| Texts { tokens, padding })
    })
}

/// What a state holds before it is used: nothing may come of it.
const LEFT_OVER: f32 = f32::NAN;

fn convolved(
    (isa, is_activated): (Isa, bool),
    texts: &Texts,
    at_once: usize,
    x: &[f32],
    [weight, bias]: [&[f32]; 2],
) -> Vec<f32> {
    let channels = x.len() / (texts.tokens * texts.padding.len());
    let taps = weight.len() / channels;
    let mut state = vec![LEFT_OVER; (texts.padding.len() + 1) * (taps - 1) * channels];
    let mut y = vec![f32::NAN; x.len()];
    for range in texts.passes(at_once) {
        let mut part = texts.cut(x, channels, &range);
        let rows = texts.rows(1, range.start);
        let (x, state) = (&mut part[..], &mut state[..]);
        let rows = &rows;
        convolve_causally(
            isa,
            CausalConvolution { x, channels, weight, bias, state, rows, is_activated },
        );
        texts.paste(&mut y, channels, &range, &part);
    }
    y
}

/// What goes into a delta rule but the state.
struct Inputs {
    heads: LinearAttentionHeads,
    gates: DeltaGates,
    /// Factors of a head: one, or one for each row of its matrix.
    factors: usize,
    x: Vec<f32>,
    forget: Vec<f32>,
    write: Vec<f32>,
    rates: Vec<f32>,
    bias: Vec<f32>,
}

impl Inputs {
    fn new(heads: LinearAttentionHeads, texts: &Texts, seed: u64) -> Self {
        let tokens = texts.tokens * texts.padding.len();
        let gates = |factors, seed| values(tokens * heads.value_heads * factors, seed);
        let factors = if seed.is_multiple_of(2) { 1 } else { heads.key_dim };
        let (most, bound) = if seed.is_multiple_of(3) { (2.0, Some(-5.0)) } else { (1.0, None) };
        let rates = values(heads.value_heads, seed + 3).iter().map(|x| x.abs() * 3.0).collect();
        Self {
            heads,
            gates: DeltaGates { most, bound },
            factors,
            x: values(tokens * heads.channels(), seed),
            forget: gates(factors, seed + 1).iter().map(|x| x * 30.0).collect(),
            write: gates(1, seed + 2).iter().map(|x| x * 4.0).collect(),
            rates,
            bias: values(heads.value_heads * factors, seed + 4),
        }
    }

    fn run(&self, isa: Isa, texts: &Texts, at_once: usize) -> Vec<f32> {
        let LinearAttentionHeads { value_heads, value_dim, .. } = self.heads;
        let row: usize = self.heads.state().iter().product();
        let mut state = vec![LEFT_OVER; (texts.padding.len() + 1) * row];
        let width = value_heads * value_dim;
        let mut all = vec![f32::NAN; texts.tokens * texts.padding.len() * width];
        for range in texts.passes(at_once) {
            let mut y = texts.cut(&all, width, &range);
            let rule = DeltaRule {
                heads: self.heads,
                gates: self.gates,
                x: &mut texts.cut(&self.x, self.heads.channels(), &range),
                forget: &texts.cut(&self.forget, value_heads * self.factors, &range),
                write: &texts.cut(&self.write, value_heads, &range),
                rates: &self.rates,
                forget_bias: &self.bias,
                state: &mut state,
                rows: &texts.rows(1, range.start),
                y: &mut y,
            };
            delta_rule_into(isa, rule);
            texts.paste(&mut all, width, &range, &y);
        }
        all
    }

    /// The formula in f64.
    fn expected(&self, texts: &Texts) -> Vec<f64> {
        let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, in_turns } =
            self.heads;
        let mut all = vec![0.0; texts.tokens * texts.padding.len() * value_heads * value_dim];
        for (text, &padding) in texts.padding.iter().enumerate() {
            for head in 0..value_heads {
                let key_head =
                    if in_turns { head % key_heads } else { head * key_heads / value_heads };
                let mut matrix = vec![0.0; key_dim * value_dim];
                for token in padding..texts.tokens {
                    let token = text * texts.tokens + token;
                    let x = &self.x[token * self.heads.channels()..][..self.heads.channels()];
                    let vector = |from: usize, width| -> Vec<f64> {
                        x[from..from + width].iter().map(|&x| x.into()).collect()
                    };
                    let unit = |from| {
                        let vector = vector(from + key_head * key_dim, key_dim);
                        let square: f64 = vector.iter().map(|x| x * x).sum();
                        vector.into_iter().map(|x| x / (square + 1e-6).sqrt()).collect::<Vec<_>>()
                    };
                    let (query, key) = (unit(0), unit(key_heads * key_dim));
                    let value = vector(2 * key_heads * key_dim + head * value_dim, value_dim);
                    let at = token * value_heads + head;
                    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                    let rate = f64::from(self.rates[head]);
                    let keep = |row: usize| {
                        let row = if self.factors == 1 { 0 } else { row };
                        let bias = f64::from(self.bias[head * self.factors + row]);
                        let forget = f64::from(self.forget[at * self.factors + row]) + bias;
                        let kept = match self.gates.bound {
                            None => -rate * forget.exp().ln_1p(),
                            Some(bound) => f64::from(bound) * sigmoid(rate * forget),
                        };
                        kept.exp()
                    };
                    let write = f64::from(self.gates.most) * sigmoid(self.write[at].into());
                    for (row, of_row) in matrix.chunks_mut(value_dim).enumerate() {
                        of_row.iter_mut().for_each(|x| *x *= keep(row));
                    }
                    for column in 0..value_dim {
                        let mut column_of = matrix[column..].iter_mut().step_by(value_dim);
                        let held: f64 = column_of.by_ref().zip(&key).map(|(x, key)| *x * key).sum();
                        let change = (value[column] - held) * write;
                        let column_of = matrix[column..].iter_mut().step_by(value_dim);
                        column_of.zip(&key).for_each(|(x, key)| *x += key * change);
                        let column_of = matrix[column..].iter().step_by(value_dim);
                        let asked: f64 = column_of.zip(&query).map(|(x, query)| x * query).sum();
                        all[at * value_dim + column] = asked / (key_dim as f64).sqrt();
                    }
                }
            }
        }
        all
    }
}

fn heads() -> impl Strategy<Value = LinearAttentionHeads> {
    let sizes = (1usize..4, 1usize..4, 1usize..40, 1usize..80, any::<bool>());
    sizes.prop_map(|(key_heads, times, key_dim, value_dim, in_turns)| LinearAttentionHeads {
        key_heads,
        value_heads: key_heads * times,
        key_dim,
        value_dim,
        in_turns,
    })
}

/// What goes into a state space model but the state.
struct SpaceInputs {
    heads: LinearAttentionHeads,
    /// Steps of a token: one for each head, or for each of its columns.
    steps: usize,
    x: Vec<f32>,
    step: Vec<f32>,
    /// Rates as the rule has them, what is added to steps, and what of values is added.
    of_heads: [Vec<f32>; 3],
    rule: StateRule,
}

impl SpaceInputs {
    fn new(heads: LinearAttentionHeads, texts: &Texts, seed: u64) -> Self {
        let heads = LinearAttentionHeads { in_turns: false, ..heads };
        let LinearAttentionHeads { value_heads, key_dim, value_dim, .. } = heads;
        let tokens = texts.tokens * texts.padding.len();
        let (steps, rates) = match seed.is_multiple_of(3) {
            true => (value_heads, value_heads),
            false => (value_heads * value_dim, value_heads * value_dim * key_dim),
        };
        let step = values(tokens * steps, seed + 1);
        let rule = StateRule {
            limits: if seed.is_multiple_of(2) { [0.0, f32::INFINITY] } else { [0.2, 3.0] },
            rates_are_negated: seed.is_multiple_of(5),
        };
        let rate = |x: &f32| {
            let rate = x.abs() * 3.0;
            if rule.rates_are_negated { -rate } else { rate.ln() }
        };
        Self {
            heads,
            steps,
            x: values(tokens * heads.channels(), seed),
            step: step.iter().map(|x| x * 30.0).collect(),
            of_heads: [
                values(rates, seed + 2).iter().map(rate).collect(),
                values(steps, seed + 3),
                values(steps, seed + 4),
            ],
            rule,
        }
    }

    fn run(&self, isa: Isa, texts: &Texts, at_once: usize) -> Vec<f32> {
        let LinearAttentionHeads { value_heads, value_dim, .. } = self.heads;
        let row: usize = self.heads.state().iter().product();
        let mut state = vec![LEFT_OVER; (texts.padding.len() + 1) * row];
        let width = value_heads * value_dim;
        let mut all = vec![f32::NAN; texts.tokens * texts.padding.len() * width];
        let [rates, step_bias, skip] = &self.of_heads;
        for range in texts.passes(at_once) {
            let mut y = texts.cut(&all, width, &range);
            let space = StateSpace {
                heads: self.heads,
                x: &texts.cut(&self.x, self.heads.channels(), &range),
                step: &texts.cut(&self.step, self.steps, &range),
                rates,
                step_bias,
                skip,
                rule: self.rule,
                state: &mut state,
                rows: &texts.rows(1, range.start),
                y: &mut y,
            };
            state_space_into(isa, space);
            texts.paste(&mut all, width, &range, &y);
        }
        all
    }

    /// The formula in f64.
    fn expected(&self, texts: &Texts) -> Vec<f32> {
        let LinearAttentionHeads { key_heads, value_heads, key_dim, value_dim, .. } = self.heads;
        let mut all = vec![0.0; texts.tokens * texts.padding.len() * value_heads * value_dim];
        let [rates, step_bias, skip] = &self.of_heads;
        let by_column = self.steps != value_heads || rates.len() != value_heads;
        for (text, &padding) in texts.padding.iter().enumerate() {
            for head in 0..value_heads {
                let mut matrix = vec![0.0; key_dim * value_dim];
                for token in padding..texts.tokens {
                    let token = text * texts.tokens + token;
                    let x = &self.x[token * self.heads.channels()..][..self.heads.channels()];
                    let (values, rest) = x.split_at(value_heads * value_dim);
                    let (keys, queries) = rest.split_at(key_heads * key_dim);
                    let from = head * key_heads / value_heads * key_dim;
                    for column in 0..value_dim {
                        let of_head = head * value_dim + column;
                        let at = if by_column { of_head } else { head };
                        let step = f64::from(self.step[token * self.steps + at]);
                        let step = (step + f64::from(step_bias[at])).exp().ln_1p();
                        let [least, greatest] = self.rule.limits.map(f64::from);
                        let step = step.clamp(least, greatest);
                        let value = f64::from(values[of_head]);
                        let mut sum = value * f64::from(skip[at]);
                        for row in 0..key_dim {
                            let given = rates[if by_column { at * key_dim + row } else { at }];
                            let rate = match self.rule.rates_are_negated {
                                true => -f64::from(given),
                                false => f64::from(given).exp(),
                            };
                            let keep = (-rate * step).exp();
                            let element = &mut matrix[row * value_dim + column];
                            *element = *element * keep + step * value * f64::from(keys[from + row]);
                            sum += *element * f64::from(queries[from + row]);
                        }
                        all[token * value_heads * value_dim + of_head] = sum as f32;
                    }
                }
            }
        }
        all
    }

    /// The same on a device, by Burn's tensors.
    fn on_device(&self, device: &Device, texts: &Texts, at_once: usize) -> Vec<f32> {
        let LinearAttentionHeads { value_heads, value_dim, .. } = self.heads;
        let count = texts.padding.len();
        let [blocks, rows, columns] = self.heads.state();
        let dims = [count + 1, blocks, rows, columns];
        let mut state = tensor(&vec![LEFT_OVER; dims.iter().product()], dims, device);
        let mut all = vec![0.0; texts.tokens * count * value_heads * value_dim];
        for range in texts.passes(at_once) {
            let part = |values: &[f32], width: usize| {
                tensor(&texts.cut(values, width, &range), [count, range.len(), width], device)
            };
            let (x, step) = (part(&self.x, self.heads.channels()), part(&self.step, self.steps));
            let of_heads = self.of_heads.each_ref().map(|x| tensor(x, [x.len()], device));
            let rows = texts.rows(1, range.start);
            let (y, next) = state_space(self.heads, x, step, of_heads, self.rule, state, rows);
            state = next;
            let y = y.into_data().try_to_vec::<f32>().unwrap();
            texts.paste(&mut all, value_heads * value_dim, &range, &y);
        }
        // Rows of other texts stay.
        let first = state.narrow(0, 0, 1).into_data().try_to_vec::<f32>().unwrap();
        assert!(first.iter().all(|x| x.is_nan()));
        all
    }
}

fn tensor<const D: usize>(values: &[f32], dims: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), dims), device)
}

fn close(found: &[f32], expected: &[f32]) -> bool {
    let most = expected.iter().fold(1e-3f32, |most, x| most.max(x.abs()));
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 2e-5 * most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_convolution_follows_the_formula(
        texts in texts(), channels in 1usize..150, taps in 2usize..6, at_once in 1usize..9, seed in any::<u32>(),
        is_activated in any::<bool>(),
    ) {
        let x = values(texts.tokens * texts.padding.len() * channels, seed.into());
        let weight = values(channels * taps, u64::from(seed) + 1);
        let bias = values(channels, u64::from(seed) + 2);
        let of_channels = [&weight[..], &bias];
        let y = on(1, || convolved((Isa::Portable, is_activated), &texts, texts.tokens, &x, of_channels));
        for (text, &padding) in texts.padding.iter().enumerate() {
            for token in 0..texts.tokens {
                for channel in 0..channels {
                    let at = |token: usize| (text * texts.tokens + token) * channels + channel;
                    let taps = (0..taps).filter(|tap| token + 1 + tap >= padding + taps);
                    let sum: f64 = taps
                        .map(|tap| (tap, token + 1 + tap - weight.len() / channels))
                        .map(|(tap, seen)| {
                            let weight = weight[channel * (weight.len() / channels) + tap];
                            f64::from(weight) * f64::from(x[at(seen)])
                        })
                        .sum();
                    let sum = sum + f64::from(bias[channel]);
                    let expected = match (token < padding, is_activated) {
                        (true, _) => 0.0,
                        (false, true) => sum / (1.0 + (-sum).exp()),
                        (false, false) => sum,
                    };
                    let found = y[at(token)];
                    prop_assert!((f64::from(found) - expected).abs() <= 1e-5, "{found} {expected}");
                }
            }
        }
        for isa in available() {
            for threads in [1, 3] {
                let again = on(threads, || convolved((isa, is_activated), &texts, at_once, &x, of_channels));
                prop_assert_eq!(bits(&again), bits(&y), "{:?}", isa);
            }
        }
    }

    #[test]
    fn the_delta_rule_follows_the_formula(
        texts in texts(), heads in heads(), at_once in 1usize..9, seed in any::<u32>(),
    ) {
        let inputs = Inputs::new(heads, &texts, seed.into());
        let expected: Vec<f32> = inputs.expected(&texts).into_iter().map(|x| x as f32).collect();
        for isa in available() {
            let y = on(1, || inputs.run(isa, &texts, texts.tokens));
            prop_assert!(close(&y, &expected), "{isa:?}: {y:?} {expected:?}");
            let again = on(3, || inputs.run(isa, &texts, at_once));
            prop_assert_eq!(bits(&again), bits(&y), "{:?}", isa);
            // A text by itself.
            let last = texts.padding.len() - 1;
            let alone = Texts { tokens: texts.tokens, padding: vec![texts.padding[last]] };
            let part = |all: &[f32]| all[all.len() / (last + 1) * last..].to_vec();
            let inputs = Inputs {
                heads,
                gates: inputs.gates,
                factors: inputs.factors,
                x: part(&inputs.x),
                forget: part(&inputs.forget),
                write: part(&inputs.write),
                rates: inputs.rates.clone(),
                bias: inputs.bias.clone(),
            };
            prop_assert_eq!(bits(&inputs.run(isa, &alone, at_once)), bits(&part(&y)), "{:?}", isa);
        }
    }

    #[test]
    fn a_state_space_follows_the_formula(
        texts in texts(), heads in heads(), at_once in 1usize..9, seed in any::<u32>(),
    ) {
        let inputs = SpaceInputs::new(heads, &texts, seed.into());
        let expected = inputs.expected(&texts);
        for isa in available() {
            let y = on(1, || inputs.run(isa, &texts, texts.tokens));
            prop_assert!(close(&y, &expected), "{isa:?}: {y:?} {expected:?}");
            let again = on(3, || inputs.run(isa, &texts, at_once));
            prop_assert_eq!(bits(&again), bits(&y), "{:?}", isa);
            // A text by itself.
            let last = texts.padding.len() - 1;
            let alone = Texts { tokens: texts.tokens, padding: vec![texts.padding[last]] };
            let part = |all: &[f32]| all[all.len() / (last + 1) * last..].to_vec();
            let inputs = SpaceInputs {
                x: part(&inputs.x),
                step: part(&inputs.step),
                of_heads: inputs.of_heads.clone(),
                ..inputs
            };
            prop_assert_eq!(bits(&inputs.run(isa, &alone, at_once)), bits(&part(&y)), "{:?}", isa);
        }
        for device in [Device::flex(), Device::flex().autodiff()] {
            let found = inputs.on_device(&device, &texts, at_once);
            prop_assert!(close(&found, &expected), "{device:?}: {found:?} {expected:?}");
        }
    }

    #[test]
    fn burns_own_operations_give_the_same(
        texts in texts(), heads in heads(), at_once in 1usize..9, taps in 2usize..5, seed in any::<u32>(),
    ) {
        let inputs = Inputs::new(heads, &texts, seed.into());
        let (count, channels) = (texts.padding.len(), heads.channels());
        let weight = values(channels * taps, u64::from(seed) + 9);
        let bias = values(channels, u64::from(seed) + 10);
        let both = [Device::flex(), Device::flex().autodiff()].map(|device| {
            let left_over = |count: usize| vec![LEFT_OVER; count];
            let before = [count + 1, taps - 1, channels];
            let mut inputs_before = tensor(&left_over(before.iter().product()), before, &device);
            let [blocks, rows, columns] = heads.state();
            let dims = [count + 1, blocks, rows, columns];
            let mut state = tensor(&left_over(dims.iter().product()), dims, &device);
            let mut all = vec![0.0; texts.tokens * count * heads.value_heads * heads.value_dim];
            for range in texts.passes(at_once) {
                let part = |values: &[f32], width: usize| {
                    let values = texts.cut(values, width, &range);
                    tensor(&values, [count, range.len(), width], &device)
                };
                let rows = texts.rows(1, range.start);
                let weight = tensor(&weight, [channels, taps], &device);
                let x = part(&inputs.x, channels);
                let bias = tensor(&bias, [channels], &device);
                let bias = (taps > 2).then_some(bias);
                let (x, last) = causal_convolution(x, weight, bias, inputs_before, rows.clone(), true);
                let gates = [(&inputs.forget, inputs.factors), (&inputs.write, 1)]
                    .map(|(gate, factors)| part(gate, heads.value_heads * factors));
                let of_heads = [&inputs.rates, &inputs.bias]
                    .map(|values| tensor(values, [values.len()], &device));
                let (y, next) = delta_rule(heads, inputs.gates, x, gates, of_heads, state, rows);
                (inputs_before, state) = (last, next);
                let y = y.into_data().try_to_vec::<f32>().unwrap();
                texts.paste(&mut all, heads.value_heads * heads.value_dim, &range, &y);
            }
            // Rows of other texts stay.
            let first = state.narrow(0, 0, 1).into_data().try_to_vec::<f32>().unwrap();
            assert!(first.iter().all(|x| x.is_nan()));
            all
        });
        prop_assert!(close(&both[1], &both[0]), "{both:?}");
    }
}

#[test]
fn the_state_of_published_heads_has_no_gaps() {
    let heads = LinearAttentionHeads {
        key_heads: 16,
        value_heads: 32,
        key_dim: 128,
        value_dim: 128,
        in_turns: false,
    };
    assert_eq!(heads.state().iter().product::<usize>(), 32 * 128 * 128);
    assert_eq!(heads.state()[2], STATE_COLUMNS);
}
