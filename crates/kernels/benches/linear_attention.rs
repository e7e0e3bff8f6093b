//! How fast linear attention goes through a text, beside a plain read of its states and the
//! multiply-adds of this processor.
//!
//! ```sequence
//! cargo bench -p outsize-kernels --bench linear_attention             # every case
//! cargo bench -p outsize-kernels --bench linear_attention -- --quick  # fewer repetitions
//! ```
//!
//! 32 heads of 128 by 128 with 16 of queries and keys: a layer of Qwen3-Next; and 128 heads of 64
//! by 128 with one of queries and keys: a layer of Granite 4.0 H Small; and one of 8192 by 16 whose
//! columns have steps of their own: a layer of Jamba 1.5 Mini or of Falcon Mamba. As many layers as
//! they have, so that states come from memory for each token.
//!
//! - `memory`: a plain read of the same states by all threads. A token reads and writes them.
//! - `peak`: multiply-adds on registers on all threads, see [`peak::flops`]. Of each element of a
//!   state a token takes one product and three multiply-adds in the delta rule, one fewer in a
//!   state space, counted as seven and five operations; the exponential function of each element in
//!   Mamba is not counted.
//!
//! Both are measured in turns with the layers; medians are shown.

use outsize_kernels::causal_convolution::{CausalConvolution, convolve_causally};
use outsize_kernels::delta_rule::{DeltaRule, delta_rule_into};
use outsize_kernels::state_space::{StateRule, StateSpace, state_space_into};
use outsize_kernels::{ActivationDtype, DeltaGates, Isa, LinearAttentionHeads, StateRows, peak};

#[path = "common/timing.rs"]
mod timing;

use timing::{median, seconds, values};

/// What goes on with the states.
#[derive(Clone, Copy)]
struct Rule {
    name: &'static str,
    heads: LinearAttentionHeads,
    layers: usize,
    /// Operations on each element of a state.
    operations: usize,
    is_delta_rule: bool,
    /// Whether columns have steps of their own.
    by_column: bool,
}

const RULES: [Rule; 3] = [
    Rule {
        name: "delta rule",
        heads: LinearAttentionHeads {
            key_heads: 16,
            value_heads: 32,
            key_dim: 128,
            value_dim: 128,
            in_turns: false,
        },
        layers: 36,
        operations: 7,
        is_delta_rule: true,
        by_column: false,
    },
    Rule {
        name: "state space",
        heads: LinearAttentionHeads {
            key_heads: 1,
            value_heads: 128,
            key_dim: 128,
            value_dim: 64,
            in_turns: false,
        },
        layers: 36,
        operations: 5,
        is_delta_rule: false,
        by_column: false,
    },
    Rule {
        name: "Mamba",
        heads: LinearAttentionHeads {
            key_heads: 1,
            value_heads: 1,
            key_dim: 16,
            value_dim: 8192,
            in_turns: false,
        },
        layers: 28,
        operations: 5,
        is_delta_rule: false,
        by_column: true,
    },
];

const TAPS: usize = 4;

/// Texts, and tokens of each.
const CASES: [(usize, usize); 5] = [(1, 1), (4, 1), (1, 16), (1, 512), (4, 128)];

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    println!("{:?}, {} threads", Isa::detected(), outsize_kernels::threads());
    for rule in RULES {
        println!();
        println!(
            "texts tokens | {}, us  GB/s  memory  share  GFLOP/s    peak  share | convolution, us",
            rule.name
        );
        for (texts, tokens) in CASES {
            print(rule, texts, tokens, if quick { 5 } else { 21 });
        }
    }
}

fn print(rule: Rule, texts: usize, tokens: usize, rounds: usize) {
    let Rule { name, heads, layers, operations, is_delta_rule, by_column } = rule;
    let (isa, channels, size) =
        (Isa::detected(), heads.channels(), heads.state().iter().product::<usize>());
    let mut states: Vec<Vec<f32>> = vec![values(texts * size); layers];
    let x = values(texts * tokens * channels);
    let gates = heads.value_heads * if by_column { heads.value_dim } else { 1 };
    let of_heads = values(gates).iter().map(|x| x.abs()).collect::<Vec<_>>();
    let rates = values(gates * if by_column { heads.key_dim } else { 1 });
    let gates = values(texts * tokens * gates);
    let (weight, bias) = (values(channels * TAPS), values(channels));
    let mut last = values(texts * (TAPS - 1) * channels);
    let mut y = vec![0.0; texts * tokens * heads.value_heads * heads.value_dim];
    let rows = StateRows { first: 0, begins: vec![None; texts] };
    let (mut rules, mut convolutions, mut reads, mut peaks) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        for state in &mut states {
            let mut x = x.clone();
            convolutions.push(seconds(|| {
                let (x, weight, bias, state) = (&mut x[..], &weight[..], &bias[..], &mut last[..]);
                convolve_causally(
                    isa,
                    CausalConvolution {
                        x,
                        channels,
                        weight,
                        bias,
                        state,
                        rows: &rows,
                        is_activated: true,
                    },
                );
            }));
            rules.push(seconds(|| match is_delta_rule {
                true => delta_rule_into(
                    isa,
                    DeltaRule {
                        heads,
                        gates: DeltaGates::default(),
                        x: &mut x,
                        forget: &gates,
                        write: &gates,
                        rates: &of_heads,
                        forget_bias: &of_heads,
                        state,
                        rows: &rows,
                        y: &mut y,
                    },
                ),
                false => state_space_into(
                    isa,
                    StateSpace {
                        heads,
                        x: &x,
                        step: &gates,
                        rates: &rates,
                        step_bias: &of_heads,
                        skip: &of_heads,
                        rule: StateRule::default(),
                        state,
                        rows: &rows,
                        y: &mut y,
                    },
                ),
            }));
        }
        let bytes = |state: &Vec<f32>| state.iter().flat_map(|x| x.to_le_bytes()).collect();
        let bytes: Vec<Vec<u8>> = states.iter().map(bytes).collect();
        reads.push(seconds(|| bytes.iter().map(|state| peak::read(state)).sum::<u64>()));
        peaks.push(peak::flops(ActivationDtype::F32, 0.02).expect("the processor adds up right"));
    }
    let (time, bytes) = (median(rules), (texts * size * size_of::<f32>()) as f64);
    let (speed, memory) = (2.0 * bytes / time / 1e9, layers as f64 * bytes / median(reads) / 1e9);
    let elements = texts * tokens * heads.value_heads * heads.key_dim * heads.value_dim;
    let operations = (operations * elements) as f64;
    let (rate, peak) = (operations / time / 1e9, median(peaks) / 1e9);
    println!(
        "{texts:>5} {tokens:>6} | {:>width$.1} {speed:>5.1} {memory:>7.1} {:>5.0}% {rate:>8.0} {peak:>7.0} {:>5.0}% | {:>15.1}",
        time * 1e6,
        100.0 * speed / memory,
        100.0 * rate / peak,
        median(convolutions) * 1e6,
        width = name.len() + 4,
    );
}
