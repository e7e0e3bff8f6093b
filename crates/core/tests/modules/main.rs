//! Modules that are dispatched, run and refused.

#[path = "../common/mod.rs"]
mod common;

mod blocks;
mod faults;
mod integers;
mod interleaved;
mod low_rank;
mod misuse;
mod onnx;
mod packed;
mod running_state;
mod stop;
mod torch;
mod turns;
mod unwinding;
