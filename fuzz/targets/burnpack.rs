#![no_main]

#[path = "../checks/burnpack.rs"]
mod burnpack;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| burnpack::check(bytes));
