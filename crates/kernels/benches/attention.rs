//! How fast attention reads a cache, beside a plain read of the same memory, and how near it comes
//! to the multiply-adds of this processor.
//!
//! ```sequence
//! cargo bench -p outsize-kernels --bench attention             # every case
//! cargo bench -p outsize-kernels --bench attention -- --quick  # fewer repetitions
//! ```
//!
//! 32 heads of queries over 4 of keys and values, 64 wide: a Llama of 1.1 billion parameters. As
//! many layers as it takes for keys and values to come from memory and not from a cache, 90 MB at
//! least; one layer where arithmetic is the limit. All lie one behind the other in large pages.
//!
//! - `memory`: a plain read of the same keys and values by all threads.
//! - `peak`: multiply-adds on registers on all threads, see [`peak::flops`].
//!
//! Both are measured in turns with attention; medians are shown.

use half::bf16;
use outsize_kernels::attention::{
    AttentionMask, AttentionShape, KvSegment, RingLayout, StridedRows, attend_into,
};
use outsize_kernels::{ActivationDtype, Isa, Weight, peak};

#[path = "common/large.rs"]
mod large;
#[path = "common/timing.rs"]
mod timing;

use large::Large;
use timing::{median, seconds, values};

const HEADS: usize = 32;
const KEY_HEADS: usize = 4;
const WIDTH: usize = 64;

/// Bytes of keys and values that come from memory together.
const WORKING_SET: usize = 90 << 20;

/// Sequences, new tokens of each, tokens at the end, and whether keys and values are in bf16; else
/// they are in f32.
const CASES: [(usize, usize, usize, bool); 11] = [
    (1, 1, 32, false),
    (1, 1, 256, false),
    (1, 1, 2048, false),
    (1, 1, 8192, false),
    (1, 1, 2048, true),
    (1, 1, 8192, true),
    (8, 1, 256, false),
    (8, 1, 256, true),
    (8, 1, 2048, false),
    (1, 512, 512, false),
    (1, 2048, 2048, false),
];

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    println!("{:?}, {} threads", Isa::detected(), outsize_kernels::threads());
    println!();
    println!(
        "batch tokens context  cache | a layer, us |  GB/s  memory  share | GFLOP/s    peak  share"
    );
    for (batch, tokens, context, rounded) in CASES {
        let case = Case {
            heads: AttentionShape {
                batch,
                tokens,
                heads: HEADS,
                key_heads: KEY_HEADS,
                width: WIDTH,
            },
            context,
            rounded,
        };
        case.print(if quick { 5 } else { 21 });
    }
}

/// One row of the table.
struct Case {
    heads: AttentionShape,
    context: usize,
    rounded: bool,
}

impl Case {
    fn print(&self, rounds: usize) {
        let AttentionShape { batch, tokens, .. } = self.heads;
        let bytes = 2 * self.elements() * if self.rounded { 2 } else { 4 };
        let layers = match tokens {
            1 => WORKING_SET.div_ceil(bytes),
            _ => 1,
        };
        let some = values(1 << 16);
        let cache = match self.rounded {
            true => {
                let some: Vec<bf16> = some.into_iter().map(bf16::from_f32).collect();
                Large::new(layers * bytes, &some)
            }
            false => Large::new(layers * bytes, &some),
        };
        let queries = values(batch * tokens * HEADS * WIDTH);
        let mut y = vec![0.0; queries.len()];
        let (mut times, mut reads, mut peaks) = (vec![], vec![], vec![]);
        for _ in 0..rounds {
            times.push(seconds(|| {
                for layer in 0..layers {
                    self.attend(&cache, layer, &queries, &mut y);
                }
            }));
            reads.push(seconds(|| peak::read(cache.bytes())));
            peaks.push(
                peak::flops(ActivationDtype::F32, 0.02).expect("the processor adds up right"),
            );
        }
        let time = median(times) / layers as f64;
        let (speed, memory) =
            (bytes as f64 / time / 1e9, (layers * bytes) as f64 / median(reads) / 1e9);
        let seen: usize = (0..tokens).map(|token| self.context - token).sum();
        let operations = (4 * batch * HEADS * WIDTH * seen) as f64;
        let (rate, peak) = (operations / time / 1e9, median(peaks) / 1e9);
        println!(
            "{batch:>5} {tokens:>6} {:>7}  {:>5} | {:>11.1} | {speed:>5.1} {memory:>7.1} {:>5.0}% | {rate:>7.0} {peak:>7.0} {:>5.0}%",
            self.context,
            if self.rounded { "bf16" } else { "f32" },
            time * 1e6,
            100.0 * speed / memory,
            100.0 * rate / peak,
        );
    }
}

impl Case {
    /// Elements of the keys of a layer, and as many of its values.
    fn elements(&self) -> usize {
        self.heads.batch * KEY_HEADS * self.context * WIDTH
    }

    fn attend(&self, cache: &Large, layer: usize, queries: &[f32], y: &mut [f32]) {
        let rows = |matrix: usize| {
            let (start, end) = (matrix * self.elements(), (matrix + 1) * self.elements());
            StridedRows {
                elements: match self.rounded {
                    true => Weight::Bf16(&cache.elements()[start..end]),
                    false => Weight::F32(&cache.elements()[start..end]),
                },
                sequence_stride: KEY_HEADS * self.context * WIDTH,
                head_stride: self.context * WIDTH,
                slot_stride: WIDTH,
            }
        };
        let held = KvSegment {
            keys: rows(2 * layer),
            values: rows(2 * layer + 1),
            ring: RingLayout { first: 0, end: self.context, capacity: self.context, origin: 0 },
        };
        let mask = AttentionMask {
            start: self.context - self.heads.tokens,
            window: usize::MAX,
            padding: vec![0; self.heads.batch],
            ..AttentionMask::default()
        };
        attend_into(
            (Isa::detected(), ActivationDtype::F32),
            queries,
            self.heads,
            &[held],
            &mask,
            None,
            y,
        );
    }
}
