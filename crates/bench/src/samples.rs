//! Repeated measurements and their statistics.

use std::time::{Duration, Instant};

use serde::Serialize;

/// The median: the mean of the two middle values of an even number of them. None of no values.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Median, least and most of some values.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// The minimum.
    pub least: f64,
    /// The maximum.
    pub most: f64,
}

impl Summary {
    /// Summarises some values; all zero if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        Self {
            median: median(&values).unwrap_or(0.0),
            least: values.iter().copied().reduce(f64::min).unwrap_or(0.0),
            most: values.iter().copied().reduce(f64::max).unwrap_or(0.0),
        }
    }

    /// The range from least to most, as a share of the median.
    pub fn spread(&self) -> f64 {
        match self.median {
            0.0 => 0.0,
            median => (self.most - self.least) / median,
        }
    }
}

/// The values of one quantity, one for each time that it was measured.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

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

    /// How much longer each took than `other`, the shortest beside the shortest. Only the faster
    /// half is compared: the slower half is noise of the machine.
    pub fn beyond(&self, other: &Self) -> Self {
        let pairs = self.faster().0.into_iter().zip(other.faster().0);
        pairs.map(|(own, other)| own - other).collect()
    }

    /// The faster half.
    pub fn faster(&self) -> Self {
        let mut sorted = sorted(&self.0);
        sorted.truncate(sorted.len().div_ceil(2));
        Self(sorted)
    }

    /// Each divided by a number.
    pub fn over(&self, number: f64) -> Self {
        self.0.iter().map(|value| value / number).collect()
    }

    /// A number divided by each.
    pub fn under(&self, number: f64) -> Self {
        self.0.iter().map(|value| number / value).collect()
    }

    /// The median; zero of none.
    pub fn median(&self) -> f64 {
        median(&self.0).unwrap_or(0.0)
    }

    /// The rate over all the work, of rates over equal parts of it (the harmonic mean).
    pub fn overall(&self) -> f64 {
        let times: f64 = self.0.iter().map(|rate| 1.0 / rate).sum();
        match self.0.len() {
            0 => 0.0,
            count => count as f64 / times,
        }
    }

    /// The interquartile range, as a share of the median.
    pub fn spread(&self) -> f64 {
        let sorted = sorted(&self.0);
        let Some(last) = sorted.len().checked_sub(1) else {
            return 0.0;
        };
        let spread = (sorted[last - last / 4] - sorted[last / 4]) / self.median().abs();
        if spread.is_finite() { spread.clamp(0.0, 1e6) } else { 0.0 }
    }
}

/// Seconds since then, never zero: a clock may not tick.
pub(crate) fn seconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64().max(1e-9)
}

/// Counts repetitions: a least number, then more until time is up.
#[derive(Debug)]
pub(crate) struct Pace {
    done: u32,
    least: u32,
    most: u32,
    end: Instant,
}

impl Pace {
    /// Between `least` and `most` repetitions, beyond the least within `seconds`.
    pub fn new(least: u32, most: u32, seconds: f64) -> Self {
        Self { done: 0, least, most, end: Instant::now() + Duration::from_secs_f64(seconds) }
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
        assert_eq!(samples(&[1.0, 3.0]).overall(), 1.5);
        assert_eq!(samples(&[]).overall(), 0.0);
        let many = samples(&[900.0, 10.0, 12.0, 8.0, 9.0, 11.0, 10.0, 9.0, 0.1]);
        assert_eq!((many.median(), many.spread()), (10.0, 0.2));
        assert_eq!(samples(&[0.0]).spread(), 0.0);
        assert_eq!(samples(&[-1.0, 0.0, 1.0]).spread(), 0.0);
    }

    #[test]
    fn summaries() {
        let summary = Summary::of([3.0, 2.0, 2.5]);
        let Summary { median, least, most } = summary;
        assert_eq!((median, least, most), (2.5, 2.0, 3.0));
        assert_eq!(summary.spread(), 0.4);
        assert_eq!(Summary::of([]).spread(), 0.0);
        assert_eq!(super::median(&[]), None);
        assert_eq!(super::median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_faster_half_is_compared() {
        let (long, short) = (samples(&[5.0, 99.0, 4.0, 7.0]), samples(&[1.0, 2.0, 8.0, 50.0]));
        assert_eq!(long.beyond(&short).0, [3.0, 3.0]);
        assert_eq!(long.beyond(&short).over(2.0).0, [1.5, 1.5]);
        assert_eq!(long.beyond(&short).under(6.0).0, [2.0, 2.0]);
        assert_eq!(long.beyond(&samples(&[])).count(), 0);
    }

    #[test]
    fn as_often_as_asked_and_no_longer_than_allowed() {
        assert_eq!(Pace::new(2, 5, 0.0).count(), 2);
        assert_eq!(Pace::new(2, 5, 1000.0).count(), 5);
        assert_eq!(Pace::new(0, 0, 1000.0).count(), 0);
    }
}
