//! Writing checkpoints: what a finished folder holds, and that an unfinished one leaves nothing.
mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{list, message};
use outsize_checkpoint::{Checkpoint, Dtype, Error, ShardWriter, TensorSpec};

fn bytes(name: &str, len: usize) -> TensorSpec {
    TensorSpec::new(name, Dtype::U8, [len])
}

/// A folder to write beside, and the output in it.
fn place() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    (place, out)
}

#[test]
fn shards_and_index_appear_at_once() {
    let (place, out) = place();
    let specs =
        vec![bytes("z", 3), bytes("big", 9), bytes("empty", 0), bytes("a", 2), bytes("m", 1)];
    let mut writer = ShardWriter::create(&out, specs, 5).unwrap();
    writer.set_total_parameters(15);
    writer.add_file("config.json", b"{\"a\": 1}").unwrap();
    assert_eq!(writer.total_bytes(), 15);
    writer.write("z", &[1, 2]).unwrap();
    writer.write("z", &[]).unwrap();
    writer.write("z", &[3]).unwrap();
    writer.write("big", &[4; 9]).unwrap();
    assert_eq!(writer.bytes_written(), 12);
    writer.write("empty", &[]).unwrap();
    writer.write("a", &[5, 6]).unwrap();
    writer.write("m", &[7]).unwrap();
    assert!(!out.exists());
    writer.finish().unwrap();

    assert_eq!(list(place.path()), ["out"]);
    let shards = [
        "model-00001-of-00003.safetensors",
        "model-00002-of-00003.safetensors",
        "model-00003-of-00003.safetensors",
    ];
    assert_eq!(
        list(&out),
        [&["config.json"], &shards[..], &["model.safetensors.index.json"]].concat()
    );
    assert_eq!(fs::read(out.join("config.json")).unwrap(), b"{\"a\": 1}");
    let index = r#"{
  "metadata": {
    "total_parameters": 15,
    "total_size": 15
  },
  "weight_map": {
    "a": "model-00002-of-00003.safetensors",
    "big": "model-00001-of-00003.safetensors",
    "empty": "model-00002-of-00003.safetensors",
    "m": "model-00003-of-00003.safetensors",
    "z": "model-00002-of-00003.safetensors"
  }
}
"#;
    assert_eq!(fs::read_to_string(out.join("model.safetensors.index.json")).unwrap(), index);

    let checkpoint = Checkpoint::open(&out).unwrap();
    let found: Vec<_> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor.file, checkpoint.read(tensor).unwrap()))
        .collect();
    let expected = [
        ("big", 0, vec![4; 9]),
        ("z", 1, vec![1, 2, 3]),
        ("empty", 1, vec![]),
        ("a", 1, vec![5, 6]),
        ("m", 2, vec![7]),
    ];
    assert_eq!(found, expected);
    for file in checkpoint.files() {
        assert_eq!(file.metadata()["format"], "pt");
    }
    assert_eq!(checkpoint.tensors()[0].offset % 4096, 0);
}

#[test]
fn one_shard_needs_no_index() {
    let (_place, out) = place();
    let mut writer = ShardWriter::create(&out, vec![bytes("w", 2)], 2).unwrap();
    writer.write("w", &[1, 2]).unwrap();
    writer.finish().unwrap();
    assert_eq!(list(&out), ["model.safetensors"]);
}

#[test]
fn no_tensors_and_only_empty_tensors_are_legal() {
    for specs in [vec![], vec![bytes("e", 0), bytes("f", 0)]] {
        let (_place, out) = place();
        let count = specs.len();
        ShardWriter::create(&out, specs, 100).unwrap().finish().unwrap();
        assert_eq!(Checkpoint::open(&out).unwrap().tensors().len(), count);
    }
    // The shard behind a large tensor holds an empty one alone, which is never written.
    let (_place, out) = place();
    let mut writer = ShardWriter::create(&out, vec![bytes("big", 9), bytes("e", 0)], 5).unwrap();
    writer.write("big", &[0; 9]).unwrap();
    writer.finish().unwrap();
    assert_eq!(Checkpoint::open(&out).unwrap().files().len(), 2);
}

#[test]
fn data_in_the_wrong_order_or_size_is_refused() {
    let (place, out) = place();
    let mut writer = ShardWriter::create(&out, vec![bytes("a", 4), bytes("b", 1)], 100).unwrap();
    let said = message(writer.write("b", &[1]));
    assert!(
        said.starts_with("data came for tensor \"b\" while tensor \"a\" is due (4 bytes"),
        "{said}"
    );
    writer.write("a", &[1, 2]).unwrap();
    let said = message(writer.write("a", &[3, 4, 5]));
    assert_eq!(said, "tensor \"a\" has 4 bytes and 1 more came");
    // Neither left a trace: the writer goes on.
    writer.write("a", &[3, 4]).unwrap();
    assert!(matches!(writer.write("a", &[5]), Err(Error::TooMuchData { excess: 1, .. })));
    writer.write("b", &[5]).unwrap();
    let said = message(writer.write("c", &[1]));
    assert!(said.starts_with("data came for tensor \"c\" while no tensor is due"), "{said}");
    writer.finish().unwrap();
    assert_eq!(list(place.path()), ["out"]);
    let checkpoint = Checkpoint::open(&out).unwrap();
    assert_eq!(checkpoint.read(checkpoint.get("a").unwrap()).unwrap(), [1, 2, 3, 4]);
}

#[test]
fn what_is_not_finished_leaves_nothing() {
    let (place, out) = place();
    let start = || {
        let mut writer = ShardWriter::create(&out, vec![bytes("a", 4), bytes("b", 4)], 4).unwrap();
        writer.add_file("config.json", b"{}").unwrap();
        writer.write("a", &[0; 4]).unwrap();
        writer.write("b", &[0; 3]).unwrap();
        let names = list(place.path());
        let prefix = format!(".out.partial-{}-", std::process::id());
        assert!(names.len() == 1 && names[0].starts_with(&prefix), "{names:?}");
        writer
    };
    drop(start());
    assert!(list(place.path()).is_empty());
    let said = message(start().finish());
    assert_eq!(said, "tensor \"b\" is not complete: 1 of its 4 bytes never came");
    assert!(list(place.path()).is_empty());
}

#[test]
fn what_is_there_is_never_overwritten() {
    let (place, out) = place();
    let create = |out: &Path| ShardWriter::create(out, vec![bytes("a", 1)], 9);
    fs::create_dir(&out).unwrap();
    fs::write(out.join("mine"), b"x").unwrap();
    let said = message(create(&out));
    assert!(said.contains("out is a folder that is not empty, and is never overwritten"), "{said}");
    let said = message(create(&out.join("mine")));
    assert!(said.contains("mine is a file, and is never overwritten"), "{said}");
    assert_eq!(list(place.path()), ["out"]);

    // An empty folder is as good as none.
    fs::remove_file(out.join("mine")).unwrap();
    let mut writer = create(&out).unwrap();
    writer.write("a", &[1]).unwrap();
    writer.finish().unwrap();
    assert_eq!(list(place.path()), ["out"]);
    assert_eq!(list(&out), ["model.safetensors"]);
}

#[test]
fn a_folder_filled_meanwhile_is_kept_and_so_is_the_work() {
    let (_place, out) = place();
    let mut writer = ShardWriter::create(&out, vec![bytes("a", 1)], 9).unwrap();
    writer.write("a", &[1]).unwrap();
    fs::create_dir(&out).unwrap();
    fs::write(out.join("mine"), b"x").unwrap();
    let Err(Error::Rename { partial, .. }) = writer.finish() else {
        panic!("this should have failed")
    };
    assert_eq!(list(&out), ["mine"]);
    let checkpoint = Checkpoint::open(&partial).unwrap();
    assert_eq!(checkpoint.read(&checkpoint.tensors()[0]).unwrap(), [1]);
    // The next writer, which removes unfinished work, takes this for none.
    fs::remove_dir_all(&out).unwrap();
    drop(ShardWriter::create(&out, vec![bytes("a", 1)], 9).unwrap());
    assert!(Checkpoint::open(&partial).is_ok());
}

#[test]
fn parents_are_made_and_impossible_places_named() {
    let (place, _) = place();
    let deep = place.path().join("x/y/out");
    let writer = ShardWriter::create(&deep, vec![], 9).unwrap();
    writer.finish().unwrap();
    assert!(deep.join("model.safetensors").exists());

    let below_a_file = deep.join("model.safetensors/out");
    let said = message(ShardWriter::create(&below_a_file, vec![], 9));
    assert!(said.contains("model.safetensors/out"), "{said}");
    let said = message(ShardWriter::create(place.path().join("nowhere/.."), vec![], 9));
    assert!(said.contains("the path does not end in a folder's name"), "{said}");
    let said = message(ShardWriter::create("", vec![], 9));
    assert!(said.starts_with("cannot create "), "{said}");
}

#[test]
fn nothing_follows_a_failed_write() {
    let (place, out) = place();
    let mut writer = ShardWriter::create(&out, vec![bytes("a", 1), bytes("b", 1)], 1).unwrap();
    writer.write("a", &[1]).unwrap();
    // The next shard cannot be created in a folder that is gone.
    fs::remove_dir_all(place.path().join(&list(place.path())[0])).unwrap();
    let said = message(writer.write("b", &[1]));
    assert!(
        said.starts_with("cannot write ") && said.contains("(1 of 2 bytes of tensors written): "),
        "{said}"
    );
    assert!(matches!(writer.write("b", &[1]), Err(Error::WriterFailed { .. })));
    assert!(matches!(writer.add_file("x", &[1]), Err(Error::WriterFailed { .. })));
    assert!(matches!(writer.finish(), Err(Error::WriterFailed { .. })));
    assert!(!out.exists());
}

#[test]
fn extra_files_have_plain_free_names() {
    let (_place, out) = place();
    let mut writer = ShardWriter::create(&out, vec![], 9).unwrap();
    for name in ["", ".", "..", "/etc/passwd", "a/b", "../x", "a\\b", "C:x", "a/"] {
        let said = message(writer.add_file(name, b""));
        assert_eq!(said, format!("the file name {name:?} is not a plain file name"));
    }
    for name in ["model.safetensors", "model.safetensors.index.json", "other.safetensors"] {
        assert!(message(writer.add_file(name, b"")).contains("is for weights"));
    }
    writer.add_file("tokenizer.json", b"1").unwrap();
    assert_eq!(
        message(writer.add_file("tokenizer.json", b"2")),
        "the file name \"tokenizer.json\" was added before"
    );
    writer.finish().unwrap();
    assert_eq!(fs::read(out.join("tokenizer.json")).unwrap(), b"1");
}

#[test]
fn bad_specs_are_refused_before_anything_is_created() {
    let (place, out) = place();
    let said = message(ShardWriter::create(&out, vec![bytes("a", 1), bytes("a", 2)], 9));
    assert_eq!(said, "cannot lay out a checkpoint: tensor \"a\" is declared twice");
    assert!(list(place.path()).is_empty());
}

#[cfg(unix)]
#[test]
fn permissions_are_those_of_any_new_folder_and_links_stay() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (place, out) = place();
    ShardWriter::create(&out, vec![], 9).unwrap().finish().unwrap();
    let plain = place.path().join("plain");
    fs::create_dir(&plain).unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    assert_eq!(mode(&out), mode(&plain));

    let link = place.path().join("link");
    symlink("plain", &link).unwrap();
    ShardWriter::create(&link, vec![], 9).unwrap().finish().unwrap();
    assert!(link.is_symlink() && plain.join("model.safetensors").exists());

    symlink("nowhere", place.path().join("broken")).unwrap();
    let said = message(ShardWriter::create(place.path().join("broken"), vec![], 9));
    assert!(said.contains("is a link that leads nowhere"), "{said}");
}
