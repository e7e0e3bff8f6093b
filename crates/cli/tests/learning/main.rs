//! Adapters and weights that learn, and weights that become integers.

#[path = "../common/mod.rs"]
mod common;

mod finetune;
mod finetune_full;
mod quantize;
