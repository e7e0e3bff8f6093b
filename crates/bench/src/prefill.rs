//! Passes of many tokens: matmuls, attention, and what lies between them.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use burn::tensor::Tensor;
use outsize_kernels::{ActivationDtype, linear_with};
use outsize_plan::{GemmRates, PrefillRates, format_size};

use crate::Error;
use crate::compute::{LEAST_BLOCK, THIN, inputs};
use crate::layers::{Layers, Sequence, Shape};
use crate::measured::Measured;
use crate::options::Stop;
use crate::samples::{Pace, Samples, seconds};

/// Rows of activations of the shorter and the longer matmuls.
const FEW: usize = 32;
const MANY: usize = 256;

/// Tokens before the pass whose attention is measured.
const BEFORE: usize = 1024;

/// How long each part is repeated at most, beyond its least number of repetitions, in seconds.
const LIMIT: f64 = 1.0;

/// Measures passes over prompts with the matrices and layers of `layers`.
pub(crate) fn measure(
    measured: &mut Measured,
    layers: &Layers,
    stop: &Stop,
) -> Result<PrefillRates, Error> {
    let f32 = gemm(measured, layers, ActivationDtype::F32, stop)?;
    let bf16 = gemm(measured, layers, ActivationDtype::Bf16, stop)?;
    let attention_flops = attention(measured, stop)?;
    let values_per_second = between(measured, layers, attention_flops, stop)?;
    Ok(PrefillRates { f32, bf16, attention_flops, values_per_second })
}

/// Matmuls of few and of many rows with the matrices of one layer after the other: the difference
/// is arithmetic, the rest of the shorter ones is reading and packing.
fn gemm(
    measured: &mut Measured,
    layers: &Layers,
    compute: ActivationDtype,
    stop: &Stop,
) -> Result<GemmRates, Error> {
    let (few, many) = (inputs(layers, FEW), inputs(layers, MANY));
    let one = layers.matrices.len() / layers.count();
    let bytes = layers.bytes as f64 / layers.count() as f64;
    let (mut short, mut long) = (Samples::default(), Samples::default());
    for at in Pace::new(3, 15, LIMIT) {
        stop.check()?;
        let first = at as usize % layers.count() * one;
        let matrices = &layers.matrices[first..first + one];
        short.push(products(&few, matrices, compute));
        long.push(products(&many, matrices, compute));
    }
    let row = long.beyond(&short).over((MANY - FEW) as f64);
    let name = match compute {
        ActivationDtype::F32 => "products of many rows",
        ActivationDtype::Bf16 => "the same in bf16",
    };
    // Two operations for each value of two bytes.
    let how = format!("{FEW} to {MANY} rows of activations with {}", format_size(bytes as u64));
    measured.add(name, "FLOP/s", &row.under(bytes), how);
    let flops = measured.of(name)?;
    let packing = short.faster().median() - FEW as f64 * bytes / flops;
    Ok(GemmRates { bytes_per_second: bytes / packing.max(LEAST_BLOCK), flops })
}

fn products(
    inputs: &HashMap<usize, Tensor<2>>,
    matrices: &[Tensor<2>],
    compute: ActivationDtype,
) -> f64 {
    let began = Instant::now();
    for matrix in matrices {
        if let Some(x) = inputs.get(&matrix.dims()[1]) {
            black_box(linear_with(compute, x.clone(), matrix.clone()));
        }
    }
    seconds(began)
}

/// A pass late in a sequence beside the first: the difference is attention to what lies before.
fn attention(measured: &mut Measured, stop: &Stop) -> Result<f64, Error> {
    const NAME: &str = "attention of prompts";
    let layers = THIN.make()?;
    let mut first = Sequence::new(&layers, 0, MANY)?;
    let mut late = Sequence::new(&layers, BEFORE, MANY)?;
    let (mut short, mut long) = (Samples::default(), Samples::default());
    for _ in Pace::new(3, 15, LIMIT) {
        stop.check()?;
        short.push(first.pass(MANY)?);
        long.push(late.pass(MANY)?);
    }
    let difference = long.beyond(&short);
    let operations = layers.attention_flops() * (MANY * BEFORE) as f64;
    // If noise hides the difference, all of the time counts as attention.
    let samples = match difference.median() {
        median if median > 0.0 => difference.under(operations),
        _ => long.under(operations),
    };
    let how = format!("{MANY} tokens that see {BEFORE} more, {} heads", THIN.heads);
    measured.add(NAME, "FLOP/s", &samples, how);
    measured.of(NAME)
}

/// Whole layers beside their matmuls: what both and attention do not explain.
fn between(
    measured: &mut Measured,
    layers: &Layers,
    attention_flops: f64,
    stop: &Stop,
) -> Result<f64, Error> {
    const NAME: &str = "activations";
    let inputs = inputs(layers, MANY);
    let mut sequence = Sequence::new(layers, 0, MANY)?;
    let (mut product, mut pass) = (Samples::default(), Samples::default());
    for _ in Pace::new(3, 9, LIMIT) {
        stop.check()?;
        product.push(products(&inputs, &layers.matrices, ActivationDtype::F32));
        pass.push(sequence.pass(MANY)?);
    }
    let attention = layers.attention_flops() * (MANY * MANY / 2) as f64 / attention_flops;
    let rest = pass.beyond(&product).median() - attention;
    let values: usize =
        layers.matrices.iter().map(|matrix| matrix.dims().iter().sum::<usize>()).sum();
    let rate = (values * MANY) as f64 / rest.max(LEAST_BLOCK);
    let Shape { hidden, inner, .. } = layers.shape;
    let how = format!(
        "layers of width {hidden} and {inner} for {MANY} tokens, less products and attention"
    );
    measured.add_value(NAME, "1/s", rate, &pass, how);
    Ok(rate)
}
