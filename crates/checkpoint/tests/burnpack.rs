//! Files of Burn's own format, written by burn-pack: what it wrote is read, and what is damaged is
//! refused.
mod common;

use std::fs;
use std::path::Path;

use burn_pack::{Bytes, DType, Tensor, Writer};
use burn_std::BoolStore;
use burn_std::quantization::QuantScheme;
use outsize_checkpoint::{BurnpackFault, Checkpoint, Dtype, Error};
use proptest::collection::vec;
use proptest::prelude::*;

const DTYPES: [(DType, Dtype); 12] = [
    (DType::F64, Dtype::F64),
    (DType::F32, Dtype::F32),
    (DType::Flex32, Dtype::F32),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::I64, Dtype::I64),
    (DType::I32, Dtype::I32),
    (DType::I8, Dtype::I8),
    (DType::U64, Dtype::U64),
    (DType::U8, Dtype::U8),
    (DType::Bool(BoolStore::Native), Dtype::Bool),
    (DType::Bool(BoolStore::U8), Dtype::Bool),
];

/// So many bytes, different in each place.
fn data(name: &str, dtype: DType, shape: &[usize]) -> Vec<u8> {
    let len = shape.iter().product::<usize>() * dtype.size();
    (0..len).map(|n| (n * 11 + name.len()) as u8).collect()
}

fn tensor(name: &str, dtype: DType, shape: &[usize]) -> Tensor {
    let bytes = Bytes::from_bytes_vec(data(name, dtype, shape));
    Tensor::new(name.to_owned(), dtype, shape.to_vec(), Some(7), bytes)
}

fn packed(tensors: Vec<Tensor>) -> Vec<u8> {
    Writer::new(tensors).with_metadata("producer", "test").into_bytes().unwrap().to_vec()
}

fn valid_file() -> Vec<u8> {
    packed(vec![
        tensor("a.weight", DType::F32, &[2, 3]),
        tensor("b", DType::BF16, &[3]),
        tensor("empty", DType::F32, &[0, 4]),
        tensor("scalar", DType::I64, &[]),
    ])
}

fn open(bytes: &[u8]) -> Result<Checkpoint, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("module.bpk");
    fs::write(&path, bytes).unwrap();
    Checkpoint::open(path)
}

/// What opening a file with these bytes says of it.
fn fault(bytes: &[u8]) -> String {
    let error = open(bytes).unwrap_err();
    assert!(matches!(error, Error::Burnpack { .. }), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("module.bpk: "), "{said}");
    said.split_once("module.bpk: ").unwrap().1.to_owned()
}

/// The file with another text of the same length in its metadata.
fn replaced(bytes: &[u8], was: &[u8], with: &[u8]) -> Vec<u8> {
    let at = bytes.windows(was.len()).position(|part| part == was).unwrap();
    let mut bytes = bytes.to_vec();
    bytes[at..at + was.len()].copy_from_slice(with);
    bytes
}

#[test]
fn a_folder_or_a_file_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    fs::write(&path, valid_file()).unwrap();
    for place in [folder.path(), &path] {
        let checkpoint = Checkpoint::open(place).unwrap();
        assert_eq!(checkpoint.folder(), folder.path());
        assert_eq!(checkpoint.files()[0].metadata()["producer"], "test");
        assert_eq!(checkpoint.tensors().len(), 4);
        assert_eq!(checkpoint.total_bytes(), 24 + 6 + 8);
    }
    // By another name it is found by what it is told of it.
    fs::rename(&path, folder.path().join("mine.bpk")).unwrap();
    let said = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(said.contains("\"mine.bpk\"; give the path of that file"), "{said}");
    fs::rename(folder.path().join("mine.bpk"), folder.path().join("model.safetensors")).unwrap();
    let said = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(said.contains("a burnpack file of Burn") && said.contains(".bpk"), "{said}");
}

#[test]
fn what_is_wrong_is_said() {
    let valid = valid_file();
    let said = |bytes: &[u8], parts: &[&str]| {
        let said = fault(bytes);
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    said(&[], &["0 bytes, too few"]);
    said(&valid[..9], &["9 bytes, too few"]);
    said(&valid[..100], &["cut short"]);
    said(&valid[..valid.len() - 1], &["\"scalar\" ends at byte", "cut short"]);
    said(b"GGUF\x03\0\0\0\0\0\0\0", &["this is a GGUF file"]);
    said(&[7; 64], &["not a burnpack file"]);
    said(&replaced(&valid, b"NRUB\x01", b"NRUB\x02"), &["version 2", "only version 1"]);
    let mut long = valid.clone();
    long[6..10].copy_from_slice(&u32::MAX.to_le_bytes());
    said(&long, &["over the limit of 104857600"]);
    said(&replaced(&valid, b"tensors", b"tensorz"), &["metadata is not valid", "tensors"]);
    said(&replaced(&valid, b"BF16", b"BF17"), &["\"b\": unknown variant `BF17`, expected"]);
    said(&replaced(&valid, b"BF16", b"B\x1b16"), &["\"b\": unknown variant `B\\u{1b}16`"]);
    said(&replaced(&valid, b"cF32", b"cF64"), &["\"a.weight\" should have 48 bytes", "has 24"]);
    said(&replaced(&valid, b"scalar", b"\nalars"), &["control characters"]);
    let twice = packed(vec![tensor("a", DType::U8, &[2]), tensor("b", DType::U8, &[2])]);
    said(&replaced(&twice, b"ab\xa4", b"aa\xa4"), &["\"a\" is defined twice"]);
    // The second tensor lies 256 bytes behind the first.
    let offsets = b"\x82\x19\x01\x00\x19\x01\x02";
    said(&replaced(&twice, offsets, b"\x82\x19\x00\x01\x19\x00\x03"), &["inside tensor"]);
    said(&replaced(&twice, offsets, b"\x82\x19\x01\x02\x19\x01\x00"), &["ends before that"]);
    let quantised = packed(vec![tensor("q", DType::QFloat(QuantScheme::default()), &[2])]);
    said(&quantised, &["\"q\"", "quantised by Burn", "f32, f16 or bf16"]);
    let wide = packed(vec![tensor("mask", DType::Bool(BoolStore::U32), &[2])]);
    said(&wide, &["\"mask\"", "booleans in 32 bits"]);
}

#[test]
fn nested_values_take_no_stack() {
    let mut metadata = vec![0x81; 1 << 20];
    metadata.push(0);
    let mut bytes = b"NRUB\x01\0".to_vec();
    bytes.extend((metadata.len() as u32).to_le_bytes());
    bytes.extend(metadata);
    assert!(fault(&bytes).contains("not valid"));
    // In a field that is passed over, too.
    let valid = valid_file();
    let len = u32::from_le_bytes(valid[6..10].try_into().unwrap()) as usize;
    let mut metadata = valid[10..10 + len].to_vec();
    metadata[0] += 1;
    metadata.extend(b"eother");
    metadata.extend([0x81; 1000]);
    metadata.push(0);
    let mut bytes = b"NRUB\x01\0".to_vec();
    bytes.extend((metadata.len() as u32).to_le_bytes());
    bytes.extend(metadata);
    assert!(fault(&bytes).contains("too deep"), "{}", fault(&bytes));
}

/// Every tensor of what was opened can be read, whole.
fn read_all(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors() {
        assert_eq!(checkpoint.read(tensor).unwrap().len() as u64, tensor.len);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_burn_pack_writes_is_read(
        tensors in vec((0..DTYPES.len(), vec(0usize..6, 0..4), "[a-z]{1,8}(\\.[a-z0-9]{1,4}){0,2}"), 0..12),
    ) {
        let mut tensors = tensors;
        let mut seen = std::collections::HashSet::new();
        tensors.retain(|(.., name)| seen.insert(name.clone()));
        let written = tensors.iter().map(|(n, shape, name)| tensor(name, DTYPES[*n].0, shape));
        let checkpoint = open(&packed(written.collect())).unwrap();
        prop_assert_eq!(checkpoint.tensors().len(), tensors.len());
        for (n, shape, name) in &tensors {
            let found = checkpoint.get(name).unwrap();
            prop_assert_eq!((found.dtype, &found.shape), (DTYPES[*n].1, shape));
            prop_assert_eq!(checkpoint.read(found).unwrap(), data(name, DTYPES[*n].0, shape));
        }
    }

    #[test]
    fn damage_is_refused_or_harmless(
        changes in vec((0usize..600, any::<u8>()), 0..6),
        cut in prop_oneof![3 => Just(usize::MAX), 1 => 0usize..1200],
    ) {
        let mut bytes = valid_file();
        let len = bytes.len();
        for (at, byte) in changes {
            bytes[at % len] = byte;
        }
        bytes.truncate(cut);
        match open(&bytes) {
            Ok(checkpoint) => read_all(&checkpoint),
            Err(Error::Burnpack { fault, .. }) => {
                let said = fault.to_string();
                prop_assert!(!said.chars().any(char::is_control), "{said:?}");
                let other = matches!(fault, BurnpackFault::OtherFormat { .. });
                prop_assert!(!other || bytes[0] != b'N', "{said}");
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}

#[test]
fn a_path_without_a_file_says_so() {
    let error = Checkpoint::open(Path::new("nowhere/module.bpk")).unwrap_err();
    assert!(error.to_string().contains(".bpk"), "{error}");
}
