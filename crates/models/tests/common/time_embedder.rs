//! The matrices of the time's embedding, which are large in a Z-Image of any size: no file of a
//! fixture holds them.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::Path;

use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};

/// Values that go in, and between the layers.
const WIDTHS: [usize; 2] = [256, 1024];

/// Writes the weights of the transformer in a file to an empty folder, with these matrices as
/// `scripts/fixtures/z_image.py` makes them.
pub fn complete(file: &Path, folder: &Path) {
    complete_under(file, folder, "");
}

/// The same of a file in which their names begin with `prefix`.
pub fn complete_under(file: &Path, folder: &Path, prefix: &str) {
    let checkpoint = Checkpoint::open(file).unwrap();
    let named = |name: &str| format!("{prefix}t_embedder.mlp.{name}");
    let rows = checkpoint.get(&named("2.bias")).unwrap().shape[0];
    let more = [(named("0.weight"), WIDTHS[1], WIDTHS[0]), (named("2.weight"), rows, WIDTHS[1])];
    let mut specs: Vec<TensorSpec> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| TensorSpec::new(&tensor.name, tensor.dtype, tensor.shape.clone()))
        .collect();
    specs.extend(
        more.clone()
            .map(|(name, rows, columns)| TensorSpec::new(name, Dtype::F32, vec![rows, columns])),
    );
    let mut writer = ShardWriter::create(folder, specs, u64::MAX).unwrap();
    for tensor in checkpoint.tensors() {
        writer.write(&tensor.name, &checkpoint.read(tensor).unwrap()).unwrap();
    }
    for (name, rows, columns) in more {
        let value = |index: usize| ((index * 7919 % 127) as f32 - 63.0) / 1024.0;
        let bytes: Vec<u8> =
            (0..rows * columns).flat_map(|index| value(index).to_le_bytes()).collect();
        writer.write(&name, &bytes).unwrap();
    }
    writer.finish().unwrap();
}
