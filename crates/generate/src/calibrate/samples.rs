//! Repeated measurements.

use std::time::{Duration, Instant};

/// What one thing came to each time that it was measured.
#[derive(Debug, Clone, Default)]
pub(super) struct Samples(Vec<f64>);

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().collect())
    }
}

impl Samples {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// How often it was measured.
    pub fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// The middle value, the mean of two if there are two; nought of none.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// From the least to the largest, as a share of the median.
    pub fn spread(&self) -> f64 {
        let least = self.0.iter().copied().fold(f64::INFINITY, f64::min);
        let largest = self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let spread = (largest - least) / self.median().abs();
        if spread.is_finite() {
            spread.clamp(0.0, 1e6)
        } else {
            0.0
        }
    }
}

/// Counts repetitions: a least number, then more until time is up.
#[derive(Debug)]
pub(super) struct Pace {
    done: u32,
    least: u32,
    most: u32,
    end: Instant,
}

impl Pace {
    /// Between `least` and `most` repetitions, beyond the least within `seconds`.
    pub fn new(least: u32, most: u32, seconds: f64) -> Self {
        Self {
            done: 0,
            least,
            most,
            end: Instant::now() + Duration::from_secs_f64(seconds),
        }
    }
}

impl Iterator for Pace {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        let late = self.done >= self.least && Instant::now() >= self.end;
        if late || self.done >= self.most {
            return None;
        }
        self.done += 1;
        Some(self.done - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        Samples(values.to_vec())
    }

    #[test]
    fn medians_and_spreads() {
        let some = samples(&[3.0, 1.0, 2.0]);
        assert_eq!((some.median(), some.spread(), some.count()), (2.0, 1.0, 3));
        assert_eq!(samples(&[4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        let none = samples(&[]);
        assert_eq!((none.median(), none.spread(), none.count()), (0.0, 0.0, 0));
        assert_eq!(samples(&[0.0]).spread(), 0.0);
        assert_eq!(samples(&[-1.0, 0.0, 1.0]).spread(), 0.0);
    }

    #[test]
    fn as_often_as_asked_and_no_longer_than_allowed() {
        assert_eq!(Pace::new(2, 5, 0.0).count(), 2);
        assert_eq!(Pace::new(2, 5, 1000.0).count(), 5);
        assert_eq!(Pace::new(0, 0, 1000.0).count(), 0);
    }
}
