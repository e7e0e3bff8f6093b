//! Rates, times and shares for people.

use outsize::bench::RateUnit;
use outsize::plan::format_size;

/// A rate with its unit.
pub fn rate(unit: RateUnit, rate: f64) -> String {
    match unit {
        RateUnit::Bytes => format!("{}/s", format_size(rate as u64)),
        RateUnit::Operations => format!("{:.0} GFLOP/s", rate / 1e9),
        RateUnit::Times => format!("{rate:.0}/s"),
    }
}

/// A time in the unit that suits it.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// A share in percent.
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
        assert_eq!(rate(RateUnit::Operations, 1.5e11), "150 GFLOP/s");
        assert_eq!(
            rate(RateUnit::Bytes, 3.2e9),
            format!("{}/s", format_size(3_200_000_000))
        );
    }
}
