//! What a model allocates, by a counting allocator. One test: the counter sees all threads.

mod dense;
mod experts;
mod layers;
mod passes;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor, TensorData};
use dense::dense_models_need_what_is_said;
use experts::experts_need_what_is_said;
use layers::other_layers_need_what_is_said;
use outsize_models::arch::LlamaForCausalLm;
use outsize_models::{
    CacheOptions, DecoderArchitecture, Init, KvDtype, ModelConfig, WhenFull, presets,
};
use peak_alloc::PeakAlloc;
use std::process::Command;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Runs `work` and gives the bytes that it had allocated at most, and those it left allocated.
fn allocated<T>(work: impl FnOnce() -> T) -> (T, u64, u64) {
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    let result = work();
    let peak = ALLOCATOR.peak_usage().saturating_sub(before);
    (result, peak as u64, ALLOCATOR.current_usage().saturating_sub(before) as u64)
}

struct CountLazy {
    lazy: usize,
    initialized: usize,
}

impl ModuleVisitor for CountLazy {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_initialized() { self.initialized += 1 } else { self.lazy += 1 }
    }
}

/// Gives each parameter small numbers in place of random ones, which would take longer than the
/// passes.
struct FillWeights;

impl ModuleMapper for FillWeights {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (shape, device) = (param.lazy_shape(), param.lazy_device());
        let numbers: Vec<f32> = (0..61).map(|i| i as f32 / 1000.0 - 0.03).collect();
        let mut values = numbers.repeat(shape.num_elements().div_ceil(61));
        values.truncate(shape.num_elements());
        let tensor = Tensor::from_data(TensorData::new::<f32, _>(values, shape), &device);
        let id = param.id;
        param.transform_for_load(tensor, id)
    }
}

/// The model with weights, of which the values do not matter to what a pass allocates.
fn filled<D: DecoderArchitecture>(config: &ModelConfig, device: &Device) -> D {
    config.build::<D>(&Init::new(device)).unwrap().map(&mut FillWeights)
}

fn config(hidden: usize, inner: usize, heads: usize, kv_heads: usize, vocab: usize) -> ModelConfig {
    config_with(hidden, inner, heads, kv_heads, vocab, "")
}

/// With more fields, each behind a comma.
fn config_with(
    hidden: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    vocab: usize,
    more: &str,
) -> ModelConfig {
    ModelConfig::from_json(&format!(
        r#"{{"hidden_size": {hidden}, "intermediate_size": {inner}, "num_hidden_layers": 2, "model_type": "llama",
            "num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": 64, "vocab_size": {vocab}{more}}}"#
    ))
    .unwrap()
}

/// The counter sees all threads: what is measured at the same time is in a process of its own.
#[test]
fn memory_is_what_is_said() {
    const ASKS: &str = "OUTSIZE_MEMORY_OF_EXPERTS";
    if std::env::var_os(ASKS).is_some() {
        return experts_need_what_is_said();
    }
    let said = tempfile::NamedTempFile::new().unwrap();
    let mut beside = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory_is_what_is_said", "--nocapture"])
        .env(ASKS, "1")
        .stdout(said.reopen().unwrap())
        .spawn()
        .unwrap();
    creating_a_model_allocates_no_weights();
    dense_models_need_what_is_said();
    other_layers_need_what_is_said();
    let status = beside.wait().unwrap();
    let said = std::fs::read_to_string(said.path()).unwrap();
    assert!(status.success() && said.contains("1 passed"), "{said}");
    println!("{said}");
}

fn bf16(context: usize) -> CacheOptions {
    CacheOptions { dtype: KvDtype::Bf16, ..CacheOptions::new(context) }
}

fn sliding() -> CacheOptions {
    CacheOptions { when_full: WhenFull::Slide, ..bf16(600) }
}

fn creating_a_model_allocates_no_weights() {
    let config = ModelConfig::from_json(presets::config("llama-7b").unwrap()).unwrap();
    let (model, peak, _) =
        allocated(|| config.build::<LlamaForCausalLm>(&Init::new(&Device::default())).unwrap());
    assert!(peak < 1 << 20, "creating a model of 6.7 billion parameters allocated {peak} bytes");
    let mut count = CountLazy { lazy: 0, initialized: 0 };
    model.visit(&mut count);
    assert_eq!((count.lazy, count.initialized), (32 * 9 + 3, 0));
}
