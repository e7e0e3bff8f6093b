//! Run any Burn module bigger than memory: plan, load, stream.
#![forbid(unsafe_code)]
