//! Settings of an [`Accelerator`], and how its ranks are found.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;

use super::{Accelerator, Inner};
use crate::communicator::{SingleRank, ThreadRanks};
use crate::{Communicator, Error};

/// Variables by which launchers announce the number of ranks, those of MPI first.
const WORLD_SIZES: [(&str, bool); 5] = [
    ("OMPI_COMM_WORLD_SIZE", true),
    ("PMI_SIZE", true),
    ("MV2_COMM_WORLD_SIZE", true),
    ("SLURM_STEP_NUM_TASKS", true),
    ("WORLD_SIZE", false),
];

/// What an [`Accelerator`] is set to.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub device: Device,
    pub timeout: Duration,
}

/// Builds an [`Accelerator`].
#[derive(Debug, Clone)]
#[must_use]
pub struct AcceleratorBuilder {
    settings: Settings,
}

impl Accelerator {
    /// Starts with the defaults: one micro-batch a step, float32, the default device.
    pub fn builder() -> AcceleratorBuilder {
        AcceleratorBuilder {
            settings: Settings {
                device: Device::default().autodiff(),
                timeout: Duration::from_secs(1800),
            },
        }
    }
}

impl AcceleratorBuilder {
    /// The device to train on (default: Burn's default device). Autodiff is added.
    pub fn device(mut self, device: Device) -> Self {
        self.settings.device = device.autodiff();
        self
    }

    /// How long a rank waits for the others in a collective (default: 30 minutes).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Joins the ranks that the program was started with: those of MPI, or one.
    ///
    /// # Errors
    ///
    /// The environment announces more ranks than can be reached.
    pub fn build(self) -> Result<Accelerator, Error> {
        let announced = WORLD_SIZES.iter().find_map(|&(variable, is_mpi)| {
            let size = std::env::var(variable).ok()?.parse().ok()?;
            (size > 1).then_some((variable, size, is_mpi))
        });
        match announced {
            None => Ok(self.build_with(Arc::new(SingleRank))),
            Some((variable, size, true)) => Err(Error::NeedsMpi { variable, size }),
            Some((variable, size, false)) => Err(Error::NoMpiWorld { variable, size }),
        }
    }

    /// Uses an engine of the caller's.
    #[must_use]
    pub fn build_with(self, communicator: Arc<dyn Communicator>) -> Accelerator {
        Accelerator { inner: Arc::new(Inner { communicator, settings: self.settings }) }
    }

    /// Runs `train` on `ranks` threads of this process, each with an accelerator of these
    /// settings, and gives what they return, in the order of ranks.
    ///
    /// # Errors
    ///
    /// A rank panicked: the others get an error from their next collective.
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
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
                let reason = format!("it panicked: {}", text.unwrap_or("without a message"));
                end.panicked(reason.clone());
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
