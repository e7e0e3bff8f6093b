use crate::proc::{Generation, Mount, memberships_of, mounts_of};
use crate::system::System;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A limit from this on means unlimited: version 1 writes the largest multiple of a page.
const UNLIMITED: u64 = 1 << 62;

/// The memory limit that a cgroup puts on this process, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cgroup {
    /// The file of the limit.
    pub file: PathBuf,
    /// Its limit.
    pub limit: u64,
    /// What its processes use, page cache that can be dropped excluded.
    pub usage: u64,
}

impl Cgroup {
    /// Bytes that are left.
    pub fn available(&self) -> u64 {
        self.limit.saturating_sub(self.usage)
    }
}

/// The memory limit of this process on a system: that of the cgroup with the least room. None if no
/// cgroup limits memory. Linux only, cgroups of both versions.
pub(crate) fn cgroup(system: &System) -> Option<Cgroup> {
    let memberships = system.read("/proc/self/cgroup")?;
    let mounts = system.read("/proc/self/mountinfo")?;
    tightest(&memberships, &mounts, |path| system.read(path))
}

/// The same of any system whose files `read` gives.
fn tightest(
    memberships: &str,
    mounts: &str,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<Cgroup> {
    folders_of(memberships, mounts, "memory")
        .into_iter()
        .filter_map(|(generation, folder)| limit(generation, &folder, &read))
        .min_by_key(Cgroup::available)
}

/// The folders of all cgroups that the process is in, from `/proc/self/cgroup` and
/// `/proc/self/mountinfo`.
pub(crate) fn folders_of(
    memberships: &str,
    mounts: &str,
    controller: &str,
) -> Vec<(Generation, PathBuf)> {
    let mounts = mounts_of(mounts, controller);
    let mut all = Vec::new();
    for (generation, path) in memberships_of(memberships, controller) {
        let mounts = mounts.iter().filter(|mount| mount.generation == generation);
        all.extend(mounts.flat_map(|mount| folders(mount, path)));
    }
    all
}

/// The folders of the cgroup and of all above it, as far as they are seen at the mount.
fn folders(mount: &Mount, path: &str) -> Vec<(Generation, PathBuf)> {
    // A path outside of what is mounted, as under a container that does not hide its path: the
    // mount point itself is then the nearest thing to see.
    let inside = Path::new(path)
        .strip_prefix(&mount.root)
        .ok()
        .filter(|inside| !inside.components().any(|part| part.as_os_str() == ".."))
        .unwrap_or(Path::new(""));
    mount
        .point
        .join(inside)
        .ancestors()
        .take_while(|folder| folder.starts_with(&mount.point))
        .map(|folder| (mount.generation, folder.to_path_buf()))
        .collect()
}

/// The limit of one cgroup, if it has one.
fn limit(
    generation: Generation,
    folder: &Path,
    read: impl Fn(&Path) -> Option<String>,
) -> Option<Cgroup> {
    let (limit, usage, cache) = match generation {
        Generation::V1 => ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        Generation::V2 => ("memory.max", "memory.current", "inactive_file"),
    };
    let number = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
    let file = folder.join(limit);
    // `max`, that is no limit, is no number.
    let limit = number(limit).filter(|limit| *limit < UNLIMITED)?;
    let usage = number(usage).unwrap_or(0);
    let cache = read(&folder.join("memory.stat")).and_then(|text| stat(&text, cache)).unwrap_or(0);
    Some(Cgroup { file, limit, usage: usage.saturating_sub(cache) })
}

/// A value of `memory.stat`: lines of `name number`.
fn stat(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    /// A file system of a few files.
    fn files(files: &[(&str, &str)]) -> impl Fn(&Path) -> Option<String> {
        let files: HashMap<PathBuf, String> =
            files.iter().map(|(path, text)| (path.into(), text.to_string())).collect();
        move |path| files.get(path).cloned()
    }

    const V2_MOUNT: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1_MOUNT: &str =
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n";

    #[test]
    fn the_second_generation_counts_every_level() {
        let read = files(&[
            ("/sys/fs/cgroup/user/job/memory.max", "max\n"),
            ("/sys/fs/cgroup/user/job/memory.current", "100\n"),
            ("/sys/fs/cgroup/user/memory.max", "1000\n"),
            ("/sys/fs/cgroup/user/memory.current", "700\n"),
            (
                "/sys/fs/cgroup/user/memory.stat",
                "anon 450\nfile 250\ninactive_file 200\nactive_file 50\n",
            ),
        ]);
        let cgroup = tightest("0::/user/job\n", V2_MOUNT, read).unwrap();
        assert_eq!((cgroup.limit, cgroup.usage), (1000, 500));
        assert_eq!(cgroup.file, Path::new("/sys/fs/cgroup/user/memory.max"));
        assert_eq!(cgroup.available(), 500);
    }

    #[test]
    fn the_cgroup_with_the_least_room_counts() {
        let read = files(&[
            ("/sys/fs/cgroup/user/job/memory.max", "900"),
            ("/sys/fs/cgroup/user/job/memory.current", "100"),
            ("/sys/fs/cgroup/user/memory.max", "1000"),
            ("/sys/fs/cgroup/user/memory.current", "700"),
        ]);
        let cgroup = tightest("0::/user/job\n", V2_MOUNT, read).unwrap();
        assert_eq!(cgroup.available(), 300);
    }

    #[test]
    fn the_first_generation_has_its_own_names() {
        let read = files(&[
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "600000000\n"),
            ("/sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes", "250000000\n"),
            (
                "/sys/fs/cgroup/memory/jobs/a/memory.stat",
                "inactive_file 7\ntotal_inactive_file 50000000\n",
            ),
        ]);
        let memberships = "5:devices:/x\n4:memory:/jobs/a\n0::/\n";
        let cgroup = tightest(memberships, V1_MOUNT, read).unwrap();
        assert_eq!((cgroup.limit, cgroup.usage), (600_000_000, 200_000_000));
        let file = "/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes";
        assert_eq!(cgroup.file, Path::new(file));
    }

    #[test]
    fn a_container_sees_its_own_part() {
        let mount = "744 735 0:34 /docker/8d6f /sys/fs/cgroup/memory ro master:17 - cgroup cgroup rw,memory\n";
        let read = || {
            files(&[
                ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000"),
                ("/sys/fs/cgroup/memory/sub/memory.limit_in_bytes", "800"),
            ])
        };
        let limit =
            |path: &str| tightest(&format!("4:memory:{path}\n"), mount, read()).unwrap().limit;
        assert_eq!(limit("/docker/8d6f"), 1000);
        assert_eq!(limit("/docker/8d6f/sub"), 800);
        // Outside of what is mounted, as after the process was moved.
        assert_eq!(limit("/docker/other"), 1000);
        assert_eq!(limit("/docker/8d6f/../sub"), 1000);
    }

    #[test]
    fn no_limit_is_none() {
        let read = files(&[("/sys/fs/cgroup/a/memory.max", "max\n")]);
        assert_eq!(tightest("0::/a\n", V2_MOUNT, read), None);
        let read =
            files(&[("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")]);
        assert_eq!(tightest("4:memory:/\n", V1_MOUNT, read), None);
        assert_eq!(tightest("", "", files(&[])), None);
    }

    #[test]
    fn what_is_over_its_limit_has_nothing_left() {
        let cgroup = Cgroup { file: PathBuf::new(), limit: 10, usage: 11 };
        assert_eq!(cgroup.available(), 0);
    }

    proptest! {
        #[test]
        fn no_text_panics(a in "[0-9:a-z/.\n]{0,40}", b in "([0-9/a-z -]| - cgroup2 a b|\n){0,40}", c in "[0-9a-z \n]{0,20}") {
            tightest(&a, &b, |_| Some(c.clone()));
        }
    }
}
