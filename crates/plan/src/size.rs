use crate::Error;

/// Bytes in each unit. `GB` and its kin are decimal, `GiB` and its kin binary.
const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("B", 1),
];

/// Digits after the point that are looked at: more cannot make a byte.
const FRACTION_DIGITS: usize = 18;

/// Parses a size in bytes: `600MB`, `1.5 GiB`, or a whole number of bytes.
///
/// The units are those of Hugging Face Accelerate, in upper or lower case; but `b` is a byte as
/// well, never a bit. What is left of a byte is dropped.
///
/// # Errors
/// [`Error::Size`] for anything else: negative, no number, an unknown unit, more than 64 bits hold.
///
/// ```
/// assert_eq!(outsize_plan::parse_size("600MB")?, 600_000_000);
/// assert_eq!(outsize_plan::parse_size("1.5GiB")?, 3 << 29);
/// # Ok::<(), outsize_plan::Error>(())
/// ```
pub fn parse_size(text: &str) -> Result<u64, Error> {
    let error = |reason| Error::Size { text: text.to_string(), reason };
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(error("it is empty"));
    }
    if trimmed.starts_with('-') {
        return Err(error("it is negative"));
    }
    let end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(error("it does not begin with a number"));
    }
    let unit = Some(unit.trim_start()).filter(|unit| !unit.is_empty());
    let unit = unit.unwrap_or("B");
    let factor = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
    let (_, factor) = factor.ok_or_else(|| error("its unit is unknown"))?;
    if *factor == 1 && number.contains('.') {
        return Err(error("it has a part of a byte"));
    }
    let too_large = || error("it overflows 64 bits");
    // Decimal arithmetic: as a binary fraction, 0.29 GB would lack a byte.
    let parsed = |digits: &str| format!("0{digits}").parse::<u64>().map_err(|_| too_large());
    let whole = u128::from(parsed(whole)?);
    let fraction = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let scale = 10u128.pow(fraction.len() as u32);
    let (fraction, factor) = (u128::from(parsed(fraction)?), u128::from(*factor));
    // Below 2^105 and 2^100.
    let bytes = whole * factor + fraction * factor / scale;
    u64::try_from(bytes).map_err(|_| too_large())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format_size;
    use proptest::prelude::*;

    #[test]
    fn every_form_is_understood() {
        for (text, bytes) in [
            ("0", 0),
            ("123", 123),
            ("7B", 7),
            ("600MB", 600_000_000),
            ("600mb", 600_000_000),
            ("600Mb", 600_000_000), // bits in Accelerate, bytes here
            ("1KB", 1000),
            ("1kib", 1024),
            ("1MiB", 1 << 20),
            ("2GIB", 2 << 30),
            ("1TiB", 1 << 40),
            ("3TB", 3_000_000_000_000),
            ("1.5GB", 1_500_000_000),
            ("0.29GB", 290_000_000),
            (".5KiB", 512),
            ("1.GB", 1_000_000_000),
            (" 1.38 GB ", 1_380_000_000),
            ("0.0009KB", 0),
            ("1.99999999999999999999999999KB", 1999),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn everything_else_is_an_error_that_says_what_is_allowed() {
        for (text, reason) in [
            ("", "empty"),
            ("   ", "empty"),
            ("-1GB", "negative"),
            ("-0", "negative"),
            ("NaN", "begin with a number"),
            ("inf", "begin with a number"),
            ("GB", "begin with a number"),
            (".", "begin with a number"),
            (".GB", "begin with a number"),
            ("1.2.3GB", "begin with a number"),
            ("+1GB", "begin with a number"),
            ("1e9", "unit"),
            ("1_000", "unit"),
            ("1G", "unit"),
            ("1 PB", "unit"),
            ("1GB!", "unit"),
            ("1.5", "part of a byte"),
            ("1.5B", "part of a byte"),
            ("18446744073709551616", "64 bits"),
            ("18446744.1TB", "64 bits"),
            ("99999999999999999999999999999999999999999999TiB", "64 bits"),
        ] {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("600MB") && error.contains("GiB"), "{text}: {error}");
        }
    }

    proptest! {
        /// Any text gives a size or an error, never a panic.
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn no_near_miss_panics(text in "[-+.0-9]{0,30} ?[kmgtKMGTpP]?[iI]?[bB]?") {
            let _ = parse_size(&text);
        }

        /// What is written can be read again, to half a unit of the third digit.
        #[test]
        fn what_is_written_is_read(bytes in 0u64..9_000_000_000_000) {
            let read = parse_size(&format_size(bytes)).unwrap();
            prop_assert!(read.abs_diff(bytes) as f64 <= bytes as f64 * 0.005 + 0.5, "{bytes} {read}");
        }

        /// Whole numbers of a unit are exact.
        #[test]
        fn units_multiply(number in 0u64..16_000_000, at in 0..UNITS.len()) {
            let (name, factor) = UNITS[at];
            prop_assert_eq!(parse_size(&format!("{number}{name}")), Ok(number * factor));
        }

        /// Three decimals of a decimal unit are exact.
        #[test]
        fn fractions_are_exact(thousandths in 0u64..10_000_000) {
            let text = format!("{}.{:03}GB", thousandths / 1000, thousandths % 1000);
            prop_assert_eq!(parse_size(&text), Ok(thousandths * 1_000_000));
        }
    }
}
