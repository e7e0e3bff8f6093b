//! Burn's own modules, unmodified, wherever their weights live: one module of tests per kind, and
//! one property over all of them.

#[path = "../common/mod.rs"]
mod common;
mod convolution;
mod learning;
mod norm;
mod placement;
mod recurrent;
mod specimen;
mod structure;
mod transformer;
