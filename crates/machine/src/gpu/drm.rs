//! GPUs as reported by the kernel's graphics drivers in `/sys/class/drm`, and boards by their
//! device tree.

use super::{Candidate, GpuMemory, Search};
use crate::Sourced;
use crate::system::System;

const CARDS: &str = "/sys/class/drm";

/// PCI vendor ids.
const AMD: &str = "0x1002";
const INTEL: &str = "0x8086";
const NVIDIA: &str = "0x10de";

/// Where Intel's integrated GPUs are on the bus.
const INTEL_INTEGRATED: &str = "0000:00:02.0";

/// Looks through the cards; at those of NVIDIA's only if their library did not find them.
pub(super) fn search(system: &System, with_nvidia: bool) -> Search {
    let mut search = Search::default();
    let mut cards: Vec<(u64, String)> = system
        .names(CARDS)
        .into_iter()
        // `card0`, but not its outputs such as `card0-HDMI-A-1`.
        .filter_map(|name| Some((name.strip_prefix("card")?.parse().ok()?, name)))
        .collect();
    cards.sort();
    if cards.is_empty() && with_nvidia && !cfg!(target_os = "macos") {
        search.notes.push(format!("no graphics card in {CARDS}"));
    }
    for (_, card) in cards {
        let device = format!("{CARDS}/{card}/device");
        match system.line(format!("{device}/vendor")).as_deref() {
            Some(AMD) => search.found.push(amd(system, &device)),
            Some(INTEL) => search.found.push(intel(system, &card, &device)),
            Some(NVIDIA) if with_nvidia => search.found.push(nvidia(system, &device)),
            Some(NVIDIA) => {}
            // A display without a GPU: a virtual machine's, a server's management chip.
            Some(vendor) => search
                .notes
                .push(format!("{CARDS}/{card} is of a maker that is not known here ({vendor})")),
            None => search.notes.push(format!("{CARDS}/{card} does not say who made it")),
        }
    }
    if with_nvidia && let Some(tegra) = tegra(system) {
        search.found.push(tegra);
    }
    search
}

/// One that the `amdgpu` driver runs.
fn amd(system: &System, device: &str) -> Candidate {
    let total = sized(system, format!("{device}/mem_info_vram_total"));
    let used = sized(system, format!("{device}/mem_info_vram_used"));
    let metrics = format!("{device}/gpu_metrics");
    let memory = match total {
        _ if is_amd_integrated(system, &metrics) => GpuMemory::Unified {
            source: format!("{metrics}, whose format is that of an integrated GPU"),
        },
        Some(total) => GpuMemory::Own {
            free: used.map(|used| {
                let free = total.value.saturating_sub(used.value);
                Sourced::new(free, format!("{} - {}", total.source, "mem_info_vram_used"))
            }),
            total,
        },
        None => GpuMemory::Unknown {
            reason: format!(
                "there is no {device}/mem_info_vram_total, which the amdgpu driver writes"
            ),
        },
    };
    Candidate::new(name(system, device, "AMD GPU"), device, memory)
}

/// The header of the table says which kind of GPU it is of: formats 2 and 3 are those of integrated
/// ones (`struct metrics_table_header` of the driver: two bytes of size, one of format, one of
/// content).
fn is_amd_integrated(system: &System, metrics: &str) -> bool {
    system.bytes(metrics).and_then(|bytes| bytes.get(2).copied()).is_some_and(|format| format >= 2)
}

fn intel(system: &System, card: &str, device: &str) -> Candidate {
    let own = sized(system, format!("{CARDS}/{card}/lmem_total_bytes"));
    let address = system.resolve(device);
    let integrated = address.as_ref().is_some_and(|path| path.ends_with(INTEL_INTEGRATED));
    let memory = match own {
        Some(total) => GpuMemory::Own { total, free: None },
        None if integrated => {
            GpuMemory::Unified { source: format!("its place on the bus, {INTEL_INTEGRATED}") }
        }
        None => GpuMemory::Unknown { reason: "Intel's driver does not say".to_string() },
    };
    Candidate::new(name(system, device, "Intel GPU"), device, memory)
}

/// A GPU that NVML does not report.
fn nvidia(system: &System, device: &str) -> Candidate {
    let reason = "only NVIDIA's library says, and it does not show this one".to_string();
    let memory = GpuMemory::Unknown { reason };
    Candidate::new(name(system, device, "NVIDIA GPU"), device, memory)
}

/// The GPU of a Jetson board, if this is one.
fn tegra(system: &System) -> Option<Candidate> {
    let file = "/proc/device-tree/compatible";
    // Names with a zero byte behind each.
    let is_tegra = system.read(file)?.split('\0').any(|name| name.starts_with("nvidia,tegra"));
    let memory = GpuMemory::Unified { source: file.to_string() };
    is_tegra.then(|| Candidate::new("NVIDIA Tegra", file, memory))
}

fn name(system: &System, device: &str, otherwise: &str) -> String {
    match (system.line(format!("{device}/product_name")), system.line(format!("{device}/device"))) {
        (Some(name), _) => name,
        (None, Some(number)) => format!("{otherwise} {number}"),
        (None, None) => otherwise.to_string(),
    }
}

fn sized(system: &System, file: String) -> Option<Sourced<u64>> {
    let bytes = system.number(&file)?;
    Some(Sourced::new(bytes, file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::tests::tree;
    use proptest::prelude::*;

    #[test]
    fn cards_of_amd() {
        let (folder, system) = tree(&[
            ("/sys/class/drm/card1/device/vendor", "0x1002\n"),
            ("/sys/class/drm/card1/device/device", "0x744c\n"),
            ("/sys/class/drm/card1/device/mem_info_vram_total", "1000\n"),
            ("/sys/class/drm/card1/device/mem_info_vram_used", "1500\n"),
            ("/sys/class/drm/card1-DP-1/status", "connected\n"),
            ("/sys/class/drm/version", "drm 1.1.0\n"),
        ]);
        let found = search(&system, true).found;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "AMD GPU 0x744c");
        let GpuMemory::Own { total, free } = &found[0].memory else {
            panic!("{found:?}");
        };
        assert_eq!((total.value, free.as_ref().unwrap().value), (1000, 0));
        assert!(total.source.ends_with("card1/device/mem_info_vram_total"));
        // The header of a card's own table, then of an integrated GPU's.
        let metrics = folder.path().join("sys/class/drm/card1/device/gpu_metrics");
        std::fs::write(&metrics, [120, 0, 1, 3, 9, 9]).unwrap();
        let memory = &search(&system, true).found[0].memory;
        assert!(matches!(memory, GpuMemory::Own { .. }));
        std::fs::write(&metrics, [128, 0, 2, 2]).unwrap();
        let memory = &search(&system, true).found[0].memory;
        assert!(matches!(memory, GpuMemory::Unified { .. }));
    }

    #[test]
    #[cfg(unix)]
    fn intel_within_the_processor_and_beside_it() {
        let (folder, system) = tree(&[
            ("/sys/devices/pci0000:00/0000:00:02.0/vendor", "0x8086\n"),
            ("/sys/devices/pci0000:00/0000:03:00.0/vendor", "0x8086\n"),
            ("/sys/class/drm/card0/x", ""),
            ("/sys/class/drm/card1/x", ""),
            ("/sys/class/drm/card2/lmem_total_bytes", "16000000000\n"),
        ]);
        let link = |card: &str, address: &str| {
            let to = folder.path().join("sys/devices/pci0000:00").join(address);
            let at = folder.path().join("sys/class/drm").join(card);
            std::os::unix::fs::symlink(to, at.join("device")).unwrap();
        };
        link("card0", "0000:00:02.0");
        link("card1", "0000:03:00.0");
        link("card2", "0000:03:00.0");
        let memories: Vec<_> =
            search(&system, true).found.into_iter().map(|gpu| gpu.memory).collect();
        assert!(matches!(memories[0], GpuMemory::Unified { .. }));
        assert!(matches!(memories[1], GpuMemory::Unknown { .. }));
        assert!(matches!(&memories[2], GpuMemory::Own { free: None, .. }));
    }

    #[test]
    fn boards_and_cards_of_nvidia() {
        let (_folder, system) = tree(&[
            ("/proc/device-tree/compatible", "nvidia,p3737-0000\0nvidia,tegra234\0"),
            ("/sys/class/drm/card0/device/vendor", "0x10de\n"),
            ("/sys/class/drm/card1/device/vendor", "0x1a03\n"),
        ]);
        let without = search(&system, true);
        assert_eq!(without.found.len(), 2);
        assert!(matches!(without.found[0].memory, GpuMemory::Unknown { .. }));
        assert!(matches!(without.found[1].memory, GpuMemory::Unified { .. }));
        assert!(without.notes[0].contains("0x1a03"));
        assert!(search(&system, false).found.is_empty());
    }

    proptest! {
        // Each makes a tree of files.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_text_panics(text in "(\\PC|[0x0-9\n]){0,30}", vendor in prop::sample::select(vec![AMD, INTEL, NVIDIA])) {
            let (_folder, system) = tree(&[
                ("/proc/device-tree/compatible", &text),
                ("/sys/class/drm/card0/device/vendor", vendor),
                ("/sys/class/drm/card0/device/product_name", &text),
                ("/sys/class/drm/card0/device/mem_info_vram_total", &text),
                ("/sys/class/drm/card0/device/gpu_metrics", &text),
                ("/sys/class/drm/card0/lmem_total_bytes", &text),
                ("/sys/class/drm/card1/device/vendor", &text),
            ]);
            for gpu in search(&system, true).found {
                prop_assert!(gpu.name.chars().all(|letter| !letter.is_control()));
            }
        }
    }
}
