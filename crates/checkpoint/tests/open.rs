//! Opening checkpoints: what is read from good ones, and what is said of bad ones.
mod common;

use std::fs;
use std::path::Path;

use common::{file_bytes, message, tensor};
use outsize_checkpoint::{Checkpoint, Dtype, Error, TensorInfo};

fn write(folder: &Path, name: &str, bytes: &[u8]) {
    fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn one_file_by_folder_and_by_name() {
    let place = tempfile::tempdir().unwrap();
    // The misaligned `w` and the empty `e` are legal.
    let json = format!(
        r#"{{"__metadata__":{{"format":"pt","k":"v"}},{},{},{}}}"#,
        tensor("w", "F32", &[1, 2], 3, 11),
        tensor("b", "U8", &[3], 0, 3),
        tensor("e", "BF16", &[0, 7], 11, 11),
    );
    let data: Vec<u8> = (0..11).collect();
    write(place.path(), "model.safetensors", &file_bytes(&json, &data));
    let data_start = 8 + json.len() as u64;

    for path in [place.path().to_owned(), place.path().join("model.safetensors")] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.folder(), place.path());
        assert_eq!(checkpoint.total_bytes(), 11);
        let names: Vec<_> =
            checkpoint.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["b", "w", "e"]);
        let w = TensorInfo {
            name: "w".into(),
            dtype: Dtype::F32,
            shape: vec![1, 2],
            file: 0,
            offset: data_start + 3,
            len: 8,
        };
        assert_eq!(checkpoint.get("w"), Some(&w));
        assert_eq!(checkpoint.position("w"), Some(1));
        assert_eq!(checkpoint.get("x"), None);
        assert_eq!(checkpoint.read(&w).unwrap(), data[3..]);
        assert!(checkpoint.read(&checkpoint.tensors()[2]).unwrap().is_empty());
        let mut part = [0; 3];
        checkpoint.read_at(&w, 5, &mut part).unwrap();
        assert_eq!(part, data[8..]);
        let [file] = checkpoint.files() else { panic!("one file") };
        assert_eq!(file.len(), data_start + 11);
        assert_eq!(file.metadata()["k"], "v");
    }
}

#[test]
fn a_range_outside_the_tensor_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let json = format!("{{{},{}}}", tensor("a", "U8", &[4], 0, 4), tensor("b", "U8", &[4], 4, 8));
    write(place.path(), "model.safetensors", &file_bytes(&json, &[0; 8]));
    let checkpoint = Checkpoint::open(place.path()).unwrap();
    let a = checkpoint.get("a").unwrap();
    let refused = |tensor: &TensorInfo, start| {
        matches!(checkpoint.read_at(tensor, start, &mut [0; 2]), Err(Error::OutOfRange { .. }))
    };
    assert!(!refused(a, 2));
    assert!(refused(a, 3));
    assert!(refused(a, u64::MAX));
    assert!(refused(&TensorInfo { file: 1, ..a.clone() }, 0));
    assert!(refused(&TensorInfo { len: 1 << 40, ..a.clone() }, 0));
    assert!(refused(&TensorInfo { offset: u64::MAX, ..a.clone() }, 0));
    let huge = TensorInfo { len: u64::MAX, ..a.clone() };
    assert!(message(checkpoint.read(&huge)).contains("tensor \"a\""));
}

#[test]
fn a_file_that_shrinks_is_noticed() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    let json = format!("{{{}}}", tensor("a", "U8", &[4], 0, 4));
    write(place.path(), "model.safetensors", &file_bytes(&json, &[1; 4]));
    let checkpoint = Checkpoint::open(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(checkpoint.files()[0].len() - 1).unwrap();
    let said = message(checkpoint.read(&checkpoint.tensors()[0]));
    assert!(said.contains("tensor \"a\""), "{said}");
    assert!(said.contains("model.safetensors"), "{said}");
    assert!(said.contains("it has changed since it was opened"), "{said}");
}

#[test]
fn damaged_files_are_named_with_their_fault() {
    let one = format!("{{{}}}", tensor("w", "F32", &[2], 0, 8));
    let twice = format!("{{{0},{0}}}", tensor("w", "F32", &[2], 0, 8));
    let overlap =
        format!("{{{},{}}}", tensor("v", "F32", &[2], 0, 8), tensor("w", "F32", &[2], 4, 12));
    let hole = format!("{{{},{}}}", tensor("v", "U8", &[2], 0, 2), tensor("w", "U8", &[2], 4, 6));
    let unknown = format!("{{{}}}", tensor("w", "F6_E3M2", &[8], 0, 8));
    let claims = |len: u64, rest: &[u8]| [&len.to_le_bytes(), rest].concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "the file has 0 bytes, too few"),
        (vec![2, 0, 0, 0], "the file has 4 bytes, too few"),
        (claims(2, b""), "the file has 8 bytes, too few"),
        (claims(0, b"{}"), "the header does not start with '{'"),
        (claims(2, b"[]"), "the header does not start with '{'"),
        (claims(2, b"{]"), "the header is not valid: "),
        (claims(3, b"{}"), "the header claims 3 bytes, and the file has 10: it is cut short"),
        (claims(100_000_001, b"{}"), "the header claims 100000001 bytes, over the format's limit"),
        (claims(u64::MAX, b"{}"), "the header claims 18446744073709551615 bytes, over"),
        (
            file_bytes(&one, &[0; 7]),
            "tensor \"w\" ends at byte 8 of the data, and the file holds 7: it is cut short",
        ),
        (file_bytes(&one, &[0; 9]), "the last 1 bytes of the file belong to no tensor"),
        (file_bytes(&twice, &[0; 8]), "\"w\" is defined twice"),
        (file_bytes(&overlap, &[0; 12]), "tensor \"w\" starts inside tensor \"v\""),
        (file_bytes(&hole, &[0; 6]), "2 bytes before tensor \"w\" belong to no tensor"),
        (file_bytes(&unknown, &[0; 8]), "tensor \"w\": dtype \"F6_E3M2\" is not supported"),
        (
            b"PK\x03\x04\0\0\x08\x08\0\0zip".to_vec(),
            "this is a zip archive, as torch.save writes it",
        ),
        (b"\x80\x02}q\0(X\x05\0\0\0".to_vec(), "this is a Python pickle"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0".to_vec(),
            "run `git lfs pull`",
        ),
        (b"<!DOCTYPE html><html>".to_vec(), "this is a web page"),
        (b"GGUF\x03\0\0\0\0\0\0\0".to_vec(), "this is a GGUF file"),
        (b"{\"weight_map\": {}}".to_vec(), "this is a JSON text"),
    ];
    for (bytes, fault) in cases {
        let place = tempfile::tempdir().unwrap();
        write(place.path(), "model.safetensors", &bytes);
        let said = message(Checkpoint::open(place.path()));
        assert!(said.contains("model.safetensors: "), "{said}");
        assert!(said.contains(fault), "{said}\nshould contain\n{fault}");
    }
}

#[test]
fn a_header_whose_length_looks_like_a_pickle_is_read() {
    // 640 is 80 02 00 … in little endian.
    let place = tempfile::tempdir().unwrap();
    let json = format!("{:<640}", format!("{{{}}}", tensor("w", "U8", &[1], 0, 1)));
    write(place.path(), "model.safetensors", &file_bytes(&json, &[5]));
    let checkpoint = Checkpoint::open(place.path()).unwrap();
    assert_eq!(checkpoint.read(&checkpoint.tensors()[0]).unwrap(), [5]);
}

#[test]
fn a_folder_without_a_checkpoint_says_what_is_there() {
    let said = |names: &[&str]| {
        let place = tempfile::tempdir().unwrap();
        for name in names {
            write(place.path(), name, b"");
        }
        let said = message(Checkpoint::open(place.path()));
        assert!(said.contains(place.path().to_str().unwrap()), "{said}");
        said
    };
    let looked = "looked for model.safetensors, pytorch_model.bin and their .index.json, and model.bpk, and found ";
    assert!(said(&[]).ends_with(&format!("{looked}an empty folder")));
    assert!(said(&["config.json"]).ends_with(&format!("{looked}only \"config.json\"")));
    let shard = said(&["config.json", "model-00001-of-00002.safetensors"]);
    assert!(
        shard.contains("1 other .safetensors file, such as \"model-00001-of-00002.safetensors\""),
        "{shard}"
    );
    for pickle in ["consolidated.00.pth", "model.pt"] {
        let said = said(&["config.json", pickle]);
        assert!(said.contains(&format!("holds its weights only in {pickle}")), "{said}");
        assert!(said.contains("give the path of the file"), "{said}");
    }
}

#[test]
fn other_paths_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let nowhere = place.path().join("nowhere");
    let said = message(Checkpoint::open(&nowhere));
    assert!(
        said.contains(nowhere.to_str().unwrap()) && said.contains("no such file or folder"),
        "{said}"
    );

    write(place.path(), "config.json", b"{}");
    let said = message(Checkpoint::open(place.path().join("config.json")));
    assert!(said.contains("config.json is not a .safetensors file"), "{said}");

    fs::create_dir(place.path().join("model.safetensors")).unwrap();
    let said = message(Checkpoint::open(place.path()));
    assert!(said.contains("model.safetensors is not a regular file"), "{said}");
}

#[cfg(unix)]
#[test]
fn links_are_followed_and_broken_ones_named() {
    let place = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (place.path().join("blobs"), place.path().join("snapshot"));
    fs::create_dir(&blobs).unwrap();
    fs::create_dir(&snapshot).unwrap();
    let json = format!("{{{}}}", tensor("w", "U8", &[1], 0, 1));
    write(&blobs, "0123", &file_bytes(&json, &[9]));
    std::os::unix::fs::symlink("../blobs/0123", snapshot.join("model.safetensors")).unwrap();
    let checkpoint = Checkpoint::open(&snapshot).unwrap();
    assert_eq!(checkpoint.read(&checkpoint.tensors()[0]).unwrap(), [9]);
    assert_eq!(checkpoint.folder(), snapshot);

    fs::remove_file(blobs.join("0123")).unwrap();
    let said = message(Checkpoint::open(&snapshot));
    assert!(said.contains("cannot read") && said.contains("snapshot/model.safetensors"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_socket_is_not_waited_for() {
    let place = tempfile::tempdir().unwrap();
    let _socket =
        std::os::unix::net::UnixListener::bind(place.path().join("model.safetensors")).unwrap();
    assert!(message(Checkpoint::open(place.path())).contains("not a regular file"));
}
