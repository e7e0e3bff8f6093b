//! What the kernel tells in its files: those of this system, or of a folder that looks like one.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most that is read of one file, in bytes: `/proc/cpuinfo` of a thousand processors has two
/// million.
const MOST: u64 = 16 << 20;

/// The root of a tree with `/proc` and `/sys` in it.
#[derive(Debug, Clone)]
pub(crate) struct System {
    root: PathBuf,
}

impl System {
    /// This one.
    pub(crate) fn here() -> Self {
        Self::at("/")
    }

    /// One whose files lie in a folder.
    pub(crate) fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where a path of the system's really lies.
    fn real(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file; nothing if there is none, or if it is no file that the kernel would
    /// write. Only Linux has such files, but a folder that looks like a Linux is read anywhere.
    pub(crate) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = self.bytes(path)?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes of a file.
    pub(crate) fn bytes(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let path = self.real(path.as_ref());
        // A pipe or a device would be waited for.
        if !path.metadata().ok()?.is_file() {
            return None;
        }
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(MOST).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// A number that a file holds, and nothing else.
    pub(crate) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    /// One line of text that a file holds, without what a terminal would obey.
    pub(crate) fn line(&self, path: impl AsRef<Path>) -> Option<String> {
        let text = self.read(path)?;
        let line = shown(text.lines().next()?);
        (!line.is_empty()).then_some(line)
    }

    /// The names in a folder, sorted; none if there is no such folder.
    pub(crate) fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        let Ok(entries) = self.real(folder.as_ref()).read_dir() else {
            return Vec::new();
        };
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Where a link of the system's leads, as a path of the real file system.
    pub(crate) fn resolve(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        self.real(path.as_ref()).canonicalize().ok()
    }
}

/// Characters of a name that are shown.
const SHOWN: usize = 120;

/// A name that some hardware, driver or file gave, fit for a terminal: printable and short.
pub(crate) fn shown(name: &str) -> String {
    name.split(|letter: char| letter.is_whitespace() || letter.is_control())
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
        .chars()
        .take(SHOWN)
        .collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A tree of some files.
    pub(crate) fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let system = System::at(folder.path());
        (folder, system)
    }

    #[test]
    fn files_of_a_tree() {
        let (_folder, system) = tree(&[
            ("/sys/a/number", "17\n"),
            ("/sys/a/name", "  A\x1b[31m B \n second\n"),
            ("/sys/a/empty", "\n"),
        ]);
        assert_eq!(system.number("/sys/a/number"), Some(17));
        assert_eq!(system.number("/sys/a/name"), None);
        assert_eq!(system.line("/sys/a/name").unwrap(), "A [31m B");
        assert_eq!(system.line("/sys/a/empty"), None);
        assert_eq!(system.read("/sys/a"), None);
        assert_eq!(system.read("/sys/b"), None);
        assert_eq!(system.names("/sys/a"), ["empty", "name", "number"]);
        assert!(system.names("/sys/none").is_empty());
    }

    #[test]
    fn names_are_short_and_tame() {
        assert_eq!(shown("\u{9b}31mAMD\tEPYC\0 "), "31mAMD EPYC");
        assert_eq!(shown(&"é".repeat(500)).chars().count(), SHOWN);
    }
}
