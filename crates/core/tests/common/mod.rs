//! Modules with values of their own, and checkpoints of them in Burn's layout.
#![allow(dead_code)] // each test binary takes what it needs

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, Int, Tensor, TensorData};
use outsize_checkpoint::{Dtype, ShardWriter, TensorSpec};
use outsize_core::{Options, parameters};
use outsize_plan::Budget;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder for one checkpoint, which is not there yet.
pub fn folder() -> (TempDir, PathBuf) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let out = dir.path().join("checkpoint");
    (dir, out)
}

/// A budget for main memory, and small pieces so that small tensors have several.
pub fn options(budget: Option<u64>) -> Options {
    Options {
        budget: match budget {
            Some(bytes) => Budget::parse(&format!("cpu={bytes}")).unwrap(),
            None => Budget::default(),
        },
        small_tensor_bytes: 0,
        read_bytes: 8 << 10,
        readers: 2,
        ..Options::default()
    }
}

/// Zeros for every parameter, which take no place on the disk.
pub fn write_zeros<M: Module>(module: &M, out: &Path, dtype: &str, size: u64) -> u64 {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for parameter in parameters(module) {
        let start = end;
        end += parameter.shape.iter().product::<usize>() as u64 * size;
        let entry = serde_json::json!({
            "dtype": dtype, "shape": parameter.shape, "data_offsets": [start, end],
        });
        header.insert(parameter.path, entry);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    std::fs::create_dir(out).unwrap();
    let mut file = File::create(out.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(&header).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
    end
}

/// Numbers that look random.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// Between -0.5 and 0.5; a multiple of 1/256, so that every type of storage holds it exactly,
    /// and 0.25 more of it too.
    pub fn float(&mut self) -> f32 {
        ((self.next() >> 10) % 256) as f32 / 256.0 - 0.5
    }

    pub fn tensor<const D: usize>(&mut self, shape: [usize; D]) -> Tensor<D> {
        let count = shape.iter().product();
        let values: Vec<f32> = (0..count).map(|_| self.float()).collect();
        Tensor::from_data(TensorData::new(values, shape), &Default::default())
    }

    pub fn ids<const D: usize>(&mut self, shape: [usize; D], below: u64) -> Tensor<D, Int> {
        let count = shape.iter().product();
        let values: Vec<i64> = (0..count).map(|_| (self.next() % below) as i64).collect();
        Tensor::from_data(TensorData::new(values, shape), &Default::default())
    }
}

/// The module with values of its own in every parameter, also where Burn begins with ones and
/// zeros.
pub fn fill<M: Module>(module: M) -> M {
    module.map(&mut Fill { numbers: Numbers(7), path: Vec::new() })
}

struct Fill {
    numbers: Numbers,
    path: Vec<String>,
}

impl ModuleMapper for Fill {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // A variance is not negative.
        let variance = self.path.last().is_some_and(|field| field == "running_var");
        let (id, shape) = (param.id, param.transform_for_save().val().dims());
        let values = self.numbers.tensor(shape);
        let values = if variance { values.abs().add_scalar(0.25) } else { values };
        // As loading does: the layout in memory decides in which order sums are taken.
        param.transform_for_load(values, id)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.map(|tensor| self.numbers.ids(tensor.dims(), 5))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        param.map(|tensor| self.numbers.ids(tensor.dims(), 2).equal_elem(1))
    }
}

/// The parameters of a module as a record of Burn's has them.
pub fn values<M: Module>(module: &M) -> Vec<(String, TensorData)> {
    let mut collect = Collect::default();
    module.visit(&mut collect);
    collect.found
}

#[derive(Default)]
struct Collect {
    path: Vec<String>,
    found: Vec<(String, TensorData)>,
}

impl ModuleVisitor for Collect {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_string());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.transform_for_save().val().into_data();
        self.found.push((self.path.join("."), data));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let data = param.val().into_data().convert::<i64>();
        self.found.push((self.path.join("."), data));
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.found.push((self.path.join("."), param.val().into_data()));
    }
}

/// Writes what [`values`] gave, floats as `dtype`.
pub fn write(out: &Path, values: &[(String, TensorData)], dtype: Dtype) {
    let encoded: Vec<(TensorSpec, Vec<u8>)> = values
        .iter()
        .map(|(name, data)| {
            let (dtype, bytes) = match (data.dtype(), dtype) {
                (DType::F32, Dtype::BF16) => {
                    (dtype, narrow(data, |value| half::bf16::from_f32(value).to_le_bytes()))
                }
                (DType::F32, Dtype::F16) => {
                    (dtype, narrow(data, |value| half::f16::from_f32(value).to_le_bytes()))
                }
                (DType::F32, _) => (Dtype::F32, data.as_bytes().to_vec()),
                (DType::I64, _) => (Dtype::I64, data.as_bytes().to_vec()),
                (DType::Bool(_), _) => (Dtype::Bool, data.as_bytes().to_vec()),
                (other, _) => panic!("{name} is {other:?}"),
            };
            (TensorSpec::new(name, dtype, data.shape().to_vec()), bytes)
        })
        .collect();
    let specs: Vec<_> = encoded.iter().map(|(spec, _)| spec.clone()).collect();
    let mut writer = ShardWriter::create(out, specs, 1 << 20).unwrap();
    for (spec, bytes) in &encoded {
        writer.write(&spec.name, bytes).unwrap();
    }
    writer.finish().unwrap();
}

fn narrow(data: &TensorData, one: impl Fn(f32) -> [u8; 2]) -> Vec<u8> {
    data.iter::<f32>().flat_map(one).collect()
}

/// The bits of a pass's output.
pub fn bits(output: Tensor<1>) -> Vec<u32> {
    let values: Vec<f32> = output.into_data().try_to_vec().unwrap();
    assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
    values.into_iter().map(f32::to_bits).collect()
}

/// All elements in one axis.
pub fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let count = tensor.shape().num_elements();
    tensor.reshape([count])
}
