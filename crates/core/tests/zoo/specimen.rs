use crate::common::{bits, fill, folder, options, values, write};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Dispatched, FloatType, Options, dispatch, parameters, tree};
use outsize_plan::{DeviceMap, infer};
use std::collections::HashMap;
use std::path::PathBuf;
use tempfile::TempDir;

/// A kind of module, and a forward pass of its own.
pub trait Specimen: Module {
    fn new(device: &Device) -> Self;

    /// A pass over an input that `seed` decides.
    fn pass(&self, seed: u64) -> Tensor<1>;
}

/// Checkpoints of a specimen, and what it computes from each without outsize. Made once.
pub struct Stored<M> {
    _dir: TempDir,
    paths: HashMap<Dtype, PathBuf>,
    /// What Burn itself saved.
    saved: PathBuf,
    expected: HashMap<u64, Vec<u32>>,
    module: M,
}

pub const DTYPES: [Dtype; 3] = [Dtype::F32, Dtype::BF16, Dtype::F16];

impl<M: Specimen> Stored<M> {
    pub fn new() -> Self {
        let module = fill(M::new(&Device::flex()));
        let (dir, path) = folder();
        let values = values(&module);
        let paths = DTYPES.map(|dtype| {
            let path = path.with_extension(dtype.to_string());
            write(&path, &values, dtype);
            (dtype, path)
        });
        let saved = path.with_extension("bpk");
        module.clone().save_file(&saved).unwrap();
        Self { _dir: dir, paths: paths.into(), saved, expected: HashMap::new(), module }
    }

    pub fn checkpoint(&self, dtype: Dtype) -> Checkpoint {
        Checkpoint::open(&self.paths[&dtype]).unwrap()
    }

    /// The module with its values.
    pub fn module(&self) -> &M {
        &self.module
    }

    /// What Burn itself computes.
    pub fn expected(&mut self, seed: u64) -> Vec<u32> {
        let module = &self.module;
        self.expected.entry(seed).or_insert_with(|| bits(module.pass(seed))).clone()
    }
}

/// The least budget that will do.
pub fn least(tree: &outsize_plan::Tree, options: &Options) -> u64 {
    let none = outsize_plan::Budget::parse("cpu=0").unwrap();
    match infer(tree, &none, &options.plan()) {
        Err(outsize_plan::Error::TooSmall(shortfall)) => shortfall.least,
        Ok(_) => 0,
        Err(error) => panic!("{error}"),
    }
}

pub fn dispatched<M: Specimen>(
    checkpoint: &Checkpoint,
    map: &DeviceMap,
    options: &Options,
) -> Dispatched<M> {
    dispatch(M::new(&Device::flex()), checkpoint, map, options).unwrap()
}

/// What holds for every kind: nothing is initialised by planning and dispatching; in the least
/// budget, passes over three inputs and then the first again give the bits that Burn gives without
/// outsize.
pub fn check<M: Specimen>() {
    let mut stored = Stored::<M>::new();
    let checkpoint = stored.checkpoint(Dtype::F32);
    let options = options(None);
    let module = M::new(&Device::flex());
    let tree = tree(&module, &checkpoint, &options).unwrap();
    let least = least(&tree, &options);
    let lazy = lazy(&module);
    let expected = parameters(&module).iter().filter(|parameter| parameter.streams).count();
    assert_eq!(lazy, expected, "planning initialised parameters");

    let options = crate::common::options(Some(least));
    let map = infer(&tree, &options.budget, &options.plan()).unwrap();
    assert_eq!(map.memory_bytes(), least);
    let keep = module.clone();
    let model = dispatch(module, &checkpoint, &map, &options).unwrap();
    assert_eq!(self::lazy(&keep), expected, "dispatching initialised parameters");
    for seed in [1, 2, 3, 1] {
        let output = model.run(|module| bits(module.pass(seed))).unwrap();
        assert!(output == stored.expected(seed), "pass over input {seed}");
    }
    assert_eq!(model.stats().overflows, 0);
    assert!(map.streamed_bytes() > 0 && model.stats().bytes_read > 0);
    // The exact type of storage is no part of the value here: all hold these numbers exactly.
    let checkpoints = DTYPES.map(|dtype| stored.checkpoint(dtype));
    for checkpoint in checkpoints.into_iter().chain([Checkpoint::open(&stored.saved).unwrap()]) {
        let model = dispatched::<M>(
            &checkpoint,
            &map,
            &Options { float_type: FloatType::Cast(burn::tensor::DType::F32), ..options.clone() },
        );
        let output = model.run(|module| bits(module.pass(1))).unwrap();
        assert!(output == stored.expected(1), "{}", checkpoint.files()[0].path().display());
    }
}

/// How many float parameters are not initialised.
fn lazy<M: Module>(module: &M) -> usize {
    struct Lazy(usize);
    impl burn::module::ModuleVisitor for Lazy {
        fn visit_float<const D: usize>(&mut self, param: &burn::module::Param<Tensor<D>>) {
            self.0 += usize::from(!param.is_initialized());
        }
    }
    let mut lazy = Lazy(0);
    module.visit(&mut lazy);
    lazy.0
}
