//! What fuzzing of configurations found worth keeping, replayed: the same checks, without the
//! fuzzer.

#[path = "../../../../fuzz/checks/config.rs"]
mod config;

use std::fs;
use std::path::Path;

use outsize::models;

#[test]
fn configs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/config");
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        // Shown when a check fails.
        println!("{}", path.display());
        config::check(&fs::read(&path).unwrap());
        files += 1;
    }
    assert!(files > 10, "{files} files in {}", folder.display());
}
