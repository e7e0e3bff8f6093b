//! Well-known architectures as Burn modules.
#![forbid(unsafe_code)]
