//! Passes of many tokens: attention, and matmuls with what lies between them.

use outsize_kernels::ActivationDtype;
use outsize_plan::{GemmRates, PrefillRates};

use crate::Error;
use crate::compute::THIN;
use crate::layers::{Sequence, Shape};
use crate::limits;
use crate::measured::Measured;
use crate::options::Stop;
use crate::samples::{Pace, Samples};

/// Tokens of the shorter and the longer passes.
const FEW: usize = 32;
const MANY: usize = 512;

/// Tokens of the pass whose attention is measured, and before it.
const LATE: usize = 256;
const BEFORE: usize = 1024;

/// How long each part is repeated at most, beyond its least number of repetitions, in seconds.
const LIMIT: f64 = 0.8;

/// Layers of each width.
const LAYERS: usize = 2;

/// The least part of a time that each of its causes has, where noise says less.
const LEAST_PART: f64 = 1e-3;

/// Measures passes over prompts with layers as wide as `shape`, and with narrower ones. What a
/// block takes whatever the tokens, `block_seconds`, counts by itself.
pub(crate) fn measure(
    measured: &mut Measured,
    shape: Shape,
    block_seconds: f64,
    stop: &Stop,
) -> Result<PrefillRates, Error> {
    let attention_flops = attention(measured, stop)?;
    let mut gemm = |compute, kind: [&'static str; 3]| {
        let [wide, narrow] = [shape, narrower(shape)]
            .map(|shape| Passes::measure(shape, compute, attention_flops, stop));
        rates(measured, kind, [&wide?, &narrow?], block_seconds, limits::flops(compute)?)
    };
    let f32 = gemm(
        ActivationDtype::F32,
        ["products of many rows", "weights of these", "activations of these"],
    )?;
    let bf16 = gemm(
        ActivationDtype::Bf16,
        ["the same in bf16", "weights in bf16", "activations in bf16"],
    )?;
    Ok(PrefillRates { f32, bf16, attention_flops })
}

/// A layer of a quarter of the width.
fn narrower(shape: Shape) -> Shape {
    Shape {
        hidden: shape.hidden / 4,
        inner: shape.inner / 4,
        heads: shape.heads / 4,
        key_value_heads: (shape.key_value_heads / 4).max(1),
        ..shape
    }
}

/// Passes over layers of one shape.
struct Passes {
    shape: Shape,
    /// Bytes of weights.
    bytes: f64,
    /// Values that go into matmuls and come out of them, for a token.
    values: f64,
    /// Seconds of [`FEW`] and of [`MANY`] tokens, without attention.
    few: f64,
    many: f64,
    samples: Samples,
}

impl Passes {
    fn measure(
        shape: Shape,
        compute: ActivationDtype,
        attention_flops: f64,
        stop: &Stop,
    ) -> Result<Self, Error> {
        let layers = Shape { layers: LAYERS, context: MANY, ..shape }.make(compute)?;
        let mut sequence = Sequence::new(&layers, 0, MANY)?;
        let (mut few, mut many) = (Samples::default(), Samples::default());
        for _ in Pace::new(3, 15, LIMIT) {
            stop.check()?;
            few.push(sequence.pass(FEW)?);
            many.push(sequence.pass(MANY)?);
        }
        let attention = |tokens: usize| {
            layers.attention_flops() * (tokens * tokens / 2) as f64 / attention_flops
        };
        let values = layers.matrices.iter().flat_map(|matrix| matrix.dims()).sum::<usize>();
        Ok(Self {
            shape,
            bytes: layers.bytes as f64,
            values: values as f64,
            few: few.faster().median() - attention(FEW),
            many: many.faster().median() - attention(MANY),
            samples: many,
        })
    }

    /// Seconds of one more token.
    fn token(&self) -> f64 {
        (self.many - self.few).max(LEAST_PART * self.many) / (MANY - FEW) as f64
    }
}

/// A token takes its operations at one rate, which is no higher than `most`, that of registers
/// alone, and its values at another: layers of two widths tell them apart. What a pass takes beside
/// its tokens is weights, read and unpacked.
fn rates(
    measured: &mut Measured,
    [products, weights, activations]: [&'static str; 3],
    [wide, narrow]: [&Passes; 2],
    block_seconds: f64,
    most: f64,
) -> Result<GemmRates, Error> {
    let token = wide.token();
    // Two operations for each weight of two bytes.
    let (flops, values) = ([wide.bytes, narrow.bytes], [wide.values, narrow.values]);
    let value = (flops[0] * narrow.token() - flops[1] * token)
        / (flops[0] * values[1] - flops[1] * values[0]);
    let of_values = part((value * values[0]).min(token - flops[0] / most), token);
    let blocks = LAYERS as f64 * block_seconds;
    let of_weights = part(wide.few - FEW as f64 * token - blocks, wide.few);
    let widths = [wide, narrow].map(|one| one.shape.hidden.to_string()).join(" and ");
    let how = format!("layers of width {widths}, {FEW} to {MANY} tokens");
    for (name, unit, rate) in [
        (products, "FLOP/s", flops[0] / (token - of_values)),
        (weights, "B/s", wide.bytes / of_weights),
        (activations, "1/s", values[0] / of_values),
    ] {
        measured.add_value(name, unit, rate, &wide.samples, how.clone());
    }
    Ok(GemmRates {
        flops: measured.of(products)?,
        bytes_per_second: measured.of(weights)?,
        values_per_second: measured.of(activations)?,
    })
}

/// A part of `all`, neither nothing nor everything.
fn part(of_it: f64, all: f64) -> f64 {
    of_it.clamp(LEAST_PART * all, (1.0 - LEAST_PART) * all)
}

/// A pass late in a sequence beside the first: the difference is attention to what lies before.
fn attention(measured: &mut Measured, stop: &Stop) -> Result<f64, Error> {
    const NAME: &str = "attention of prompts";
    let layers = THIN.make(ActivationDtype::F32)?;
    let mut first = Sequence::new(&layers, 0, LATE)?;
    let mut late = Sequence::new(&layers, BEFORE, LATE)?;
    let (mut short, mut long) = (Samples::default(), Samples::default());
    for _ in Pace::new(3, 15, LIMIT) {
        stop.check()?;
        short.push(first.pass(LATE)?);
        long.push(late.pass(LATE)?);
    }
    let difference = long.beyond(&short);
    let operations = layers.attention_flops() * (LATE * BEFORE) as f64;
    // If noise hides the difference, all of the time counts as attention.
    let samples = match difference.median() {
        median if median > 0.0 => difference.under(operations),
        _ => long.under(operations),
    };
    let how = format!("{LATE} tokens that see {BEFORE} more, {} heads", THIN.heads);
    measured.add(NAME, "FLOP/s", &samples, how);
    measured.of(NAME)
}
