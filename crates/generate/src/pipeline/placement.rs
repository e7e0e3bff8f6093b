//! What is streamed, as the disk sees it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

use outsize_checkpoint::{Checkpoint, TensorInfo};
use outsize_models::ModelConfig;
use outsize_plan::{DeviceMap, Residency};

/// The file of which most is streamed, and where in it.
pub(super) fn streamed_range(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    map: &DeviceMap,
) -> Option<(PathBuf, Range<u64>)> {
    // The map has the paths of parameters, and some checkpoints leave their prefix out.
    let residency = |tensor: &TensorInfo| {
        let path = || format!("{}{}", config.optional_prefix(), tensor.name);
        map.residency(&tensor.name).or_else(|| map.residency(&path()))
    };
    let mut files: BTreeMap<usize, (u64, Range<u64>)> = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        if residency(tensor) == Some(Residency::Streamed) {
            let end = tensor.offset + tensor.len;
            let (bytes, range) = files.entry(tensor.file).or_insert((0, tensor.offset..end));
            *bytes += tensor.len;
            *range = range.start.min(tensor.offset)..range.end.max(end);
        }
    }
    let (file, (_, range)) = files.into_iter().max_by_key(|(_, (bytes, _))| *bytes)?;
    Some((checkpoint.files()[file].path().to_path_buf(), range))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use outsize_plan::{Budget, Options, infer};

    use super::*;

    #[test]
    fn names_without_their_prefix_are_found() {
        for name in ["gpt2", "gpt2-published"] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
            let folder = folder.join(name);
            let config = crate::read_config(&folder).unwrap();
            let checkpoint = Checkpoint::open(&folder).unwrap();
            let tree = config.tree(name, checkpoint.tensors()).unwrap();
            // Nothing is too small to be streamed.
            let options = Options { small_tensor: 0, tile_bytes: 700, ..Options::default() };
            let budget = Budget::parse("cpu=40KiB").unwrap();
            let map = infer(&tree, &budget, &options).unwrap();
            assert!(map.streamed_bytes() > 0, "{name}");
            let (file, range) = streamed_range(&config, &checkpoint, &map).unwrap();
            assert_eq!(file, folder.join("model.safetensors"));
            let len = std::fs::metadata(&file).unwrap().len();
            assert!(!range.is_empty() && range.end <= len, "{name}: {range:?} of {len}");
        }
    }
}
