//! Training loops: their steps, ranks, data and states.

#[path = "../common/mod.rs"]
mod common;
#[path = "../state_common/mod.rs"]
mod state_common;

mod loader;
mod offload;
mod parity;
mod precision;
mod ranks;
mod state_damage;
mod steps;
mod tracking;
