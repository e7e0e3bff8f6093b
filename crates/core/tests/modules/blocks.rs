//! Weights stored in blocks: for unmodified modules they are the floats that they are worth, for
//! those who know the handle they stay as they are stored.

use crate::common::{Numbers, folder, options};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, StorageFormat, TensorSpec};
use outsize_core::{
    Access, Error, FloatType, Layout, Names, Options, Streamed, dispatch, plan, tree,
};
use outsize_kernels::{BlockWeight, WeightTensor};
use outsize_plan::{Budget, Residency};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FORMAT: StorageFormat = StorageFormat::fp8([16, 24]);

/// Unmodified layers, as wide as some tiles.
#[derive(Module, Debug)]
struct Net {
    a: Linear,
    b: Linear,
    c: Linear,
    d: Linear,
}

fn net() -> Net {
    let config = LinearConfig::new(150, 300).with_bias(false);
    let layer = || config.init(&Device::flex());
    Net { a: layer(), b: layer(), c: layer(), d: layer() }
}

/// The tensors of data.
const NAMES: [&str; 4] = ["a.weight", "b.weight", "c.weight", "d.weight"];

/// A checkpoint of PyTorch's layout, and the floats that each weight is worth, `[out, in]`.
fn checkpoint() -> (TempDir, PathBuf, [Vec<f32>; 4]) {
    let (dir, out) = folder();
    let shape = [300, 150];
    let mut specs = Vec::new();
    for name in NAMES {
        // Scales lie apart from what they scale, and nothing is aligned.
        specs.push(TensorSpec::new(name, Dtype::F8E4M3, shape));
    }
    for name in NAMES {
        let scales = FORMAT.scales.unwrap().shape(shape);
        specs.push(TensorSpec::new(FORMAT.scales_name(name).unwrap(), Dtype::F32, scales));
    }
    let mut writer = ShardWriter::create(&out, specs, 1 << 30).unwrap();
    let mut numbers = Numbers(3);
    let weights = NAMES.map(|name| {
        let values: Vec<f32> = (0..300 * 150).map(|_| numbers.float()).collect();
        let weight = BlockWeight::quantize(FORMAT, shape, &values).unwrap();
        writer.write(name, weight.data()).unwrap();
        (name, weight)
    });
    for (name, weight) in &weights {
        let name = FORMAT.scales_name(name).unwrap();
        writer.write(&name, weight.scales()).unwrap();
    }
    writer.finish().unwrap();
    let worth = weights.map(|(_, weight)| {
        let mut values = vec![0.0; 300 * 150];
        weight.dequantize(0..300, &mut values);
        values
    });
    (dir, out, worth)
}

fn fp8(budget: Option<u64>) -> Options {
    Options { format: Some(FORMAT), names: Names::new(Layout::PyTorch), ..options(budget) }
}

/// Reads the whole weights by `Param::val()`, `[out, in]`, and checks each value.
fn check(net: &Net, worth: &[Vec<f32>; 4], dtype: DType) {
    for (layer, worth) in [&net.a, &net.b, &net.c, &net.d].into_iter().zip(worth) {
        let wanted = Tensor::<2>::from_data(
            TensorData::new(worth.clone(), [300, 150]),
            (&Device::flex(), DType::F32),
        );
        let found = layer.weight.val();
        assert_eq!(found.dtype(), dtype);
        // Burn's layers hold `[in, out]`.
        let found = found.transpose().cast(DType::F32);
        found.into_data().assert_eq(&wanted.cast(dtype).cast(DType::F32).into_data(), true);
    }
}

#[test]
fn unmodified_modules_get_floats_streamed_or_resident() {
    let (_dir, path, worth) = checkpoint();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for (float_type, dtype, size) in [
        (FloatType::Cast(DType::F32), DType::F32, 4),
        (FloatType::Cast(DType::BF16), DType::BF16, 2),
        (FloatType::AsStored, DType::F32, 4),
    ] {
        let wide = 300 * 150 * size;
        let options = |budget| Options { float_type, ..fp8(budget) };
        let tree = tree(&net(), &checkpoint, &options(None)).unwrap();
        let tensors: Vec<_> = tree.blocks.iter().flat_map(|block| &block.tensors).collect();
        let bytes = tensors.iter().map(|tensor| tensor.bytes).collect::<Vec<_>>();
        let scales = (300u64.div_ceil(16) * 150u64.div_ceil(24)) * 4;
        assert_eq!(bytes, [wide, scales].repeat(4));
        let (mut streamed, mut resident) = (0, 0);
        for budget in [2 * wide + (90 << 10), 3 * wide + (90 << 10), 5 * wide] {
            let options = options(Some(budget));
            let Ok(map) = plan(&net(), &checkpoint, &options) else {
                continue;
            };
            match map.residency("b.weight") {
                Some(Residency::Streamed) => streamed += 1,
                _ => resident += 1,
            }
            let model = dispatch(net(), &checkpoint, &map, &options).unwrap();
            for _ in 0..3 {
                model.run(|net| check(net, &worth, dtype)).unwrap();
            }
            assert_eq!(model.stats().overflows, 0);
        }
        assert!(streamed > 0 && resident > 0, "{dtype:?}: {streamed}, {resident}");
    }
}

/// A layer that knows its handle.
#[derive(Module, Debug)]
struct Own {
    a: Matrix,
    b: Matrix,
}

#[derive(Module, Debug)]
struct Matrix {
    weight: Param<Tensor<2>>,
}

fn own() -> Own {
    let matrix = || Matrix {
        weight: Param::uninitialized(
            burn::module::ParamId::new(),
            |device: &Device, _| Tensor::zeros([300, 150], device),
            Device::flex(),
            false,
            [300, 150].into(),
        ),
    };
    Own { a: matrix(), b: matrix() }
}

fn floats(weight: WeightTensor) -> Vec<f32> {
    assert!(matches!(weight, WeightTensor::Blocks(_)));
    let tensor = weight.into_float(&Device::flex());
    tensor.into_data().try_to_vec().unwrap()
}

fn handle(matrix: &Matrix) -> &Streamed {
    Streamed::of(&matrix.weight).unwrap()
}

#[test]
fn who_knows_the_handle_gets_blocks() {
    let (_dir, path, worth) = checkpoint();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let stored = checkpoint.total_bytes() / 2;
    let access = |a| [("a.weight".to_string(), a), ("b.weight".to_string(), Access::Rows)];
    let options = |budget| Options {
        float_type: FloatType::AsStored,
        access: access(Access::Tiles).into(),
        tile_bytes: 12 << 10,
        allow_extra: true,
        ..fp8(budget)
    };
    let planned = tree(&own(), &checkpoint, &options(None)).unwrap();
    let tensors: Vec<_> = planned.blocks.iter().flat_map(|block| &block.tensors).collect();
    assert_eq!(tensors.len(), 2);
    let sum =
        |of: fn(&outsize_plan::Tensor) -> u64| tensors.iter().map(|tensor| of(tensor)).sum::<u64>();
    assert_eq!(sum(|tensor| tensor.stored_bytes), stored);
    assert!(sum(|tensor| tensor.bytes) <= stored + 2 * 8192);

    // All in memory, at its own size.
    let map = plan(&own(), &checkpoint, &options(Some(stored + (40 << 10)))).unwrap();
    assert_eq!(map.ring_bytes(), 0);
    let model = dispatch(own(), &checkpoint, &map, &options(None)).unwrap();
    for _ in 0..2 {
        model
            .run(|own| {
                for (matrix, worth) in [&own.a, &own.b].into_iter().zip(&worth) {
                    assert_eq!(&floats(handle(matrix).weight()), worth);
                    let value = matrix.weight.val().into_data();
                    assert_eq!(&value.try_to_vec::<f32>().unwrap(), worth);
                }
            })
            .unwrap();
    }

    // One by tiles, one by rows.
    let map = plan(&own(), &checkpoint, &options(Some(50 << 10))).unwrap();
    assert!(map.ring_bytes() > 0);
    let model = dispatch(own(), &checkpoint, &map, &options(None)).unwrap();
    for _ in 0..3 {
        model
            .run(|own| {
                let mut end = 0;
                for (rows, tile) in handle(&own.a).tiles() {
                    assert_eq!(rows.start, end);
                    end = rows.end;
                    assert_eq!(floats(tile), worth[0][rows.start * 150..rows.end * 150]);
                }
                assert_eq!(end, 300);
                // A few; then all, in runs of neighbours, some twice.
                for ids in [vec![299, 0, 17, 299], (0..302).map(|at| at * 7 % 300).collect()] {
                    let rows = handle(&own.b).rows(&ids);
                    let rows: Vec<f32> = rows.into_data().try_to_vec().unwrap();
                    assert_eq!(rows.len(), ids.len() * 150);
                    for (row, found) in ids.into_iter().zip(rows.chunks(150)) {
                        assert_eq!(found, &worth[1][row * 150..(row + 1) * 150]);
                    }
                }
            })
            .unwrap();
    }
    assert_eq!(model.stats().overflows, 0);
}

#[test]
fn parts_of_a_packed_weight_keep_their_scales() {
    let (_dir, path, worth) = checkpoint();
    let checkpoint = Checkpoint::open(&path).unwrap();
    // 100 rows each: blocks of 16 are cut.
    let matrix = |rows: usize| Matrix {
        weight: Param::uninitialized(
            burn::module::ParamId::new(),
            move |device: &Device, _| Tensor::zeros([rows, 150], device),
            Device::flex(),
            false,
            [rows, 150].into(),
        ),
    };
    let own = || Own { a: matrix(100), b: matrix(100) };
    for (float_type, in_blocks) in
        [(FloatType::AsStored, true), (FloatType::Cast(DType::F32), false)]
    {
        let options = Options {
            float_type,
            allow_extra: true,
            access: [("a.weight", Access::Tiles), ("b.weight", Access::Tiles)]
                .map(|(name, access)| (name.to_string(), access))
                .into(),
            names: Names::default()
                .part("^a.weight", "a.weight", 1, 3)
                .and_then(|names| names.part("^b.weight", "a.weight", 2, 3))
                .unwrap(),
            ..fp8(Some(1 << 20))
        };
        let map = plan(&own(), &checkpoint, &options).unwrap();
        let model = dispatch(own(), &checkpoint, &map, &options).unwrap();
        model
            .run(|own| {
                for (part, matrix) in [(1, &own.a), (2, &own.b)] {
                    let weight = handle(matrix).weight();
                    assert_eq!(matches!(weight, WeightTensor::Blocks(_)), in_blocks);
                    let found = weight.into_float(&Device::flex()).into_data();
                    let wanted = &worth[0][part * 100 * 150..(part + 1) * 100 * 150];
                    assert_eq!(found.try_to_vec::<f32>().unwrap(), wanted);
                }
            })
            .unwrap();
    }
}

/// A checkpoint of one weight whose scales are as a test wants them.
fn odd(out: &Path, dtype: Dtype, shape: &[usize]) {
    let mut specs = vec![TensorSpec::new("a.weight", Dtype::F8E4M3, [300, 150])];
    specs.push(TensorSpec::new("a.weight_scale_inv", dtype, shape.to_vec()));
    let mut writer = ShardWriter::create(out, specs, 1 << 30).unwrap();
    writer.write("a.weight", &[0; 300 * 150]).unwrap();
    let bytes = shape.iter().product::<usize>() * dtype.size();
    writer.write("a.weight_scale_inv", &vec![0; bytes]).unwrap();
    writer.finish().unwrap();
}

#[test]
fn scales_that_do_not_fit_are_refused_by_name() {
    for (dtype, shape) in [
        (Dtype::F16, &[19, 7][..]),
        (Dtype::F32, &[18, 7]),
        (Dtype::F32, &[19, 7, 1]),
        (Dtype::F32, &[133]),
    ] {
        let (_dir, path) = folder();
        odd(&path, dtype, shape);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let error = tree(&net(), &checkpoint, &fp8(None)).unwrap_err();
        assert!(matches!(error, Error::Format(_)), "{error}");
        assert!(error.to_string().contains("`a.weight_scale_inv`"), "{error}");
    }
    // Without a format the scales are nobody's.
    let (_dir, path) = folder();
    odd(&path, Dtype::F32, &[19, 7]);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = Options { format: None, budget: Budget::default(), ..fp8(None) };
    let error = tree(&net(), &checkpoint, &options).unwrap_err().to_string();
    assert!(error.contains("a.weight_scale_inv"), "{error}");
}
