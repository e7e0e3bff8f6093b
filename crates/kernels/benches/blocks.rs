//! How fast weights in GGUF's blocks, in MXFP4, in fp8 and of integers are multiplied, beside a
//! plain read of the same memory.
//!
//! ```text
//! cargo bench --workspace --bench blocks             # every format
//! cargo bench --workspace --bench blocks -- --quick  # a quarter of the layers, fewer rounds
//! cargo bench --workspace --bench blocks -- --bf16   # activations rounded to bf16
//! cargo bench --workspace --bench blocks -- --packed # packed bf16 alone
//! ```
//!
//! One token: all matmuls of a Llama of 1.1 billion parameters, one after the other, from large
//! pages. The formats take turns with reads of the same memory, one right before and one right
//! after each pass; `share` is the median of their quotients. `cache` is one thread on 64 rows that
//! stay in the second-level cache: what the loops do when they need not wait.
//!
//! More tokens: one weight in blocks beside the same weight in f32, in turns.
//!
//! bf16 as it is beside the same numbers packed, in turns: one token, and more.
//!
//! `F4` is MXFP4 with scales apart, `F8_E4M3` fp8 with a scale for 128 rows and columns, `U4` and
//! `U8` integers with an f16 for each 128 of a row.

#[path = "common/large.rs"]
mod large;
#[path = "common/shapes.rs"]
mod shapes;
#[path = "common/timing.rs"]
mod timing;

use half::bf16;
use outsize_checkpoint::{Dtype, IntegerWidth, StorageFormat};
use outsize_kernels::matmul::{Size, linear_into};
use outsize_kernels::{ActivationDtype, BlockWeight, Isa, PackedBf16Scan, Weight, pack_bf16, peak};

use large::Large;
use shapes::{HEAD, LAYER, LAYERS};
use timing::{median, seconds, values};

/// Types of elements, and where in a block their f16 are.
const FORMATS: [(Dtype, &[usize]); 19] = [
    (Dtype::Q8_0, &[0]),
    (Dtype::Q4_0, &[0]),
    (Dtype::Q4_1, &[0, 2]),
    (Dtype::Q5_0, &[0]),
    (Dtype::Q5_1, &[0, 2]),
    (Dtype::Q2K, &[80, 82]),
    (Dtype::Q3K, &[108]),
    (Dtype::Q4K, &[0, 2]),
    (Dtype::Q5K, &[0, 2]),
    (Dtype::Q6K, &[208]),
    (Dtype::Iq4Nl, &[0]),
    (Dtype::Iq4Xs, &[0]),
    (Dtype::Iq2Xxs, &[0]),
    (Dtype::Iq3S, &[0]),
    (Dtype::Mxfp4, &[]),
    (Dtype::F4, &[]),
    (Dtype::F8E4M3, &[]),
    (Dtype::U4, &[]),
    (Dtype::U8, &[]),
];

/// `[out, in]` of the weight that more tokens are multiplied with.
const WEIGHT: [usize; 2] = [5632, 2048];

/// Rows of activations.
const TOKENS: [usize; 8] = [1, 2, 4, 8, 16, 32, 128, 512];

fn main() {
    let quick = std::env::args().any(|argument| argument == "--quick");
    let rounded = std::env::args().any(|argument| argument == "--bf16");
    let compute = if rounded { ActivationDtype::Bf16 } else { ActivationDtype::F32 };
    let (layers, rounds) = if quick { (LAYERS / 4, 7) } else { (LAYERS, 25) };
    println!("{:?}, {} threads, {compute:?}", Isa::detected(), rayon::current_num_threads());
    packed_bf16(compute, layers, rounds);
    if std::env::args().any(|argument| argument == "--packed") {
        return;
    }
    one_token(compute, layers, rounds);
    more_tokens(compute, rounds);
}

/// Normally distributed numbers, whose exponents are those of weights, as they are and packed.
fn packed_bf16(compute: ActivationDtype, layers: usize, rounds: usize) {
    let mut shapes: Vec<[usize; 2]> = (0..layers).flat_map(|_| LAYER).collect();
    shapes.push(HEAD);
    let each: Vec<_> = [2048, 5632]
        .map(|columns| {
            let wave = values(2 * 96 * columns).into_iter().map(|x| f64::from(x).abs().max(1e-9));
            let wave: Vec<f64> = wave.collect();
            let turned = wave.chunks(2).map(|pair| {
                (-2.0 * (pair[0] % 1.0).max(1e-9).ln()).sqrt() * (6.3 * pair[1]).cos() * 0.02
            });
            let plain: Vec<bf16> = turned.map(bf16::from_f64).collect();
            let mut scan = PackedBf16Scan::new(columns).expect("whole groups");
            scan.add(&plain);
            let packed = scan.finish().expect("weights that can be packed");
            let bytes = pack_bf16(packed, &plain);
            (columns, plain, Dtype::PackedBf16(packed), bytes)
        })
        .into();
    let one = |columns: usize| each.iter().find(|one| one.0 == columns).expect("one of both");
    println!();
    println!("packed bf16, one token, {layers} layers");
    println!("columns   GB as bf16 | packed |  bf16, ms   GB/s | packed, ms  GB/s | times as fast");
    for columns in [2048, 5632] {
        let (_, plain, dtype, bytes) = one(columns);
        let shapes: Vec<_> = shapes.iter().filter(|shape| shape[1] == columns).collect();
        let elements: usize = shapes.iter().map(|shape| shape[0] * shape[1]).sum();
        let block = dtype.block();
        let memory = Large::new(2 * elements, plain);
        let packed = Large::new(elements / block.elements * block.bytes, bytes);
        let x = values(columns);
        let mut y = vec![0.0; HEAD[0]];
        let mut both = [vec![], vec![]];
        for _ in 0..rounds {
            both[0].push(seconds(|| {
                let mut left = memory.elements::<bf16>();
                for shape in &shapes {
                    let (weight, rest) = left.split_at(shape[0] * columns);
                    left = rest;
                    let size = Size { m: 1, n: shape[0], k: columns };
                    let weight = Weight::Bf16(weight);
                    linear_into(Isa::detected(), compute, &x, weight, size, &mut y[..shape[0]]);
                }
            }));
            both[1].push(seconds(|| {
                let mut left = packed.bytes();
                for shape in &shapes {
                    let (weight, rest) = left.split_at(bytes_of(*dtype, **shape));
                    left = rest;
                    multiply(compute, *dtype, weight, **shape, &x, &mut y[..shape[0]]);
                }
            }));
        }
        let gb = [2 * elements, packed.bytes().len()].map(|bytes| bytes as f64 / 1e9);
        let times = both.map(median);
        println!(
            "{columns:<7} {:>12.2} | {:>6.2} | {:>9.2} {:>6.1} | {:>10.2} {:>5.1} | {:.2}",
            gb[0],
            gb[1],
            1e3 * times[0],
            gb[0] / times[0],
            1e3 * times[1],
            gb[1] / times[1],
            times[0] / times[1],
        );
    }
    println!();
    println!("packed bf16, a matrix of 2560 rows, in ms, and how many times as fast as bf16");
    for m in TOKENS {
        print!("{m:>6} tokens |");
        for (columns, plain, dtype, bytes) in &each {
            let shape = [96, *columns];
            let n = 2560 / 96 * 96;
            let (plain, bytes) = (plain.repeat(n / 96), bytes.repeat(n / 96));
            let x = values(m * columns);
            let mut y = vec![0.0; m * n];
            let size = Size { m, n, k: shape[1] };
            let weight = BlockWeight::new(format_of(*dtype), [n, *columns], &bytes[..], &[], 0);
            let weights = [Weight::Bf16(&plain), Weight::Blocks(weight.expect("whole blocks"))];
            let mut both = [vec![], vec![]];
            for _ in 0..if m > 64 { rounds.div_ceil(4) } else { rounds } {
                for (weight, times) in weights.into_iter().zip(&mut both) {
                    times.push(seconds(|| {
                        linear_into(Isa::detected(), compute, &x, weight, size, &mut y);
                    }));
                }
            }
            let times = both.map(median);
            print!(
                " {columns}: {:>8.3} {:>8.3} {:>5.2}x |",
                1e3 * times[0],
                1e3 * times[1],
                times[0] / times[1]
            );
        }
        println!();
    }
}

fn one_token(compute: ActivationDtype, layers: usize, rounds: usize) {
    let mut shapes: Vec<[usize; 2]> = (0..layers).flat_map(|_| LAYER).collect();
    shapes.push(HEAD);
    let x = values(5632);
    let mut y = vec![0.0; HEAD[0]];
    println!();
    println!("one token, {layers} layers");
    println!("format     GB | memory, GB/s |      time    GB/s  share | cache, GB/s");
    for (dtype, scales) in FORMATS {
        let total = shapes.iter().map(|&shape| bytes_of(dtype, shape)).sum();
        let memory = Large::new(total, &blocks(dtype, scales, 5003));
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
        let small = [64, 2048];
        let (mut times, mut reads, mut shares, mut cached) = (vec![], vec![], vec![], vec![]);
        for _ in 0..rounds {
            let before = seconds(|| peak::read(memory.bytes()));
            let time = seconds(|| {
                let mut left = memory.bytes();
                for &shape in &shapes {
                    let (weight, rest) = left.split_at(bytes_of(dtype, shape));
                    left = rest;
                    multiply(compute, dtype, weight, shape, &x[..shape[1]], &mut y[..shape[0]]);
                }
            });
            let after = seconds(|| peak::read(memory.bytes()));
            times.push(time);
            shares.push((before + after) / 2.0 / time);
            reads.extend([before, after]);
            let weight = &memory.bytes()[..bytes_of(dtype, small)];
            cached.extend((0..9).map(|_| {
                alone.install(|| {
                    seconds(|| {
                        multiply(compute, dtype, weight, small, &x[..small[1]], &mut y[..small[0]])
                    })
                })
            }));
        }
        let time = median(times);
        println!(
            "{:<7} {:>5.2} | {:>12.1} | {:>6.2} ms {:>7.1} {:>5.0}% | {:>11.1}",
            dtype.to_string(),
            total as f64 / 1e9,
            total as f64 / median(reads) / 1e9,
            1e3 * time,
            total as f64 / time / 1e9,
            100.0 * median(shares),
            bytes_of(dtype, small) as f64 / median(cached) / 1e9,
        );
    }
}

fn more_tokens(compute: ActivationDtype, rounds: usize) {
    let [n, k] = WEIGHT;
    println!();
    println!("{WEIGHT:?}, in ms, and how many times as long as in f32");
    println!(
        "tokens |     f32 |{}",
        FORMATS.map(|(dtype, _)| format!(" {:>15} |", dtype.to_string())).concat()
    );
    let all = FORMATS.map(|(dtype, scales)| {
        let mut data = blocks(dtype, scales, bytes_of(dtype, WEIGHT) / dtype.block().bytes);
        let scales = data.split_off(data_bytes(dtype, WEIGHT));
        BlockWeight::new(format_of(dtype), WEIGHT, data, scales, 0).expect("whole blocks")
    });
    let wide = values(n * k);
    for m in TOKENS {
        let x = values(m * k);
        let mut y = vec![0.0; m * n];
        let rounds = if m > 64 { rounds.div_ceil(4) } else { rounds };
        let mut multiply = |weight: Weight| {
            let size = Size { m, n, k };
            seconds(|| {
                linear_into(Isa::detected(), compute, &x, weight, size, &mut y);
            })
        };
        let (mut plain, mut times) = (vec![], vec![vec![]; FORMATS.len()]);
        for _ in 0..rounds {
            plain.push(multiply(Weight::F32(&wide)));
            for (times, weight) in times.iter_mut().zip(&all) {
                times.push(multiply(Weight::Blocks(weight.view())));
            }
        }
        let plain = median(plain);
        let cells = times.into_iter().map(|times| {
            let time = median(times);
            format!(" {:>7.3} {:>5.2}x |", 1e3 * time, time / plain)
        });
        println!("{m:>6} | {:>7.3} |{}", 1e3 * plain, cells.collect::<String>());
    }
}

/// The product of one row of activations and a weight in blocks.
fn multiply(
    compute: ActivationDtype,
    dtype: Dtype,
    data: &[u8],
    shape: [usize; 2],
    x: &[f32],
    y: &mut [f32],
) {
    let (data, scales) = data.split_at(data_bytes(dtype, shape));
    let weight = BlockWeight::new(format_of(dtype), shape, data, scales, 0);
    let weight = Weight::Blocks(weight.expect("whole blocks"));
    let size = Size { m: 1, n: shape[0], k: shape[1] };
    linear_into(Isa::detected(), compute, x, weight, size, y);
}

fn format_of(dtype: Dtype) -> StorageFormat {
    match dtype {
        Dtype::F4 => StorageFormat::mxfp4(),
        Dtype::F8E4M3 => StorageFormat::fp8([128, 128]),
        Dtype::U4 => integers(IntegerWidth::U4),
        Dtype::U8 => integers(IntegerWidth::U8),
        _ => StorageFormat::plain(dtype),
    }
}

fn integers(width: IntegerWidth) -> StorageFormat {
    StorageFormat::packed_integers(width, 128, false).with_scales(Dtype::F16)
}

fn data_bytes(dtype: Dtype, [rows, columns]: [usize; 2]) -> usize {
    rows * columns / dtype.block().elements * dtype.block().bytes
}

/// Bytes of a weight: its data, then scales that lie apart.
fn bytes_of(dtype: Dtype, shape: [usize; 2]) -> usize {
    let scales = format_of(dtype)
        .scales
        .map_or(0, |grid| grid.shape(shape).iter().product::<usize>() * grid.dtype.size());
    data_bytes(dtype, shape) + scales
}

/// Blocks of any numbers, with scales between 2⁻⁷ and 2. Those of F4 are among bytes of numbers,
/// and so are those of fp8 and of integers.
fn blocks(dtype: Dtype, scales: &[usize], count: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    let mut data: Vec<u8> = (0..count * dtype.block().bytes).map(|_| next()).collect();
    for block in data.chunks_exact_mut(dtype.block().bytes) {
        for &at in scales {
            // The upper byte of an f16: sign, exponent and the first two bits of the mantissa.
            block[at + 1] = block[at + 1] & 0x9f | 0x20;
        }
        if [Dtype::Mxfp4, Dtype::F4].contains(&dtype) {
            block[0] = block[0] & 7 | 120;
        }
    }
    if [Dtype::U4, Dtype::U8].contains(&dtype) {
        data.chunks_exact_mut(2).for_each(|half| half[1] = half[1] & 0x9f | 0x20);
    }
    if dtype == Dtype::F8E4M3 {
        for word in data.chunks_mut(4) {
            // No NaN, and an f32 below 2.
            word.iter_mut().for_each(|byte| *byte &= 0xbf);
            if let [.., last] = word {
                *last &= 0x3f;
            }
        }
    }
    data
}
