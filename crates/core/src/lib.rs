//! Run any Burn module bigger than memory, unmodified: plan where its weights live, load what
//! stays, stream the rest from the checkpoint just ahead of the layer that needs it.
//!
//! | step | what happens | call |
//! |---|---|---|
//! | 1 | an empty model: parameters have shapes and no storage | `Config::init(&device)` |
//! | 2 | open the checkpoint: headers only | [`Checkpoint::open`](outsize_checkpoint::Checkpoint::open) |
//! | 3 | decide where each block lives | [`plan`] |
//! | 4 | attach a streamed handle to each parameter | [`dispatch()`] |
//! | 5 | run it like any module | [`Dispatched::run`] |
//!
//! [`load_checkpoint_and_dispatch`] is steps 2 to 4 together. [`Turns`] lets several modules take
//! turns in memory.
//!
//! The hook is Burn's own: a [`Streamed`] handle is a
//! [`Reparameterization`](burn::module::Reparameterization), so that `Param::val()` fetches the
//! value. What the module holds instead is one NaN expanded to the parameter's shape, so that code
//! which goes round `val()` gives NaN and never a plausible wrong answer. Parameters that cannot
//! carry a handle (integers, booleans, the running state of a `BatchNorm`) are always resident; the
//! plan counts them.
#![forbid(unsafe_code)]

mod account;
mod activation_checkpoint;
mod convert;
mod device;
mod dispatch;
mod dispatched;
mod error;
mod gpu_share;
mod handle;
mod integers;
mod learning;
mod load;
mod loaded_scales;
mod location;
mod low_rank;
mod matching;
mod names;
mod neighbours;
mod observing;
mod options;
mod parameter;
mod pass;
mod placeholder;
mod planning;
mod registry;
mod rewrite;
mod running_state;
mod save;
mod slots;
mod stored_parameters;
mod stored_shape;
mod streamed;
mod tape;
mod tensor_table;
mod torch;
mod tree;
mod turns;
mod unwinding;
mod upload;

pub use account::{
    LEAST_RING, LONGEST_PASS, PROCESS_BYTES, gpu_overhead, longest_pass, many_parameters_bytes,
    memory_overhead, process_bytes, upload_bytes, with_longest_passes,
};
pub use activation_checkpoint::activation_checkpoint;
pub use device::{Devices, gpu};
pub use dispatch::{dispatch, load_checkpoint_and_dispatch};
pub use dispatched::{Dispatched, PassOrder};
pub use error::{Error, KeyMismatch};
pub use learning::{Learning, learning_device};
pub use load::load;
pub use location::Location;
pub use low_rank::LowRank;
pub use names::{Layout, Names};
pub use options::{FloatType, Options, Planning};
pub use outsize_plan::{Access, Routed};
pub use parameter::{Kind, Parameter, parameters};
pub use pass::PassKind;
pub use planning::decide;
pub use rewrite::{Change, Rewrite, RoundRows};
pub use save::save;
pub use stored_parameters::{StoredParameter, stored_parameters};
pub use streamed::Streamed;
pub use tape::{GradientSink, InputObserver};
pub use tensor_table::TensorTable;
pub use tree::{plan, planned_dtype, tree, tree_of};
pub use turns::{InTurn, Turns};
