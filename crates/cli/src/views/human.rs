//! Human-readable numbers.

use outsize::bench::RateUnit;
use outsize::plan::{Routed, format_size};

/// Formats seconds to about two digits: `41 ms`, `0.41 s`, `3 min 20 s`.
pub fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() {
        return "no end".to_string();
    }
    let seconds = seconds.max(0.0);
    let whole = seconds.round() as u64;
    match seconds {
        s if s < 0.000_95 => format!("{:.2} ms", s * 1e3),
        s if s < 0.009_5 => format!("{:.1} ms", s * 1e3),
        s if s < 0.099_5 => format!("{:.0} ms", s * 1e3),
        s if s < 0.995 => format!("{s:.2} s"),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 119.5 => format!("{s:.0} s"),
        s if s < 7_199.5 => format!("{} min {} s", whole / 60, whole % 60),
        s if s < 172_800.0 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        s if s < 1e9 => format!("{} days", whole / 86_400),
        _ => "more than 30 years".to_string(),
    }
}

/// Formats a rate: `2.4`, `0.013`, `1300`.
pub fn rate(per_second: f64) -> String {
    match per_second {
        r if !r.is_finite() => "?".to_string(),
        r if r < 0.0095 => format!("{r:.1e}"),
        r if r < 0.0995 => format!("{r:.3}"),
        r if r < 0.995 => format!("{r:.2}"),
        r if r < 9.95 => format!("{r:.1}"),
        r => format!("{r:.0}"),
    }
}

/// A count with its thing: `1 token`, `3 tokens`.
pub fn count(number: u64, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}

/// How many of its experts a model uses for a token: `8 of 64 experts a token`.
pub fn experts(routed: Routed) -> String {
    format!("{} of {} experts a token", routed.per_token, routed.experts)
}

/// A number of parameters to three digits: `7.24 billion`.
pub fn parameters(number: u64) -> String {
    let scaled = |scale: f64, unit: &str| {
        let value = number as f64 / scale;
        let decimals = usize::from(value < 99.95) + usize::from(value < 9.995);
        let digits = format!("{value:.decimals$}");
        let short = digits.trim_end_matches('0').trim_end_matches('.');
        format!("{} {unit}", if decimals > 0 { short } else { &digits })
    };
    match number {
        0..1_000 => number.to_string(),
        1_000..999_500 => scaled(1e3, "thousand"),
        999_500..999_500_000 => scaled(1e6, "million"),
        999_500_000..999_500_000_000 => scaled(1e9, "billion"),
        _ => scaled(1e12, "trillion"),
    }
}

/// A rate of a limit with its unit.
pub fn bandwidth(unit: RateUnit, rate: f64) -> String {
    match unit {
        RateUnit::Bytes => format!("{}/s", format_size(rate as u64)),
        RateUnit::Operations => format!("{:.0} GFLOP/s", rate / 1e9),
        RateUnit::Times => format!("{rate:.0}/s"),
    }
}

/// A measured time, to three digits.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} µs", s * 1e6),
    }
}

/// A share in percent: `41 %`, `0.4 %`.
pub fn share(share: f64) -> String {
    match share * 100.0 {
        percent if percent.abs() < 1.0 => format!("{percent:.1} %"),
        percent => format!("{percent:.0} %"),
    }
}

/// `part` of `whole` in percent, rounded; none if `whole` is zero.
pub fn percent(part: u128, whole: u128) -> Option<u32> {
    let percent = part.checked_mul(200)?.checked_add(whole)?.checked_div(whole.checked_mul(2)?)?;
    u32::try_from(percent).ok()
}

/// Formats the change of a time: `+27 %`.
pub fn change(from: f64, to: f64) -> Option<String> {
    let percent = ((to / from - 1.0) * 100.0).round();
    if !percent.is_finite() {
        return None;
    }
    Some(match percent {
        0.0 => "the same".to_string(),
        p if p > 999.0 => format!("{} times as long", (to / from).round()),
        p => format!("{p:+} %"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_well() {
        for (time, text) in [
            (0.0, "0.00 ms"),
            (0.000_2, "0.20 ms"),
            (0.004_2, "4.2 ms"),
            (0.041, "41 ms"),
            (0.414, "0.41 s"),
            (2.34, "2.3 s"),
            (9.96, "10 s"),
            (90.0, "90 s"),
            (200.0, "3 min 20 s"),
            (7_500.0, "2 h 5 min"),
            (200_000.0, "2 days"),
            (1e300, "more than 30 years"),
            (f64::INFINITY, "no end"),
            (f64::NAN, "no end"),
            (-1.0, "0.00 ms"),
        ] {
            assert_eq!(seconds(time), text, "{time}");
        }
    }

    #[test]
    fn rates_counts_and_changes_read_well() {
        assert_eq!(rate(2.43), "2.4");
        assert_eq!(rate(0.0131), "0.013");
        assert_eq!(rate(1312.0), "1312");
        assert_eq!(count(1, "token"), "1 token");
        assert_eq!(count(0, "token"), "0 tokens");
        assert_eq!(parameters(1_100_000_000), "1.1 billion");
        assert_eq!(parameters(63_000_000), "63 million");
        for (number, shown) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1 thousand"),
            (25_400, "25.4 thousand"),
            (7_240_000_000, "7.24 billion"),
            (671_000_000_000, "671 billion"),
            (100_000_000_000, "100 billion"),
            (1_500_000_000_000, "1.5 trillion"),
        ] {
            assert_eq!(parameters(number), shown);
        }
        assert_eq!(change(1.0, 1.27).unwrap(), "+27 %");
        assert_eq!(change(1.0, 0.8).unwrap(), "-20 %");
        assert_eq!(change(1.0, 1.001).unwrap(), "the same");
        assert_eq!(change(1.0, 30.0).unwrap(), "30 times as long");
        assert_eq!(change(0.0, 1.0), None);
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
        assert_eq!((share(0.954), share(0.004)), ("95 %".to_string(), "0.4 %".to_string()));
        assert_eq!(bandwidth(RateUnit::Operations, 1.5e11), "150 GFLOP/s");
        assert_eq!(bandwidth(RateUnit::Bytes, 3.2e9), format!("{}/s", format_size(3_200_000_000)));
    }
}
