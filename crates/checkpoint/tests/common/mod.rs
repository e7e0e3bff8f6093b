//! Files made by hand, byte by byte, so that the writer does not vouch for the reader.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fmt::Display;
use std::fs;
use std::path::Path;

use outsize_checkpoint::Checkpoint;

/// The name of an index of shards.
pub const INDEX: &str = "model.safetensors.index.json";

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

/// One line that no terminal takes for anything but text.
pub fn is_sane(said: &str) {
    assert!(!said.contains(char::is_control), "{said:?}");
    assert!(said.len() < 1000, "{} bytes: {said}", said.len());
}

/// What opening a folder with these files says.
pub fn said_of(files: &[(&str, &[u8])]) -> String {
    let place = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = place.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
    let said = message(Checkpoint::open(place.path()));
    assert!(said.contains(place.path().to_str().unwrap()), "{said}");
    is_sane(&said);
    said
}

/// What opening one file with this header and data says.
pub fn said_of_header(json: &[u8], data: &[u8]) -> String {
    let file = [&(json.len() as u64).to_le_bytes(), json, data].concat();
    let said = said_of(&[("model.safetensors", &file)]);
    assert!(said.contains("model.safetensors: "), "{said}");
    said
}

/// What opening a folder with this index and no shards says.
pub fn said_of_index(json: &[u8]) -> String {
    let said = said_of(&[(INDEX, json)]);
    assert!(said.contains(&format!("{INDEX}: ")), "{said}");
    said
}

/// The names in a folder, sorted.
pub fn list(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = folder
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
