//! Matmuls, attention and whole decoder layers on the processors.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_kernels::ActivationDtype;
use outsize_plan::format_size;

use crate::Error;
use crate::layers::{Layers, Sequence, Shape};
use crate::measured::Measured;
use crate::options::Stop;
use crate::samples::{Pace, Samples, seconds};

pub(crate) const GEMV: &str = "products of one row";
pub(crate) const ATTENTION: &str = "attention";
pub(crate) const BLOCK: &str = "rest of a block";

/// A decoder layer of a model of 1.1 billion parameters: 88 MB in bf16.
pub(crate) const LAYER: Shape = Shape {
    hidden: 2048,
    inner: 5632,
    heads: 32,
    key_value_heads: 4,
    head_dim: 64,
    layers: 3,
    context: 512,
};

/// The same where memory is scarce: 6 MB.
pub(crate) const SMALL_LAYER: Shape =
    Shape { hidden: 512, inner: 1408, heads: 8, key_value_heads: 2, ..LAYER };

/// Tokens in the KV cache when a layer is timed.
const SHORT: usize = 16;

/// A layer that is nearly all attention, with four query heads to a key head.
pub(crate) const THIN: Shape = Shape {
    hidden: 256,
    inner: 256,
    heads: 32,
    key_value_heads: 8,
    head_dim: 64,
    layers: 2,
    context: 2048,
};

/// Tokens in the KV cache when attention is timed.
const NEAR: usize = 64;
const FAR: usize = 1024;

/// The time of the rest of a block if noise hides it, in seconds.
pub(crate) const LEAST_BLOCK: f64 = 1e-6;

/// How long each part is repeated at most, beyond its least number of repetitions, in seconds.
const LIMIT: f64 = 1.5;

/// Layers with about `bytes` of weights.
pub(crate) fn layers(bytes: u64) -> Result<Layers, Error> {
    let shape = if bytes < LAYER.layer_bytes() { SMALL_LAYER } else { LAYER };
    let layers = (bytes / shape.layer_bytes()).clamp(1, 64) as usize;
    Shape { layers, ..shape }.make(ActivationDtype::F32)
}

/// Measures matmuls of one row, the rest of a block and attention with such layers.
pub(crate) fn measure(measured: &mut Measured, layers: &Layers, stop: &Stop) -> Result<(), Error> {
    stop.check()?;
    let threads = outsize_kernels::threads();
    let products = Products::new(layers);
    blocks(measured, layers, &products, threads, stop)?;
    attention(measured, &products, threads, stop)
}

/// One row of activations, multiplied with all matrices of a model one after the other.
struct Products<'a> {
    layers: &'a Layers,
    /// By their length.
    rows: HashMap<usize, Tensor<2>>,
}

impl<'a> Products<'a> {
    fn new(layers: &'a Layers) -> Self {
        Self { layers, rows: inputs(layers, 1) }
    }

    /// Runs the matmuls and returns the seconds they took. Evicts everything else from the caches.
    fn run(&self) -> f64 {
        let began = Instant::now();
        for matrix in &self.layers.matrices {
            product(&self.rows, matrix);
        }
        seconds(began)
    }
}

/// Activations `[rows, in]` for each width that the matrices take.
pub(crate) fn inputs(layers: &Layers, rows: usize) -> HashMap<usize, Tensor<2>> {
    inputs_of(layers.matrices.iter().map(|matrix| matrix.dims()[1]), rows)
}

/// Activations `[rows, width]` for each width.
pub(crate) fn inputs_of(
    widths: impl Iterator<Item = usize>,
    rows: usize,
) -> HashMap<usize, Tensor<2>> {
    widths
        .map(|width| {
            let values = (0..rows * width).map(|at| ((at * 37 % 101) as f32 - 50.0) / 50.0);
            let data = TensorData::new(values.collect(), [rows, width]);
            let tensor = Tensor::from_data(data, (&Device::flex(), DType::F32));
            (width, tensor)
        })
        .collect()
}

/// Multiplies activations with a matrix `[out, in]`, if there are any of its width.
pub(crate) fn product(inputs: &HashMap<usize, Tensor<2>>, matrix: &Tensor<2>) {
    if let Some(x) = inputs.get(&matrix.dims()[1]) {
        black_box(outsize_kernels::linear(x.clone(), matrix.clone()));
    }
}

/// Measures whole layers beside their matmuls: the difference is the rest of a block.
fn blocks(
    measured: &mut Measured,
    layers: &Layers,
    products: &Products<'_>,
    threads: usize,
    stop: &Stop,
) -> Result<(), Error> {
    let mut sequence = Sequence::new(layers, SHORT, 1)?;
    let (mut product, mut pass) = (Samples::default(), Samples::default());
    products.run();
    for _ in Pace::new(7, 41, LIMIT) {
        stop.check()?;
        product.push(products.run());
        pass.push(sequence.next_token()?);
    }
    measured.add(
        GEMV,
        "B/s",
        &product.under(layers.bytes as f64),
        format!(
            "one row of activations with {} of bf16 weights, on {threads} threads",
            format_size(layers.bytes)
        ),
    );
    let rest = pass.beyond(&product);
    // On a noisy machine the difference of two times may be zero.
    let samples = match rest.median() {
        median if median > 0.0 => rest.over(layers.count() as f64),
        _ => Samples::from_iter([LEAST_BLOCK]),
    };
    let Shape { hidden, inner, .. } = layers.shape;
    measured.add(
        BLOCK,
        "s",
        &samples,
        format!("a decoder layer of width {hidden} and {inner} for one token, less its products"),
    );
    Ok(())
}

/// Measures a token late in a sequence beside an early one: the difference is attention.
fn attention(
    measured: &mut Measured,
    evict: &Products<'_>,
    threads: usize,
    stop: &Stop,
) -> Result<(), Error> {
    let layers = THIN.make(ActivationDtype::F32)?;
    stop.check()?;
    let mut near = Sequence::new(&layers, NEAR, 1)?;
    let mut far = Sequence::new(&layers, FAR, 1)?;
    let position = 2 * (THIN.key_value_heads * THIN.head_dim * size_of::<f32>() * THIN.layers);
    let bytes = (position * (FAR - NEAR)) as f64;
    let (mut short, mut long) = (Samples::default(), Samples::default());
    for _ in Pace::new(7, 41, LIMIT) {
        stop.check()?;
        // Between two tokens of a real model, all of its weights pass through the caches.
        evict.run();
        short.push(near.next_token()?);
        evict.run();
        long.push(far.next_token()?);
    }
    let difference = long.beyond(&short);
    // If noise hides the difference, all of the time counts as attention.
    let samples = match difference.median() {
        median if median > 0.0 => difference.under(bytes),
        _ => long.under(bytes),
    };
    measured.add(
        ATTENTION,
        "B/s",
        &samples,
        format!(
            "keys and values in f32 of {NEAR} to {FAR} tokens, {} heads to {}, on {threads} threads",
            THIN.heads, THIN.key_value_heads
        ),
    );
    Ok(())
}
