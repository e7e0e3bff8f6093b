//! Run models bigger than the memory at hand, on Burn.
#![forbid(unsafe_code)]
