use crate::Sourced;
use crate::system::System;

/// How many threads, on average over the last minute, wanted to run on this machine; nothing where
/// the system does not say.
pub fn load_average() -> Option<Sourced<f64>> {
    load(&System::here())
}

fn load(system: &System) -> Option<Sourced<f64>> {
    let file = "/proc/loadavg";
    let text = system.read(file)?;
    let load: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    (load.is_finite() && load >= 0.0).then(|| Sourced::new(load, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::tree;

    #[test]
    fn the_first_number_is_that_of_the_last_minute() {
        let of = |text: &str| {
            let (_folder, system) = tree(&[("/proc/loadavg", text)]);
            load(&system).map(|load| load.value)
        };
        assert_eq!(of("1.61 1.47 1.12 3/98 1234\n"), Some(1.61));
        for text in ["", "many", "NaN 1 1", "-1 0 0", "inf"] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}
