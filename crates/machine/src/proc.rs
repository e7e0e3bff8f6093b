//! Parsers of files in `/proc`: text in, numbers out.

use std::path::PathBuf;

/// The value in bytes of a line such as `MemAvailable:   22958392 kB` (which means KiB) in
/// `/proc/meminfo` or `/proc/self/status`.
pub(crate) fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let mut words = value.split_ascii_whitespace();
    let number: u64 = words.next()?.parse().ok()?;
    (words.next() == Some("kB")).then(|| number.checked_mul(1024)).flatten()
}

/// The generation of a cgroup hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Generation {
    /// One hierarchy for each controller.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The paths of this process in the hierarchies that may limit what a controller (`memory`, `cpu`)
/// is for, from `/proc/self/cgroup`:
/// lines of `number:controllers:path`. The second generation has number 0 and no controllers.
pub(crate) fn memberships_of<'a>(text: &'a str, controller: &str) -> Vec<(Generation, &'a str)> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            if number == "0" && controllers.is_empty() {
                Some((Generation::V2, path))
            } else {
                lists(controllers, controller).then_some((Generation::V1, path))
            }
        })
        .collect()
}

/// Where a cgroup hierarchy is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) generation: Generation,
    /// Which path of the hierarchy is seen at the mount point: not `/` inside of a container.
    pub(crate) root: String,
    /// The mount point.
    pub(crate) point: PathBuf,
}

/// The mounts of hierarchies that may limit something, from `/proc/self/mountinfo`; see `proc(5)`:
///
/// ```text
/// 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
///            root point                (optional fields) - type source options
/// ```
pub(crate) fn mounts_of(text: &str, controller: &str) -> Vec<Mount> {
    text.lines()
        .filter_map(|line| {
            let (first, second) = line.split_once(" - ")?;
            let mut first = first.split(' ').skip(3);
            let (root, point) = (first.next()?, first.next()?);
            let mut second = second.split(' ');
            let (kind, _, options) = (second.next()?, second.next()?, second.next()?);
            let generation = match kind {
                "cgroup2" => Generation::V2,
                "cgroup" if lists(options, controller) => Generation::V1,
                _ => return None,
            };
            Some(Mount { generation, root: unescape(root), point: unescape(point).into() })
        })
        .collect()
}

/// Whether a name is in a comma-separated list.
fn lists(list: &str, name: &str) -> bool {
    list.split(',').any(|part| part == name)
}

/// Spaces and the like are written as `\040` in mountinfo.
pub(crate) fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let code = part
            .get(..3)
            .and_then(|digits| u8::from_str_radix(digits, 8).ok())
            .filter(u8::is_ascii);
        match code {
            Some(code) => {
                plain.push(code.into());
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn memberships(text: &str) -> Vec<(Generation, &str)> {
        memberships_of(text, "memory")
    }

    fn mounts(text: &str) -> Vec<Mount> {
        mounts_of(text, "memory")
    }

    const MEMINFO: &str = "MemTotal:       24684096 kB
MemFree:        19185812 kB
MemAvailable:   22958392 kB
Buffers:           12080 kB
HugePages_Total:       0
";

    #[test]
    fn lines_of_kilobytes() {
        assert_eq!(kilobytes(MEMINFO, "MemTotal"), Some(24_684_096 * 1024));
        assert_eq!(kilobytes(MEMINFO, "MemAvailable"), Some(22_958_392 * 1024));
        assert_eq!(kilobytes(MEMINFO, "Mem"), None);
        assert_eq!(kilobytes(MEMINFO, "HugePages_Total"), None); // no kB
        assert_eq!(kilobytes("VmHWM:\t    2208 kB\n", "VmHWM"), Some(2208 * 1024));
        assert_eq!(kilobytes("VmHWM: many kB", "VmHWM"), None);
        assert_eq!(kilobytes("VmHWM: 18446744073709551615 kB", "VmHWM"), None);
    }

    #[test]
    fn memberships_of_both_generations() {
        let hybrid = "9:name=systemd:/
8:pids:/
4:memory:/jobs/a:b
2:cpuacct:/
0::/
";
        assert_eq!(memberships(hybrid), [(Generation::V1, "/jobs/a:b"), (Generation::V2, "/")]);
        let unified = "0::/user.slice/user-1000.slice/session-2.scope\n";
        assert_eq!(
            memberships(unified),
            [(Generation::V2, "/user.slice/user-1000.slice/session-2.scope")]
        );
        assert_eq!(memberships("11:cpu,memory:/x\nnonsense\n"), [(Generation::V1, "/x")]);
    }

    #[test]
    fn mounts_of_both_generations() {
        let hybrid = "22 27 0:21 / /proc rw,relatime - proc proc rw
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";
        assert_eq!(
            mounts(hybrid),
            [
                Mount {
                    generation: Generation::V1,
                    root: "/".to_string(),
                    point: "/sys/fs/cgroup/memory".into(),
                },
                Mount {
                    generation: Generation::V2,
                    root: "/".to_string(),
                    point: "/sys/fs/cgroup/unified".into(),
                },
            ]
        );
        // In a container of the first generation, with optional fields.
        let container = r"744 735 0:34 /docker/8d6f /sys/fs/cgroup/mem\040ory ro,nosuid master:17 shared:3 - cgroup cgroup rw,memory";
        assert_eq!(
            mounts(container),
            [Mount {
                generation: Generation::V1,
                root: "/docker/8d6f".to_string(),
                point: "/sys/fs/cgroup/mem ory".into(),
            }]
        );
        let unified = "30 23 0:26 / /sys/fs/cgroup rw,nosuid,nodev,noexec,relatime shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot";
        assert_eq!(mounts(unified)[0].generation, Generation::V2);
    }

    #[test]
    fn escapes() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape(r"/a\04"), r"/a\04");
        assert_eq!(unescape(r"/a\999"), r"/a\999");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "(\\PC|[ :\\\\\n-]){0,80}") {
            kilobytes(&text, "A");
            memberships(&text);
            mounts(&text);
            unescape(&text);
        }
    }
}
