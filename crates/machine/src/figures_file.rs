//! Hardware profiles in a file that the user names.

use crate::Error;
use crate::calibration::check_figures;
use crate::system::shown;
use outsize_checkpoint::read_text;
use outsize_plan::HardwareProfile;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

/// The largest file that is read, in bytes: figures take about a thousand, and a plan with all its
/// blocks is small beside this.
const LARGEST: u64 = 64 << 20;

/// Reads the figures in a JSON file: these alone, or an object of which they are the field
/// `figures`, such as a calibration or what `outsize plan --json` prints.
///
/// # Errors
/// [`Error::HardwareProfile`] for a file that cannot be read, holds no figures, or says what no
/// machine does.
pub fn read_figures(path: &Path) -> Result<HardwareProfile, Error> {
    let wrong = |reason: String| Error::HardwareProfile { path: path.to_owned(), reason };
    let text = read_text(path, LARGEST).map_err(|error| wrong(error.to_string()))?;
    let mut object: Map<String, Value> = serde_json::from_str(&text)
        .map_err(|error| wrong(format!("it is no JSON object ({})", shown(&error.to_string()))))?;
    let figures = object.remove("figures").unwrap_or(Value::Object(object));
    let figures =
        HardwareProfile::deserialize(figures).map_err(|error| wrong(shown(&error.to_string())))?;
    check_figures(&figures).map_err(wrong)?;
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_read_alone_or_within_something() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("figures.json");
        let mut figures = HardwareProfile::default();
        figures.disk.bytes_per_second = 7e9;
        figures.gpus.insert(3, outsize_plan::Gpu::default());
        std::fs::write(&path, serde_json::to_vec(&figures).unwrap()).unwrap();
        assert_eq!(read_figures(&path).unwrap(), figures);
        let within = serde_json::json!({ "version": 9, "figures": figures });
        std::fs::write(&path, within.to_string()).unwrap();
        assert_eq!(read_figures(&path).unwrap(), figures);
    }

    #[test]
    fn what_are_no_figures_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("figures.json");
        let mut figures = HardwareProfile::default();
        figures.cpu.product_flops = -1.0;
        let negative = serde_json::to_string(&figures).unwrap();
        for (text, part) in [
            ("", "no JSON object"),
            ("[1]", "no JSON object"),
            ("{}", "missing field"),
            ("{\"figures\": 3}", "figures"),
            ("\u{1b}[2J", "no JSON object"),
            (negative.as_str(), "figures.cpu.product_flops"),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = read_figures(&path).unwrap_err().to_string();
            assert!(
                message.contains("figures.json") && message.contains(part),
                "{text:?}: {message}"
            );
            assert!(!message.contains('\u{1b}'));
        }
        assert!(read_figures(dir.path()).is_err());
        assert!(read_figures(&dir.path().join("none")).is_err());
    }
}
