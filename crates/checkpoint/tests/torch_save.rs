//! Files of `torch.save`: what torch 2.15 wrote is read as its safetensors twin is, or refused with
//! the reason. `scripts/fixtures/torch_bin.py` wrote the files.
mod common;
#[path = "common/torch.rs"]
mod made;

use std::fs;
use std::path::{Path, PathBuf};

use common::{is_sane, message};
use made::{Entry, Pickle};
use outsize_checkpoint::{
    Checkpoint, Dtype, Error, Headers, Part, ShardWriter, TensorSpec, weights_file,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch").join(name)
}

/// All tensors of both are the same, bit for bit.
fn assert_same(found: &Checkpoint, expected: &Checkpoint) {
    let names = |checkpoint: &Checkpoint| {
        let mut names: Vec<_> =
            checkpoint.tensors().iter().map(|tensor| tensor.name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(found), names(expected));
    for tensor in expected.tensors() {
        let same = found.get(&tensor.name).unwrap();
        assert_eq!((same.dtype, &same.shape), (tensor.dtype, &tensor.shape), "{}", tensor.name);
        assert!(found.read(same).unwrap() == expected.read(tensor).unwrap(), "{}", tensor.name);
    }
}

#[test]
fn what_torch_wrote_is_read_as_its_twin() {
    let mut files = 0;
    for entry in fixture("read").read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "bin") {
            continue;
        }
        println!("{}", path.display());
        let twin = Checkpoint::open(path.with_extension("safetensors")).unwrap();
        for name in ["model.bin", "model.pt", "model.pth"] {
            let place = tempfile::tempdir().unwrap();
            fs::copy(&path, place.path().join(name)).unwrap();
            assert_same(&Checkpoint::open(place.path().join(name)).unwrap(), &twin);
        }
        let found = Checkpoint::open(&path).unwrap();
        assert!(found.tensors().is_sorted_by_key(|tensor| tensor.offset));
        files += 1;
    }
    assert_eq!(files, 9);
}

#[test]
fn dtypes_are_those_of_torch() {
    let checkpoint = Checkpoint::open(fixture("read/dtypes.bin")).unwrap();
    assert_eq!(checkpoint.tensors().len(), 16);
    let mut dtypes: Vec<_> = checkpoint.tensors().iter().map(|tensor| tensor.dtype).collect();
    dtypes.sort();
    dtypes.dedup();
    let mut all = Dtype::ALL.to_vec();
    all.sort();
    assert_eq!(dtypes, all);
}

#[test]
fn views_and_ties_share_bytes_and_count_once() {
    let checkpoint = Checkpoint::open(fixture("read/views.bin")).unwrap();
    let place = |name: &str| {
        let tensor = checkpoint.get(name).unwrap();
        (tensor.offset, tensor.len)
    };
    let (start, len) = place("whole");
    assert_eq!(start % 64, 0);
    assert_eq!(place("tied"), (start, len));
    assert_eq!(place("rows"), (start + 32, 48));
    let shared = place("first").0;
    assert_eq!(place("odd_offset"), (shared + 34, 6));
    // 96 of the floats; of the 80 bytes of the other storage, elements 0 to 16, 17 to 20, and 39;
    // then a scalar and two parameters.
    assert_eq!(checkpoint.total_bytes(), 96 + 32 + 6 + 2 + 4 + 12 + 8);
}

#[test]
fn shards_are_read_by_folder_and_by_index() {
    let folder = fixture("read/sharded");
    let twin = Checkpoint::open(folder.join("all.safetensors")).unwrap();
    for path in [folder.clone(), folder.join("pytorch_model.bin.index.json")] {
        let found = Checkpoint::open(path).unwrap();
        assert_same(&found, &twin);
        assert_eq!(found.files().len(), 2);
        assert_eq!(found.folder(), folder);
        assert!(found.ignored().is_empty());
    }
}

#[test]
fn shards_are_checked_against_their_index() {
    let place = tempfile::tempdir().unwrap();
    let (index, second) = ("pytorch_model.bin.index.json", "pytorch_model-00002-of-00002.bin");
    for name in [index, second, "pytorch_model-00001-of-00002.bin"] {
        fs::copy(fixture("read/sharded").join(name), place.path().join(name)).unwrap();
    }
    let said = || {
        let said = message(Checkpoint::open(place.path()));
        is_sane(&said);
        said
    };
    let json = fs::read_to_string(place.path().join(index)).unwrap();
    let with = |json: String| fs::write(place.path().join(index), json).unwrap();
    with(json.replace(second, "../secret.bin"));
    assert!(said().contains("not the name of a file inside the folder"), "{}", said());
    with(json.replace("0.bias", "9.bias"));
    assert!(said().contains("tensor \"9.bias\" is said to be in \"pytorch_model-0"), "{}", said());
    with(json);
    fs::write(place.path().join(second), b"").unwrap();
    let empty = said();
    assert!(empty.contains(&format!("{second}: this is no zip archive of torch.save")), "{empty}");
    fs::remove_file(place.path().join(second)).unwrap();
    let missing = said();
    assert!(missing.contains("1 of 2 shards are missing") && missing.contains(second), "{missing}");
}

#[test]
fn safetensors_are_preferred() {
    let place = tempfile::tempdir().unwrap();
    let copy = |from: &str, to: &str| fs::copy(fixture(from), place.path().join(to)).unwrap();
    let opened = || {
        let checkpoint = Checkpoint::open(place.path()).unwrap();
        checkpoint.files()[0].path().file_name().unwrap().to_owned()
    };
    for name in ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"] {
        copy(&format!("read/sharded/{name}"), name);
    }
    copy("read/sharded/pytorch_model.bin.index.json", "pytorch_model.bin.index.json");
    assert_eq!(opened(), "pytorch_model-00001-of-00002.bin");
    copy("read/module.bin", "pytorch_model.bin");
    assert_eq!(opened(), "pytorch_model.bin");
    copy("read/sharded/all.safetensors", "one.safetensors");
    let names = Checkpoint::open(place.path().join("one.safetensors")).unwrap();
    let map: serde_json::Map<_, _> = (names.tensors().iter())
        .map(|tensor| (tensor.name.clone(), "one.safetensors".into()))
        .collect();
    let index = serde_json::json!({ "weight_map": map }).to_string();
    fs::write(place.path().join("model.safetensors.index.json"), index).unwrap();
    assert_eq!(opened(), "one.safetensors");
    copy("read/module.safetensors", "model.safetensors");
    assert_eq!(opened(), "model.safetensors");
}

#[test]
fn what_is_no_state_dict_is_refused_by_name() {
    let cases: [(&str, &[&str]); 17] = [
        ("legacy", &["before PyTorch 1.6", "load it with torch and save it again"]),
        ("transposed", &["tensor \"b.weight\" is stored transposed", ".contiguous()"]),
        ("expanded", &["tensor \"b.weight\"", ".contiguous()"]),
        ("os_system", &["\"posix.system\"", "never run"]),
        (
            "whole_module",
            &["\"torch.nn.modules.container.Sequential\"", "model.state_dict() alone"],
        ),
        ("complex", &["\"torch.ComplexFloatStorage\""]),
        ("negative", &["a conjugate or negative view at byte"]),
        ("sparse", &["\"torch._utils._rebuild_sparse_tensor\""]),
        ("quantized", &["\"torch._utils._rebuild_qtensor\""]),
        ("tensor", &["data.pkl holds one tensor rather than a state dict"]),
        ("two_dicts", &["tensors within \"model\" and within \"optimizer\""]),
        ("deep", &["tensors deep within \"a\""]),
        ("numbered", &["a tensor whose name is a number"]),
        ("beside", &["tensors, and more tensors within \"inner\""]),
        ("torchscript", &["torch.jit.save", "state_dict()"]),
        ("compressed", &["of the zip archive is compressed", "save it again"]),
        ("big_endian", &["byte order is \"big\""]),
    ];
    assert_eq!(fixture("refused").read_dir().unwrap().count(), cases.len());
    for (name, parts) in cases {
        let path = fixture("refused").join(format!("{name}.bin"));
        let said = message(Checkpoint::open(&path));
        println!("{said}");
        is_sane(&said);
        assert!(said.contains(&format!("{name}.bin")), "{said}");
        for part in parts {
            assert!(said.contains(part), "{part} is not in: {said}");
        }
    }
}

#[test]
fn other_formats_under_the_name_are_told() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("pytorch_model.bin");
    let safetensors = fs::read(fixture("read/module.safetensors")).unwrap();
    for (bytes, part) in [
        (&safetensors[..], "a safetensors file, not a file of torch.save; it is misnamed"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "run `git lfs pull`"),
        (b"<!DOCTYPE html><html>", "this is a web page"),
        (b"\x80\x02}q\0.", "before PyTorch 1.6"),
        (b"", "this is no zip archive of torch.save, or not a whole one: it has 0 bytes"),
        (b"something else", "this is no zip archive of torch.save"),
    ] {
        fs::write(&path, bytes).unwrap();
        let said = message(Checkpoint::open(place.path()));
        is_sane(&said);
        assert!(said.contains("pytorch_model.bin: ") && said.contains(part), "{said}");
    }
    // And a file of torch.save under the other one's name.
    fs::copy(fixture("read/module.bin"), place.path().join("model.safetensors")).unwrap();
    let said = message(Checkpoint::open(place.path()));
    assert!(said.contains("give it a name that ends in .bin"), "{said}");
}

#[test]
fn it_is_rewritten_as_safetensors() {
    let from = Checkpoint::open(fixture("read/views.bin")).unwrap();
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("out");
    let specs = from
        .tensors()
        .iter()
        .map(|tensor| TensorSpec::new(tensor.name.clone(), tensor.dtype, tensor.shape.clone()));
    let mut writer = ShardWriter::create(&out, specs.collect(), 100).unwrap();
    for tensor in from.tensors() {
        writer.write(&tensor.name, &from.read(tensor).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    assert_same(&Checkpoint::open(&out).unwrap(), &from);
}

/// What no fixture can be: files beyond four gigabytes, which hold little.
#[cfg(unix)]
#[test]
fn numbers_of_64_bits_are_read() {
    use std::os::unix::fs::FileExt;
    let wide = 5u64 << 30;
    let tensors = [
        Entry::new("last", "ByteStorage", "1", &[3]),
        Entry { shape: vec![2], offset: wide - 2, ..Entry::new("w", "ByteStorage", "0", &[wide]) },
    ];
    let mut archive = made::archive(&Pickle::of(&tensors), &[("0", b"")]);
    // A hole in the file, and the rest behind it.
    let before = archive.bytes.len() as u64;
    let after = (wide + before).next_multiple_of(64);
    archive.members.truncate(2);
    archive.members[1].len = wide;
    archive.bytes.clear();
    archive.add("archive/data/1", b"abc");
    let mut rest = archive.bytes.clone();
    archive.members[2].header = after;
    archive.bytes.clear();
    let directory = archive.finish();
    let entries = directory.len() - made::end_records(0, 0, 0, 0).len();
    rest.extend_from_slice(&directory[..entries]);
    let start = after + (rest.len() - entries) as u64;
    let end = after + rest.len() as u64;
    rest.extend_from_slice(&made::end_records(start, entries as u64, 3, end));

    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("pytorch_model.bin");
    let head = made::archive(&Pickle::of(&tensors), &[("0", b"")]).bytes;
    let file = fs::File::create(&path).unwrap();
    file.write_all_at(&head[..before as usize], 0).unwrap();
    if file.write_all_at(&rest, after).is_err() {
        println!("SKIPPED: this file system has no files of 5 GB");
        return;
    }
    let checkpoint = Checkpoint::open(&path).unwrap();
    let read = |name: &str| checkpoint.read(checkpoint.get(name).unwrap()).unwrap();
    assert_eq!(read("last"), b"abc");
    assert_eq!(read("w"), [0; 2]);
    assert!(checkpoint.get("last").unwrap().offset > wide);
}

/// What a file far away gives of its headers, and how many of its bytes that took.
fn far_away(bytes: &[u8]) -> Result<(Headers, u64), Error> {
    let len = bytes.len() as u64;
    let headers = Headers::of_file(Path::new("org/name"), "model.bin", |_, range| {
        let [start, end] = [range.start, range.end].map(|at| at.min(len) as usize);
        Ok(Part { bytes: bytes[start..end].to_vec(), file_len: len })
    })?;
    let fetched = headers.files[0].header_bytes;
    Ok((headers, fetched))
}

#[test]
fn files_far_away_are_described_as_files_here() {
    for entry in fixture("read").read_dir().unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "bin") {
            continue;
        }
        let here = Checkpoint::open(&path).unwrap();
        let (there, _) = far_away(&fs::read(&path).unwrap()).unwrap();
        let what = |tensors: &[outsize_checkpoint::TensorInfo]| {
            let what = tensors.iter().map(|t| (t.name.clone(), t.dtype, t.shape.clone(), t.len));
            what.collect::<Vec<_>>()
        };
        assert_eq!(what(&there.tensors), what(here.tensors()), "{}", path.display());
        // Tied tensors share their place there too.
        for (there, other) in there.tensors.iter().zip(&there.tensors[1..]) {
            let same = |name: &str| here.get(name).unwrap().offset;
            let is_same = there.offset == other.offset;
            assert!(!is_same || there.len == 0 || same(&there.name) == same(&other.name));
        }
    }
}

#[test]
fn of_a_file_far_away_its_ends_are_fetched() {
    let tensors: Vec<_> = (0..300)
        .map(|n| Entry::new(&format!("layers.{n}.w"), "FloatStorage", &n.to_string(), &[64, 64]))
        .collect();
    let keys: Vec<_> = tensors.iter().map(|tensor| tensor.key.clone()).collect();
    let data = vec![7; 4 * 64 * 64];
    let storages: Vec<_> = keys.iter().map(|key| (key.as_str(), &data[..])).collect();
    let bytes = made::file(&Pickle::of(&tensors), &storages);
    let (headers, fetched) = far_away(&bytes).unwrap();
    assert_eq!(headers.tensors.len(), 300);
    assert!(bytes.len() > 4 << 20 && fetched < 300 << 10, "{fetched} of {}", bytes.len());
    for cut in [0, 3, 70, 1 << 16, 1 << 20, bytes.len() - 1] {
        let said = far_away(&bytes[..cut]).unwrap_err().to_string();
        assert!(said.starts_with("org/name/model.bin: "), "{said}");
    }
    assert!(far_away(b"\x80\x02}q\x00.").unwrap_err().to_string().contains("before PyTorch 1.6"));
}

#[test]
fn safetensors_go_first() {
    let of = |names: &[&str]| weights_file(|name| names.contains(&name));
    let (one, index) = ("model.safetensors", "model.safetensors.index.json");
    assert_eq!(of(&["pytorch_model.bin", index, one]), Some((one, false)));
    assert_eq!(of(&["pytorch_model.bin", index]), Some((index, true)));
    assert_eq!(of(&["pytorch_model.bin"]), Some(("pytorch_model.bin", false)));
    assert_eq!(of(&["tf_model.h5"]), None);
}
