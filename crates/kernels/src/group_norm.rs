//! Group normalisation of pictures `[batch, rows, columns, channels]`, over slices.
//!
//! A group's mean and variance are those of some channels of all pixels of a picture ([Wu and He,
//! 2018](https://arxiv.org/abs/1803.08494)). They are made of sums over each row of the picture,
//! folded in the order of rows: so all instruction sets, any number of threads, and a picture that
//! comes in bands of rows give the same bits.

use crate::Isa;
use crate::exp::exp;
use crate::loops::share;
use crate::simd::for_each_isa;

/// Mean, and one over the deviation, of a group.
pub type Moments = [f32; 2];

/// Sums over the rows of a picture so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupSums {
    /// Of each picture and group: of values, and of their squares.
    sums: Vec<[f64; 2]>,
    /// Values of a group.
    count: usize,
}

impl GroupSums {
    /// Adds what [`row_sums`] says of the next rows of each picture, of which each group has so
    /// many values in a row.
    ///
    /// # Panics
    ///
    /// If these are of other pictures or groups than those before.
    pub fn add(&mut self, rows: &[f64], batch: usize, groups: usize, row_values: usize) {
        self.sums.resize(batch * groups, [0.0; 2]);
        let picture = (rows.len() / batch.max(1)).max(1);
        for (rows, sums) in rows.chunks(picture).zip(self.sums.chunks_mut(groups.max(1))) {
            for row in rows.chunks_exact(2 * groups.max(1)) {
                for (sum, row) in sums.iter_mut().zip(row.as_chunks::<2>().0) {
                    *sum = [sum[0] + row[0], sum[1] + row[1]];
                }
            }
        }
        self.count += picture / (2 * groups).max(1) * row_values;
    }

    /// Mean and deviation of each picture and group, `epsilon` being added to the variance.
    pub fn moments(&self, epsilon: f64) -> Vec<Moments> {
        let count = self.count as f64;
        let moments = |[sum, squares]: &[f64; 2]| {
            let mean = sum / count;
            let variance = (squares / count - mean * mean).max(0.0);
            [mean as f32, (variance + epsilon).sqrt().recip() as f32]
        };
        self.sums.iter().map(moments).collect()
    }
}

/// A picture's sizes: batch, rows, columns, channels.
pub type PictureShape = [usize; 4];

/// Of each picture, row and group, the sum of all values and that of their squares.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn row_sums(isa: Isa, x: &[f32], shape: PictureShape, groups: usize) -> Vec<f64> {
    let [batch, rows, columns, channels] = shape;
    check(x, shape, groups);
    let mut sums = vec![0.0; batch * rows * groups * 2];
    let row = (columns * channels).max(1);
    share(x.chunks(row).zip(sums.chunks_mut((2 * groups).max(1))), |(x, sums)| {
        sum_row(isa, x, channels, sums);
    });
    sums
}

/// `(x - mean) / deviation · weight + bias`, with the [moments](GroupSums::moments) of each picture
/// and group; and, if asked for, `y · sigmoid(y)` of that.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn normalize_groups_into(
    isa: Isa,
    x: &[f32],
    shape: PictureShape,
    moments: &[Moments],
    (weight, bias): (&[f32], &[f32]),
    silu: bool,
    y: &mut [f32],
) {
    let [batch, rows, columns, channels] = shape;
    let groups = moments.len() / batch.max(1);
    check(x, shape, groups);
    assert_eq!(moments.len(), batch * groups, "each picture has as many groups");
    assert_eq!(x.len(), y.len(), "a norm has the size of what it is of");
    assert_eq!([weight.len(), bias.len()], [channels; 2], "each channel has weight and bias");
    // What is taken off each channel, and what the rest is multiplied by.
    let width = (channels / groups.max(1)).max(1);
    let of_channels: Vec<[Vec<f32>; 2]> = (moments.chunks(groups.max(1)))
        .map(|moments| {
            let moment = |channel: usize| moments[channel / width];
            let means = (0..channels).map(|channel| moment(channel)[0]);
            let scales = (0..channels).map(|channel| moment(channel)[1] * weight[channel]);
            [means.collect(), scales.collect()]
        })
        .collect();
    let row = (columns * channels).max(1);
    share(x.chunks(row).zip(y.chunks_mut(row)).enumerate(), |(index, (x, y))| {
        let [means, scales] = &of_channels[index / rows];
        normalize_row(isa, x, means, scales, bias, silu, y);
    });
}

fn check(x: &[f32], shape: PictureShape, groups: usize) {
    assert_eq!(x.len(), shape.iter().product::<usize>(), "x must fill {shape:?}");
    assert!(
        x.is_empty() || (groups > 0 && shape[3].is_multiple_of(groups)),
        "{groups} groups do not divide the channels of {shape:?}"
    );
}

for_each_isa! {
    fn sum_row(x: &[f32], channels: usize, sums: &mut [f64]) {
        let mut of_channels = vec![0.0f64; 2 * channels];
        let (values, squares) = of_channels.split_at_mut(channels);
        for pixel in x.chunks_exact(channels) {
            for ((value, square), &x) in values.iter_mut().zip(squares.iter_mut()).zip(pixel) {
                let x = f64::from(x);
                *value += x;
                *square += x * x;
            }
        }
        let (groups, _) = sums.as_chunks_mut::<2>();
        let width = channels / groups.len();
        let of_groups = values.chunks(width).zip(squares.chunks(width));
        for (group, (values, squares)) in groups.iter_mut().zip(of_groups) {
            *group = [values.iter().sum(), squares.iter().sum()];
        }
    }
}

for_each_isa! {
    fn normalize_row(
        x: &[f32],
        means: &[f32],
        scales: &[f32],
        bias: &[f32],
        silu: bool,
        y: &mut [f32],
    ) {
        let channels = means.len();
        let pixels = x.chunks_exact(channels).zip(y.chunks_exact_mut(channels));
        for (x, y) in pixels {
            let channels = means.iter().zip(scales).zip(bias);
            for ((y, x), ((mean, scale), bias)) in y.iter_mut().zip(x).zip(channels) {
                *y = (x - mean) * scale + bias;
            }
            if silu {
                for y in y {
                    *y /= 1.0 + exp(-*y);
                }
            }
        }
    }
}
