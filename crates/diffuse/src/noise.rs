//! Noise equal to that of `torch.randn` with a CPU generator of the same seed.

use std::f64::consts::TAU;

use rand_mt::Mt;

/// Values that torch draws together from its length on: eight pairs of uniform numbers.
const BLOCK: usize = 16;

/// What `torch.Generator("cpu").manual_seed(seed)` draws normal noise from: a Mersenne Twister of
/// the lower 32 bits of `seed`. Cosine and logarithm are this machine's, so that the last bits may
/// differ.
pub struct Noise(Mt);

impl Noise {
    /// As `torch.Generator("cpu").manual_seed(seed)`.
    pub fn new(seed: u64) -> Self {
        Self(Mt::new(seed as u32))
    }

    /// Fills `values` as `torch.randn(n, generator=self)` does, in 32-bit floats: by the Box-Muller
    /// transform in torch's order.
    pub fn fill(&mut self, values: &mut [f32]) {
        let Self(engine) = self;
        if values.len() < BLOCK {
            return serial(engine, values);
        }
        values.fill_with(|| uniform(engine));
        for block in values.chunks_exact_mut(BLOCK) {
            box_muller(block);
        }
        if !values.len().is_multiple_of(BLOCK) {
            // The last block is drawn anew, over values that are done.
            let start = values.len() - BLOCK;
            let last = &mut values[start..];
            last.fill_with(|| uniform(engine));
            box_muller(last);
        }
    }
}

/// A number of 24 random bits from 0 to 1, exclusive.
fn uniform(engine: &mut Mt) -> f32 {
    (engine.next_u32() & ((1 << 24) - 1)) as f32 * (1.0 / (1 << 24) as f32)
}

/// Turns uniform numbers into normal ones: the first half gives the radii, the second half the
/// angles.
fn box_muller(block: &mut [f32]) {
    let (first, second) = block.split_at_mut(BLOCK / 2);
    for (one, other) in first.iter_mut().zip(second) {
        let radius = (-2.0 * f64::from(1.0 - *one).ln()).sqrt() as f32;
        let angle = f64::from(TAU as f32 * *other);
        *one = radius * angle.cos() as f32;
        *other = radius * angle.sin() as f32;
    }
}

/// Short sequences are drawn one by one in 64-bit floats, each pair of uniform numbers giving two
/// values.
fn serial(engine: &mut Mt, values: &mut [f32]) {
    let mut uniform = || {
        let (high, low) = (u64::from(engine.next_u32()), u64::from(engine.next_u32()));
        ((high << 32 | low) & ((1 << 53) - 1)) as f64 / (1u64 << 53) as f64
    };
    for pair in values.chunks_mut(2) {
        let angle = TAU * uniform();
        let radius = (-2.0 * (-uniform()).ln_1p()).sqrt();
        pair[0] = (radius * angle.cos()) as f32;
        if let Some(second) = pair.get_mut(1) {
            *second = (radius * angle.sin()) as f32;
        }
    }
}
