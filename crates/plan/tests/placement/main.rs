//! Where weights are placed, and what that is predicted to take.

#[path = "../common/mod.rs"]
mod common;
#[path = "../support/mod.rs"]
mod support;

mod accelerate;
mod auto;
mod estimate;
mod infer;
mod manual;
mod plan;
mod strategies;
mod strategies_properties;
