//! Random weights, for checkpoints that exist only to be run.

use crate::{WeightKind, WeightSpec};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

/// Values that one generator makes; each block has its own, so that blocks can be made in any order
/// and at the same time.
pub const RANDOM_BLOCK: usize = 1 << 16;

/// Deviation of the weights and biases of linear layers and of embeddings: the usual
/// `initializer_range`.
const DEVIATION: f32 = 0.02;

/// A source of weights that depend on nothing but the seed, the tensor's name and the position in
/// it.
#[derive(Debug, Clone, Copy)]
pub struct RandomWeights {
    seed: u64,
}

impl RandomWeights {
    /// The same seed gives the same weights, on any machine.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Writes the values of `tensor` from position `start` on. Scales of norms are 1; other weights
    /// are bell-shaped (the sum of four uniform numbers) with mean 0 and deviation 0.02.
    ///
    /// # Panics
    /// If `start` is no multiple of 65,536: a block is made as a whole.
    pub fn fill(&self, tensor: &WeightSpec, start: u64, values: &mut [f32]) {
        assert!(start.is_multiple_of(RANDOM_BLOCK as u64), "blocks are made as a whole");
        if tensor.kind == WeightKind::Norm {
            values.fill(1.0);
            return;
        }
        let key = self.seed ^ hash(&tensor.name);
        let first = start / RANDOM_BLOCK as u64;
        values.par_chunks_mut(RANDOM_BLOCK).enumerate().for_each(|(index, block)| {
            let number = first + index as u64;
            // Neighbouring numbers give unrelated states: the seed is mixed before use.
            let mut random = Xoshiro256PlusPlus::seed_from_u64(key.wrapping_add(number << 32 | 1));
            for value in block {
                *value = bell(random.next_u64()) * DEVIATION;
            }
        });
    }
}

/// Different experts for each token, of so many: the values of a table `[vocabulary, per_token]`.
pub fn expert_table(table: &WeightSpec, experts: usize) -> impl Iterator<Item = i64> {
    let per_token = table.shape.get(1).copied().unwrap_or(0);
    (0..table.shape.first().copied().unwrap_or(0)).flat_map(move |token| {
        let first = hash(&token.to_string()) as usize % experts;
        (0..per_token).map(move |at| ((first + at) % experts) as i64)
    })
}

/// A number of mean 0 and deviation 1 from 64 random bits: four uniform parts, added.
fn bell(bits: u64) -> f32 {
    /// Deviation of the sum of four uniform integers below 2^16: sqrt(4 (2^32 - 1) / 12).
    const SPREAD: f32 = 37_837.227;
    let sum: u32 = (0..4).map(|part| (bits >> (16 * part)) as u32 & 0xffff).sum();
    (sum as f32 - 131_070.0) / SPREAD
}

/// FNV-1a: a hash that is the same everywhere and for ever.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;

    fn tensor(name: &str, kind: WeightKind) -> WeightSpec {
        WeightSpec {
            name: name.to_owned(),
            shape: vec![RANDOM_BLOCK * 3],
            kind,
            access: Access::Whole,
        }
    }

    #[test]
    fn mean_and_deviation_are_as_documented() {
        let mut values = vec![0.0; RANDOM_BLOCK * 3];
        RandomWeights::new(1).fill(&tensor("a", WeightKind::Linear), 0, &mut values);
        let count = values.len() as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / count;
        assert!(mean.abs() < 2e-4, "{mean}");
        assert!((square.sqrt() - 0.02).abs() < 2e-4, "{}", square.sqrt());
    }

    #[test]
    fn the_same_wherever_it_starts_and_different_elsewhere() {
        let random = RandomWeights::new(7);
        let a = tensor("a", WeightKind::Linear);
        let (mut whole, mut part) = (vec![0.0; RANDOM_BLOCK * 3], vec![0.0; RANDOM_BLOCK + 5]);
        random.fill(&a, 0, &mut whole);
        random.fill(&a, RANDOM_BLOCK as u64, &mut part);
        assert_eq!(part, whole[RANDOM_BLOCK..2 * RANDOM_BLOCK + 5]);
        assert_ne!(whole[..RANDOM_BLOCK], whole[RANDOM_BLOCK..2 * RANDOM_BLOCK]);
        let mut other = vec![0.0; RANDOM_BLOCK];
        random.fill(&tensor("b", WeightKind::Linear), 0, &mut other);
        assert_ne!(other, whole[..RANDOM_BLOCK]);
        RandomWeights::new(8).fill(&a, 0, &mut other);
        assert_ne!(other, whole[..RANDOM_BLOCK]);
    }

    #[test]
    fn norms_are_ones() {
        let mut values = [0.0; 9];
        RandomWeights::new(0).fill(&tensor("n", WeightKind::Norm), 0, &mut values);
        assert_eq!(values, [1.0; 9]);
    }
}
