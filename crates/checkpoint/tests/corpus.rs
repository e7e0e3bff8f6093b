//! What fuzzing found worth keeping, replayed: the same checks, without the fuzzer.

#[path = "../../../fuzz/checks/burnpack.rs"]
mod burnpack;
#[path = "../../../fuzz/checks/gguf.rs"]
mod gguf;
#[path = "../../../fuzz/checks/header.rs"]
mod header;
#[path = "../../../fuzz/checks/index.rs"]
mod index;
#[path = "../../../fuzz/checks/torch_save.rs"]
mod torch_save;

use std::fs;
use std::path::Path;

/// Hands each file of a corpus to `check`.
fn replay(name: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        // Shown when a check fails.
        println!("{}", path.display());
        check(&fs::read(&path).unwrap());
        files += 1;
    }
    assert!(files > 10, "{files} files in {}", folder.display());
}

#[test]
fn burnpack_files() {
    replay("burnpack", burnpack::check);
}

#[test]
fn gguf_files() {
    replay("gguf", gguf::check);
}

#[test]
fn headers() {
    replay("header", header::check);
}

#[test]
fn indexes() {
    replay("index", index::check);
}

#[test]
fn files_of_torch_save() {
    replay("torch_save", torch_save::check);
}
