//! What heads add to their scores by how far a key is from the query.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use outsize_kernels::attention::RelativeBias;

use crate::layers::Embedding;

/// Buckets of distances between query and key, as T5 has them ([Raffel et al.,
/// 2020](https://arxiv.org/abs/1910.10683)): short distances have a bucket each, longer ones share
/// them, by their logarithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DistanceBuckets {
    /// How many there are.
    pub buckets: usize,
    /// The distance from which on all are in the last bucket.
    pub max_distance: usize,
    /// Whether keys behind the query have buckets of their own: half of them.
    pub bidirectional: bool,
}

impl DistanceBuckets {
    /// The bucket of a key that is `distance` columns behind the query, before it if negative.
    fn of(&self, distance: isize) -> u32 {
        let behind = distance > 0;
        let (buckets, first, distance) = match self.bidirectional {
            true => {
                let half = self.buckets / 2;
                (half, if behind { half } else { 0 }, distance.unsigned_abs())
            }
            false => (self.buckets, 0, if behind { 0 } else { distance.unsigned_abs() }),
        };
        let exact = buckets / 2;
        if distance < exact {
            return (first + distance) as u32;
        }
        // In f32 like the reference: at the edge of a bucket rounding decides.
        let longest = (self.max_distance as f64 / exact as f64).ln() as f32;
        let share = (distance as f32 / exact as f32).ln() / longest;
        let bucket = exact + (share * (buckets - exact) as f32) as usize;
        (first + bucket.min(buckets - 1)) as u32
    }
}

/// What heads add to their scores by how far a key is from the query; the same for all distances
/// beyond some.
#[derive(Debug, Clone)]
pub(crate) struct PositionBias {
    /// `[heads, 2 · reach + 1]` f32: those of distances `-reach` to `reach`.
    table: Tensor<2>,
    reach: usize,
}

impl PositionBias {
    /// From a table `[buckets, heads]`.
    pub fn new(table: &Embedding, buckets: &DistanceBuckets) -> Self {
        let reach = buckets.max_distance;
        let ids: Vec<u32> =
            (-(reach as isize)..=reach as isize).map(|distance| buckets.of(distance)).collect();
        let rows = table.forward(&ids).reshape([2 * reach + 1, table.width()]);
        Self { table: rows.transpose(), reach }
    }

    /// Values of such a bias, and of what it is made from, for so many heads.
    pub fn activations(buckets: &DistanceBuckets, heads: usize) -> u64 {
        3 * heads as u64 * (2 * buckets.max_distance as u64 + 1)
    }

    /// For the kernel.
    pub fn values(&self) -> RelativeBias {
        let values: Vec<f32> = self.table.to_data().iter().collect();
        RelativeBias::new(values, self.reach)
    }

    /// `[1, heads, queries, keys]`: for queries from column `start` on, and keys in these columns.
    pub fn tensor(
        &self,
        start: usize,
        queries: usize,
        keys: &[usize],
        device: &Device,
    ) -> Tensor<4> {
        // Not every GPU has integers of 64 bits.
        let reach = self.reach as i32;
        let ids = (start..start + queries).flat_map(|query| {
            let distance = move |&key: &usize| key as i32 - query as i32;
            keys.iter().map(move |key| distance(key).clamp(-reach, reach) + reach)
        });
        let count = queries * keys.len();
        let ids = TensorData::new(ids.collect::<Vec<i32>>(), [count]);
        let ids = Tensor::<1, Int>::from_data(ids, (device, DType::I32));
        let heads = self.table.dims()[0];
        self.table.clone().to_device(device).select(1, ids).reshape([1, heads, queries, keys.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_transformers() {
        // `T5Attention._relative_position_bucket(torch.arange(-200, 201),
        // ...)` of transformers 5.23: the distances at which another bucket begins, and that
        // bucket.
        for &(bidirectional, buckets, max_distance, expected) in BUCKETS {
            let buckets = DistanceBuckets { buckets, max_distance, bidirectional };
            let mut found: Vec<(isize, u32)> = Vec::new();
            for distance in -200..=200 {
                let bucket = buckets.of(distance);
                if found.last().is_none_or(|last| last.1 != bucket) {
                    found.push((distance, bucket));
                }
            }
            assert_eq!(found, expected, "{buckets:?}");
        }
    }

    type Case = (bool, usize, usize, &'static [(isize, u32)]);

    #[rustfmt::skip]
    const BUCKETS: &[Case] = &[
        (true, 32, 128, &[(-200, 15), (-90, 14), (-63, 13), (-45, 12), (-31, 11), (-22, 10), (-15, 9), (-11, 8), (-7, 7), (-6, 6), (-5, 5), (-4, 4), (-3, 3), (-2, 2), (-1, 1), (0, 0), (1, 17), (2, 18), (3, 19), (4, 20), (5, 21), (6, 22), (7, 23), (8, 24), (12, 25), (16, 26), (23, 27), (32, 28), (46, 29), (64, 30), (91, 31)]),
        (false, 32, 128, &[(-200, 31), (-112, 30), (-98, 29), (-86, 28), (-76, 27), (-66, 26), (-58, 25), (-51, 24), (-45, 23), (-39, 22), (-34, 21), (-30, 20), (-26, 19), (-23, 18), (-20, 17), (-18, 16), (-15, 15), (-14, 14), (-13, 13), (-12, 12), (-11, 11), (-10, 10), (-9, 9), (-8, 8), (-7, 7), (-6, 6), (-5, 5), (-4, 4), (-3, 3), (-2, 2), (-1, 1), (0, 0)]),
        (true, 10, 20, &[(-200, 4), (-9, 3), (-4, 2), (-1, 1), (0, 0), (1, 6), (2, 7), (5, 8), (10, 9)]),
        (false, 10, 20, &[(-200, 9), (-15, 8), (-11, 7), (-8, 6), (-6, 5), (-4, 4), (-3, 3), (-2, 2), (-1, 1), (0, 0)]),
        (true, 6, 150, &[(-200, 2), (-12, 1), (0, 0), (1, 4), (13, 5)]),
        (false, 7, 100, &[(-200, 6), (-41, 5), (-17, 4), (-7, 3), (-2, 2), (-1, 1), (0, 0)]),
    ];
}
