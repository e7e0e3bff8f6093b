//! What modules hold at most, measured in processes of their own.

#[path = "../common/mod.rs"]
mod common;

mod peaks;
mod unmodified;
