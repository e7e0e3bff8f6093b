//! This crate's operations as steps of Burn's autodiff graph around Flex.
//!
//! A step keeps the tensors that its backward pass needs, also where gradient checkpointing is on:
//! they are inputs of matmuls, or a few rows' worth of work.

mod layer;
mod linear;
