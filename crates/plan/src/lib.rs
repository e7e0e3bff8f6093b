//! Sizes, budgets and machine figures in; device map out; pure data, no I/O.
#![forbid(unsafe_code)]
