//! GPUs, as reported by the system and its drivers, without linking a GPU library.

mod drm;
#[cfg(any(target_os = "linux", target_os = "windows"))]
mod nvml;
mod visible;

use crate::Sourced;
use crate::system::System;
use serde::Serialize;
use std::collections::BTreeMap;

/// The GPUs found, and notes on those not found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Gpus {
    /// In the order of their numbers: `gpu0` is the first.
    pub found: Vec<GpuInfo>,
    /// What was not found or is unknown, and why: one line each.
    pub notes: Vec<String>,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GpuInfo {
    /// Its number: `gpu0` has 0.
    pub number: usize,
    /// Its name.
    pub name: String,
    /// The source of its name.
    pub source: String,
    /// Its memory.
    pub memory: GpuMemory,
}

/// The memory that a GPU works in.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum GpuMemory {
    /// Its own. In bytes.
    Own {
        /// All of it.
        total: Sourced<u64>,
        /// Free memory; none if the system does not report it.
        free: Option<Sourced<u64>>,
    },
    /// Shared with the host, and counted there.
    Unified {
        /// What said so.
        source: String,
    },
    /// Unknown.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// A GPU before it has a number.
#[derive(Debug, Clone, PartialEq)]
struct Candidate {
    name: String,
    source: String,
    /// What identifies it among others of its kind; may be empty.
    uuid: String,
    memory: GpuMemory,
}

impl Candidate {
    /// One that nothing but its name identifies.
    fn new(name: impl Into<String>, source: &str, memory: GpuMemory) -> Self {
        Self { name: name.into(), source: source.to_string(), uuid: String::new(), memory }
    }
}

/// The result of a search for one kind of GPU.
#[derive(Debug, Default)]
struct Search {
    found: Vec<Candidate>,
    notes: Vec<String>,
}

/// The GPUs of this machine; `system` has its files.
pub(crate) fn gpus(system: &System) -> Gpus {
    let nvidia = nvidia(std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
    gpus_of(system, nvidia, apple())
}

/// Free memory of each GPU that has memory of its own and a driver that tells, in bytes, by its
/// number.
pub fn gpu_free_memory() -> BTreeMap<usize, u64> {
    let found = gpus(&System::here()).found.into_iter();
    let free = |gpu: GpuInfo| match gpu.memory {
        GpuMemory::Own { free, .. } => free.map(|free| (gpu.number, free.value)),
        GpuMemory::Unified { .. } | GpuMemory::Unknown { .. } => None,
    };
    found.filter_map(free).collect()
}

/// NVIDIA's, by their library.
fn nvidia(visible: Option<&str>) -> Search {
    #[cfg(any(target_os = "linux", target_os = "windows"))]
    let search = nvml::search();
    #[cfg(not(any(target_os = "linux", target_os = "windows")))]
    let search = Search::default();
    visible::limit(search, visible)
}

/// Apple's processors have one, which works in the host's memory.
fn apple() -> Search {
    let mut search = Search::default();
    if cfg!(all(target_os = "macos", target_arch = "aarch64")) {
        let source = "Apple silicon";
        let memory = GpuMemory::Unified { source: source.to_string() };
        search.found.push(Candidate::new("Apple GPU", source, memory));
    }
    search
}

/// NVIDIA's first, then those of the system's files.
fn gpus_of(system: &System, nvidia: Search, apple: Search) -> Gpus {
    let others = drm::search(system, nvidia.found.is_empty());
    let mut gpus = Gpus { found: Vec::new(), notes: Vec::new() };
    for search in [nvidia, others, apple] {
        gpus.notes.extend(search.notes);
        for candidate in search.found {
            gpus.found.push(GpuInfo {
                number: gpus.found.len(),
                name: candidate.name,
                source: candidate.source,
                memory: candidate.memory,
            });
        }
    }
    gpus
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::tree;

    #[test]
    fn numbers_go_on_from_one_kind_to_the_next() {
        let (_folder, system) = tree(&[
            ("/sys/class/drm/card0/device/vendor", "0x1002\n"),
            ("/sys/class/drm/card0/device/mem_info_vram_total", "17163091968\n"),
            ("/sys/class/drm/card0/device/mem_info_vram_used", "163091968\n"),
        ]);
        let nvidia = Search {
            found: vec![Candidate {
                name: "NVIDIA H200".to_string(),
                source: "NVML".to_string(),
                uuid: "GPU-1".to_string(),
                memory: GpuMemory::Own {
                    total: Sourced::new(150_000_000_000, "NVML"),
                    free: Some(Sourced::new(140_000_000_000, "NVML")),
                },
            }],
            notes: vec!["a note".to_string()],
        };
        let gpus = gpus_of(&system, nvidia, Search::default());
        let numbers: Vec<_> = gpus.found.iter().map(|gpu| gpu.number).collect();
        assert_eq!(numbers, [0, 1]);
        assert_eq!(gpus.found[0].name, "NVIDIA H200");
        assert!(gpus.notes.contains(&"a note".to_string()));
        let GpuMemory::Own { total, free } = &gpus.found[1].memory else {
            panic!("{gpus:?}");
        };
        assert_eq!(total.value, 17_163_091_968);
        assert_eq!(free.as_ref().unwrap().value, 17_000_000_000);
    }

    #[test]
    fn nothing_is_found_in_an_empty_tree_and_that_is_fine() {
        let (_folder, system) = tree(&[]);
        let gpus = gpus_of(&system, Search::default(), Search::default());
        assert!(gpus.found.is_empty());
        assert_eq!(gpus.notes, ["no graphics card in /sys/class/drm"]);
    }

    #[test]
    fn this_machine_is_looked_at_without_failing() {
        let gpus = gpus(&System::here());
        assert!(gpus.found.iter().enumerate().all(|(n, gpu)| gpu.number == n));
    }
}
