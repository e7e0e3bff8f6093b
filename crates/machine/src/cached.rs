//! Dropping a file from the page cache.

use std::path::Path;

/// Asks the system to drop a file from the page cache, so that the next read goes to the disk. It
/// is only advice: mapped and unsynced pages stay, and only Linux is asked.
///
/// # Errors
/// [`Error::Open`](crate::Error::Open).
pub fn forget_cached(path: &Path) -> Result<(), crate::Error> {
    let file = std::fs::File::open(path).map_err(crate::Error::open(path))?;
    // Only advice.
    #[cfg(target_os = "linux")]
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
    drop(file);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_stays_as_it_is() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [7; 10_000]).unwrap();
        forget_cached(file.path()).unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), [7; 10_000]);
        assert!(forget_cached(&file.path().join("missing")).is_err());
    }
}
