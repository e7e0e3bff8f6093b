#![no_main]

#[path = "../checks/gguf.rs"]
mod gguf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gguf::check(bytes));
