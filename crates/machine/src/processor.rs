//! The processors, and how many of them this process may use.

use crate::proc::Generation;
use crate::system::{System, shown};
use crate::{Sourced, cgroup};
use serde::Serialize;
use std::collections::BTreeSet;

/// The largest plausible cache, in bytes.
const LARGEST_CACHE: u64 = 16 << 30;

/// The host's processors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Processors {
    /// Their name; the architecture if the system does not report one.
    pub name: Sourced<String>,
    /// Physical cores of the machine, where the system tells them from threads.
    pub cores: Option<Sourced<u64>>,
    /// Threads that the machine can run at once.
    pub logical: Option<Sourced<u64>>,
    /// Threads that this process may run at once: the least of what the machine has, of what the
    /// process is bound to and of what its cgroups allow.
    pub threads: Sourced<u64>,
    /// The largest cache of one processor, in bytes.
    pub cache: Option<Sourced<u64>>,
    /// When the system uses large pages: `always`, `madvise`
    /// (where a program asks, as this one does) or `never`.
    pub large_pages: Option<Sourced<String>>,
}

/// What a cgroup allows of the processors.
#[derive(Debug, Clone, PartialEq)]
struct Quota {
    /// Number of processors' time, above zero.
    processors: f64,
    file: String,
}

/// The processors of a system; `parallelism` is what the standard library says, as a fallback for
/// the system's files.
pub(crate) fn processors(system: &System, parallelism: u64) -> Processors {
    let info = system.read("/proc/cpuinfo").unwrap_or_default();
    let status = system.read("/proc/self/status").unwrap_or_default();
    let logical = logical(&info).map(|count| Sourced::new(count, "/proc/cpuinfo"));
    let large = "/sys/kernel/mm/transparent_hugepage/enabled";
    Processors {
        name: name(system, &info),
        cores: cores(&info).map(|count| Sourced::new(count, "/proc/cpuinfo core id")),
        threads: threads(logical.as_ref(), affinity(&status), quota(system), parallelism),
        logical,
        cache: cache(system),
        large_pages: system
            .read(large)
            .and_then(|text| chosen(&text))
            .map(|choice| Sourced::new(choice, large)),
    }
}

/// The value of the first line `key : value`.
fn field<'a>(info: &'a str, key: &str) -> Option<&'a str> {
    info.lines().find_map(|line| value(line, key))
}

fn value<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let (name, value) = line.split_once(':')?;
    (name.trim() == key).then(|| value.trim())
}

fn name(system: &System, info: &str) -> Sourced<String> {
    // x86; s390 and POWER; older ARM kernels. ARM's own boards say it in the device tree alone.
    for key in ["model name", "cpu model", "cpu", "Model", "Hardware"] {
        let name = field(info, key).map(shown).filter(|name| !name.is_empty());
        if let Some(name) = name {
            return Sourced::new(name, format!("/proc/cpuinfo {key}"));
        }
    }
    let tree = "/proc/device-tree/model";
    let board = system.read(tree).map(|text| shown(&text));
    match board.filter(|name| !name.is_empty()) {
        Some(name) => Sourced::new(name, tree),
        None => Sourced::new(std::env::consts::ARCH.to_string(), "what this program was built for"),
    }
}

fn logical(info: &str) -> Option<u64> {
    let count = info
        .lines()
        .filter(|line| value(line, "processor").is_some_and(|value| value.parse::<u64>().is_ok()))
        .count();
    (count > 0).then_some(count as u64)
}

/// Pairs of socket and core.
fn cores(info: &str) -> Option<u64> {
    let mut cores = BTreeSet::new();
    let mut socket = "0";
    for line in info.lines() {
        if let Some(number) = value(line, "physical id") {
            socket = number;
        } else if let Some(number) = value(line, "core id") {
            cores.insert((socket, number));
        }
    }
    (!cores.is_empty()).then_some(cores.len() as u64)
}

/// Processors that the process is bound to: `Cpus_allowed_list: 0-3,8`.
fn affinity(status: &str) -> Option<u64> {
    let list = field(status, "Cpus_allowed_list")?;
    let mut count = 0u64;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (count > 0).then_some(count)
}

/// The tightest quota of the process's cgroups.
fn quota(system: &System) -> Option<Quota> {
    let memberships = system.read("/proc/self/cgroup")?;
    let mounts = system.read("/proc/self/mountinfo")?;
    cgroup::folders_of(&memberships, &mounts, "cpu")
        .into_iter()
        .filter_map(|(generation, folder)| {
            let (text, file) = match generation {
                Generation::V2 => {
                    let file = folder.join("cpu.max");
                    (system.read(&file)?, file)
                }
                Generation::V1 => {
                    let file = folder.join("cpu.cfs_quota_us");
                    let quota = system.read(&file)?;
                    let period = system.read(folder.join("cpu.cfs_period_us"))?;
                    (format!("{} {}", quota.trim(), period.trim()), file)
                }
            };
            Some(Quota { processors: share(&text)?, file: file.display().to_string() })
        })
        .min_by(|a, b| a.processors.total_cmp(&b.processors))
}

/// `quota period` in microseconds as a number of processors; nothing for no quota, which is `max`
/// or -1.
fn share(text: &str) -> Option<f64> {
    let mut words = text.split_ascii_whitespace();
    let (quota, period): (f64, f64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let share = quota / period;
    (quota > 0.0 && share.is_finite() && share > 0.0).then_some(share)
}

fn threads(
    logical: Option<&Sourced<u64>>,
    affinity: Option<u64>,
    quota: Option<Quota>,
    parallelism: u64,
) -> Sourced<u64> {
    let mut least = Sourced::new(parallelism.max(1), "what the system grants this process");
    let mut bound = |known: Sourced<u64>| {
        // The standard library knows most of these too, but not by name.
        if known.value <= least.value {
            least = known;
        }
    };
    if let Some(logical) = logical {
        bound(logical.clone());
    }
    if let Some(count) = affinity {
        bound(Sourced::new(count, "/proc/self/status Cpus_allowed_list"));
    }
    if let Some(quota) = quota {
        // A part of a processor runs a thread, more slowly.
        let whole = (quota.processors.floor() as u64).max(1);
        if logical.is_none_or(|logical| whole < logical.value) {
            bound(Sourced::new(whole, quota.file));
        }
    }
    least
}

/// The largest data cache of the first processor.
fn cache(system: &System) -> Option<Sourced<u64>> {
    let folder = "/sys/devices/system/cpu/cpu0/cache";
    system
        .names(folder)
        .into_iter()
        .filter(|name| name.starts_with("index"))
        .filter_map(|index| {
            let file = format!("{folder}/{index}/size");
            let text = system.read(&file)?;
            let units = [("K", 1 << 10), ("M", 1 << 20), ("", 1)];
            let (number, unit) = units
                .into_iter()
                .find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?, unit)))?;
            let bytes = number.parse::<u64>().ok()?.checked_mul(unit)?;
            (bytes <= LARGEST_CACHE).then(|| Sourced::new(bytes, file))
        })
        .max_by_key(|known| known.value)
}

/// `always [madvise] never`: what stands in brackets.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (choice, _) = rest.split_once(']')?;
    let choice = shown(choice);
    (!choice.is_empty()).then_some(choice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::tree;
    use proptest::prelude::*;

    const INFO: &str = "processor\t: 0
model name\t: AMD EPYC 9R14
physical id\t: 0
core id\t\t: 0

processor\t: 1
model name\t: AMD EPYC 9R14
physical id\t: 0
core id\t\t: 0

processor\t: 2
model name\t: AMD EPYC 9R14
physical id\t: 1
core id\t\t: 0
";

    #[test]
    fn a_machine_of_two_sockets() {
        let (_folder, system) = tree(&[
            ("/proc/cpuinfo", INFO),
            ("/proc/self/status", "Cpus_allowed_list:\t0-2\n"),
            ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("/sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n"),
            ("/sys/devices/system/cpu/cpu0/cache/index3/size", "32M\n"),
        ]);
        let found = processors(&system, 3);
        assert_eq!(found.name.value, "AMD EPYC 9R14");
        assert_eq!(found.cores.unwrap().value, 2);
        assert_eq!(found.logical.unwrap().value, 3);
        assert_eq!(found.threads.value, 3);
        assert_eq!(found.cache.unwrap().value, 32 << 20);
        assert_eq!(found.large_pages.unwrap().value, "madvise");
    }

    #[test]
    fn the_least_of_the_bounds_is_named() {
        let (folder, system) = tree(&[
            ("/proc/cpuinfo", INFO),
            ("/proc/self/status", "Cpus_allowed_list:\t0,2\n"),
            ("/proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/\n"),
            (
                "/proc/self/mountinfo",
                "35 31 0:32 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n",
            ),
        ]);
        let found = processors(&system, 2);
        assert_eq!(found.threads.value, 2);
        assert!(found.threads.source.contains("Cpus_allowed_list"));
        let group = "/sys/fs/cgroup/cpu/a";
        for (quota, threads, named) in [
            ("150000", 1, "cpu.cfs_quota_us"),
            ("20000", 1, "cpu.cfs_quota_us"),
            ("-1", 2, "Cpus_allowed_list"),
            ("900000", 2, "Cpus_allowed_list"),
        ] {
            let root = folder.path().join(group.trim_start_matches('/'));
            std::fs::create_dir_all(&root).unwrap();
            std::fs::write(root.join("cpu.cfs_quota_us"), quota).unwrap();
            std::fs::write(root.join("cpu.cfs_period_us"), "100000\n").unwrap();
            let found = processors(&system, 2);
            assert_eq!(found.threads.value, threads, "{quota}");
            assert!(found.threads.source.contains(named), "{quota}: {found:?}");
        }
    }

    #[test]
    fn the_second_generation_says_quota_and_period_in_one_file() {
        let (_folder, system) = tree(&[
            ("/proc/cpuinfo", INFO),
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"),
            ("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("/sys/fs/cgroup/a/cpu.max", "220000 100000\n"),
        ]);
        let found = processors(&system, 2);
        assert_eq!(found.threads.value, 2);
        assert_eq!(found.threads.source, "/sys/fs/cgroup/a/cpu.max");
    }

    #[test]
    fn boards_without_a_model_name() {
        let (_folder, system) = tree(&[("/proc/device-tree/model", "Raspberry Pi 5\0")]);
        assert_eq!(processors(&system, 4).name.value, "Raspberry Pi 5");
        let (_folder, system) = tree(&[]);
        let found = processors(&system, 0);
        assert_eq!(found.name.value, std::env::consts::ARCH);
        assert_eq!(found.threads.value, 1);
        assert!(found.cores.is_none() && found.cache.is_none());
    }

    proptest! {
        // Each makes a tree of files.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_text_panics(text in "(\\PC|[ :\\-,\n0-9a-z\\[\\]]){0,80}", list in "[0-9,-]{0,40}") {
            cores(&text);
            logical(&text);
            affinity(&text);
            affinity(&format!("Cpus_allowed_list: {list}\n"));
            share(&text);
            chosen(&text);
            let (_folder, system) = tree(&[
                ("/proc/cpuinfo", &text),
                ("/proc/self/status", &text),
                ("/proc/self/cgroup", &text),
                ("/proc/self/mountinfo", &text),
                ("/sys/devices/system/cpu/cpu0/cache/index0/size", &list),
            ]);
            prop_assert!(processors(&system, 2).threads.value >= 1);
        }
    }
}
