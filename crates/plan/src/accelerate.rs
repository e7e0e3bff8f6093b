//! Placement as Accelerate's strategies do it.

mod assign;
mod balance;
mod fill;
mod largest;
pub(crate) mod modules;
mod worklist;

pub use assign::assign;
pub(crate) use assign::check_fit;
