use crate::{cgroup, proc};

/// The machine's main memory, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// What the system has.
    pub total: u64,
    /// What can be had without swapping, clean page cache included.
    pub available: u64,
}

/// The machine's main memory; nothing where the system does not say (`/proc/meminfo` on Linux).
pub fn memory() -> Option<Memory> {
    let text = read("/proc/meminfo")?;
    Some(Memory {
        total: proc::kilobytes(&text, "MemTotal")?,
        available: proc::kilobytes(&text, "MemAvailable")?,
    })
}

/// Bytes that this process can take more: the least of what the machine has left and what the process's
/// cgroups allow. Nothing where neither is known.
pub fn available() -> Option<u64> {
    least(
        memory().map(|memory| memory.available),
        cgroup().map(|cgroup| cgroup.available()),
    )
}

/// The largest resident set that this process ever had, in bytes. Nothing where the system does not say
/// (`/proc/self/status` on Linux).
pub fn peak_rss() -> Option<u64> {
    let status = read("/proc/self/status")?;
    // The kernel notes the peak from counts that lag behind a little.
    let now = proc::kilobytes(&status, "VmRSS")?;
    Some(proc::kilobytes(&status, "VmHWM")?.max(now))
}

/// The resident set of this process now, in bytes. Nothing where the system does not say.
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
    if cfg!(target_os = "linux") {
        std::fs::read_to_string(path).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_what_is_known() {
        assert_eq!(least(Some(2), Some(1)), Some(1));
        assert_eq!(least(None, Some(3)), Some(3));
        assert_eq!(least(Some(4), None), Some(4));
        assert_eq!(least(None, None), None);
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
