//! The file system of a path, its disk and its free space.

use crate::Sourced;
use crate::proc::unescape;
use crate::system::{System, shown};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The file system that a path is on.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Volume {
    /// The path that was asked for.
    pub path: PathBuf,
    /// The nearest existing folder, which the other fields describe.
    pub folder: PathBuf,
    /// Space for this user's files, in bytes; none if the system does not report it.
    pub free: Option<Sourced<u64>>,
    /// Its size in bytes.
    pub total: Option<Sourced<u64>>,
    /// Where it is mounted, what it is and what it is on.
    pub mount: Option<Sourced<MountInfo>>,
}

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MountInfo {
    /// Where it is mounted.
    pub point: PathBuf,
    /// Its kind: `ext4`, `nfs4`.
    pub file_system: String,
    /// What it is on: `/dev/nvme0n1p2`, `server:/export`.
    pub device: String,
}

impl Volume {
    /// The device and the kind of the file system, which tell one disk from another:
    /// `/dev/vda (ext4)`.
    pub fn disk(&self) -> String {
        match &self.mount {
            Some(mount) => format!("{} ({})", mount.value.device, mount.value.file_system),
            None => "a disk that the system does not name".to_string(),
        }
    }
}

/// The file system that `path` is on, or will be on once it is made.
pub fn volume(path: &Path) -> Volume {
    volume_of(&System::here(), path)
}

/// The same, with the mounts of another system.
pub(crate) fn volume_of(system: &System, path: &Path) -> Volume {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let folder =
        absolute.ancestors().find_map(|folder| folder.canonicalize().ok()).unwrap_or(absolute);
    let space = space(&folder);
    let mount = system
        .read("/proc/self/mountinfo")
        .and_then(|text| mount(&text, &folder))
        .map(|mount| Sourced::new(mount, "/proc/self/mountinfo"));
    Volume {
        path: path.to_path_buf(),
        folder,
        free: space.map(|(free, _)| Sourced::new(free, "statvfs")),
        total: space.map(|(_, total)| Sourced::new(total, "statvfs")),
        mount,
    }
}

/// Free and total bytes.
fn space(folder: &Path) -> Option<(u64, u64)> {
    #[cfg(any(unix, windows))]
    {
        let stats = fs4::statvfs(folder).ok()?;
        Some((stats.available_space(), stats.total_space()))
    }
    #[cfg(not(any(unix, windows)))]
    {
        let _ = folder;
        None
    }
}

/// The mount that a canonical path is on: of those that it is beneath the deepest, and of these the
/// last, which hides the others. See `proc(5)`.
fn mount(text: &str, folder: &Path) -> Option<MountInfo> {
    text.lines()
        .filter_map(|line| {
            let (first, second) = line.split_once(" - ")?;
            let point = PathBuf::from(unescape(first.split(' ').nth(4)?));
            let mut second = second.split(' ');
            let (kind, device) = (second.next()?, second.next()?);
            folder.starts_with(&point).then(|| MountInfo {
                point,
                file_system: shown(kind),
                device: shown(&unescape(device)),
            })
        })
        .max_by_key(|mount| mount.point.components().count())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOUNTS: &str = r"22 1 254:0 / / rw,noatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
40 22 259:3 / /data rw shared:9 - xfs /dev/nvme0n1p3 rw
41 40 0:50 / /data/my\040models rw - nfs4 box:/a\040b rw,vers=4.2
42 22 0:60 / /data rw - btrfs /dev/sdb rw
";

    #[test]
    fn the_deepest_and_last_mount_counts() {
        let found = |path: &str| mount(MOUNTS, Path::new(path)).unwrap();
        assert_eq!(found("/home/me").device, "/dev/vda");
        assert_eq!(found("/data/x").file_system, "btrfs");
        assert_eq!(found("/database").file_system, "ext4");
        let nfs = found("/data/my models/llama");
        assert_eq!((nfs.device.as_str(), nfs.file_system.as_str()), ("box:/a b", "nfs4"));
        assert_eq!(mount("", Path::new("/")), None);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_is_told_of_by_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/c");
        let volume = volume(&path);
        assert_eq!(volume.path, path);
        assert_eq!(volume.folder, folder.path().canonicalize().unwrap());
        if cfg!(unix) {
            let (free, total) = (volume.free.unwrap(), volume.total.unwrap());
            assert!(free.value <= total.value && total.value > 0);
            assert_eq!(free.source, "statvfs");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_a_mount() {
        let volume = volume(Path::new(env!("CARGO_MANIFEST_DIR")));
        assert!(!volume.mount.unwrap().value.file_system.is_empty());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(\\PC|[ /a0-9\\\\\n]| - ){0,80}") {
            mount(&text, Path::new("/a/b"));
        }
    }
}
