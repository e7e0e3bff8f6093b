//! The `outsize` command.
#![forbid(unsafe_code)]
fn main() {}
