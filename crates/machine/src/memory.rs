use crate::cgroup::cgroup;
use crate::system::System;
use crate::{Cgroup, Sourced, proc};
use serde::Serialize;

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
    let cgroup = cgroup(system);
    let bound = cgroup
        .as_ref()
        .map(|group| Sourced::new(group.available(), group.file.display().to_string()));
    let available = match bound {
        Some(bound) if bound.value < system_available.value => bound,
        _ => system_available.clone(),
    };
    Some(Ram { total: known("MemTotal")?, available, system_available, cgroup })
}

/// The peak resident set of this process, in bytes. None if the system does not report it
/// (`/proc/self/status` on Linux).
pub fn peak_rss() -> Option<u64> {
    let status = System::here().read("/proc/self/status")?;
    // The kernel notes the peak from counts that lag behind a little.
    let now = proc::kilobytes(&status, "VmRSS")?;
    Some(proc::kilobytes(&status, "VmHWM")?.max(now))
}

/// What a process holds of its program and libraries once it has begun, in bytes, at most: how much
/// of these the kernel maps beside what is used differs by megabytes from one time to the next.
const BEGUN: u64 = 12 << 20;

/// The resident set of this process before it opens a model, in bytes. None if the system does not
/// report it.
pub fn begun_rss() -> Option<u64> {
    let status = System::here().read("/proc/self/status")?;
    let files = proc::kilobytes(&status, "RssFile").unwrap_or(0);
    Some(proc::kilobytes(&status, "VmRSS")?.saturating_sub(files.saturating_sub(BEGUN)))
}

/// The current resident set of this process, in bytes. None if the system does not report it.
pub fn current_rss() -> Option<u64> {
    proc::kilobytes(&System::here().read("/proc/self/status")?, "VmRSS")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::tree;

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
        let memory = ram(&System::here()).unwrap();
        assert!(memory.available.value <= memory.total.value);
        assert!(memory.system_available.value <= memory.total.value);
        assert!(memory.total.value > 1 << 20);
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
