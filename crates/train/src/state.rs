//! Saving a run and going on with it.
//!
//! [`TrainingState`] names what belongs to a run: models, optimizers, schedulers and loaders.
//! [`Accelerator::save_state`](crate::Accelerator::save_state) writes it to a folder that appears
//! complete or not at all; [`Accelerator::load_state`](crate::Accelerator::load_state) checks and
//! reads all of it before it changes anything, and
//! [`Accelerator::resume`](crate::Accelerator::resume) does so with the newest state of the run.
//!
//! | file of a state | holds |
//! |---|---|
//! | `state.json` | what there is, with a checksum of every file and of itself |
//! | `model/model.safetensors` | the weights, under the module's own names |
//! | `optimizer.bpk`, `scheduler.bpk` | Burn's records, in its burnpack format |
//! | `scaler.msgpack`, `object_0.msgpack` | the scale of the loss, registered objects |
//! | `rank_0.json`, `rank_0.bpk` | where the rank's loaders are; its gradients between two steps |
//!
//! A second model is `model_1`, and so on.

mod fault;
mod folder;
mod manifest;
mod model;
mod object;
mod optimizer;
mod parts;
mod rank;
mod scheduler;

pub use fault::StateFault;
pub use parts::{LoadedState, TrainingState};

pub(crate) use folder::{keep, next, remove_unnamed, states};
pub(crate) use manifest::Manifest;
pub(crate) use object::Objects;
pub(crate) use parts::Run;
pub(crate) use rank::RankState;

use std::path::Path;

/// Runs the examples of the document.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/training_state.md")]
struct Document;

/// The name of part `index` of a kind: `model`, `model_1`, ….
fn part(kind: &str, index: usize) -> String {
    match index {
        0 => kind.to_owned(),
        _ => format!("{kind}_{index}"),
    }
}

/// The name of a file, for messages.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
