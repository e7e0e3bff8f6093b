//! Files made by hand, byte by byte, so that the writer does not vouch for the reader.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fmt::Display;

/// One tensor's entry of a header.
pub fn tensor(name: &str, dtype: &str, shape: &[usize], start: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
}

/// A safetensors file of this header and data.
pub fn file_bytes(json: &str, data: &[u8]) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), data].concat()
}

/// What a failure says.
pub fn message<T, E: Display>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => panic!("this should have failed"),
        Err(error) => error.to_string(),
    }
}
