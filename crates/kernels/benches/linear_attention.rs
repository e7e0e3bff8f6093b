//! How fast linear attention goes through a text, beside a plain read of its states and the
//! multiply-adds of this processor.
//!
//! ```sequence
//! cargo bench -p outsize-kernels --bench linear_attention             # every case
//! cargo bench -p outsize-kernels --bench linear_attention -- --quick  # fewer repetitions
//! ```
//!
//! 32 heads of 128 by 128 with 16 of queries and keys: a layer of Qwen3-Next. As many layers as it has,
//! so that states come from memory for each token.
//!
//! - `memory`: a plain read of the same states by all threads. A token reads and writes them.
//! - `peak`: multiply-adds on registers on all threads, see [`peak::flops`]. Of each element of a state
//!   a token takes one product and three multiply-adds, counted as seven operations.
//!
//! Both are measured in turns with the layers; medians are shown.

use outsize_kernels::causal_convolution::{CausalConvolution, convolve_causally};
use outsize_kernels::delta_rule::{DeltaRule, delta_rule_into};
use outsize_kernels::state_space::{StateSpace, state_space_into};
use outsize_kernels::{ActivationDtype, Isa, LinearAttentionHeads, StateRows, peak};

#[path = "common/timing.rs"]
mod timing;

use timing::{median, seconds, values};

const HEADS: LinearAttentionHeads = LinearAttentionHeads {
    key_heads: 16,
    value_heads: 32,
    key_dim: 128,
    value_dim: 128,
    in_turns: false,
};

const LAYERS: usize = 36;

const TAPS: usize = 4;

/// Texts, and tokens of each.
const CASES: [(usize, usize); 5] = [(1, 1), (4, 1), (1, 16), (1, 512), (4, 128)];

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    println!("{:?}, {} threads", Isa::detected(), outsize_kernels::threads());
    println!();
    println!(
        "texts tokens | delta rule, us  GB/s  memory  share  GFLOP/s    peak  share | convolution, us"
    );
    for (texts, tokens) in CASES {
        print(texts, tokens, if quick { 5 } else { 21 });
    }
}

fn print(texts: usize, tokens: usize, rounds: usize) {
    let (isa, channels, size) =
        (Isa::detected(), HEADS.channels(), HEADS.state().iter().product::<usize>());
    let mut states: Vec<Vec<f32>> = vec![values(texts * size); LAYERS];
    let x = values(texts * tokens * channels);
    let gates = values(texts * tokens * HEADS.value_heads);
    let of_heads = values(HEADS.value_heads).iter().map(|x| x.abs()).collect::<Vec<_>>();
    let weight = values(channels * TAPS);
    let mut last = values(texts * (TAPS - 1) * channels);
    let mut y = vec![0.0; texts * tokens * HEADS.value_heads * HEADS.value_dim];
    let rows = StateRows { first: 0, begins: vec![None; texts] };
    let (mut rules, mut convolutions, mut reads, mut peaks) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        for state in &mut states {
            let mut x = x.clone();
            convolutions.push(seconds(|| {
                let (x, weight, state) = (&mut x[..], &weight[..], &mut last[..]);
                convolve_causally(
                    isa,
                    CausalConvolution {
                        x,
                        channels,
                        weight,
                        state,
                        rows: &rows,
                        is_activated: true,
                    },
                );
            }));
            rules.push(seconds(|| {
                delta_rule_into(
                    isa,
                    DeltaRule {
                        heads: HEADS,
                        x: &mut x,
                        forget: &gates,
                        write: &gates,
                        rates: &of_heads,
                        forget_bias: &of_heads,
                        state,
                        rows: &rows,
                        y: &mut y,
                    },
                );
            }));
        }
        let bytes = |state: &Vec<f32>| state.iter().flat_map(|x| x.to_le_bytes()).collect();
        let bytes: Vec<Vec<u8>> = states.iter().map(bytes).collect();
        reads.push(seconds(|| bytes.iter().map(|state| peak::read(state)).sum::<u64>()));
        peaks.push(peak::flops(ActivationDtype::F32, 0.02).expect("the processor adds up right"));
    }
    let (time, bytes) = (median(rules), (texts * size * size_of::<f32>()) as f64);
    let (speed, memory) = (2.0 * bytes / time / 1e9, LAYERS as f64 * bytes / median(reads) / 1e9);
    let operations =
        (7 * texts * tokens * HEADS.value_heads * HEADS.key_dim * HEADS.value_dim) as f64;
    let (rate, peak) = (operations / time / 1e9, median(peaks) / 1e9);
    println!(
        "{texts:>5} {tokens:>6} | {:>14.1} {speed:>5.1} {memory:>7.1} {:>5.0}% {rate:>8.0} {peak:>7.0} {:>5.0}% | {:>15.1}",
        time * 1e6,
        100.0 * speed / memory,
        100.0 * rate / peak,
        median(convolutions) * 1e6,
    );
}
