use crate::cgroup::cgroup_of;
use crate::system::System;
use crate::{Cgroup, Sourced, cgroup, proc};
use serde::Serialize;

/// The machine's main memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// What the system has.
    pub total: u64,
    /// What is available without swapping, clean page cache included.
    pub available: u64,
}

/// Main memory: total, available, and the limits on it. All sizes in bytes.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ram {
    /// What the machine has.
    pub total: Sourced<u64>,
    /// What is available to this process: the least of what the machine and the cgroups have left.
    pub available: Sourced<u64>,
    /// What the machine has left, regardless of cgroups.
    pub system_available: Sourced<u64>,
    /// The cgroup that leaves the least, if any has a limit.
    pub cgroup: Option<Cgroup>,
}

/// The main memory of a system; none if it does not report it.
pub(crate) fn ram(system: &System) -> Option<Ram> {
    let text = system.read("/proc/meminfo")?;
    let known = |key: &str| {
        let bytes = proc::kilobytes(&text, key)?;
        Some(Sourced::new(bytes, format!("/proc/meminfo {key}")))
    };
    // Before Linux 3.14 there was no estimate.
    let system_available = known("MemAvailable").or_else(|| known("MemFree"))?;
    let cgroup = cgroup_of(system);
    let bound = cgroup
        .as_ref()
        .map(|group| Sourced::new(group.available(), group.file.display().to_string()));
    let available = match bound {
        Some(bound) if bound.value < system_available.value => bound,
        _ => system_available.clone(),
    };
    Some(Ram { total: known("MemTotal")?, available, system_available, cgroup })
}

/// The machine's main memory; none if the system does not report it (`/proc/meminfo` on Linux).
pub fn memory() -> Option<Memory> {
    let text = read("/proc/meminfo")?;
    Some(Memory {
        total: proc::kilobytes(&text, "MemTotal")?,
        available: proc::kilobytes(&text, "MemAvailable")?,
    })
}

/// Bytes available to this process: the least of what the machine has left and what its cgroups
/// allow. None if neither is known.
pub fn available() -> Option<u64> {
    least(memory().map(|memory| memory.available), cgroup().map(|cgroup| cgroup.available()))
}

/// The peak resident set of this process, in bytes. None if the system does not report it
/// (`/proc/self/status` on Linux).
pub fn peak_rss() -> Option<u64> {
    let status = read("/proc/self/status")?;
    // The kernel notes the peak from counts that lag behind a little.
    let now = proc::kilobytes(&status, "VmRSS")?;
    Some(proc::kilobytes(&status, "VmHWM")?.max(now))
}

/// The current resident set of this process, in bytes. None if the system does not report it.
pub fn current_rss() -> Option<u64> {
    proc::kilobytes(&read("/proc/self/status")?, "VmRSS")
}

fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// A file of the kernel's; nothing where there is none.
fn read(path: &str) -> Option<String> {
    if cfg!(target_os = "linux") { std::fs::read_to_string(path).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::tree;

    #[test]
    fn the_least_of_what_is_known() {
        assert_eq!(least(Some(2), Some(1)), Some(1));
        assert_eq!(least(None, Some(3)), Some(3));
        assert_eq!(least(Some(4), None), Some(4));
        assert_eq!(least(None, None), None);
    }

    #[test]
    fn what_bounds_memory_is_named() {
        let meminfo = "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 800 kB\n";
        let (folder, system) = tree(&[
            ("/proc/meminfo", meminfo),
            ("/proc/self/cgroup", "4:memory:/a\n"),
            (
                "/proc/self/mountinfo",
                "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
            ),
        ]);
        let free = ram(&system).unwrap();
        assert_eq!(free.total.value, 1000 << 10);
        assert_eq!(free.available.value, 800 << 10);
        assert_eq!(free.available.source, "/proc/meminfo MemAvailable");
        assert_eq!(free.cgroup, None);
        let group = folder.path().join("sys/fs/cgroup/memory/a");
        std::fs::create_dir_all(&group).unwrap();
        std::fs::write(group.join("memory.limit_in_bytes"), "500000\n").unwrap();
        std::fs::write(group.join("memory.usage_in_bytes"), "100000\n").unwrap();
        let bound = ram(&system).unwrap();
        assert_eq!(bound.available.value, 400_000);
        assert_eq!(bound.system_available.value, 800 << 10);
        let file = "/sys/fs/cgroup/memory/a/memory.limit_in_bytes";
        assert_eq!(bound.available.source, file);
        // A limit beyond what the machine has left is not what bounds.
        std::fs::write(group.join("memory.limit_in_bytes"), "5000000\n").unwrap();
        let loose = ram(&system).unwrap();
        assert_eq!(loose.available.source, "/proc/meminfo MemAvailable");
        assert!(loose.cgroup.is_some());
    }

    #[test]
    fn a_kernel_without_an_estimate() {
        let (_folder, system) = tree(&[("/proc/meminfo", "MemTotal: 10 kB\nMemFree: 3 kB\n")]);
        let memory = ram(&system).unwrap();
        assert_eq!(memory.available.source, "/proc/meminfo MemFree");
        let (_folder, system) = tree(&[("/proc/meminfo", "nonsense")]);
        assert_eq!(ram(&system), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_memory() {
        let memory = memory().unwrap();
        assert!(memory.available <= memory.total);
        assert!(memory.total > 1 << 20);
        assert!(available().unwrap() <= memory.total);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_resident_set_grows_with_what_is_touched() {
        const TOUCHED: usize = 64 << 20;
        let before = current_rss().unwrap();
        let touched = std::hint::black_box(vec![1u8; TOUCHED]);
        let after = current_rss().unwrap();
        // Other tests free memory meanwhile, but not half of this.
        assert!(after > before + TOUCHED as u64 / 2, "{before} -> {after}");
        drop(touched);
        assert!(peak_rss().unwrap() > before + TOUCHED as u64 / 2);
    }
}
