#![no_main]

#[path = "../checks/torch_save.rs"]
mod torch_save;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| torch_save::check(bytes));
