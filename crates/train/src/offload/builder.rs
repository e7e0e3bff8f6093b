//! How a module is opened whose weights learn on the disk.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use burn::module::Module;
use burn::tensor::Device;
use outsize_checkpoint::Checkpoint;
use outsize_core::{Kind, Options, Parameter, parameters, plan, stored_parameters};

use super::adamw::OffloadedAdamW;
use super::layout::{LearningRole, OffloadLayout};
use super::states::OffloadedStates;
use super::step::OFFLOADED_STEP_BYTES;
use super::training::OffloadedTraining;
use crate::Error;

/// How often a parameter is in memory while its gradient is made, in f32: as it is used, its
/// gradient, and what is turned over of either.
const COPIES: u64 = 3;

/// A module that is to be opened for its weights to learn: see [`offloaded`].
#[must_use = "a builder does nothing until it opens"]
pub struct OffloadedBuilder {
    checkpoint: PathBuf,
    states: PathBuf,
    options: Options,
    adamw: OffloadedAdamW,
    learns: Box<dyn Fn(&str) -> bool>,
}

/// Lets all weights of a Burn module learn by AdamW, from the checkpoint at this path, within a
/// memory budget. Weights, AdamW's moments and gradients are in the folder `states`, and stay there
/// until they are [removed](OffloadedTraining::remove_states): the same training goes on from
/// there.
pub fn offloaded(checkpoint: impl Into<PathBuf>, states: impl Into<PathBuf>) -> OffloadedBuilder {
    OffloadedBuilder {
        checkpoint: checkpoint.into(),
        states: states.into(),
        options: Options::default(),
        adamw: OffloadedAdamW::default(),
        learns: Box::new(|_| true),
    }
}

impl OffloadedBuilder {
    /// Sets the budget, what parameters are called in the checkpoint, and all else of how a module
    /// is dispatched. What [`Options::needs`] says of activations is for those of a pass forward
    /// and backward; copies of a parameter and its gradient are counted besides.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Sets how the weights learn.
    pub fn adamw(mut self, adamw: OffloadedAdamW) -> Self {
        self.adamw = adamw;
        self
    }

    /// Says which parameters learn, by their paths in the module; all of them unless said. The
    /// others take no place for moments, and running statistics among them stay as they are.
    pub fn learns(mut self, learns: impl Fn(&str) -> bool + 'static) -> Self {
        self.learns = Box::new(learns);
        self
    }

    /// Opens the module that `init` makes on a device, within the budget, and goes on with the
    /// training in the folder of states. If there is none, it writes down what one begins with.
    /// `init` is called again after each step, and makes the same module, whose values do not
    /// matter.
    ///
    /// # Errors
    /// A checkpoint that does not fit the module, or has something else than floats of what learns;
    /// how many bytes of budget would do; how many bytes of disk are needed, and how many are free;
    /// states that are broken, or of another training; a setting out of range.
    pub fn open<M: Module>(
        self,
        init: impl Fn(&Device) -> M + 'static,
    ) -> Result<OffloadedTraining<M>, Error> {
        let Self { checkpoint, states, mut options, adamw, learns } = self;
        adamw.check()?;
        let folder = checkpoint.display().to_string();
        let checkpoint = Checkpoint::open(checkpoint).map_err(outsize_core::Error::from)?;
        let module = init(&Device::flex());
        let parameters = parameters(&module);
        let floats: Vec<_> = parameters.iter().filter(|it| it.kind == Kind::Float).collect();
        let needs = &mut options.needs;
        needs.activations =
            needs.activations.saturating_add(copies_bytes(&floats)).max(OFFLOADED_STEP_BYTES);
        let map = plan(&module, &checkpoint, &options)?;
        let floats = floats.iter().filter(|it| learns(&it.path)).map(|it| {
            // Burn changes what it does not let through the hook.
            let role = if it.streams { LearningRole::Learns } else { LearningRole::Statistic };
            (it.path.as_str(), role)
        });
        let roles: HashMap<&str, LearningRole> = floats.collect();
        let stored = stored_parameters(&parameters, &(&checkpoint).into(), &options)?;
        let stored = stored.into_iter().map(|it| {
            let role = roles.get(it.path.as_str()).copied().unwrap_or(LearningRole::Fixed);
            (it, role)
        });
        let stored: Vec<_> = stored.collect();
        let statistics = stored.iter().filter(|(_, role)| *role == LearningRole::Statistic);
        let statistics = statistics.map(|(it, _)| (it.path.clone(), it.weight.data().name.clone()));
        let statistics = statistics.collect();
        let layout = OffloadLayout::new(&checkpoint, stored)?;
        let output = checkpoint.total_bytes();
        let stop = options.stop.clone();
        let go_on = || !stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        let mut states = OffloadedStates::open(&states, &checkpoint, layout, output, go_on)?;
        states.begin(format!("{adamw:?}, a module of {folder:?}"))?;
        options.ignore.extend(OffloadedStates::NOT_WEIGHTS.map(str::to_owned));
        let mut training = OffloadedTraining {
            init: Box::new(init),
            options,
            adamw,
            checkpoint,
            states,
            statistics,
            map,
            dispatched: None,
            sums: None,
            bytes_read: 0,
        };
        // With what another process left of a step.
        training.update()?;
        Ok(training)
    }
}

/// What the largest parameter takes while its gradient is made, in bytes.
fn copies_bytes(floats: &[&Parameter]) -> u64 {
    let values = |it: &&Parameter| it.shape.iter().product::<usize>() as u64;
    floats.iter().map(values).max().unwrap_or(0).saturating_mul(4 * COPIES)
}

impl fmt::Debug for OffloadedBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { checkpoint, states, options, adamw, learns: _ } = self;
        f.debug_struct("OffloadedBuilder")
            .field("checkpoint", checkpoint)
            .field("states", states)
            .field("options", options)
            .field("adamw", adamw)
            .finish_non_exhaustive()
    }
}
