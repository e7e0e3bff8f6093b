//! Dispatches a fixture's checkpoint with a GPU.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use burn::tensor::Device;
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use outsize_core::{Devices, Options, gpu};
use outsize_models::{CacheOptions, DispatchedDecoder, Init, KvCache, ModelConfig};
use outsize_plan::{
    Bandwidth, Budget, GemmRates, Gpu, HardwareProfile, ManualMap, PrefillRates, Processor, Tier,
    Workload, from_assignment,
};

use serde_json::{Value, json};

use super::dispatched::{config, path};

/// Whether there is a GPU to test on. Without one it is said on standard error, and where
/// `OUTSIZE_GPU_TESTS` is set it is a failure.
pub fn there_is_a_gpu() -> bool {
    match gpu(0) {
        Ok(found) => {
            println!("on {} ({})", found.name, found.backend);
            true
        }
        Err(error) => {
            assert!(std::env::var_os("OUTSIZE_GPU_TESTS").is_none(), "{error}");
            eprintln!("skipped: {error}");
            false
        }
    }
}

/// Whether that GPU only allocates and copies.
pub fn computes_nothing() -> bool {
    gpu(0).is_ok_and(|found| found.name.starts_with("noop"))
}

/// A processor that takes no time.
const FAST: Processor = Processor {
    memory_bytes_per_second: 1e15,
    product_bytes_per_second: 1e15,
    product_flops: 1e18,
    prefill: None,
    cache_bytes_per_second: 1e15,
    block_seconds: 0.0,
};

fn with_gpu(processor: Processor) -> HardwareProfile {
    let upload = Bandwidth { bytes_per_second: 1e15, latency_seconds: 0.0 };
    let gpus = BTreeMap::from([(0, Gpu { processor, upload, download: None })]);
    HardwareProfile { gpus, ..HardwareProfile::default() }
}

/// A machine whose GPU is always faster.
pub fn figures() -> HardwareProfile {
    with_gpu(FAST)
}

/// A machine whose GPU is faster with prompts and slower with tokens, or the other way round.
pub fn figures_apart(gpu_reads_prompts: bool) -> HardwareProfile {
    let rates = GemmRates { bytes_per_second: 1e15, flops: 1.0, values_per_second: 1e15 };
    let slow_prompts = PrefillRates { f32: rates, bf16: rates, attention_flops: 1.0 };
    let slow_prompts = Processor { prefill: Some(slow_prompts), ..FAST };
    // A token attends to all of a context, and those of a prompt to half of the prompt.
    let slow_tokens = Processor { cache_bytes_per_second: 1.0, ..FAST };
    let (cpu, gpu) = match gpu_reads_prompts {
        true => (slow_prompts, slow_tokens),
        false => (slow_tokens, slow_prompts),
    };
    HardwareProfile { cpu, ..with_gpu(gpu) }
}

/// The fixture's model and a cache for it, with weights where `map` says, in tiles of so many
/// bytes; what is not on the GPU is copied to it.
pub fn load_on(
    name: &str,
    map: &str,
    tile_bytes: u64,
    cache: &CacheOptions,
) -> (ModelConfig, DispatchedDecoder, KvCache) {
    load_computed(name, map, tile_bytes, cache, (figures(), &[[Tier::Gpu(0); 2]]))
}

/// The same on a machine where the prompts and tokens of layers are computed on tiers of these.
pub fn load_computed(
    name: &str,
    map: &str,
    tile_bytes: u64,
    cache: &CacheOptions,
    (figures, computed): (HardwareProfile, &[[Tier; 2]]),
) -> (ModelConfig, DispatchedDecoder, KvCache) {
    let config = config(name);
    let checkpoint = Checkpoint::open(path(name)).unwrap();
    let mut tree = config.tree(name, checkpoint.tensors()).unwrap();
    config.add_work(&mut tree, cache, outsize_models::Logits::All);
    let options = Options {
        budget: Budget::parse("gpu0=64MiB,cpu=64MiB").unwrap(),
        tile_bytes,
        read_bytes: 4096,
        min_ring_bytes: 0,
        ..config.options(checkpoint.tensors())
    };
    let workload = Workload { position: 1 << 40, ..Workload::default() };
    let plan = outsize_plan::Options { small_tensor: 0, figures, workload, ..options.plan() };
    let manual = ManualMap::parse(map).unwrap();
    let assignment = manual.assign(&tree, &options.budget, &plan).unwrap();
    let map = from_assignment(&tree, &assignment, &options.budget, &plan).unwrap();
    for block in map.blocks().iter().filter(|block| block.kv_bytes > 0) {
        let on = [block.prefill_on, block.decode_on];
        assert!(computed.contains(&on), "{} on {on:?}", block.name);
    }
    let devices = config.cache_devices(&map, &Devices::of_map(&map).unwrap());
    let cache = KvCache::on(config.cache(), cache, &devices).unwrap();
    let init = Init::new(&Device::flex());
    let model = config.dispatch(&init, &checkpoint, &map, &options).unwrap();
    (config, model, cache)
}

/// A checkpoint of such tensors in bf16, no two in a row the same: elements are about 2⁻⁷, and
/// every eleventh is −2⁻⁷.
pub fn written(folder: &Path, tensors: Vec<(String, Dtype, Vec<usize>)>) -> Checkpoint {
    let specs: Vec<_> = tensors
        .into_iter()
        .map(|(name, dtype, shape)| TensorSpec::new(name, dtype, shape))
        .collect();
    let mut writer = ShardWriter::create(folder, specs.clone(), 64 << 20).unwrap();
    for (value, spec) in (0x3c00u16..0x3c40).cycle().zip(&specs) {
        let bytes = (0..spec.shape.iter().product()).flat_map(|at: usize| match at % 11 {
            0 => 0xbc00u16.to_le_bytes(),
            _ => value.to_le_bytes(),
        });
        writer.write(&spec.name, &bytes.collect::<Vec<_>>()).unwrap();
    }
    writer.finish().unwrap();
    Checkpoint::open(folder).unwrap()
}

/// A checkpoint of such tensors, all zeros, in a file that takes no room on the disk.
pub fn of_zeros(folder: &Path, tensors: Vec<(String, Dtype, Vec<usize>)>) -> Checkpoint {
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let bytes = shape.iter().product::<usize>() as u64 * 2;
        assert_eq!(dtype, Dtype::BF16, "{name}");
        let tensor = json!({"dtype": "BF16", "shape": shape, "data_offsets": [end, end + bytes]});
        header.insert(name, tensor);
        end += bytes;
    }
    let header = Value::Object(header).to_string();
    std::fs::create_dir(folder).unwrap();
    let mut file = File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
    Checkpoint::open(folder).unwrap()
}
