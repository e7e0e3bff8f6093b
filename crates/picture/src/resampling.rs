//! Pictures in other sizes to the last bit as Pillow makes them: with weights in fixed point, and a
//! side at a time. The image crate sums in floats, by which a byte in some thousands is another:
//! features show that.

/// Colours of a pixel.
pub const COLOURS: usize = 3;

/// Bits of a weight behind the point.
const WEIGHT_BITS: u32 = 22;

/// Half of what a byte is in sums of weighted bytes: they are rounded.
const HALF: i32 = 1 << (WEIGHT_BITS - 1);

/// What one place is made of.
struct Taps {
    /// The first place before.
    first: usize,
    /// The weights of that one and those behind it.
    weights: Vec<i32>,
}

/// How a pixel of another size is made of those around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PictureFilter {
    /// By lines between them.
    Bilinear,
    /// By cubic curves.
    Bicubic,
    /// By waves, three on each side.
    Lanczos,
}

impl PictureFilter {
    /// The one of that number in Pillow, which checkpoints have as `resample`.
    pub fn of_pillow(number: u64) -> Option<Self> {
        match number {
            1 => Some(Self::Lanczos),
            2 => Some(Self::Bilinear),
            3 => Some(Self::Bicubic),
            _ => None,
        }
    }

    /// Places to either side that count, if no side shrinks.
    fn support(self) -> f64 {
        match self {
            Self::Bilinear => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// The weight of a place so far away.
    fn weight(self, away: f64) -> f64 {
        let x = away.abs();
        match self {
            Self::Bilinear => (1.0 - x).max(0.0),
            // Keys 1981, with a slope of -1/2.
            Self::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Self::Bicubic if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5,
            Self::Lanczos if x < 3.0 => sinc(x) * sinc(x / 3.0),
            Self::Bicubic | Self::Lanczos => 0.0,
        }
    }

    /// What each of `to` places is made of `from`.
    fn taps(self, from: usize, to: usize) -> Vec<Taps> {
        let scale = from as f64 / to as f64;
        // Of a side that shrinks, more places count.
        let stretch = scale.max(1.0);
        let support = self.support() * stretch;
        let taps = |place: usize| {
            let center = (place as f64 + 0.5) * scale;
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let away = |at: usize| (at as f64 - center + 0.5) * (1.0 / stretch);
            let weights: Vec<f64> = (first..end).map(|at| self.weight(away(at))).collect();
            let sum: f64 = weights.iter().sum();
            let fixed = |weight: &f64| {
                let weight = weight / sum * f64::from(1u32 << WEIGHT_BITS);
                (weight + 0.5f64.copysign(weight)) as i32
            };
            Taps { first, weights: weights.iter().map(fixed).collect() }
        };
        (0..to).map(taps).collect()
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// A sum of weighted bytes as a byte.
fn byte_of(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

/// Rows of `from` pixels as rows of `to`.
pub(crate) fn other_width(rgb: &[u8], [from, to]: [usize; 2], filter: PictureFilter) -> Vec<u8> {
    let taps = filter.taps(from, to);
    let mut wide = Vec::with_capacity(rgb.len() / from * to);
    for row in rgb.chunks_exact(COLOURS * from) {
        for Taps { first, weights } in &taps {
            let mut sums = [HALF; COLOURS];
            for (pixel, weight) in row[COLOURS * first..].chunks_exact(COLOURS).zip(weights) {
                for (sum, colour) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*colour) * weight;
                }
            }
            wide.extend(sums.map(byte_of));
        }
    }
    wide
}

/// As many rows of `width` pixels each as `to`.
pub(crate) fn other_height(
    rgb: &[u8],
    width: usize,
    [from, to]: [usize; 2],
    filter: PictureFilter,
) -> Vec<u8> {
    let row = COLOURS * width;
    let (mut sums, mut high) = (vec![0; row], Vec::with_capacity(row * to));
    for Taps { first, weights } in filter.taps(from, to) {
        sums.fill(HALF);
        for (line, weight) in rgb[row * first..].chunks_exact(row).zip(weights) {
            for (sum, colour) in sums.iter_mut().zip(line) {
                *sum += i32::from(*colour) * weight;
            }
        }
        high.extend(sums.iter().map(|sum| byte_of(*sum)));
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_those_of_pillow() {
        // As its `precompute_coeffs` makes them; those beyond the ends do not count.
        let of = |filter: PictureFilter, from, to| {
            let taps = filter.taps(from, to).into_iter();
            taps.map(|taps| (taps.first, taps.weights)).collect::<Vec<_>>()
        };
        let one = 1 << WEIGHT_BITS;
        assert_eq!(of(PictureFilter::Bilinear, 2, 1), [(0, vec![one / 2; 2])]);
        let same = of(PictureFilter::Bicubic, 3, 3);
        let middle = &same[1];
        assert_eq!(middle.1[1 - middle.0], one);
        for filter in [PictureFilter::Bilinear, PictureFilter::Bicubic, PictureFilter::Lanczos] {
            for (first, weights) in of(filter, 75, 56) {
                assert!(first + weights.len() <= 75);
                assert!((weights.iter().sum::<i32>() - one).abs() < 8);
            }
        }
    }
}
