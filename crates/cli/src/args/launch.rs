//! `outsize launch` and `outsize config`.

use clap::{Args, Subcommand};
use outsize::launch::{CargoTarget, Key};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// `outsize launch`.
#[derive(Args, Debug)]
#[command(
    after_help = "A flag comes before a variable of the environment (OUTSIZE_NUM_PROCESSES for \
    --num-processes), which comes before the file of `outsize config`, which comes before what the machine has. \
    `outsize env` shows what holds, and why."
)]
pub struct LaunchArgs {
    /// The program and its arguments; with --cargo all are arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM ARGS")]
    pub words: Vec<OsString>,
    /// Build the program with Cargo, in release mode
    #[arg(long)]
    pub cargo: bool,
    /// With --cargo: the package
    #[arg(long, short, requires = "cargo", value_name = "PKG")]
    pub package: Option<String>,
    /// With --cargo: an example
    #[arg(long, requires = "cargo", value_name = "NAME", conflicts_with = "bin")]
    pub example: Option<String>,
    /// With --cargo: a program
    #[arg(long, requires = "cargo", value_name = "NAME")]
    pub bin: Option<String>,
    /// With --cargo: features, with commas between
    #[arg(long, requires = "cargo", value_name = "FEATURES")]
    pub features: Option<String>,
    /// What holds for the program
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Print what would be started, and start nothing
    #[arg(long)]
    pub dry_run: bool,
}

impl LaunchArgs {
    /// What Cargo builds, if it does.
    pub fn target(&self) -> Option<CargoTarget> {
        let Self { package, example, bin, features, .. } = self;
        self.cargo.then(|| CargoTarget {
            package: package.clone(),
            example: example.clone(),
            bin: bin.clone(),
            features: features.clone(),
        })
    }
}

/// `outsize test`.
#[derive(Args, Debug)]
pub struct TestArgs {
    /// What the ranks are
    #[command(flatten)]
    pub settings: SettingArgs,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Be the ranks of this process, and write a state to this folder
    #[arg(long, hide = true, value_name = "FOLDER")]
    pub ranks: Option<PathBuf>,
}

/// Settings by flags; the library checks their values.
#[derive(Args, Debug)]
pub struct SettingArgs {
    /// The configuration file [default: $OUTSIZE_CONFIG, or config.yaml in the user's folder]
    #[arg(long, value_name = "FILE")]
    pub config_file: Option<PathBuf>,
    /// Ranks, of all machines together
    #[arg(long, value_name = "N")]
    num_processes: Option<String>,
    /// File of machines, a line each: NAME slots=RANKS
    #[arg(long, value_name = "FILE")]
    hostfile: Option<String>,
    /// What ranks are: threads, mpi, or auto, by what the program is linked with
    #[arg(long, value_name = "KIND")]
    engine: Option<String>,
    /// Threads that each rank computes with
    #[arg(long, value_name = "N")]
    threads_per_process: Option<String>,
    /// Dtype that modules compute in: no, bf16 or fp16
    #[arg(long, value_name = "TYPE")]
    mixed_precision: Option<String>,
    /// Batches of gradients that are added up before a step
    #[arg(long, value_name = "N")]
    gradient_accumulation_steps: Option<String>,
    /// Leave GPUs alone
    #[arg(long)]
    cpu: bool,
    /// Numbers of the GPUs that may be used, with commas between
    #[arg(long, value_name = "IDS")]
    gpu_ids: Option<String>,
    /// How often a job that failed is started again
    #[arg(long, value_name = "N")]
    max_restarts: Option<String>,
    /// Folder that the state is saved to, and that a restart goes on from
    #[arg(long, value_name = "FOLDER")]
    state_dir: Option<String>,
    /// Folder for the output of each rank
    #[arg(long, value_name = "FOLDER")]
    log_dir: Option<String>,
    /// Compare shapes and dtypes over ranks at every collective
    #[arg(long)]
    debug: bool,
    #[arg(long, hide = true, value_name = "N")]
    num_machines: Option<String>,
    #[arg(long, hide = true, value_name = "N")]
    machine_rank: Option<String>,
    #[arg(long, hide = true, value_name = "ADDRESS")]
    main_process_ip: Option<String>,
    #[arg(long, hide = true, value_name = "PORT")]
    main_process_port: Option<String>,
}

impl SettingArgs {
    /// The settings that were given.
    pub fn given(&self) -> BTreeMap<Key, String> {
        let on = |switch: bool| switch.then(|| "true".to_string());
        let given = |key| match key {
            Key::NumProcesses => self.num_processes.clone(),
            Key::Hostfile => self.hostfile.clone(),
            Key::Engine => self.engine.clone(),
            Key::ThreadsPerProcess => self.threads_per_process.clone(),
            Key::MixedPrecision => self.mixed_precision.clone(),
            Key::GradientAccumulationSteps => self.gradient_accumulation_steps.clone(),
            Key::Cpu => on(self.cpu),
            Key::GpuIds => self.gpu_ids.clone(),
            Key::MaxRestarts => self.max_restarts.clone(),
            Key::StateDir => self.state_dir.clone(),
            Key::LogDir => self.log_dir.clone(),
            Key::Debug => on(self.debug),
        };
        Key::ALL.into_iter().filter_map(|key| Some((key, given(key)?))).collect()
    }

    /// A flag of Accelerate's by which each machine is started by hand: MPI starts them.
    pub fn started_by_hand(&self) -> Option<&'static str> {
        let flags = [
            ("--num-machines", &self.num_machines),
            ("--machine-rank", &self.machine_rank),
            ("--main-process-ip", &self.main_process_ip),
            ("--main-process-port", &self.main_process_port),
        ];
        flags.into_iter().find(|(_, value)| value.is_some()).map(|(flag, _)| flag)
    }
}

/// `outsize config`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ConfigArgs {
    /// What to do; without it, questions are asked
    #[command(subcommand)]
    pub action: Option<ConfigAction>,
    /// The file [default: $OUTSIZE_CONFIG, or config.yaml in the user's folder]
    #[arg(long, value_name = "FILE", global = true)]
    pub config_file: Option<PathBuf>,
}

/// What is done with the file.
#[derive(Subcommand, Debug)]
pub enum ConfigAction {
    /// Write a file with what the machine has, without questions
    Default {
        /// Replace a file that is there
        #[arg(long)]
        force: bool,
    },
    /// Change settings of the file, and write it anew with its comments
    Update {
        /// Settings, as num_processes=2; an empty value unsets one
        #[arg(value_name = "NAME=VALUE")]
        settings: Vec<String>,
    },
    /// Show what holds, and where it is from
    Show {
        /// Print one JSON object instead of text
        #[arg(long)]
        json: bool,
    },
}
