//! A checkpoint on disk as an index of tensors: open, check, write sharded.
#![forbid(unsafe_code)]
