//! Dispatches a fixture's checkpoint into a model of any architecture.

use burn::tensor::Device;
use outsize_checkpoint::Checkpoint;
use outsize_models::{ActivationDtype, DispatchedDecoder, Init, ModelConfig};
use outsize_plan::Budget;

use super::folder;

/// The fixture's configuration.
pub fn config(name: &str) -> ModelConfig {
    let file = folder(name).join("config.json");
    ModelConfig::from_json(&std::fs::read_to_string(file).unwrap()).unwrap()
}

/// The fixture's model in as much memory, if that is enough, and what of it is streamed, in tiles of so many bytes.
pub fn load_in(
    name: &str,
    tile_bytes: u64,
    memory: &str,
    compute: ActivationDtype,
) -> Option<(Box<dyn DispatchedDecoder>, u64)> {
    let config = config(name);
    let checkpoint = Checkpoint::open(folder(name)).unwrap();
    let options = outsize_core::Options {
        budget: Budget::parse(&format!("cpu={memory}")).unwrap(),
        tile_bytes,
        read_bytes: 4096,
        min_ring_bytes: 0,
        ..config.options(checkpoint.tensors())
    };
    let tree = config.tree(name, checkpoint.tensors()).unwrap();
    let plan = outsize_plan::Options {
        // Nothing is too small to be streamed.
        small_tensor: 0,
        ..options.plan()
    };
    let map = outsize_plan::infer(&tree, &options.budget, &plan).ok()?;
    let init = Init { device: Device::flex(), compute };
    let model = config.dispatch(&init, &checkpoint, &map, &options).unwrap();
    Some((model, map.streamed_bytes()))
}

/// The fixture's configuration and its model, all of it in memory.
pub fn load(name: &str, tile_bytes: u64) -> (ModelConfig, Box<dyn DispatchedDecoder>) {
    let (model, streamed) = load_in(name, tile_bytes, "16MiB", ActivationDtype::F32).unwrap();
    assert_eq!(streamed, 0);
    (config(name), model)
}
