//! What this machine has: memory, cgroups, disk speed.
#![forbid(unsafe_code)]
