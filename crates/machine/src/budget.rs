//! Default budgets.

use crate::{GpuMemory, Machine, Sourced};
use outsize_plan::{Budget, Tier};

/// Share of the free memory in a default budget: other programs grow too.
const DETECTED_SHARE: f64 = 0.9;

/// The default budget of each device, with its source: nine tenths of the free memory. `held` is
/// the memory that this process has already; it comes on top, as a budget counts the whole process.
/// GPUs that share the host's memory, or whose memory is unknown, have no budget of their own.
pub fn detected_budget(machine: &Machine, held: u64) -> Vec<(Tier, Sourced<u64>)> {
    let share = |bytes: u64| (bytes as f64 * DETECTED_SHARE) as u64;
    let mut shares = Vec::new();
    for gpu in &machine.gpus.found {
        if let GpuMemory::Own { total, free } = &gpu.memory {
            let known = free.as_ref().unwrap_or(total);
            shares.push((
                Tier::Gpu(gpu.number),
                Sourced::new(share(known.value), format!("nine tenths of {}", known.source)),
            ));
        }
    }
    if let Some(ram) = &machine.ram {
        let bytes = share(ram.available.value).saturating_add(held);
        let source = format!("nine tenths of {}", ram.available.source);
        shares.push((Tier::Cpu, Sourced::new(bytes, source)));
    }
    shares
}

/// The budget for planning: `given`, completed by `detected` for devices that it does not name. A
/// device with a budget of 0 keeps it, so that it is not used.
pub fn complete_budget(given: &Budget, detected: &[(Tier, Sourced<u64>)]) -> Budget {
    let mut budget = given.clone();
    for (tier, share) in detected {
        if budget.get(*tier).is_none() {
            budget.set(*tier, share.value);
        }
    }
    budget
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuInfo, Gpus, Processors, Ram};

    fn machine() -> Machine {
        let gpu =
            |number, memory| GpuInfo { number, name: String::new(), source: String::new(), memory };
        let known = |value| Sourced::new(value, "a file");
        Machine {
            processors: Processors {
                name: Sourced::new(String::new(), ""),
                cores: None,
                logical: None,
                threads: known(2),
                cache: None,
                large_pages: None,
            },
            ram: Some(Ram {
                total: known(2000),
                available: known(1000),
                system_available: known(1000),
                cgroup: None,
            }),
            gpus: Gpus {
                found: vec![
                    gpu(0, GpuMemory::Own { total: known(500), free: Some(known(400)) }),
                    gpu(1, GpuMemory::Unified { source: String::new() }),
                    gpu(2, GpuMemory::Own { total: known(300), free: None }),
                    gpu(3, GpuMemory::Unknown { reason: String::new() }),
                ],
                notes: Vec::new(),
            },
        }
    }

    #[test]
    fn nine_tenths_of_each_device_and_nothing_twice() {
        let shares = detected_budget(&machine(), 50);
        let bytes: Vec<_> = shares.iter().map(|(tier, share)| (*tier, share.value)).collect();
        assert_eq!(bytes, [(Tier::Gpu(0), 360), (Tier::Gpu(2), 270), (Tier::Cpu, 950)]);
        assert_eq!(shares[0].1.source, "nine tenths of a file");
        let nothing =
            Machine { ram: None, gpus: Gpus { found: Vec::new(), notes: Vec::new() }, ..machine() };
        assert!(detected_budget(&nothing, 50).is_empty());
    }

    #[test]
    fn what_is_named_counts_and_nought_means_none() {
        let shares = detected_budget(&machine(), 0);
        let given = Budget::parse("gpu0=0,cpu=7,disk=9,gpu5=3").unwrap();
        let budget = complete_budget(&given, &shares);
        assert_eq!(budget, Budget::parse("gpu0=0,gpu2=270,gpu5=3,cpu=7,disk=9").unwrap());
        let all = complete_budget(&Budget::default(), &shares);
        assert_eq!(all, Budget::parse("gpu0=360,gpu2=270,cpu=900").unwrap());
    }
}
