//! Rounding of weights to integers of 4 or 8 bits, with a scale for each group of a row.

use half::{bf16, f16};
use outsize_checkpoint::{Dtype, IntegerWidth, StorageFormat, ZeroPoints};
use rayon::prelude::*;

use crate::Isa;
use crate::simd::for_each_isa;

/// Of 4 bits: the largest value of a group is tried as this many numbers …
const LEAST_LARGEST: f32 = 6.5;

/// … and as so much more each time …
const STEP: f32 = 0.25;

/// … so many times: what is beyond the range is cut off.
const STEPS: usize = 24;

/// How rows of floats become integers: those around zero, `-8..=7` or `-127..=127`, times a scale
/// for each group.
///
/// Of 4 bits the scale is the one of several, of either sign, with which the squares of what is
/// lost add up to the least. With 8 bits the largest value is 127 times the scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegerRounding {
    width: IntegerWidth,
    group: usize,
    scale: Dtype,
}

impl IntegerRounding {
    /// To integers row after row without zero points; none for other formats.
    pub fn of(format: StorageFormat) -> Option<Self> {
        let (integers, grid) = (format.as_integers()?, format.scales?);
        let is_known = integers.zeros == ZeroPoints::Middle && !integers.is_turned();
        let [height, group] = grid.block;
        let rounding = Self { width: integers.width, group, scale: grid.dtype };
        (is_known && height == 1 && group > 0).then_some(rounding)
    }

    /// Columns of a row that share a scale; more than a row has if all do.
    pub fn group(&self) -> usize {
        self.group
    }

    /// The least integer, and the largest.
    fn range(&self) -> [f32; 2] {
        match self.width {
            IntegerWidth::U4 => [-8.0, 7.0],
            IntegerWidth::U8 | IntegerWidth::I8 => [-127.0, 127.0],
        }
    }

    /// The scale of a group of these values, as it is stored.
    pub fn scale(&self, values: &[f32]) -> f32 {
        let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        if self.width != IntegerWidth::U4 {
            return self.rounded_scale(largest / self.range()[1]);
        }
        let mut scales = [0f32; 2 * STEPS];
        for (step, pair) in scales.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let scale = self.rounded_scale(largest / (LEAST_LARGEST + STEP * step as f32));
            *pair = [scale, -scale];
        }
        let of_all = self.best(values, &scales);
        // With the integers that it gives another scale may come closer yet.
        self.best(values, &[of_all, self.rounded_scale(self.nearest_scale(values, of_all))])
    }

    /// The one of some scales with which values lose the least, zero if all lose too much to say.
    fn best(&self, values: &[f32], scales: &[f32]) -> f32 {
        let mut lost = [0f32; 2 * STEPS];
        let lost = &mut lost[..scales.len()];
        add_lost(Isa::detected(), values, scales, self.range(), lost);
        let (mut best, mut least) = (0.0, f32::INFINITY);
        for (scale, lost) in scales.iter().zip(lost) {
            if *lost < least {
                (best, least) = (*scale, *lost);
            }
        }
        best
    }

    /// The scale with which the integers that one gives lose the least.
    fn nearest_scale(&self, values: &[f32], scale: f32) -> f32 {
        let sums = values.iter().fold([0f32; 2], |[products, squares], value| {
            let integer = self.integer(*value, scale);
            [products + integer * value, squares + integer * integer]
        });
        sums[0] / sums[1]
    }

    /// A scale as precise as it is stored.
    fn rounded_scale(&self, scale: f32) -> f32 {
        match self.scale {
            Dtype::F16 => f16::from_f32(scale).to_f32(),
            Dtype::BF16 => bf16::from_f32(scale).to_f32(),
            _ => scale,
        }
    }

    /// The integer that comes closest to a value, as a float.
    #[inline(always)]
    pub fn integer(&self, value: f32, scale: f32) -> f32 {
        nearest(value * reciprocal(scale), self.range())
    }

    /// The bytes of the integers that rows of so many columns become, and of their scales.
    pub fn round(&self, values: &[f32], columns: usize) -> [Vec<u8>; 2] {
        let columns = columns.max(1);
        let mut integers = vec![0.0; values.len()];
        let mut scales = vec![0.0; values.len() / columns * columns.div_ceil(self.group)];
        let rows = values.par_chunks(columns).zip(integers.par_chunks_mut(columns));
        let scales_of = scales.par_chunks_mut(columns.div_ceil(self.group));
        rows.zip(scales_of).for_each(|((values, integers), scales)| {
            let groups = values.chunks(self.group).zip(integers.chunks_mut(self.group));
            for ((values, integers), scale) in groups.zip(scales) {
                *scale = self.scale(values);
                for (integer, value) in integers.iter_mut().zip(values) {
                    *integer = self.integer(*value, *scale);
                }
            }
        });
        self.stored(&integers, &scales, columns)
    }

    /// The bytes of integers in rows of so many columns, and of the scales of all groups, row after
    /// row.
    pub fn stored(&self, integers: &[f32], scales: &[f32], columns: usize) -> [Vec<u8>; 2] {
        let data = integers.par_chunks(columns.max(1)).flat_map_iter(|row| self.stored_row(row));
        let scales = scales.iter();
        let scales = match self.scale {
            Dtype::F16 => scales.flat_map(|scale| f16::from_f32(*scale).to_le_bytes()).collect(),
            Dtype::BF16 => scales.flat_map(|scale| bf16::from_f32(*scale).to_le_bytes()).collect(),
            _ => scales.flat_map(|scale| scale.to_le_bytes()).collect(),
        };
        [data.collect(), scales]
    }

    fn stored_row(&self, integers: &[f32]) -> Vec<u8> {
        let number = |integer: &f32| self.width.middle().wrapping_add_signed(*integer as i8);
        let mut data: Vec<u8> = match self.width {
            IntegerWidth::U4 => {
                let pair = |pair: &[f32]| number(&pair[0]) | pair.get(1).map_or(0, number) << 4;
                integers.chunks(2).map(pair).collect()
            }
            IntegerWidth::U8 | IntegerWidth::I8 => integers.iter().map(number).collect(),
        };
        let row = self.width.row_bytes(integers.len()).and_then(|row| usize::try_from(row).ok());
        data.resize(row.unwrap_or(data.len()), 0);
        data
    }
}

#[inline(always)]
fn reciprocal(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { scale.recip() }
}

/// The integer of a range that comes closest, of two the even one: as an addition rounds, which all
/// processors have.
#[inline(always)]
fn nearest(value: f32, [least, most]: [f32; 2]) -> f32 {
    const WITHOUT_FRACTION: f32 = 1.5 * (1 << 23) as f32;
    (value.clamp(least, most) + WITHOUT_FRACTION) - WITHOUT_FRACTION
}

for_each_isa! {
    /// Adds the squares of what values lose under each of some scales.
    fn add_lost(values: &[f32], scales: &[f32], range: [f32; 2], lost: &mut [f32]) {
        let mut by = [0f32; 2 * STEPS];
        let by = &mut by[..scales.len()];
        by.iter_mut().zip(scales).for_each(|(by, scale)| *by = reciprocal(*scale));
        for value in values {
            for ((lost, by), scale) in lost.iter_mut().zip(&*by).zip(scales) {
                let integer = nearest(value * by, range);
                let error = integer * scale - value;
                *lost += error * error;
            }
        }
    }
}
