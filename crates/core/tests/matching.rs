//! Which tensor belongs to which parameter: rules, strictness, parts, and checkpoints of burn-store's.

#[path = "common/mod.rs"]
mod common;

use burn::module::{Module, Param, ParamId};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, LinearLayout};
use burn::tensor::{Device, Tensor};
use burn_store::{ModuleSnapshot, SafetensorsStore};
use common::{Numbers, bits, fill, flat, folder, options, values, write};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{
    Access, Dispatched, Error, FloatType, Layout, Misfit, Names, Options, Streamed, dispatch, tree,
};
use outsize_plan::{Budget, infer, place};

const WIDTH: usize = 48;

#[derive(Module, Debug)]
struct Block {
    up: Linear,
    norm: BatchNorm,
    down: Linear,
}

#[derive(Module, Debug)]
struct Model {
    blocks: Vec<Block>,
    head: Linear,
}

impl Model {
    fn new() -> Self {
        let device = &Device::flex();
        let linear = |from, to| LinearConfig::new(from, to).init(device);
        Self {
            blocks: (0..2)
                .map(|_| Block {
                    up: linear(WIDTH, 2 * WIDTH),
                    norm: BatchNormConfig::new(2 * WIDTH).init(device),
                    down: linear(2 * WIDTH, WIDTH),
                })
                .collect(),
            head: LinearConfig::new(WIDTH, 10)
                .with_layout(LinearLayout::Col)
                .init(device),
        }
    }

    fn forward(&self) -> Tensor<1> {
        let mut x: Tensor<2> = Numbers(1).tensor([3, WIDTH]);
        for block in &self.blocks {
            x = block.down.forward(block.norm.forward(block.up.forward(x)));
        }
        flat(self.head.forward(x))
    }
}

/// All that can be streamed is.
fn streamed<M: Module>(
    module: M,
    checkpoint: &Checkpoint,
    options: &Options,
) -> Result<Dispatched<M>, Error> {
    let tree = tree(&module, checkpoint, options)?;
    let map = place(&tree, &Budget::default(), &options.plan(), |_| false)?;
    dispatch(module, checkpoint, &map, options)
}

fn misfit<T>(result: Result<T, Error>) -> Misfit {
    match result {
        Err(Error::Mismatch(misfit)) => *misfit,
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("they match"),
    }
}

#[test]
fn what_burn_store_writes_opens_and_runs() {
    let module = fill(Model::new());
    let (_dir, path) = folder();
    std::fs::create_dir(&path).unwrap();
    let mut store = SafetensorsStore::from_file(path.join("model.safetensors"));
    module.save_into(&mut store).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let model = streamed(Model::new(), &checkpoint, &options(None)).unwrap();
    let output = model.run(|model| bits(model.forward())).unwrap();
    assert!(output == bits(module.forward()));
}

/// Names as one might meet them: `net/block_00/dense_in:kernel`.
#[test]
fn rules_reach_unusual_names() {
    let module = fill(Model::new());
    let mut stored = values(&module);
    for (name, _) in &mut stored {
        *name = name
            .replace("blocks.", "net/block_0")
            .replace(".up.", "/dense_in:")
            .replace(".down.", "/dense_out:")
            .replace(".norm.", "/bn:")
            .replace("weight", "kernel")
            .replace("head.", "net/logits:");
    }
    assert!(
        stored
            .iter()
            .any(|(name, _)| name == "net/block_01/dense_in:kernel")
    );
    let (_dir, path) = folder();
    write(&path, &stored, Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let names = Names::default()
        .rename(r"^blocks\.(\d+)\.(\w+)\.", "net/block_0$1/$2:")
        .and_then(|names| names.rename("/up:", "/dense_in:"))
        .and_then(|names| names.rename("/down:", "/dense_out:"))
        .and_then(|names| names.rename("/norm:", "/bn:"))
        .and_then(|names| names.rename(r"^head\.", "net/logits:"))
        .unwrap();
    let complete = Options {
        names: names.clone().rename("weight$", "kernel").unwrap(),
        ..options(None)
    };
    let model = streamed(Model::new(), &checkpoint, &complete).unwrap();
    let output = model.run(|model| bits(model.forward())).unwrap();
    assert!(output == bits(module.forward()));
    // With a slip in a rule, the error names the rule.
    let slip = Options {
        names: names.rename("weigth$", "kernel").unwrap(),
        ..options(None)
    };
    let misfit = misfit(tree(&Model::new(), &checkpoint, &slip));
    assert_eq!(misfit.unused_rules, ["weigth$"]);
    assert!(
        misfit
            .to_string()
            .contains("1 name rules matched no parameter:\n    `weigth$`"),
        "{misfit}"
    );
    assert_eq!((misfit.missing.len(), misfit.unexpected.len()), (5, 5));
}

#[test]
fn strictness() {
    let mut stored = values(&fill(Model::new()));
    let head = stored
        .iter()
        .position(|(name, _)| name == "head.bias")
        .unwrap();
    stored[head].0 = "stranger".to_string();
    let (_dir, path) = folder();
    write(&path, &stored, Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tried = |options: Options| streamed(Model::new(), &checkpoint, &options);
    let strict = misfit(tried(options(None)));
    assert_eq!(strict.unexpected, ["stranger"]);
    assert_eq!(
        strict.missing,
        [("head.bias".to_string(), "head.bias".to_string())]
    );
    assert_eq!(misfit(tried(options(None).strict(true))), strict);
    let extra = misfit(tried(Options {
        allow_extra: true,
        ..options(None)
    }));
    assert!(extra.unexpected.is_empty() && extra.missing == strict.missing);
    let ignored = misfit(tried(Options {
        ignore: vec!["ranger".to_string()],
        ..options(None)
    }));
    assert!(ignored.unexpected.is_empty() && ignored.missing == strict.missing);
    let missing = misfit(tried(Options {
        allow_missing: true,
        ..options(None)
    }));
    assert!(missing.missing.is_empty() && missing.unexpected == strict.unexpected);

    // Not strict: what is missing keeps the value that the module begins with.
    let model = tried(options(None).strict(false)).unwrap();
    let (bias, weight) = model
        .run(|model| {
            let bias = model.head.bias.as_ref().unwrap();
            assert!(Streamed::of(bias).is_none());
            (bias.val(), model.head.weight.val())
        })
        .unwrap();
    assert!(bits(bias).iter().any(|bits| *bits != 0));
    let expected = fill(Model::new()).head.weight.val();
    weight.into_data().assert_eq(&expected.into_data(), true);
    // A shape that does not fit is an error all the same.
    let (_dir, path) = folder();
    stored[head].0 = "head.bias".to_string();
    stored[head].1 = Numbers(1).tensor([11]).into_data();
    write(&path, &stored, Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let wrong = misfit(streamed(
        Model::new(),
        &checkpoint,
        &options(None).strict(false),
    ));
    assert_eq!(
        wrong.misshaped,
        [("head.bias".to_string(), vec![11], vec![10])]
    );
}

#[derive(Module, Debug)]
struct Pair {
    one: Linear,
    other: Linear,
}

fn pair(layout: LinearLayout, rows: usize) -> Pair {
    let linear = |layout| {
        LinearConfig::new(WIDTH, rows)
            .with_bias(false)
            .with_layout(layout)
            .init(&Device::flex())
    };
    Pair {
        one: linear(LinearLayout::Col),
        other: linear(layout),
    }
}

/// One tensor `[out, in]`, read once as it is and once the other way round; and not at all where the shapes
/// of its two users differ.
#[test]
fn two_parameters_of_one_tensor() {
    let (_dir, path) = folder();
    let value: Tensor<2> = Numbers(1).tensor([32, WIDTH]);
    write(
        &path,
        &[("shared.weight".to_string(), value.clone().into_data())],
        Dtype::F32,
    );
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = Options {
        names: Names::new(Layout::PyTorch)
            .rename("^(one|other)", "shared")
            .unwrap(),
        ..options(None)
    };
    let model = streamed(pair(LinearLayout::Row, 32), &checkpoint, &options).unwrap();
    assert_eq!(model.device_map().total_bytes(), 4 * 32 * WIDTH as u64);
    let weights = model
        .run(|pair| [pair.one.weight.val(), pair.other.weight.val()])
        .unwrap();
    for weight in weights {
        weight
            .into_data()
            .assert_eq(&value.clone().transpose().into_data(), true);
    }
    let mut different = pair(LinearLayout::Row, 32);
    different.other = pair(LinearLayout::Row, 31).other;
    let misfit = misfit(streamed(different, &checkpoint, &options));
    assert_eq!(
        misfit.misshaped,
        [(
            "shared.weight".to_string(),
            vec![32, WIDTH],
            vec![31, WIDTH]
        )]
    );
}

/// A quarter of a tensor each, read by rows, by tiles, and as a whole; and parts that do not divide it.
#[test]
fn parts_of_a_tensor() {
    let (_dir, path) = folder();
    let value: Tensor<2> = Numbers(1).tensor([4 * 32, WIDTH]);
    write(
        &path,
        &[("packed".to_string(), value.clone().into_data())],
        Dtype::BF16,
    );
    let checkpoint = Checkpoint::open(&path).unwrap();
    let names = |part, parts| {
        Names::new(Layout::PyTorch)
            .part("^one.weight", "packed", 3, 4)
            .and_then(|names| names.part("^other.weight", "packed", part, parts))
            .unwrap()
    };
    let mut options = Options {
        names: names(1, 4),
        allow_extra: true,
        tile_bytes: 5 * 4 * WIDTH as u64,
        ..options(None)
    };
    options
        .access
        .insert("other.weight".to_string(), Access::Tiles);
    options
        .access
        .insert("one.weight".to_string(), Access::Rows);
    let model = streamed(pair(LinearLayout::Row, 32), &checkpoint, &options).unwrap();
    model
        .run(|pair| {
            let handle = Streamed::of(&pair.other.weight).unwrap();
            let mut count = 0;
            for (rows, tile) in handle.tiles() {
                let expected = value.clone().narrow(0, 32 + rows.start, rows.len());
                tile.into_data().assert_eq(&expected.into_data(), true);
                count += 1;
            }
            assert_eq!(count, 7);
            let rows = Streamed::of(&pair.one.weight).unwrap().rows(&[31, 0, 31]);
            let expected = value.clone().narrow(0, 96, 32);
            let expected = [31, 0, 31]
                .map(|row| expected.clone().narrow(0, row, 1))
                .to_vec();
            rows.into_data()
                .assert_eq(&Tensor::cat(expected, 0).into_data(), true);
        })
        .unwrap();

    options.allow_extra = false;
    let unused = misfit(tree(&pair(LinearLayout::Row, 32), &checkpoint, &options)).unexpected;
    assert_eq!(unused, ["packed (part 1 of 4)", "packed (part 3 of 4)"]);
    options.names = names(1, 3);
    let misshaped = misfit(tree(&pair(LinearLayout::Row, 32), &checkpoint, &options)).misshaped;
    assert_eq!(
        misshaped,
        [("packed".to_string(), vec![128, WIDTH], vec![96, WIDTH])]
    );
    let error = Names::default().part("x", "y", 2, 2).unwrap_err();
    assert!(
        error.to_string().contains("there is no part 2 of 2"),
        "{error}"
    );
}

/// A tensor at an odd offset is copied to alignment; single rows and numbers of it are right too.
#[test]
fn misaligned_tensors_are_read_right() {
    let module = fill(Model::new());
    let (_dir, path) = folder();
    std::fs::create_dir(&path).unwrap();
    let stored = values(&module);
    // By hand: a byte before everything else.
    let mut header = serde_json::Map::new();
    let mut data = vec![7u8];
    header.insert(
        "odd".into(),
        serde_json::json!({"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}),
    );
    for (name, value) in &stored {
        let start = data.len();
        data.extend_from_slice(value.as_bytes());
        let entry = serde_json::json!({
            "dtype": "F32", "shape": value.shape().to_vec(), "data_offsets": [start, data.len()],
        });
        header.insert(name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header).unwrap();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header);
    file.extend(data);
    std::fs::write(path.join("model.safetensors"), file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let offset = checkpoint.get("head.weight").unwrap().offset;
    assert_eq!(offset % 4, 1);
    let options = Options {
        ignore: vec!["odd".to_string()],
        float_type: FloatType::AsStored,
        ..options(None)
    };
    let model = streamed(Model::new(), &checkpoint, &options).unwrap();
    for _ in 0..2 {
        let output = model.run(|model| bits(model.forward())).unwrap();
        assert!(output == bits(module.forward()));
    }
}

#[derive(Module, Debug)]
struct Wide {
    table: Param<Tensor<2>>,
    scalar: Param<Tensor<1>>,
}

/// Rows larger than a tile, and `Access` where it makes no sense: the ring has room for what is read.
#[test]
fn a_row_larger_than_a_tile_fits_the_ring() {
    let lazy = |shape: [usize; 2]| {
        Param::uninitialized(
            ParamId::new(),
            move |device: &Device, _| Tensor::ones(shape, device),
            Device::flex(),
            false,
            shape.into(),
        )
    };
    let module = || Wide {
        table: lazy([5, 40_000]),
        scalar: Param::uninitialized(
            ParamId::new(),
            |device: &Device, _| Tensor::ones([30_000], device),
            Device::flex(),
            false,
            [30_000].into(),
        ),
    };
    let filled = fill(module());
    let (_dir, path) = folder();
    write(&path, &values(&filled), Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut options = Options {
        tile_bytes: 1000,
        ..options(None)
    };
    options.access.insert("table".to_string(), Access::Tiles);
    options.access.insert("scalar".to_string(), Access::Tiles);
    let tree = tree(&module(), &checkpoint, &options).unwrap();
    let none = Budget::parse("cpu=0").unwrap();
    let Err(outsize_plan::Error::TooSmall(shortfall)) = infer(&tree, &none, &options.plan()) else {
        panic!("no bytes are enough");
    };
    let budget = Budget::parse(&format!("cpu={}", shortfall.least)).unwrap();
    let map = infer(&tree, &budget, &options.plan()).unwrap();
    assert!(map.ring_bytes() < 4 * 40_000 * 5);
    let model = dispatch(module(), &checkpoint, &map, &options).unwrap();
    for _ in 0..3 {
        model
            .run(|wide| {
                let whole = filled.table.val();
                for (rows, tile) in Streamed::of(&wide.table).unwrap().tiles() {
                    assert_eq!(rows.len(), 1);
                    let expected = whole.clone().narrow(0, rows.start, 1);
                    tile.into_data().assert_eq(&expected.into_data(), true);
                }
                let scalar = wide.scalar.val().into_data();
                scalar.assert_eq(&filled.scalar.val().into_data(), true);
            })
            .unwrap();
    }
    assert_eq!(model.stats().overflows, 0);
}

/// Integers too large for the device's type, and booleans that are neither.
#[test]
fn numbers_that_do_not_fit_are_errors() {
    #[derive(Module, Debug)]
    struct Odd {
        shifts: Param<Tensor<1, burn::tensor::Int>>,
        keep: Param<Tensor<1, burn::tensor::Bool>>,
    }
    let module = || Odd {
        shifts: Param::initialized(ParamId::new(), Tensor::zeros([2], &Device::flex())),
        keep: Param::initialized(
            ParamId::new(),
            Tensor::<1, burn::tensor::Int>::zeros([2], &Device::flex()).equal_elem(0),
        ),
    };
    let tried = |shift: i64, keep: u8| {
        let (_dir, path) = folder();
        let specs = vec![
            outsize_checkpoint::TensorSpec::new("shifts", Dtype::I64, [2]),
            outsize_checkpoint::TensorSpec::new("keep", Dtype::Bool, [2]),
        ];
        let mut writer = outsize_checkpoint::ShardWriter::create(&path, specs, 1 << 20).unwrap();
        let shifts: Vec<u8> = [-3, shift]
            .iter()
            .flat_map(|value: &i64| value.to_le_bytes())
            .collect();
        writer.write("shifts", &shifts).unwrap();
        writer.write("keep", &[1, keep]).unwrap();
        writer.finish().unwrap();
        streamed(module(), &Checkpoint::open(&path).unwrap(), &options(None))
    };
    let model = tried(5, 0).unwrap();
    let (shifts, keep) = model.run(|odd| (odd.shifts.val(), odd.keep.val())).unwrap();
    assert_eq!(
        shifts.into_data().iter::<i64>().collect::<Vec<_>>(),
        [-3, 5]
    );
    assert_eq!(
        keep.into_data().iter::<bool>().collect::<Vec<_>>(),
        [true, false]
    );
    let error = tried(5, 2).unwrap_err();
    assert!(
        error.to_string().contains("`keep`") && error.to_string().contains("boolean"),
        "{error}"
    );
    let int = Device::flex().settings().int_dtype;
    if burn::tensor::DType::from(int) != burn::tensor::DType::I64 {
        let error = tried(i64::MAX, 0).unwrap_err();
        assert!(error.to_string().contains("`shifts`"), "{error}");
    }
}
