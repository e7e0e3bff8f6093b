//! Loads a fixture's checkpoint into a model.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod components;
pub mod decoder_fixtures;
pub mod dispatched;
pub mod gpu;
pub mod reference;
pub mod time_embedder;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use burn::module::{ModuleMapper, Param};
use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_models::arch::LlamaForCausalLm;
use outsize_models::{DecoderArchitecture, Init, ModelConfig};

/// The folder of a fixture.
pub fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The fixture's configuration and its model with all weights as saved.
pub fn load(name: &str) -> (ModelConfig, LlamaForCausalLm) {
    load_with(name, &Init::new(&Device::default()))
}

/// The same, created otherwise.
pub fn load_with(name: &str, init: &Init) -> (ModelConfig, LlamaForCausalLm) {
    load_from(&folder(name), init)
}

/// The model of a checkpoint in some folder.
pub fn load_from<D: DecoderArchitecture>(folder: &Path, init: &Init) -> (ModelConfig, D) {
    let config =
        ModelConfig::from_json(&std::fs::read_to_string(folder.join("config.json")).unwrap())
            .unwrap();
    let checkpoint = Checkpoint::open(folder).unwrap();
    let mut loader = Loader { checkpoint, path: Vec::new(), loaded: BTreeSet::new() };
    let model: D = config.build(init).unwrap();
    let model = model.map(&mut loader);
    let saved: BTreeSet<String> =
        loader.checkpoint.tensors().iter().map(|tensor| tensor.name.clone()).collect();
    assert_eq!(loader.loaded, saved, "{}: parameters and tensors differ", folder.display());
    (config, model)
}

/// Gives each parameter the tensor of its own path.
struct Loader {
    checkpoint: Checkpoint,
    path: Vec<String>,
    loaded: BTreeSet<String>,
}

impl ModuleMapper for Loader {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.join(".");
        let info = self.checkpoint.get(&name).unwrap_or_else(|| panic!("no tensor {name}"));
        assert_eq!(param.lazy_shape().as_slice(), info.shape, "{name}");
        assert!(!param.is_initialized(), "{name} has storage before it is loaded");
        let dtype = match info.dtype {
            Dtype::F32 => DType::F32,
            Dtype::BF16 => DType::BF16,
            Dtype::F16 => DType::F16,
            other => panic!("{name}: {other}"),
        };
        let bytes = Bytes::from_bytes_vec(self.checkpoint.read(info).unwrap());
        let data = TensorData::from_bytes(bytes, info.shape.clone(), dtype);
        let tensor = Tensor::from_data(data, (&param.lazy_device(), dtype));
        assert!(self.loaded.insert(name));
        let id = param.id;
        param.transform_for_load(tensor, id)
    }
}
