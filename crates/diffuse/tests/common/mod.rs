//! Recorded values.

// Each test program uses some of these.
#![allow(dead_code)]

#[path = "../../../models/tests/common/time_embedder.rs"]
pub mod time_embedder;

use std::fs;
use std::path::{Path, PathBuf};

use outsize_checkpoint::Checkpoint;

/// A file that a script of scripts/fixtures made.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// Adds to a copy of a fixture of Z-Image what its file of the transformer does not hold.
pub fn complete_transformer(folder: &Path) {
    let (file, whole) = (
        folder.join("transformer/diffusion_pytorch_model.safetensors"),
        folder.join("transformer/whole"),
    );
    time_embedder::complete(&file, &whole);
    fs::rename(whole.join("model.safetensors"), file).unwrap();
    fs::remove_dir(whole).unwrap();
}

/// The values of a 32-bit tensor.
pub fn floats(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    let bytes = checkpoint.read(checkpoint.get(name).unwrap()).unwrap();
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}
