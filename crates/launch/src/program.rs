//! What is started.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::read::{Object, ReadCache};

use crate::error::Error;

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Its file.
    pub path: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

impl Program {
    /// Finds a program: a path, or a name that is looked for in `PATH`.
    ///
    /// # Errors
    /// There is no such program, or it cannot be executed.
    pub fn find(name: &Path, arguments: Vec<OsString>) -> Result<Self, Error> {
        let wrong = |reason: &str| {
            Err(Error::Program { path: name.to_owned(), reason: reason.to_string() })
        };
        let found = match name.components().count() {
            1 if !name.exists() => in_path(name),
            _ => Some(name.to_owned()),
        };
        let Some(Ok(path)) = found.map(|path| path.canonicalize()) else {
            return wrong("there is no such program");
        };
        match is_executable(&path) {
            true => Ok(Self { path, arguments }),
            false if path.is_dir() => wrong("it is a folder"),
            false => wrong("it is not executable; of a Rust project, take --cargo"),
        }
    }

    /// Whether it calls MPI. A script does not.
    pub fn is_mpi(&self) -> bool {
        let Ok(file) = File::open(&self.path) else {
            return false;
        };
        let cache = ReadCache::new(file);
        let Ok(parsed) = object::File::parse(&cache) else {
            return false;
        };
        let Ok(imports) = parsed.imports() else {
            return false;
        };
        // Mach-O has an underscore before each name.
        let is_init = |name: &[u8]| name.starts_with(b"MPI_Init") || name.starts_with(b"_MPI_Init");
        imports.flatten().any(|import| import.name().name().is_some_and(is_init))
    }
}

/// The file of a command in `PATH`.
pub(crate) fn in_path(name: &Path) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| is_executable(path))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_or_refused() {
        let find = |name: &str| Program::find(Path::new(name), Vec::new());
        assert!(find("sh").unwrap().path.is_absolute());
        assert!(find("/bin/sh").is_ok());
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py");
        std::fs::write(&script, "").unwrap();
        for (name, part) in [
            ("no-such-program", "no such program"),
            ("/", "it is a folder"),
            (script.to_str().unwrap(), "--cargo"),
        ] {
            let message = find(name).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn what_does_not_call_mpi_is_seen() {
        assert!(!Program::find(Path::new("sh"), Vec::new()).unwrap().is_mpi());
        let script = Program { path: PathBuf::from("/etc/hostname"), arguments: Vec::new() };
        assert!(!script.is_mpi());
    }
}
