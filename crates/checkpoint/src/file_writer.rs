use std::path::Path;

use crate::error::Error;
use crate::layout::{Progress, TensorSpec};
use crate::unnamed::Unnamed;

/// Writes one `.safetensors` file, in bounded memory: what is a result rather than a checkpoint.
///
/// Tensors are declared first; then their data comes in that order, in pieces of any size. The file
/// is written beside its place, as `.NAME.partial-…`, and gets its name in [`Self::finish`]: a file
/// that was there before is replaced by a complete one or left alone. What a killed process left
/// there the next writer of the same file removes (on Unix, where the file system has locks).
#[derive(Debug)]
pub struct FileWriter {
    file: Unnamed,
    progress: Progress,
}

impl FileWriter {
    /// Begins the file `path`, whose folder must exist.
    ///
    /// # Errors
    ///
    /// If a name comes twice or a size overflows; if something else than a file is there, such as a
    /// folder or a device; if no file can be made there.
    pub fn create(path: impl AsRef<Path>, specs: Vec<TensorSpec>) -> Result<Self, Error> {
        let progress = Progress::new(specs, u64::MAX)?;
        let mut file = Unnamed::create(path.as_ref())?;
        let head = file.file.write_at(0, &progress.layout.shards[0].head);
        head.map_err(|cause| Error::Create { path: file.path().to_owned(), cause })?;
        Ok(Self { file, progress })
    }

    /// Takes the next bytes, little endian, of tensor `name`.
    ///
    /// # Errors
    ///
    /// If it is another tensor's turn, if these are more bytes than the tensor lacks, or if writing
    /// fails. After a failed write the writer takes nothing more; after the other errors it can go
    /// on.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let Self { file, progress } = self;
        progress.check_not_failed(file.path())?;
        while progress.is_past(name) {
            progress.advance()?;
        }
        let (_, target) = progress.target(name, bytes.len() as u64)?;
        if let Err(cause) = file.file.write_at(target, bytes) {
            progress.failed = true;
            return Err(progress.write_error(file.path(), cause));
        }
        progress.took(bytes.len() as u64);
        Ok(())
    }

    /// Syncs the file and renames it.
    ///
    /// # Errors
    ///
    /// If a tensor is not complete or writing fails: then nothing is left behind.
    pub fn finish(self) -> Result<(), Error> {
        let Self { file, mut progress } = self;
        progress.check_not_failed(file.path())?;
        while progress.current().is_some() {
            progress.advance()?;
        }
        let path = file.path().to_owned();
        file.publish().map_err(|cause| progress.write_error(path, cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Checkpoint, Dtype};

    fn specs() -> Vec<TensorSpec> {
        vec![TensorSpec::new("a", Dtype::U8, [3]), TensorSpec::new("b", Dtype::F32, [2])]
    }

    #[test]
    fn the_file_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.safetensors");
        std::fs::write(&path, "an older one").unwrap();
        let mut writer = FileWriter::create(&path, specs()).unwrap();
        writer.write("a", &[1, 2]).unwrap();
        writer.write("a", &[3]).unwrap();
        writer.write("b", &[4; 8]).unwrap();
        writer.finish().unwrap();
        let file = Checkpoint::open(&path).unwrap();
        assert_eq!(file.read(file.get("a").unwrap()).unwrap(), [1, 2, 3]);
        assert_eq!(file.read(file.get("b").unwrap()).unwrap(), [4; 8]);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_finished_leaves_nothing_and_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.safetensors");
        std::fs::write(&path, "the user's").unwrap();
        let mut writer = FileWriter::create(&path, specs()).unwrap();
        writer.write("a", &[1, 2, 3]).unwrap();
        assert!(matches!(writer.write("a", &[4]), Err(Error::TooMuchData { excess: 1, .. })));
        assert!(matches!(writer.write("c", &[4]), Err(Error::OutOfOrder { .. })));
        assert!(matches!(writer.finish(), Err(Error::Incomplete { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "the user's");
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn only_a_file_is_replaced_and_links_stay() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("folder")).unwrap();
        symlink("nowhere", at("broken")).unwrap();
        symlink("/dev/null", at("null")).unwrap();
        for (name, what) in [
            ("folder", "is a folder"),
            ("broken", "is a link that leads nowhere"),
            ("null", "is not a regular file"),
        ] {
            let said = FileWriter::create(at(name), specs()).unwrap_err().to_string();
            let expected = format!("{name} {what}, and is never overwritten; choose another name");
            assert!(said.contains(&expected), "{said}");
        }
        std::fs::write(at("folder/old"), "an older one").unwrap();
        symlink("folder/old", at("link")).unwrap();
        FileWriter::create(at("link"), vec![]).unwrap().finish().unwrap();
        assert!(at("link").is_symlink());
        assert_ne!(std::fs::read(at("folder/old")).unwrap(), b"an older one");
        let left: Vec<_> = at("folder").read_dir().unwrap().collect();
        assert_eq!(left.len(), 1);
    }
}
