//! What a tokenizer takes in memory, told before it is loaded.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes of one string of a vocabulary or of its merges: held twice, by token and by id, and once more while they are read.
const STRING: u64 = 125;

/// Bytes of a slot of the two hash tables that hold them.
const SLOT: u64 = 64;

/// What loading the tokenizer of the checkpoint in `folder` takes, in bytes: an estimate from the size of its tokenizer.json
/// and the strings in it, which are counted without parsing. Zero if there is none.
pub fn tokenizer_bytes(folder: &Path) -> u64 {
    let Ok(mut file) = File::open(folder.join("tokenizer.json")) else {
        return 0;
    };
    let (mut bytes, mut quotes) = (0u64, 0u64);
    let mut part = vec![0; 64 << 10];
    while let Ok(count @ 1..) = file.read(&mut part) {
        bytes += count as u64;
        quotes += part[..count].iter().filter(|byte| **byte == b'"').count() as u64;
    }
    let strings = quotes / 2;
    // A hash table is at most seven eighths full, and doubles.
    let slots = (strings * 8 / 7).next_power_of_two();
    bytes + strings * STRING + slots * SLOT
}
