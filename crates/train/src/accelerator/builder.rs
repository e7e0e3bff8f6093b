//! Settings of an [`Accelerator`], and how its ranks are found.

use std::fmt::Display;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use burn::tensor::Device;
use outsize_kernels::BufferReuse;

use super::{Accelerator, Inner, MixedPrecision};
use crate::communicator::{ThreadRanks, from_environment};
use crate::loss_scaler::LossScaler;
use crate::{Communicator, Error};

/// How many threads of this process are ranks.
const RANKS_IN_PROCESS: &str = "OUTSIZE_NUM_PROCESSES";

/// What an [`Accelerator`] is set to.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    /// By local rank, in turn.
    pub devices: Vec<Device>,
    pub timeout: Duration,
    pub gradient_accumulation_steps: usize,
    pub mixed_precision: MixedPrecision,
    pub loss_scaler: LossScaler,
    pub split_batches: bool,
    pub even_batches: bool,
    pub step_scheduler_with_optimizer: bool,
    pub bucket_bytes: usize,
    pub seed: Option<u64>,
    pub debug: bool,
    pub state_dir: Option<PathBuf>,
    pub total_limit: Option<usize>,
}

/// Builds an [`Accelerator`].
#[derive(Debug, Clone)]
#[must_use]
pub struct AcceleratorBuilder {
    settings: Settings,
    /// A variable of the environment that says something else than it may.
    fault: Option<String>,
}

impl Accelerator {
    /// Starts with the defaults: one micro-batch a step, float32, Burn's default device.
    ///
    /// `OUTSIZE_GRADIENT_ACCUMULATION_STEPS`, `OUTSIZE_MIXED_PRECISION` and `OUTSIZE_DEBUG` are
    /// taken from the environment, where `outsize launch` puts them; calls of the builder go
    /// before.
    pub fn builder() -> AcceleratorBuilder {
        let mut builder = AcceleratorBuilder {
            settings: Settings {
                devices: vec![Device::default().autodiff()],
                timeout: Duration::from_secs(1800),
                gradient_accumulation_steps: 1,
                mixed_precision: MixedPrecision::No,
                loss_scaler: LossScaler::default(),
                split_batches: false,
                even_batches: true,
                step_scheduler_with_optimizer: true,
                bucket_bytes: 25 << 20,
                seed: None,
                debug: cfg!(debug_assertions),
                state_dir: std::env::var_os("OUTSIZE_STATE_DIR").map(PathBuf::from),
                total_limit: None,
            },
            fault: None,
        };
        let settings = &mut builder.settings;
        let fault = set_from("OUTSIZE_GRADIENT_ACCUMULATION_STEPS", |steps: NonZeroUsize| {
            settings.gradient_accumulation_steps = steps.get();
        });
        let fault = fault.and(set_from("OUTSIZE_DEBUG", |debug| settings.debug = debug));
        let fault = fault.and(set_from("OUTSIZE_MIXED_PRECISION", |precision| {
            settings.mixed_precision = precision;
        }));
        builder.fault = fault.err();
        builder
    }
}

/// Passes a variable of the environment on, if it is set.
fn set_from<T: FromStr<Err: Display>>(variable: &str, set: impl FnOnce(T)) -> Result<(), String> {
    match std::env::var(variable) {
        Err(_) => Ok(()),
        Ok(value) => match value.parse() {
            Ok(value) => {
                set(value);
                Ok(())
            }
            Err(fault) => Err(format!("{variable}={value} in the environment: {fault}")),
        },
    }
}

impl AcceleratorBuilder {
    /// The device to train on. Autodiff is added.
    pub fn device(self, device: Device) -> Self {
        self.devices([device])
    }

    /// The devices of a machine, which its ranks take in turn. Autodiff is added.
    ///
    /// # Panics
    ///
    /// There is no device.
    pub fn devices(mut self, devices: impl IntoIterator<Item = Device>) -> Self {
        self.settings.devices = devices.into_iter().map(Device::autodiff).collect();
        assert!(!self.settings.devices.is_empty(), "give a rank at least one device");
        self
    }

    /// How long a rank waits for the others in a collective (default: 30 minutes).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Micro-batches of one optimizer step.
    pub fn gradient_accumulation_steps(mut self, steps: usize) -> Self {
        self.settings.gradient_accumulation_steps = steps.max(1);
        self
    }

    /// What `autocast` computes in; weights stay float32.
    pub fn mixed_precision(mut self, precision: MixedPrecision) -> Self {
        self.settings.mixed_precision = precision;
        self
    }

    /// How the loss is scaled in fp16 training.
    pub fn loss_scaler(mut self, scaler: LossScaler) -> Self {
        self.settings.loss_scaler = scaler;
        self
    }

    /// Whether a loader's batch size is that of all ranks together, rather than of each.
    pub fn split_batches(mut self, split: bool) -> Self {
        self.settings.split_batches = split;
        self
    }

    /// Whether all ranks get the same number of batches (default: yes).
    pub fn even_batches(mut self, even: bool) -> Self {
        self.settings.even_batches = even;
        self
    }

    /// Whether schedulers move with the optimizer (default), or with every call.
    pub fn step_scheduler_with_optimizer(mut self, with_optimizer: bool) -> Self {
        self.settings.step_scheduler_with_optimizer = with_optimizer;
        self
    }

    /// Bytes of gradients that are sent at a time (default: 25 MiB).
    pub fn bucket_bytes(mut self, bytes: usize) -> Self {
        self.settings.bucket_bytes = bytes;
        self
    }

    /// Seeds random operations at every batch from this seed, the rank and the batch.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// Whether ranks compare shapes and dtypes before each collective (default: in debug builds).
    pub fn debug(mut self, debug: bool) -> Self {
        self.settings.debug = debug;
        self
    }

    /// Where states are saved and looked for (default: the variable `OUTSIZE_STATE_DIR`, which a
    /// launcher sets).
    pub fn state_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.settings.state_dir = Some(folder.into());
        self
    }

    /// How many states are kept: the newest ones (default: all).
    pub fn total_limit(mut self, states: usize) -> Self {
        self.settings.total_limit = Some(states);
        self
    }

    /// Joins the ranks that the program was started with: those of MPI, or one.
    ///
    /// # Errors
    ///
    /// The environment announces more ranks than can be reached, or has an invalid setting.
    pub fn build(self) -> Result<Accelerator, Error> {
        match self.ranks_in_process()? {
            1 => {
                let communicator = from_environment(self.settings.timeout)?;
                Ok(self.build_with(communicator))
            }
            ranks => Err(Error::Setting(format!(
                "{RANKS_IN_PROCESS}={ranks} asks for ranks that are threads of this process, which begin with \
                 `Accelerator::builder().run(train)` in place of `build()`"
            ))),
        }
    }

    /// Runs `train` on all ranks of this process: one of MPI, as many threads as `outsize launch`
    /// asks for, or one.
    ///
    /// If it fails, the job of all ranks ends at once. With [`build`](Self::build), ranks in
    /// other processes learn of an error, unless it is a panic, only when they have waited for
    /// [`timeout`](Self::timeout).
    ///
    /// # Errors
    ///
    /// The ranks cannot be joined; `train` failed on the rank whose error this is.
    pub fn run<E: From<Error> + Display + Send>(
        self,
        train: impl Fn(Accelerator) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let run = |accelerator: Accelerator| {
            let result = train(accelerator.clone());
            if let Err(fault) = &result {
                accelerator.communicator().abort(&fault.to_string());
            }
            result
        };
        match self.ranks_in_process()? {
            1 => run(self.build()?),
            ranks => self.threads(ranks, run)?.into_iter().collect(),
        }
    }

    fn ranks_in_process(&self) -> Result<usize, Error> {
        let mut ranks = 1;
        let set = |asked: NonZeroUsize| ranks = asked.get();
        let fault = self.fault.clone().map_or_else(|| set_from(RANKS_IN_PROCESS, set), Err);
        fault.map(|()| ranks).map_err(Error::Setting)
    }

    /// Uses an engine of the caller's.
    #[must_use]
    pub fn build_with(self, communicator: Arc<dyn Communicator>) -> Accelerator {
        let settings = self.settings;
        let is_fp16 = settings.mixed_precision == MixedPrecision::Fp16;
        let inner = Inner {
            communicator,
            step: Default::default(),
            accumulated: Mutex::default(),
            scaler: Mutex::new(is_fp16.then(|| settings.loss_scaler.clone())),
            profile: Mutex::default(),
            trigger: Default::default(),
            objects: Default::default(),
            trackers: Default::default(),
            castable: Mutex::default(),
            _reuse: BufferReuse::begin(),
            settings,
        };
        Accelerator { inner: Arc::new(inner) }
    }

    /// Runs `train` on `ranks` threads of this process, each with an accelerator of these
    /// settings, and gives what they return, in the order of ranks.
    ///
    /// # Errors
    ///
    /// A rank panicked: the others get an error from the collective they wait in.
    pub fn threads<T: Send>(
        self,
        ranks: usize,
        train: impl Fn(Accelerator) -> T + Sync,
    ) -> Result<Vec<T>, Error> {
        if ranks == 0 {
            return Err(Error::Setting("a run needs at least one rank".to_owned()));
        }
        let run = |communicator: ThreadRanks| {
            let (rank, end) = (communicator.rank(), communicator.end());
            let accelerator = self.clone().build_with(Arc::new(communicator));
            catch_unwind(AssertUnwindSafe(|| train(accelerator))).map_err(|payload| {
                let reason = format!("it panicked: {}", crate::panic::message(&*payload));
                end.failed(reason.clone());
                Error::RankFailed { rank, reason }
            })
        };
        let run = &run;
        std::thread::scope(|scope| {
            let ranks = ThreadRanks::connect(ranks, self.settings.timeout);
            let ranks = ranks.into_iter().map(|rank| scope.spawn(move || run(rank)));
            let ranks: Vec<_> = ranks.collect();
            let results = ranks.into_iter().map(|rank| rank.join().expect("panics are caught"));
            results.collect()
        })
    }
}

/// Runs `train` on `ranks` threads of this process with default settings, as
/// [`AcceleratorBuilder::threads`].
///
/// # Errors
///
/// A rank panicked.
pub fn threads<T: Send>(
    ranks: usize,
    train: impl Fn(Accelerator) -> T + Sync,
) -> Result<Vec<T>, Error> {
    Accelerator::builder().threads(ranks, train)
}
