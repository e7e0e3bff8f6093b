//! NVIDIA's GPUs, by the library that comes with the driver.

use super::{Candidate, GpuMemory, Search};
use crate::Sourced;
use crate::system::shown;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

/// Parts of the names of GPUs that share the host's memory: Jetson, DGX Spark.
const UNIFIED: [&str; 6] = ["Tegra", "Orin", "Xavier", "Thor", "GB10", "nvgpu"];

/// Asks the library, if there is one.
pub(super) fn search() -> Search {
    let mut search = Search::default();
    if let Err(error) = ask(&mut search) {
        search.notes.push(format!("no NVIDIA GPU, because {}", reason(&error)));
    }
    search
}

fn ask(Search { found, notes }: &mut Search) -> Result<(), NvmlError> {
    let nvml = Nvml::init()?;
    let count = nvml.device_count()?;
    if count == 0 {
        notes.push("no NVIDIA GPU: its library, NVML, finds none".to_string());
    }
    for index in 0..count {
        match nvml.device_by_index(index) {
            Ok(device) => found.push(candidate(&device, index)),
            Err(error) => {
                notes.push(format!("NVIDIA GPU {index} is left out, because {}", reason(&error)))
            }
        }
    }
    Ok(())
}

fn candidate(device: &Device<'_>, index: u32) -> Candidate {
    let source = format!("NVML device {index}");
    let name = device.name().map_or_else(|_| "NVIDIA GPU".to_string(), |name| shown(&name));
    let sizes = device.memory_info().map(|memory| (memory.total, memory.free));
    Candidate {
        memory: memory(&name, &source, sizes),
        name,
        uuid: device.uuid().unwrap_or_default(),
        source,
    }
}

/// What total and free bytes, or the lack of them, mean.
fn memory(name: &str, source: &str, sizes: Result<(u64, u64), NvmlError>) -> GpuMemory {
    if let Some(part) = UNIFIED.iter().find(|part| name.contains(**part)) {
        return GpuMemory::Unified { source: format!("its name, which has {part} in it") };
    }
    match sizes {
        Ok((total, free)) if total > 0 => GpuMemory::Own {
            total: Sourced::new(total, source),
            free: Some(Sourced::new(free.min(total), source)),
        },
        // So the library answers where there is no memory but the host's.
        Ok(_) | Err(NvmlError::NotSupported) => {
            GpuMemory::Unified { source: format!("{source}, which knows no memory of its own") }
        }
        Err(error) => GpuMemory::Unknown { reason: reason(&error) },
    }
}

/// Why, for a person.
fn reason(error: &NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            "the driver's library, NVML, is not installed".to_string()
        }
        NvmlError::DriverNotLoaded => "the driver is not running".to_string(),
        NvmlError::NoPermission => "this user may not ask the driver".to_string(),
        other => format!("the driver's library, NVML, says: {}", shown(&other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sizes_mean() {
        let own = memory("NVIDIA H200", "NVML device 0", Ok((100, 90)));
        assert!(matches!(own, GpuMemory::Own { total, .. } if total.value == 100));
        for (name, sizes) in [
            ("NVIDIA GB10", Err(NvmlError::NotSupported)),
            ("NVIDIA Something", Err(NvmlError::NotSupported)),
            ("NVIDIA Something", Ok((0, 0))),
            ("Orin (nvgpu)", Ok((64 << 30, 60 << 30))),
        ] {
            let unified = memory(name, "NVML device 0", sizes);
            assert!(matches!(unified, GpuMemory::Unified { .. }), "{unified:?}");
        }
        let unknown = memory("NVIDIA H200", "NVML device 0", Err(NvmlError::GpuLost));
        let GpuMemory::Unknown { reason } = unknown else {
            panic!("{unknown:?}");
        };
        assert!(reason.contains("NVML"), "{reason}");
    }

    #[test]
    fn the_lack_of_a_driver_is_a_note() {
        assert!(reason(&NvmlError::LibraryNotFound).contains("not installed"));
        assert!(reason(&NvmlError::DriverNotLoaded).contains("not running"));
    }
}
