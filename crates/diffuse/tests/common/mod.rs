//! Recorded values.

// Each test program uses some of these.
#![allow(dead_code)]

use std::path::PathBuf;

use outsize_checkpoint::Checkpoint;

/// A file that a script of scripts/fixtures made.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The values of a 32-bit tensor.
pub fn floats(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let bytes = checkpoint.read(checkpoint.get(name).unwrap()).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}
