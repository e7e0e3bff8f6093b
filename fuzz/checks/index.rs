//! What must hold of any bytes taken for an index of shards, and of any shards beside it.

use std::fs;
use std::path::{Component, Path};

use outsize_checkpoint::{Checkpoint, Error, Index};
use serde_json::Value;

/// Separates the index from the headers of the shards that it names, in the order of their names.
const NEXT: &[u8] = b"\n--\n";
/// Shards that are written.
const SHARDS: usize = 3;
/// Bytes of data in the largest shard that is written.
const MOST: u64 = 1 << 16;

/// Checks an index followed by up to three headers.
pub fn check(bytes: &[u8]) {
    let mut parts = split(bytes);
    let json = parts.remove(0);
    match Index::parse(json) {
        Ok(index) => {
            prove(json, &index);
            if index.shards().len() <= SHARDS && !parts.is_empty() {
                open(json, &index, &parts);
            }
        }
        Err(fault) => {
            let said = fault.to_string();
            assert!(!said.contains('\u{1b}') && !said.contains('\0'), "{said:?}");
            assert!(said.len() < 100_000);
        }
    }
}

fn split(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    while let Some(at) = bytes.windows(NEXT.len()).position(|part| part == NEXT) {
        parts.push(&bytes[..at]);
        bytes = &bytes[at + NEXT.len()..];
    }
    parts.push(bytes);
    parts
}

/// Every shard lies in the folder and every tensor in one shard, the one that another reader of
/// JSON finds.
fn prove(json: &[u8], index: &Index<'_>) {
    assert!(index.shards().is_sorted() && !index.shards().is_empty());
    for shard in index.shards() {
        let inside = |part| matches!(part, Component::Normal(_));
        assert!(Path::new(shard).components().all(inside), "{shard:?}");
        assert!(!shard.contains('\0') && !shard.is_empty());
    }
    let other: Value = serde_json::from_slice(json).unwrap_or_default();
    let mut before = None;
    for (tensor, shard) in index.tensors() {
        assert!(before < Some(tensor), "{tensor:?} comes twice");
        before = Some(tensor);
        let place = index.shard_of(tensor).unwrap();
        assert_eq!(index.shards()[place], shard);
        if let Some(map) = other.get("weight_map").and_then(Value::as_object) {
            assert_eq!(map.len(), index.len());
            assert_eq!(map[tensor], shard);
        }
    }
}

/// Writes the shards, their data all zeros, and opens the checkpoint.
fn open(json: &[u8], index: &Index<'_>, headers: &[&[u8]]) {
    // In memory where there is such a place.
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let folder = folder.unwrap();
    let path = folder.path().join("model.safetensors.index.json");
    fs::write(&path, json).unwrap();
    for (shard, header) in index.shards().iter().zip(headers) {
        let shard = folder.path().join(shard);
        let data_len = data_len(header).min(MOST) as usize;
        let length = (header.len() as u64).to_le_bytes();
        let bytes = [&length[..], header, &vec![0; data_len]].concat();
        // A name may be too long, or be that of another shard's folder.
        let parent = shard.parent().unwrap_or(folder.path());
        let _ = fs::create_dir_all(parent).and_then(|()| fs::write(&shard, bytes));
    }
    match Checkpoint::open(folder.path()) {
        Ok(checkpoint) => {
            assert_eq!(checkpoint.tensors().len(), index.len());
            assert_eq!(checkpoint.files().len(), index.shards().len());
            for tensor in checkpoint.tensors() {
                assert_eq!(index.shard_of(&tensor.name), Some(tensor.file));
                assert_eq!(checkpoint.get(&tensor.name), Some(tensor));
                let bytes = checkpoint.read(tensor).unwrap();
                assert!(bytes.iter().all(|&byte| byte == 0));
            }
        }
        Err(error @ Error::NotFound { .. }) => panic!("{error}"),
        Err(error) => {
            let said = error.to_string();
            assert!(said.contains(folder.path().to_str().unwrap()), "{said}");
            assert!(!said.contains('\u{1b}') && !said.contains('\0'), "{said:?}");
        }
    }
}

/// The largest second offset, as far as another reader of JSON finds them.
fn data_len(header: &[u8]) -> u64 {
    let value: Value = serde_json::from_slice(header).unwrap_or_default();
    let entries = value.as_object().into_iter().flatten();
    let ends = entries.filter_map(|(_, entry)| entry["data_offsets"][1].as_u64());
    ends.max().unwrap_or(0)
}
