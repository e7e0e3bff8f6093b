//! Checkpoints in shards: the index against the shards.
mod common;

use std::fs;
use std::path::Path;

use common::{file_bytes, message, tensor};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};

/// Writes a shard that holds these tensors, each of one byte of the value given.
fn shard(folder: &Path, file: &str, tensors: &[(&str, u8)]) {
    let entries: Vec<_> = (0u64..)
        .zip(tensors)
        .map(|(start, (name, _))| tensor(name, "U8", &[1], start, start + 1))
        .collect();
    let data: Vec<u8> = tensors.iter().map(|&(_, value)| value).collect();
    fs::write(folder.join(file), file_bytes(&format!("{{{}}}", entries.join(",")), &data)).unwrap();
}

fn index(folder: &Path, map: &[(&str, &str)]) {
    let map: Vec<_> = map.iter().map(|(name, file)| format!("{name:?}: {file:?}")).collect();
    // The size stated is wrong, as in many real checkpoints, and does not matter.
    let json =
        format!(r#"{{"metadata": {{"total_size": 12345}}, "weight_map": {{{}}}}}"#, map.join(", "));
    fs::write(folder.join("model.safetensors.index.json"), json).unwrap();
}

#[test]
fn shards_are_joined_in_the_order_of_their_names() {
    let place = tempfile::tempdir().unwrap();
    shard(place.path(), "2.safetensors", &[("c", 3), ("a", 1)]);
    shard(place.path(), "1.safetensors", &[("b", 2)]);
    index(place.path(), &[("a", "2.safetensors"), ("b", "1.safetensors"), ("c", "2.safetensors")]);
    for path in [place.path().to_owned(), place.path().join("model.safetensors.index.json")] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let files: Vec<_> =
            checkpoint.files().iter().map(|file| file.path().file_name().unwrap()).collect();
        assert_eq!(files, ["1.safetensors", "2.safetensors"]);
        let tensors: Vec<_> = checkpoint
            .tensors()
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.file, checkpoint.read(tensor).unwrap()))
            .collect();
        assert_eq!(tensors, [("b", 0, vec![2]), ("c", 1, vec![3]), ("a", 1, vec![1])]);
        assert_eq!(checkpoint.total_bytes(), 3);
        assert!(checkpoint.ignored().is_empty());
        assert_eq!(checkpoint.folder(), place.path());
    }
}

#[test]
fn the_index_decides_between_copies() {
    let place = tempfile::tempdir().unwrap();
    shard(place.path(), "base.safetensors", &[("a", 1), ("b", 2), ("old", 3)]);
    shard(place.path(), "overlay.safetensors", &[("b", 20)]);
    index(place.path(), &[("a", "base.safetensors"), ("b", "overlay.safetensors")]);
    let checkpoint = Checkpoint::open(place.path()).unwrap();
    let names: Vec<_> = checkpoint.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(checkpoint.read(checkpoint.get("b").unwrap()).unwrap(), [20]);
    let ignored: Vec<_> =
        checkpoint.ignored().iter().map(|tensor| (tensor.name.as_str(), tensor.file)).collect();
    assert_eq!(ignored, [("b", 0), ("old", 0)]);
    assert_eq!(checkpoint.total_bytes(), 2);
}

#[test]
fn disagreements_are_named() {
    let place = tempfile::tempdir().unwrap();
    shard(place.path(), "1.safetensors", &[("a", 1)]);
    shard(place.path(), "2.safetensors", &[("b", 2)]);
    let said = |map: &[(&str, &str)]| {
        index(place.path(), map);
        let said = message(Checkpoint::open(place.path()));
        assert!(said.contains("model.safetensors.index.json: "), "{said}");
        said
    };
    let missing = said(&[("a", "1.safetensors"), ("b", "3.safetensors"), ("c", "4.safetensors")]);
    assert!(
        missing
            .contains("2 of 3 shards are missing, \"3.safetensors\" first; complete the download"),
        "{missing}"
    );
    for map in [
        [("a", "2.safetensors"), ("b", "2.safetensors")],
        [("A", "1.safetensors"), ("b", "2.safetensors")],
    ] {
        let said = said(&map);
        let expected = format!(
            "tensor {:?} is said to be in {:?}, which does not hold it",
            map[0].0, map[0].1
        );
        assert!(said.contains(&expected), "{said}");
    }
    let z = said(&[("a", "1.safetensors"), ("b", "2.safetensors"), ("z", "2.safetensors")]);
    assert!(z.contains("tensor \"z\" is said to be in \"2.safetensors\""), "{z}");
    let twice = said(&[("a", "1.safetensors"), ("a", "2.safetensors")]);
    assert!(twice.contains("\"a\" is defined twice"), "{twice}");
    for file in ["../1.safetensors", "/1.safetensors", "", "x/../../1.safetensors"] {
        let said = said(&[("a", file)]);
        assert!(
            said.contains(&format!(
                "tensor \"a\" is said to be in {file:?}, which is not the name"
            )),
            "{said}"
        );
    }
}

#[test]
fn a_bad_shard_is_named() {
    let place = tempfile::tempdir().unwrap();
    shard(place.path(), "1.safetensors", &[("a", 1)]);
    index(place.path(), &[("a", "1.safetensors"), ("b", "2.safetensors")]);
    fs::write(place.path().join("2.safetensors"), b"PK\x03\x04\0\0\x08\x08\0\0").unwrap();
    let said = message(Checkpoint::open(place.path()));
    assert!(said.contains("2.safetensors: this is a zip archive"), "{said}");
    fs::remove_file(place.path().join("2.safetensors")).unwrap();
    fs::create_dir(place.path().join("2.safetensors")).unwrap();
    let said = message(Checkpoint::open(place.path()));
    assert!(said.contains("2.safetensors is not a regular file"), "{said}");
}

#[test]
fn one_file_goes_before_an_index() {
    let place = tempfile::tempdir().unwrap();
    shard(place.path(), "model.safetensors", &[("whole", 1)]);
    shard(place.path(), "1.safetensors", &[("a", 1)]);
    index(place.path(), &[("a", "1.safetensors")]);
    let checkpoint = Checkpoint::open(place.path()).unwrap();
    assert!(checkpoint.get("whole").is_some() && checkpoint.get("a").is_none());
}

#[test]
fn very_many_tensors() {
    const TENSORS: usize = 100_000;
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("many");
    let name =
        |n: usize| format!("model.layers.{}.mlp.experts.{}.up_proj.weight", n / 256, n % 256);
    let specs = (0..TENSORS).map(|n| TensorSpec::new(name(n), Dtype::I32, [1])).collect();
    let mut writer = ShardWriter::create(&out, specs, 8000).unwrap();
    for n in 0..TENSORS {
        writer.write(&name(n), &(n as u32).to_le_bytes()).unwrap();
    }
    writer.finish().unwrap();

    let start = std::time::Instant::now();
    let checkpoint = Checkpoint::open(&out).unwrap();
    println!("opened {TENSORS} tensors in {:?}", start.elapsed());
    assert_eq!(checkpoint.files().len(), 50);
    assert_eq!(checkpoint.tensors().len(), TENSORS);
    for (n, tensor) in checkpoint.tensors().iter().enumerate() {
        assert_eq!(tensor.name, name(n));
        assert_eq!(checkpoint.position(&tensor.name), Some(n));
    }
    for n in (0..TENSORS).step_by(997) {
        assert_eq!(checkpoint.read(&checkpoint.tensors()[n]).unwrap(), (n as u32).to_le_bytes());
    }
}
