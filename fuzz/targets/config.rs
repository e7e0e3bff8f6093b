#![no_main]

#[path = "../checks/config.rs"]
mod config;

use outsize_models as models;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| config::check(bytes));
