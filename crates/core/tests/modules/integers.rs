//! Weights stored as integers: for unmodified modules they are the floats that they are worth, for
//! those who know the handle they stay integers, row after row, however the checkpoint has them.

use crate::common::{Numbers, folder, options};
use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use half::f16;
use outsize_checkpoint::{
    Checkpoint, Dtype, IntegerOrder, IntegerWidth, ShardWriter, StorageFormat, TensorSpec,
    ZeroPoints,
};
use outsize_core::{
    Access, FloatType, Layout, Names, Options, Streamed, dispatch, load, plan, tree,
};
use outsize_kernels::WeightTensor;
use std::path::PathBuf;
use tempfile::TempDir;

/// `[out, in]`: groups and words are cut.
const SHAPE: [usize; 2] = [304, 150];

/// Columns that share a scale.
const GROUP: usize = 24;

const NAMES: [&str; 3] = ["a.weight", "b.weight", "c.weight"];

fn formats() -> Vec<StorageFormat> {
    use IntegerWidth::{I8, U4, U8};
    vec![
        StorageFormat::packed_integers(U4, GROUP, true),
        StorageFormat::packed_integers(U4, GROUP, false),
        StorageFormat::packed_integers(U8, GROUP, true),
        StorageFormat::packed_integers(I8, GROUP, true),
        StorageFormat::packed_integers(I8, 0, false),
        StorageFormat::gptq(U4, GROUP, ZeroPoints::StoredLessOne),
        StorageFormat::gptq(U8, GROUP, ZeroPoints::Stored),
        StorageFormat::awq(GROUP),
    ]
}

/// Random numbers of so many, each below `most`.
fn below(most: u32, count: usize, numbers: &mut Numbers) -> Vec<u32> {
    (0..count).map(|_| (numbers.float().abs() * 1e6) as u32 % most).collect()
}

/// What a matrix of random integers is worth, and the bytes of each of its tensors.
fn matrix(format: StorageFormat, numbers: &mut Numbers) -> (Vec<f32>, [Vec<u8>; 3]) {
    let integers = format.as_integers().unwrap();
    let [rows, columns] = SHAPE;
    let groups = format.scales.unwrap().shape(SHAPE)[1];
    let width = format.scales.unwrap().block[1];
    let bits = 32 / integers.width.per_word().max(4);
    let (most, middle) = (1 << bits, 1 << (bits - 1));
    let values = below(most, rows * columns, numbers);
    let zeros = match integers.zeros {
        ZeroPoints::Middle => vec![middle; rows * groups],
        _ => below(most, rows * groups, numbers),
    };
    let scales: Vec<f16> = below(1000, rows * groups, numbers)
        .into_iter()
        .map(|scale| f16::from_f32(scale as f32 * 1e-4 - 0.02))
        .collect();
    let worth = (0..rows * columns).map(|at| {
        let group = at / columns * groups + at % columns / width;
        (values[at] as f32 - zeros[group] as f32) * scales[group].to_f32()
    });
    // One after the other along a line, from a function of line and place; a line is whole words.
    let words = |lines: usize, places: usize, of: &dyn Fn(usize, usize) -> u32| -> Vec<u32> {
        let each = 32 / bits;
        let word = |line: usize, word: usize| -> u32 {
            (0..each)
                .filter(|at| word * each + at < places)
                .map(|at| of(line, word * each + at) << (at * bits))
                .fold(0, |all, one| all | one)
        };
        (0..lines)
            .flat_map(|line| (0..places.div_ceil(each)).map(move |at| (line, at)))
            .map(|(line, at)| word(line, at))
            .collect()
    };
    let turned = |words: Vec<u32>, lines: usize| -> Vec<u32> {
        let places = words.len() / lines;
        (0..places * lines).map(|at| words[at % lines * places + at / lines]).collect()
    };
    let bytes = |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
    let by_group = |of: usize| (of % rows) * groups + of / rows;
    let order = |row: usize| row / 8 * 8 + [0, 2, 4, 6, 1, 3, 5, 7][row % 8];
    let ones = if bits == 4 { 0x1111_1111 } else { 0x0101_0101 };
    let signed =
        |values: &[u32]| values.iter().map(|value| (value.wrapping_sub(128)) as u8).collect();
    let (data, zeros): (Vec<u8>, Vec<u8>) = match (integers.order, integers.width) {
        (_, IntegerWidth::I8) => (signed(&values), signed(&zeros)),
        (IntegerOrder::Rows, _) => (
            bytes(words(rows, columns, &|row, column| values[row * columns + column])),
            bytes(turned(words(groups, rows, &|group, row| zeros[row * groups + group]), groups)),
        ),
        (IntegerOrder::Columns, _) => {
            let zeros = words(groups, rows, &|group, row| zeros[row * groups + group]);
            let less = integers.zeros == ZeroPoints::StoredLessOne;
            let zeros =
                zeros.into_iter().map(|word| if less { word.wrapping_sub(ones) } else { word });
            let data = words(rows, columns, &|row, column| values[row * columns + column]);
            (bytes(turned(data, rows)), bytes(zeros.collect()))
        }
        (IntegerOrder::Interleaved, _) => (
            bytes(words(columns, rows, &|column, row| values[order(row) * columns + column])),
            bytes(words(groups, rows, &|group, row| zeros[order(row) * groups + group])),
        ),
    };
    let scales = match integers.is_turned() {
        true => (0..rows * groups).flat_map(|at| scales[by_group(at)].to_le_bytes()).collect(),
        false => scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
    };
    (worth.collect(), [data, scales, zeros])
}

/// A checkpoint of three matrices, and what they are worth.
fn checkpoint(format: StorageFormat) -> (TempDir, PathBuf, Vec<Vec<f32>>) {
    let (dir, out) = folder();
    let mut numbers = Numbers(5);
    let format = format.with_scales(Dtype::F16);
    let all = NAMES.map(|name| (format.tensors(name, SHAPE), matrix(format, &mut numbers)));
    let specs = all.iter().flat_map(|(tensors, _)| tensors.clone());
    let specs = specs.map(|(name, dtype, shape)| TensorSpec::new(name, dtype, shape)).collect();
    let mut writer = ShardWriter::create(&out, specs, 1 << 30).unwrap();
    for (tensors, (_, parts)) in &all {
        for (at, (name, ..)) in tensors.iter().enumerate() {
            match name.ends_with("_shape") {
                true => writer.write(name, SHAPE.map(|n| (n as i64).to_le_bytes()).as_flattened()),
                false => writer.write(name, &parts[at]),
            }
            .unwrap();
        }
    }
    writer.finish().unwrap();
    (dir, out, all.into_iter().map(|(_, (worth, _))| worth).collect())
}

/// Unmodified layers.
#[derive(Module, Debug)]
struct Net {
    a: Linear,
    b: Linear,
    c: Linear,
}

fn net() -> Net {
    let config = LinearConfig::new(SHAPE[1], SHAPE[0]).with_bias(false);
    let layer = || config.init(&Device::flex());
    Net { a: layer(), b: layer(), c: layer() }
}

fn of(format: StorageFormat, budget: Option<u64>) -> Options {
    Options { format: Some(format), names: Names::new(Layout::PyTorch), ..options(budget) }
}

fn check(net: &Net, worth: &[Vec<f32>], dtype: DType) {
    for (layer, worth) in [&net.a, &net.b, &net.c].into_iter().zip(worth) {
        let data = TensorData::new(worth.clone(), SHAPE);
        let wanted = Tensor::<2>::from_data(data, (&Device::flex(), DType::F32));
        // Burn's layers hold `[in, out]`.
        let found = layer.weight.val().transpose();
        assert_eq!(found.dtype(), dtype);
        let found = found.cast(DType::F32).into_data();
        found.assert_eq(&wanted.cast(dtype).cast(DType::F32).into_data(), true);
    }
}

#[test]
fn unmodified_modules_get_floats_streamed_or_resident() {
    for format in formats() {
        let (_dir, path, worth) = checkpoint(format);
        let checkpoint = Checkpoint::open(&path).unwrap();
        for (float_type, dtype) in
            [(FloatType::Cast(DType::F32), DType::F32), (FloatType::Cast(DType::BF16), DType::BF16)]
        {
            let wide = (SHAPE[0] * SHAPE[1] * dtype.size()) as u64;
            let options = |budget| Options { float_type, ..of(format, budget) };
            let tree = tree(&net(), &checkpoint, &options(None)).unwrap();
            let bytes: Vec<_> = tree.tensors().map(|tensor| tensor.bytes).collect();
            assert_eq!(bytes.iter().step_by(2).copied().collect::<Vec<_>>(), [wide; 3]);
            let staging = tree.staging_bytes;
            assert!(staging > 0);
            let mut streamed = 0;
            for budget in [2 * wide + (90 << 10), 5 * wide] {
                let options = options(Some(staging + budget));
                let map = plan(&net(), &checkpoint, &options).unwrap();
                streamed += map.streamed_bytes();
                let model = dispatch(net(), &checkpoint, &map, &options).unwrap();
                for _ in 0..3 {
                    model.run(|net| check(net, &worth, dtype)).unwrap();
                }
                assert_eq!(model.stats().overflows, 0);
            }
            assert!(streamed > 0, "{format:?}");
            check(&load(net(), &checkpoint, &options(None)).unwrap(), &worth, dtype);
        }
    }
}

/// Layers that know their handles.
#[derive(Module, Debug)]
struct Own {
    a: Matrix,
    b: Matrix,
    c: Matrix,
}

#[derive(Module, Debug)]
struct Matrix {
    weight: Param<Tensor<2>>,
}

fn own(shape: [usize; 2]) -> Own {
    let zeros = move |device: &Device, _: bool| Tensor::zeros(shape, device);
    let weight =
        || Param::uninitialized(ParamId::new(), zeros, Device::flex(), false, shape.into());
    let matrix = || Matrix { weight: weight() };
    Own { a: matrix(), b: matrix(), c: matrix() }
}

fn floats(weight: WeightTensor) -> Vec<f32> {
    assert!(matches!(weight, WeightTensor::Blocks(_)));
    weight.into_float(&Device::flex()).into_data().try_to_vec().unwrap()
}

fn handle(matrix: &Matrix) -> &Streamed {
    Streamed::of(&matrix.weight).unwrap()
}

fn tiled(format: StorageFormat, budget: Option<u64>) -> Options {
    Options {
        float_type: FloatType::AsStored,
        access: NAMES.map(|name| (name.to_string(), Access::Tiles)).into(),
        tile_bytes: 24 << 10,
        allow_extra: true,
        ..of(format, budget)
    }
}

#[test]
fn who_knows_the_handle_gets_integers_in_tiles_or_whole() {
    for format in formats() {
        let (_dir, path, worth) = checkpoint(format);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let tree = tree(&own(SHAPE), &checkpoint, &tiled(format, None)).unwrap();
        let held: u64 = tree.tensors().map(|tensor| tensor.bytes).sum();
        // At their own size, but for zero points, of which there is a byte each.
        assert!(held < checkpoint.total_bytes() + (64 << 10), "{format:?}: {held}");
        let mut streamed = 0;
        for budget in [held * 3 / 4, held * 4 / 5, held * 5 / 6, 400 << 10] {
            let options = tiled(format, Some(tree.staging_bytes + budget));
            let Ok(map) = plan(&own(SHAPE), &checkpoint, &options) else { continue };
            streamed += map.streamed_bytes();
            let model = dispatch(own(SHAPE), &checkpoint, &map, &options).unwrap();
            for _ in 0..3 {
                model
                    .run(|own| {
                        for (matrix, worth) in [&own.a, &own.b, &own.c].into_iter().zip(&worth) {
                            let handle = handle(matrix);
                            let found =
                                match handle.is_resident() || handle.access() == Access::Whole {
                                    true => floats(handle.weight()),
                                    false => {
                                        handle.tiles().flat_map(|(_, tile)| floats(tile)).collect()
                                    }
                                };
                            assert_eq!(&found, worth, "{format:?}");
                            let is_turned = format.as_integers().unwrap().is_turned();
                            assert_eq!(
                                handle.access() == Access::Tiles,
                                !handle.is_resident() && !is_turned
                            );
                        }
                    })
                    .unwrap();
            }
            assert_eq!(model.stats().overflows, 0);
        }
        assert!(streamed > 0, "{format:?}");
    }
}

#[test]
fn parts_of_a_packed_weight_keep_their_scales() {
    for format in formats() {
        let (_dir, path, worth) = checkpoint(format);
        let checkpoint = Checkpoint::open(&path).unwrap();
        // 76 rows each: words of zero points are cut.
        let [rows, columns] = [SHAPE[0] / 4, SHAPE[1]];
        for float_type in [FloatType::AsStored, FloatType::Cast(DType::F32)] {
            let names = Names::default()
                .part("^a.weight", "a.weight", 1, 4)
                .and_then(|names| names.part("^b.weight", "a.weight", 3, 4))
                .and_then(|names| names.part("^c.weight", "a.weight", 0, 4))
                .unwrap();
            let options = Options { float_type, names, ..tiled(format, Some(16 << 20)) };
            let map = plan(&own([rows, columns]), &checkpoint, &options).unwrap();
            let model = dispatch(own([rows, columns]), &checkpoint, &map, &options).unwrap();
            model
                .run(|own| {
                    for (part, matrix) in [(1, &own.a), (3, &own.b)] {
                        let weight = handle(matrix).weight();
                        let found = weight.into_float(&Device::flex()).into_data();
                        let wanted = &worth[0][part * rows * columns..(part + 1) * rows * columns];
                        assert_eq!(found.try_to_vec::<f32>().unwrap(), wanted, "{format:?}");
                    }
                })
                .unwrap();
        }
    }
}

#[test]
fn tables_of_integers_are_refused_by_name() {
    let format = StorageFormat::awq(GROUP);
    let (_dir, path, _) = checkpoint(format);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut options = tiled(format, None);
    options.access.insert("b.weight".to_string(), Access::Rows);
    let error = tree(&own(SHAPE), &checkpoint, &options).unwrap_err().to_string();
    assert!(error.contains("b.qweight") || error.contains("b.weight"), "{error}");
}
