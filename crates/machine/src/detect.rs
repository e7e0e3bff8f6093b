use crate::gpu::{self, Gpus};
use crate::memory::{self, Ram};
use crate::processor::{self, Processors};
use crate::system::System;
use serde::Serialize;

/// What this machine has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Machine {
    /// The host's processors.
    pub processors: Processors,
    /// Main memory; nothing where the system does not say.
    pub ram: Option<Ram>,
    /// GPUs.
    pub gpus: Gpus,
}

impl Machine {
    /// Looks at this machine. It never fails: what is not found is left out, and where it matters a
    /// note says why.
    pub fn detect() -> Self {
        let system = System::here();
        Self {
            processors: processor::processors(&system, parallelism()),
            ram: memory::ram(&system),
            gpus: gpu::gpus(&system),
        }
    }
}

/// Threads that the standard library grants.
fn parallelism() -> u64 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine() {
        let machine = Machine::detect();
        assert!(machine.processors.threads.value >= 1);
        assert!(!machine.processors.name.value.is_empty());
        if cfg!(target_os = "linux") {
            let ram = machine.ram.as_ref().unwrap();
            assert!(ram.available.value <= ram.total.value);
            // Both look at the same files.
            assert_eq!(machine.processors.threads.value, parallelism());
        }
        let json = serde_json::to_value(&machine).unwrap();
        assert!(json["processors"]["threads"]["source"].is_string());
    }
}
