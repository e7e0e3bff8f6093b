//! Products, attention and whole layers on the processors.

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_models::{CacheOptions, KvCache, Logits};
use outsize_plan::format_size;

use super::layers::{Layers, Shape, VOCABULARY};
use super::samples::{Pace, Samples};
use super::{CalibrateError, Measured, Stop};

pub(super) const ONE_ROW: &str = "products of one row";
pub(super) const MANY_ROWS: &str = "products of many rows";
pub(super) const ATTENTION: &str = "attention";
pub(super) const BLOCK: &str = "rest of a block";

/// Rows of the products of many.
const ROWS: usize = 128;

/// A decoder layer of a model of 1.1 billion parameters: 88 MB in bf16.
pub(super) const LAYER: Shape = Shape {
    hidden: 2048,
    inner: 5632,
    heads: 32,
    key_value_heads: 4,
    head_dim: 64,
    layers: 3,
    context: 64,
};

/// The same where memory is scarce: 6 MB.
pub(super) const SMALL_LAYER: Shape = Shape {
    hidden: 512,
    inner: 1408,
    heads: 8,
    key_value_heads: 2,
    ..LAYER
};

/// Tokens behind which a layer is timed.
const SHORT: usize = 16;

/// A layer that is nearly all attention, as the larger Llama 3 have it: four queries to a key.
const THIN: Shape = Shape {
    hidden: 256,
    inner: 256,
    heads: 32,
    key_value_heads: 8,
    head_dim: 64,
    layers: 2,
    context: FAR + 8,
};

/// Tokens that attention is timed over.
const NEAR: usize = 64;
const FAR: usize = 1024;

/// What the rest of a block is taken for if it cannot be told from noise, in seconds.
const LEAST_BLOCK: f64 = 1e-6;

/// The longest that each part goes on beyond the least number of repetitions, in seconds.
const LIMIT: f64 = 1.5;

/// Measures all of it, with about `bytes` of weights.
pub(super) fn measure(
    measured: &mut Measured,
    bytes: u64,
    stop: &Stop,
) -> Result<(), CalibrateError> {
    let threads = outsize_kernels::threads();
    let shape = if bytes < LAYER.layer_bytes() {
        SMALL_LAYER
    } else {
        LAYER
    };
    let layers = (bytes / shape.layer_bytes()).clamp(1, 64) as usize;
    let layers = Shape { layers, ..shape }.make()?;
    stop.check()?;
    let products = Products::new(&layers);
    blocks(measured, &layers, &products, threads, stop)?;
    many_rows(measured, &layers, threads, stop)?;
    attention(measured, &products, threads, stop)
}

/// Products of one row with all matrices of a model, one after the other.
struct Products<'a> {
    layers: &'a Layers,
    /// By their length.
    rows: HashMap<usize, Tensor<2>>,
}

impl<'a> Products<'a> {
    fn new(layers: &'a Layers) -> Self {
        Self {
            layers,
            rows: inputs(layers, 1),
        }
    }

    /// Runs them, and gives the seconds that it took. What was in the caches before is not afterwards.
    fn run(&self) -> f64 {
        let began = Instant::now();
        for matrix in &self.layers.matrices {
            product(&self.rows, matrix);
        }
        seconds(began)
    }
}

/// Activations `[rows, in]` for each width that the matrices take.
pub(super) fn inputs(layers: &Layers, rows: usize) -> HashMap<usize, Tensor<2>> {
    let widths = layers.matrices.iter().map(|matrix| matrix.dims()[1]);
    widths
        .map(|width| {
            let values = (0..rows * width).map(|at| ((at * 37 % 101) as f32 - 50.0) / 50.0);
            let data = TensorData::new(values.collect(), [rows, width]);
            let tensor = Tensor::from_data(data, (&Device::flex(), DType::F32));
            (width, tensor)
        })
        .collect()
}

fn product(inputs: &HashMap<usize, Tensor<2>>, matrix: &Tensor<2>) {
    if let Some(x) = inputs.get(&matrix.dims()[1]) {
        black_box(outsize_kernels::linear(x.clone(), matrix.clone()));
    }
}

/// Whole layers beside their products: what a layer takes more is the rest of a block.
fn blocks(
    measured: &mut Measured,
    layers: &Layers,
    products: &Products<'_>,
    threads: usize,
    stop: &Stop,
) -> Result<(), CalibrateError> {
    let mut text = Text::new(layers, SHORT)?;
    let (mut product, mut pass) = (Samples::default(), Samples::default());
    products.run();
    for _ in Pace::new(7, 41, LIMIT) {
        stop.check()?;
        product.push(products.run());
        pass.push(text.next()?);
    }
    measured.add(
        ONE_ROW,
        "B/s",
        &product.under(layers.bytes as f64),
        format!(
            "one row of activations with {} of bf16 weights, on {threads} threads",
            format_size(layers.bytes)
        ),
    );
    let rest = pass.beyond(&product);
    // On a noisy machine the difference of two times may be nothing.
    let samples = match rest.median() {
        median if median > 0.0 => rest.over(layers.shape.layers as f64),
        _ => Samples::from_iter([LEAST_BLOCK]),
    };
    let (hidden, inner) = (layers.shape.hidden, layers.shape.inner);
    measured.add(
        BLOCK,
        "s",
        &samples,
        format!("a decoder layer of width {hidden} and {inner} for one token, less its products"),
    );
    Ok(())
}

fn many_rows(
    measured: &mut Measured,
    layers: &Layers,
    threads: usize,
    stop: &Stop,
) -> Result<(), CalibrateError> {
    let inputs = inputs(layers, ROWS);
    let one = layers.matrices.len() / layers.shape.layers;
    let mut rate = Samples::default();
    for at in Pace::new(2, 15, LIMIT) {
        stop.check()?;
        let first = at as usize % layers.shape.layers * one;
        let (mut operations, began) = (0.0, Instant::now());
        for matrix in &layers.matrices[first..first + one] {
            product(&inputs, matrix);
            operations += 2.0 * (ROWS * matrix.shape().num_elements()) as f64;
        }
        rate.push(operations / seconds(began));
    }
    measured.add(
        MANY_ROWS,
        "FLOP/s",
        &rate,
        format!("{ROWS} rows of activations with bf16 weights, on {threads} threads"),
    );
    Ok(())
}

/// A token far into a text beside one near its beginning: what it takes more is attention.
fn attention(
    measured: &mut Measured,
    evict: &Products<'_>,
    threads: usize,
    stop: &Stop,
) -> Result<(), CalibrateError> {
    let layers = THIN.make()?;
    stop.check()?;
    let mut near = Text::new(&layers, NEAR)?;
    let mut far = Text::new(&layers, FAR)?;
    let position = 2 * (THIN.key_value_heads * THIN.head_dim * size_of::<f32>() * THIN.layers);
    let bytes = (position * (FAR - NEAR)) as f64;
    let (mut short, mut long) = (Samples::default(), Samples::default());
    for _ in Pace::new(7, 41, LIMIT) {
        stop.check()?;
        // Between two tokens of a real model all of its weights go through the caches.
        evict.run();
        short.push(near.next()?);
        evict.run();
        long.push(far.next()?);
    }
    let difference = long.beyond(&short);
    // Should noise hide the difference, all of the time is taken for attention's.
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

/// A text that is always as long when its next token is timed.
struct Text<'a> {
    layers: &'a Layers,
    cache: KvCache,
    position: usize,
}

impl<'a> Text<'a> {
    /// Runs `tokens` tokens.
    fn new(layers: &'a Layers, tokens: usize) -> Result<Self, CalibrateError> {
        let options = CacheOptions::new(tokens + 1);
        let mut cache = KvCache::new(layers.config.cache(), &options, &Device::flex())?;
        let ids: Vec<u32> = (0..tokens).map(|at| (at % VOCABULARY) as u32).collect();
        for chunk in ids.chunks(256) {
            layers.model.forward(chunk, &mut cache, Logits::Last)?;
        }
        Ok(Self {
            layers,
            cache,
            position: tokens,
        })
    }

    /// Runs one more, forgets it, and gives the seconds that running it took.
    fn next(&mut self) -> Result<f64, CalibrateError> {
        let began = Instant::now();
        black_box(
            self.layers
                .model
                .forward(&[1], &mut self.cache, Logits::Last)?,
        );
        let taken = seconds(began);
        self.cache.truncate(self.position)?;
        Ok(taken)
    }
}

/// Never nothing: a clock may not tick.
fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64().max(1e-9)
}
