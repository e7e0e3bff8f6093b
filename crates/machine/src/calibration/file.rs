//! Reading and writing `machine.json`.

use super::{CALIBRATION_FILE, CALIBRATION_VERSION, Calibration};
use crate::Error;
use outsize_checkpoint::{read_text, write_file};
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};

/// The largest file that is read, in bytes: a calibration has a few thousand.
const LARGEST: u64 = 1 << 20;

/// What every version has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Calibration {
    /// Reads the calibration in a cache folder; nothing if none was made.
    ///
    /// # Errors
    /// [`Error::Calibration`] for a file that cannot be read, is damaged, is of another version, or
    /// says what no machine does.
    pub fn load(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(CALIBRATION_FILE);
        let wrong = |reason: String| Error::Calibration { path: path.clone(), reason };
        let text = match read_text(&path, LARGEST) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let damaged = |error: serde_json::Error| {
            // What the parser quotes comes from the file.
            wrong(format!("it is damaged ({})", crate::system::shown(&error.to_string())))
        };
        let Version { version } = serde_json::from_str(&text).map_err(damaged)?;
        if version != CALIBRATION_VERSION {
            return Err(wrong(format!(
                "it is of version {version}, and this program reads version {CALIBRATION_VERSION}"
            )));
        }
        let calibration: Self = serde_json::from_str(&text).map_err(damaged)?;
        calibration.check().map_err(|reason| wrong(format!("it is damaged ({reason})")))?;
        Ok(Some(calibration))
    }

    /// Writes the calibration to a cache folder, which is made if there is none: beside the old
    /// one, which is then replaced. Returns the file's path.
    ///
    /// # Errors
    /// [`Error::SaveCalibration`].
    pub fn save(&self, folder: &Path) -> Result<PathBuf, Error> {
        let path = folder.join(CALIBRATION_FILE);
        let written = self
            .check()
            .map_err(|reason| io::Error::new(io::ErrorKind::InvalidData, reason))
            .and_then(|()| self.write(folder, &path));
        match written {
            Ok(()) => Ok(path),
            Err(source) => Err(Error::SaveCalibration { path, source }),
        }
    }

    fn write(&self, folder: &Path, path: &Path) -> io::Result<()> {
        std::fs::create_dir_all(folder)?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        write_file(path, &text).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::example;
    use super::*;
    use proptest::prelude::*;

    fn load(bytes: &[u8]) -> Result<Option<Calibration>, Error> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CALIBRATION_FILE), bytes).unwrap();
        Calibration::load(folder.path())
    }

    fn reason(bytes: &[u8]) -> String {
        let error = load(bytes).unwrap_err().to_string();
        assert!(error.contains(CALIBRATION_FILE), "{error}");
        assert!(error.contains("outsize bench --calibrate"), "{error}");
        error
    }

    #[test]
    fn what_is_saved_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("not/there/yet");
        assert!(Calibration::load(&cache).unwrap().is_none());
        let path = example().save(&cache).unwrap();
        assert_eq!(Calibration::load(&cache).unwrap(), Some(example()));
        let mut other = example();
        other.identity.threads = 99;
        other.save(&cache).unwrap();
        assert_eq!(Calibration::load(&cache).unwrap(), Some(other));
        // Nothing is left beside it.
        let names: Vec<_> = cache.read_dir().unwrap().collect();
        assert_eq!(names.len(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = path.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o600, 0o600);
        }
        let _ = path;
    }

    #[test]
    fn what_is_no_calibration_is_said_to_be_none() {
        assert!(reason(b"").contains("damaged"));
        assert!(reason(b"[]").contains("damaged"));
        assert!(reason(b"\xff\xfe").contains("UTF-8"));
        assert!(
            reason(b"{\"version\": 3}").contains("identity")
                || reason(b"{\"version\": 3}").contains("date")
        );
        assert!(reason(b"{\"version\": 0, \"x\": 2}").contains("version 0"));
        assert!(reason(b"{\"version\": 7}").contains("version 7"));
        assert!(reason(b"{\"version\": -1}").contains("damaged"));
        assert!(reason(&vec![b' '; 2 << 20]).contains("larger than"));
        assert!(reason("[".repeat(100_000).as_bytes()).contains("damaged"));
        let text = serde_json::to_string(&example()).unwrap();
        for (from, to) in [
            ("3000000000.0", "0"),
            ("3000000000.0", "-3"),
            ("3000000000.0", "1e300"),
            ("3000000000.0", "1e999"),
            ("3000000000.0", "\"fast\""),
            ("3000000000.0", "null"),
            ("AMD EPYC", "\\u001b[2J"),
        ] {
            assert!(text.contains(from), "{text}");
            let error = reason(text.replace(from, to).as_bytes());
            assert!(error.contains("damaged"), "{error}");
            assert!(!error.contains('\u{1b}'), "{error}");
        }
        let half = &text.as_bytes()[..text.len() / 2];
        assert!(reason(half).contains("damaged"));
    }

    #[test]
    fn fields_of_later_times_are_no_harm() {
        let text = serde_json::to_string(&example()).unwrap();
        let text = text.replacen('{', "{\"later\": [1, 2],", 1);
        assert_eq!(load(text.as_bytes()).unwrap(), Some(example()));
    }

    #[test]
    fn a_folder_of_that_name_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(CALIBRATION_FILE)).unwrap();
        assert!(Calibration::load(folder.path()).is_err());
        assert!(example().save(folder.path()).is_err());
        let mut wrong = example();
        wrong.figures.copy_bytes_per_second = f64::NAN;
        assert!(wrong.save(tempfile::tempdir().unwrap().path()).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = load(&bytes);
        }

        /// A letter changed somewhere gives an error or a calibration that passes the checks.
        #[test]
        fn no_damage_panics(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = serde_json::to_vec(&example()).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(Some(calibration)) = load(&bytes) {
                prop_assert!(calibration.check().is_ok());
            }
        }
    }
}
