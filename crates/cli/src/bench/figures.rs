//! What several measurements of one thing came to.

use crate::report::median;
use outsize::plan::format_size;
use serde::Serialize;

/// The median, and how far apart the measurements were.
#[derive(Serialize, Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// The middle value.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Figure {
    /// Of some values; all nought if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let values: Vec<f64> = values.into_iter().collect();
        Self {
            median: median(&values).unwrap_or(0.0),
            least: values.iter().copied().reduce(f64::min).unwrap_or(0.0),
            most: values.iter().copied().reduce(f64::max).unwrap_or(0.0),
        }
    }

    /// How far apart the least and the most are, as a share of the median.
    pub fn spread(&self) -> f64 {
        match self.median {
            0.0 => 0.0,
            median => (self.most - self.least) / median,
        }
    }
}

/// What a rate is of.
#[derive(Serialize, Debug, Clone, Copy, PartialEq, Eq)]
pub enum RateUnit {
    /// Bytes per second.
    #[serde(rename = "B/s")]
    Bytes,
    /// Operations per second.
    #[serde(rename = "FLOP/s")]
    Operations,
    /// Times per second.
    #[serde(rename = "1/s")]
    Times,
}

impl RateUnit {
    /// For people.
    pub fn show(self, rate: f64) -> String {
        match self {
            Self::Bytes => format!("{}/s", format_size(rate as u64)),
            Self::Operations => format!("{:.0} GFLOP/s", rate / 1e9),
            Self::Times => format!("{rate:.0}/s"),
        }
    }
}

/// A time for people.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// A share for people.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        percent if percent.abs() < 1.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_is_a_share_of_the_median() {
        let figure = Figure::of([3.0, 2.0, 2.5]);
        assert_eq!((figure.median, figure.least, figure.most), (2.5, 2.0, 3.0));
        assert_eq!(figure.spread(), 0.4);
        assert_eq!(Figure::of([]).spread(), 0.0);
    }

    #[test]
    fn people_read_short_numbers() {
        for (seconds, shown) in [
            (12.34, "12.3 s"),
            (1.234, "1.23 s"),
            (0.123, "123 ms"),
            (0.0123, "12.3 ms"),
            (8e-5, "80 µs"),
        ] {
            assert_eq!(time(seconds), shown);
        }
        assert_eq!(
            (percent(0.954), percent(0.004)),
            ("95 %".to_string(), "0.4 %".to_string())
        );
        assert_eq!(RateUnit::Operations.show(1.5e11), "150 GFLOP/s");
        assert_eq!(
            RateUnit::Bytes.show(3.2e9),
            format!("{}/s", format_size(3_200_000_000))
        );
    }
}
