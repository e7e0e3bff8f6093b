//! Dispatches a fixture's checkpoint into a model of any architecture.

use std::path::PathBuf;

use burn::tensor::Device;
use outsize_checkpoint::{CONFIG_LIMIT, Checkpoint, read_optional_text};
use outsize_core::Options;
use outsize_models::{ActivationDtype, DispatchedDecoder, Init, ModelConfig};
use outsize_plan::{Budget, DeviceMap, Tree, infer};

use super::folder;

/// The fixture's configuration.
pub fn config(name: &str) -> ModelConfig {
    let text = read_optional_text(&path(name).join("config.json"), CONFIG_LIMIT);
    ModelConfig::from_json(&text.unwrap().unwrap()).unwrap()
}

/// Where the fixture's checkpoint is: its folder, or the GGUF file in it.
pub fn path(name: &str) -> PathBuf {
    let file = folder(name).join("model.gguf");
    if file.exists() { file } else { folder(name) }
}

/// Where the weights of a tree live in as much memory, if that is enough, in tiles of so many
/// bytes; and how they are loaded.
pub fn placed_in(
    tree: &Tree,
    options: Options,
    tile_bytes: u64,
    memory: &str,
) -> Option<(DeviceMap, Options)> {
    let options = Options {
        budget: Budget::parse(&format!("cpu={memory}")).unwrap(),
        tile_bytes,
        read_bytes: 4096,
        min_ring_bytes: 0,
        ..options
    };
    let plan = outsize_plan::Options {
        // Nothing is too small to be streamed.
        small_tensor: 0,
        ..options.plan()
    };
    Some((infer(tree, &options.budget, &plan).ok()?, options))
}

/// The fixture's model in as much memory, if that is enough, and what of it is streamed, in tiles
/// of so many bytes.
pub fn load_in(
    name: &str,
    tile_bytes: u64,
    memory: &str,
    compute: ActivationDtype,
) -> Option<(DispatchedDecoder, u64)> {
    let config = config(name);
    let checkpoint = Checkpoint::open(path(name)).unwrap();
    let tree = config.tree(name, checkpoint.tensors()).unwrap();
    let options = config.options(checkpoint.tensors());
    let (map, options) = placed_in(&tree, options, tile_bytes, memory)?;
    let init = Init { device: Device::flex(), compute };
    let model = config.dispatch(&init, &checkpoint, &map, &options).unwrap();
    Some((model, map.streamed_bytes()))
}

/// The fixture's configuration and its model, all of it in memory.
pub fn load(name: &str, tile_bytes: u64) -> (ModelConfig, DispatchedDecoder) {
    let (model, streamed) = load_in(name, tile_bytes, "16MiB", ActivationDtype::F32).unwrap();
    assert_eq!(streamed, 0);
    (config(name), model)
}

/// Compares what `run` gives of the fixture's model in the least memory, and in some more, with
/// what it gave in enough, bit by bit.
pub fn assert_same_streamed(
    name: &str,
    tile_bytes: u64,
    resident: &[f32],
    run: impl Fn(&DispatchedDecoder) -> Vec<f32>,
) {
    let checkpoint = Checkpoint::open(path(name)).unwrap();
    // What readers take beside weights.
    let staging = config(name).tree(name, checkpoint.tensors()).unwrap().staging_bytes;
    let load = |kibibytes: u64| {
        let memory = format!("{}", staging + (kibibytes << 10));
        load_in(name, tile_bytes, &memory, ActivationDtype::F32)
    };
    let least = (10..=120).step_by(10).find_map(|least| Some((least, load(least)?)));
    let (least, loaded) = least.unwrap_or_else(|| panic!("{name} does not run in 120 KiB"));
    let more = [20, 70].map(|more| least + more).into_iter();
    let more = more.map(|memory| (memory, load(memory).expect("more memory is enough")));
    let mut most = 0;
    for (memory, (model, streamed)) in std::iter::once((least, loaded)).chain(more) {
        most = most.max(streamed);
        let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
        assert!(run(&model).iter().zip(resident).all(same), "{name} in {memory} KiB");
    }
    assert!(most > 10_000, "{name}: {most} bytes streamed");
}
