/// Formats bytes in decimal units, to three digits: `600 MB`, `1.38 GB`.
pub fn format_size(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["KB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    // The value in hundredths of a unit, rounded to the digits that are shown.
    let mut unit = 1000u128;
    for (at, name) in NAMES.iter().enumerate() {
        let last = at + 1 == NAMES.len();
        let exact = u128::from(bytes) * 100;
        let hundredths = exact.div_euclid(unit);
        let step = match hundredths {
            0..1_000 => 1,
            1_000..10_000 => 10,
            _ => 100,
        };
        let rounded = (exact + unit * step / 2) / (unit * step) * step;
        if rounded < 100_000 || last {
            let (whole, rest) = (rounded / 100, rounded % 100);
            return match rest {
                0 => format!("{whole} {name}"),
                _ if rest % 10 == 0 => format!("{whole}.{} {name}", rest / 10),
                _ => format!("{whole}.{rest:02} {name}"),
            };
        }
        unit *= 1000;
    }
    format!("{bytes} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_written_to_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1 KB"),
            (1005, "1.01 KB"),
            (9_994, "9.99 KB"),
            (9_995, "10 KB"),
            (99_949, "99.9 KB"),
            (99_950, "100 KB"),
            (999_499, "999 KB"),
            (999_500, "1 MB"),
            (600_000_000, "600 MB"),
            (1_380_000_000, "1.38 GB"),
            (2_200_000_000, "2.2 GB"),
            (1_040_000_000, "1.04 GB"),
            (999_999_999_999, "1 TB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(format_size(bytes), text, "{bytes}");
        }
    }
}
