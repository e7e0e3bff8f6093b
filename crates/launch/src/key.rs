//! What can be set.

use std::fmt::{self, Display, Formatter};

/// A setting. Its name in the file is [`Key::name`], its variable `OUTSIZE_` and the name in
/// capitals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// Ranks, of all machines together.
    NumProcesses,
    /// Machines and their slots.
    Hostfile,
    /// What ranks are: threads of a process, or processes.
    Engine,
    /// Threads of computing of each rank.
    ThreadsPerProcess,
    /// Dtype of computing.
    MixedPrecision,
    /// Batches whose gradients are added up before a step.
    GradientAccumulationSteps,
    /// Whether GPUs are left alone.
    Cpu,
    /// GPUs that may be used.
    GpuIds,
    /// How often a failed job is started again.
    MaxRestarts,
    /// Where the state is saved that a restart goes on from.
    StateDir,
    /// Where the output of each rank is written.
    LogDir,
    /// Whether collectives compare shapes and dtypes over ranks.
    Debug,
}

/// What a value may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// A whole number, at least this.
    Count(usize),
    /// One of some words.
    OneOf(&'static [&'static str]),
    /// `true` or `false`.
    Switch,
    /// A path.
    Path,
    /// Numbers with commas between.
    Numbers,
}

impl Key {
    /// All of them, in the order of the file.
    pub const ALL: [Self; 12] = [
        Self::NumProcesses,
        Self::Hostfile,
        Self::Engine,
        Self::ThreadsPerProcess,
        Self::MixedPrecision,
        Self::GradientAccumulationSteps,
        Self::Cpu,
        Self::GpuIds,
        Self::MaxRestarts,
        Self::StateDir,
        Self::LogDir,
        Self::Debug,
    ];

    /// The name in a configuration file, as `num_processes`.
    pub fn name(self) -> &'static str {
        match self {
            Self::NumProcesses => "num_processes",
            Self::Hostfile => "hostfile",
            Self::Engine => "engine",
            Self::ThreadsPerProcess => "threads_per_process",
            Self::MixedPrecision => "mixed_precision",
            Self::GradientAccumulationSteps => "gradient_accumulation_steps",
            Self::Cpu => "cpu",
            Self::GpuIds => "gpu_ids",
            Self::MaxRestarts => "max_restarts",
            Self::StateDir => "state_dir",
            Self::LogDir => "log_dir",
            Self::Debug => "debug",
        }
    }

    /// The variable of the environment, as `OUTSIZE_NUM_PROCESSES`.
    pub fn variable(self) -> String {
        format!("OUTSIZE_{}", self.name().to_uppercase())
    }

    /// The flag, as `--num-processes`.
    pub fn flag(self) -> String {
        format!("--{}", self.name().replace('_', "-"))
    }

    /// What it is, in a line.
    pub fn describe(self) -> &'static str {
        match self {
            Self::NumProcesses => "Ranks that train together, of all machines",
            Self::Hostfile => "File of machines, a line each: NAME slots=RANKS",
            Self::Engine => {
                "What ranks are: threads of one process, processes of mpirun, or by what the program is linked with"
            }
            Self::ThreadsPerProcess => "Threads that each rank computes with",
            Self::MixedPrecision => "Dtype that modules compute in; weights stay in f32",
            Self::GradientAccumulationSteps => {
                "Batches of gradients that are added up before a step"
            }
            Self::Cpu => "Leave GPUs alone",
            Self::GpuIds => "Numbers of the GPUs that may be used, with commas between",
            Self::MaxRestarts => "How often a job that failed is started again",
            Self::StateDir => "Folder that the state is saved to, and that a restart goes on from",
            Self::LogDir => "Folder for the output of each rank",
            Self::Debug => "Compare shapes and dtypes over ranks at every collective",
        }
    }

    /// What a value may be.
    pub fn kind(self) -> SettingKind {
        match self {
            Self::NumProcesses | Self::ThreadsPerProcess | Self::GradientAccumulationSteps => {
                SettingKind::Count(1)
            }
            Self::MaxRestarts => SettingKind::Count(0),
            Self::Engine => SettingKind::OneOf(&["auto", "threads", "mpi"]),
            Self::MixedPrecision => SettingKind::OneOf(&["no", "bf16", "fp16"]),
            Self::Cpu | Self::Debug => SettingKind::Switch,
            Self::GpuIds => SettingKind::Numbers,
            Self::Hostfile | Self::StateDir | Self::LogDir => SettingKind::Path,
        }
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl SettingKind {
    /// The value as it is kept, or what is wrong with it.
    ///
    /// # Errors
    /// What a value has to be.
    pub fn check(self, value: &str) -> Result<String, String> {
        let value = value.trim();
        match self {
            Self::Count(least) => match value.parse::<usize>() {
                Ok(count) if count >= least => Ok(count.to_string()),
                _ => Err(format!("it has to be a whole number, at least {least}")),
            },
            // Accelerate's file has `false` there, as YAML reads `no`.
            Self::OneOf(words) => {
                let word = if value == "false" { "no" } else { value };
                match words.contains(&word) {
                    true => Ok(word.to_string()),
                    false if word == "fp8" => Err("there is no fp8 to train in".to_string()),
                    false => Err(format!("it has to be one of {}", words.join(", "))),
                }
            }
            Self::Switch => match value.to_lowercase().as_str() {
                "true" | "yes" | "1" => Ok("true".to_string()),
                "false" | "no" | "0" => Ok("false".to_string()),
                _ => Err("it has to be true or false".to_string()),
            },
            Self::Path if value.is_empty() => Err("it has to be a path".to_string()),
            Self::Path => Ok(value.to_string()),
            Self::Numbers => {
                let numbers: Result<Vec<usize>, _> =
                    value.split(',').map(|id| id.trim().parse()).collect();
                let numbers = numbers.map_err(|_| "it has to be numbers, as 0,1".to_string())?;
                Ok(numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
            }
        }
    }
}
