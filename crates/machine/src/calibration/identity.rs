use crate::Machine;
use serde::{Deserialize, Serialize};

/// How much the memory may differ, as a share: kernels keep a little more or less of it for
/// themselves.
const MEMORY_VARIES: f64 = 0.05;

/// What tells one machine from another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The name of the processors.
    pub processor: String,
    /// Threads that may run at once.
    pub threads: u64,
    /// Main memory in bytes; 0 where the system does not say.
    pub memory_bytes: u64,
    /// The names of the GPUs in the order of their numbers.
    pub gpus: Vec<String>,
}

impl Identity {
    /// That of a machine.
    pub fn of(machine: &Machine) -> Self {
        Self {
            processor: machine.processors.name.value.clone(),
            threads: machine.processors.threads.value,
            memory_bytes: machine.ram.as_ref().map_or(0, |ram| ram.total.value),
            gpus: machine.gpus.found.iter().map(|gpu| gpu.name.clone()).collect(),
        }
    }

    /// In what `other` differs, if it is another machine.
    pub fn differs_from(&self, other: &Self) -> Option<String> {
        let (ours, theirs) = (self.memory_bytes as f64, other.memory_bytes as f64);
        if self.processor != other.processor {
            Some(format!("{} and not {}", self.processor, other.processor))
        } else if self.threads != other.threads {
            Some(format!("{} threads and not {}", self.threads, other.threads))
        } else if (ours - theirs).abs() > MEMORY_VARIES * ours.max(theirs) {
            let size = outsize_plan::format_size;
            Some(format!(
                "{} of memory and not {}",
                size(self.memory_bytes),
                size(other.memory_bytes)
            ))
        } else if self.gpus != other.gpus {
            let list = |names: &[String]| match names {
                [] => "no GPU".to_string(),
                names => names.join(", "),
            };
            Some(format!("{} and not {}", list(&self.gpus), list(&other.gpus)))
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_memory_more_or_less_is_the_same_machine() {
        let one = Identity {
            processor: "AMD EPYC".to_string(),
            threads: 2,
            memory_bytes: 24_000_000_000,
            gpus: Vec::new(),
        };
        let with = |change: fn(&mut Identity)| {
            let mut other = one.clone();
            change(&mut other);
            one.differs_from(&other)
        };
        assert_eq!(with(|_| ()), None);
        assert_eq!(with(|other| other.memory_bytes += 500_000_000), None);
        let different = with(|other| other.memory_bytes /= 2).unwrap();
        assert!(different.contains("24 GB of memory and not 12 GB"), "{different}");
        assert!(with(|other| other.threads = 4).unwrap().contains("2 threads and not 4"));
        assert!(with(|other| other.processor.clear()).is_some());
        let gpu = with(|other| other.gpus.push("H200".to_string())).unwrap();
        assert_eq!(gpu, "no GPU and not H200");
        let unknown = Identity { memory_bytes: 0, ..one.clone() };
        assert_eq!(unknown.differs_from(&unknown), None);
        assert!(one.differs_from(&unknown).is_some());
    }
}
