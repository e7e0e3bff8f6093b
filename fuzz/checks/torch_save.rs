//! What must hold of any bytes taken for a file of `torch.save`, or for the pickle in one.

// Some of what makes such files is for tests alone.
#[path = "../../crates/checkpoint/tests/common/torch.rs"]
mod made;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use outsize_checkpoint::{Checkpoint, StateDict};

/// Bytes of all storages that are written.
const MOST: u64 = 1 << 16;
/// Bytes of a storage's key that are written: a member's name has two bytes for its length.
const LONGEST_KEY: usize = 1000;

/// Checks the bytes as a whole file if they begin like one, and as a pickle otherwise.
pub fn check(bytes: &[u8]) {
    if bytes.starts_with(b"PK") {
        open(bytes, |checkpoint| {
            for tensor in checkpoint.tensors() {
                assert_eq!(checkpoint.read(tensor).unwrap().len() as u64, tensor.len);
            }
        });
        return;
    }
    match StateDict::parse(bytes) {
        Ok(state) => {
            prove(&state);
            write_and_open(bytes, &state);
        }
        Err(fault) => is_sane(&fault.to_string()),
    }
}

/// Each tensor lies in its storage, in the length that its shape and dtype say.
fn prove(state: &StateDict) {
    let mut used = vec![false; state.storages.len()];
    for tensor in &state.tensors {
        assert!(!tensor.name.chars().any(char::is_control));
        let bytes = (tensor.shape.iter()).try_fold(tensor.dtype.size() as u64, |product, &size| {
            product.checked_mul(size as u64)
        });
        assert_eq!(Some(tensor.len), bytes, "{:?}", tensor.name);
        let end = tensor.start.checked_add(tensor.len).unwrap();
        assert!(end <= state.storages[tensor.storage].len, "{:?}", tensor.name);
        used[tensor.storage] = true;
    }
    assert!(state.tensors.is_sorted_by(|one, other| one.name < other.name));
    assert!(used.iter().all(|used| *used));
}

/// Puts the pickle into a file whose storages are as long as it says, each of one byte repeated:
/// the same tensors are found there.
fn write_and_open(pickle: &[u8], state: &StateDict) {
    let lens = state.storages.iter().try_fold(0u64, |sum, storage| sum.checked_add(storage.len));
    if lens.is_none_or(|sum| sum > MOST)
        || state.storages.iter().any(|storage| storage.key.len() > LONGEST_KEY)
    {
        return;
    }
    let data: Vec<_> = (state.storages.iter().enumerate())
        .map(|(at, storage)| (storage.key.as_str(), vec![at as u8; storage.len as usize]))
        .collect();
    let storages: Vec<_> = data.iter().map(|(key, data)| (*key, &data[..])).collect();
    let opened = open(&made::file(pickle, &storages), |checkpoint| {
        assert_eq!(checkpoint.tensors().len(), state.tensors.len());
        let expected: HashMap<_, _> =
            state.tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
        for tensor in checkpoint.tensors() {
            let same = expected[tensor.name.as_str()];
            assert_eq!((tensor.dtype, &tensor.shape), (same.dtype, &same.shape));
            let bytes = checkpoint.read(tensor).unwrap();
            assert_eq!(bytes.len() as u64, same.len);
            assert!(bytes.iter().all(|&byte| byte == same.storage as u8));
        }
        assert!(checkpoint.total_bytes() <= lens.unwrap_or(0));
    });
    assert!(opened, "what is read alone is read in its file");
}

/// Opens a file of these bytes, and says whether that was possible.
fn open(bytes: &[u8], prove: impl FnOnce(&Checkpoint)) -> bool {
    // In memory where there is such a place.
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let folder = folder.unwrap();
    let path = folder.path().join("pytorch_model.bin");
    fs::write(&path, bytes).unwrap();
    match Checkpoint::open(&path) {
        Ok(checkpoint) => {
            prove(&checkpoint);
            true
        }
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains("pytorch_model.bin"), "{said}");
            is_sane(&said);
            false
        }
    }
}

fn is_sane(said: &str) {
    assert!(!said.chars().any(char::is_control), "{said:?}");
    assert!(said.len() < 10_000, "{} bytes", said.len());
}
