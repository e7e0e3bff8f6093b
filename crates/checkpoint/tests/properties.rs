//! Whatever is declared comes back, and whatever is damaged is refused without panic.
mod common;

use std::fs;

use common::{file_bytes, tensor};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use proptest::collection::vec;
use proptest::prelude::*;

fn specs() -> impl Strategy<Value = Vec<TensorSpec>> {
    let dtype = (0..Dtype::ALL.len()).prop_map(|n| Dtype::ALL[n]);
    let name = prop_oneof![4 => "[a-z]{1,8}(\\.[a-z0-9]{1,4}){0,2}", 1 => "\\PC{0,6}"];
    vec((name, dtype, vec(0usize..6, 0..4)), 0..12).prop_map(|tensors| {
        let mut specs: Vec<_> = tensors
            .into_iter()
            .map(|(name, dtype, shape)| TensorSpec::new(name, dtype, shape))
            .collect();
        let mut seen = std::collections::HashSet::new();
        specs.retain(|spec| seen.insert(spec.name.clone()));
        specs
    })
}

/// Bytes that are different in each tensor and place.
fn data(tensor: usize, spec: &TensorSpec) -> Vec<u8> {
    let len = spec.shape.iter().product::<usize>() * spec.dtype.size();
    (0..len).map(|n| (tensor * 37 + n * 11) as u8).collect()
}

/// A valid file of three tensors.
fn valid_file() -> Vec<u8> {
    let json = format!(
        r#"{{"__metadata__":{{"format":"pt"}},{},{},{}}}"#,
        tensor("a", "F32", &[2, 2], 0, 16),
        tensor("b", "BF16", &[3], 16, 22),
        tensor("c", "U8", &[0, 4], 22, 22),
    );
    file_bytes(&json, &[7; 22])
}

/// Every tensor of what was opened can be read, whole.
fn read_all(checkpoint: &Checkpoint) {
    for tensor in checkpoint.tensors() {
        let elements: usize = tensor.shape.iter().product();
        assert_eq!(checkpoint.read(tensor).unwrap().len(), elements * tensor.dtype.size());
        assert_eq!(checkpoint.get(&tensor.name), Some(tensor));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_is_written_is_read(specs in specs(), limit in prop_oneof![0u64..400, Just(u64::MAX)], piece in 1usize..50) {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("out");
        let mut writer = ShardWriter::create(&out, specs.clone(), limit).unwrap();
        for (n, spec) in specs.iter().enumerate() {
            for chunk in data(n, spec).chunks(piece) {
                writer.write(&spec.name, chunk).unwrap();
            }
        }
        prop_assert_eq!(writer.bytes_written(), writer.total_bytes());
        writer.finish().unwrap();

        let checkpoint = Checkpoint::open(&out).unwrap();
        prop_assert_eq!(checkpoint.tensors().len(), specs.len());
        prop_assert!(checkpoint.ignored().is_empty());
        for (n, spec) in specs.iter().enumerate() {
            let tensor = checkpoint.get(&spec.name).unwrap();
            prop_assert_eq!((tensor.dtype, &tensor.shape), (spec.dtype, &spec.shape));
            prop_assert_eq!(checkpoint.read(tensor).unwrap(), data(n, spec));
            prop_assert_eq!(tensor.offset % spec.dtype.size() as u64, 0);
        }
        for file in 0..checkpoint.files().len() {
            let held: Vec<_> = checkpoint.tensors().iter().filter(|tensor| tensor.file == file).collect();
            let bytes: u64 = held.iter().map(|tensor| tensor.len).sum();
            prop_assert!(bytes <= limit || held.len() == 1, "{} bytes in a shard of {} tensors", bytes, held.len());
        }
    }

    #[test]
    fn order_of_declaration_is_order_on_disk(lens in vec(0usize..9, 1..20)) {
        let place = tempfile::tempdir().unwrap();
        let out = place.path().join("out");
        // Names fall, so no order by name is mistaken for it.
        let name = |n: usize| format!("{:03}", 999 - n);
        let specs: Vec<_> = lens.iter().enumerate().map(|(n, &len)| TensorSpec::new(name(n), Dtype::F16, [len])).collect();
        let mut writer = ShardWriter::create(&out, specs.clone(), u64::MAX).unwrap();
        for (n, spec) in specs.iter().enumerate() {
            writer.write(&spec.name, &data(n, spec)).unwrap();
        }
        writer.finish().unwrap();
        let checkpoint = Checkpoint::open(&out).unwrap();
        let on_disk = |filled: bool| {
            let tensors = checkpoint.tensors().iter().filter(move |tensor| !filled || tensor.len > 0);
            tensors.map(|tensor| tensor.name.clone()).collect::<Vec<_>>()
        };
        let declared: Vec<_> = (0..lens.len()).filter(|&n| lens[n] > 0).map(name).collect();
        prop_assert_eq!(on_disk(true), declared);
    }

    #[test]
    fn damage_never_panics(edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), keep in any::<prop::sample::Index>(), cut: bool) {
        let mut bytes = valid_file();
        for (place, value) in edits {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if cut {
            bytes.truncate(keep.index(bytes.len() + 1));
        }
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.safetensors");
        fs::write(&path, &bytes).unwrap();
        match Checkpoint::open(&path) {
            Ok(checkpoint) => read_all(&checkpoint),
            Err(error) => prop_assert!(error.to_string().contains("model.safetensors"), "{}", error),
        }
    }

    #[test]
    fn a_damaged_index_never_panics(edits in vec((any::<prop::sample::Index>(), prop_oneof![any::<u8>(), 32u8..127]), 1..4)) {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("s"), valid_file()).unwrap();
        let mut index = br#"{"metadata":{"total_size":22},"weight_map":{"a":"s","b":"s","c":"s"}}"#.to_vec();
        for (place, value) in edits {
            let place = place.index(index.len());
            index[place] = value;
        }
        fs::write(place.path().join("model.safetensors.index.json"), &index).unwrap();
        match Checkpoint::open(place.path()) {
            Ok(checkpoint) => {
                prop_assert_eq!(checkpoint.tensors().len() + checkpoint.ignored().len(), 3);
                read_all(&checkpoint);
            }
            Err(error) => prop_assert!(error.to_string().contains(place.path().to_str().unwrap()), "{}", error),
        }
    }

    #[test]
    fn every_truncation_is_refused(keep in 0usize..1000) {
        let whole = valid_file();
        let keep = keep % whole.len();
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("model.safetensors");
        fs::write(&path, &whole[..keep]).unwrap();
        prop_assert!(Checkpoint::open(&path).is_err());
    }
}
