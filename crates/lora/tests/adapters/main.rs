//! Adapters: read, matched to modules, written, and beside PEFT.

#[path = "../common/mod.rs"]
mod common;
mod config;
mod files;
mod reference;
