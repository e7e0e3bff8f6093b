//! Values that several parameters share, that are parts of tensors, or that hardly fit.

use crate::common::{Numbers, fill, folder, options, values, write};
use crate::{WIDTH, misfit, streamed};
use burn::module::{Module, Param, ParamId};
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::{Device, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Access, Layout, Names, Options, Streamed, dispatch, tree};
use outsize_plan::{Budget, infer};

#[derive(Module, Debug)]
struct Pair {
    one: Linear,
    other: Linear,
}

fn pair(layout: LinearLayout, rows: usize) -> Pair {
    let linear = |layout| {
        LinearConfig::new(WIDTH, rows).with_bias(false).with_layout(layout).init(&Device::flex())
    };
    Pair { one: linear(LinearLayout::Col), other: linear(layout) }
}

/// One tensor `[out, in]`, read once as it is and once the other way round; and not at all where
/// the shapes of its two users differ.
#[test]
fn two_parameters_of_one_tensor() {
    let (_dir, path) = folder();
    let value: Tensor<2> = Numbers(1).tensor([32, WIDTH]);
    write(&path, &[("shared.weight".to_string(), value.clone().into_data())], Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = Options {
        names: Names::new(Layout::PyTorch).rename("^(one|other)", "shared").unwrap(),
        ..options(None)
    };
    let model = streamed(pair(LinearLayout::Row, 32), &checkpoint, &options).unwrap();
    assert_eq!(model.device_map().total_bytes(), 4 * 32 * WIDTH as u64);
    let weights = model.run(|pair| [pair.one.weight.val(), pair.other.weight.val()]).unwrap();
    for weight in weights {
        weight.into_data().assert_eq(&value.clone().transpose().into_data(), true);
    }
    let mut different = pair(LinearLayout::Row, 32);
    different.other = pair(LinearLayout::Row, 31).other;
    let misfit = misfit(streamed(different, &checkpoint, &options));
    assert_eq!(misfit.misshaped, [("shared.weight".to_string(), vec![32, WIDTH], vec![31, WIDTH])]);
}

/// A quarter of a tensor each, read by rows, by tiles, and as a whole; and parts that do not divide
/// it.
#[test]
fn parts_of_a_tensor() {
    let (_dir, path) = folder();
    let value: Tensor<2> = Numbers(1).tensor([4 * 32, WIDTH]);
    write(&path, &[("packed".to_string(), value.clone().into_data())], Dtype::BF16);
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
    options.access.insert("other.weight".to_string(), Access::Tiles);
    options.access.insert("one.weight".to_string(), Access::Rows);
    let model = streamed(pair(LinearLayout::Row, 32), &checkpoint, &options).unwrap();
    model
        .run(|pair| {
            let handle = Streamed::of(&pair.other.weight).unwrap();
            let mut count = 0;
            for (rows, tile) in handle.tiles() {
                let tile = tile.into_float(&Device::flex());
                let expected = value.clone().narrow(0, 32 + rows.start, rows.len());
                tile.into_data().assert_eq(&expected.into_data(), true);
                count += 1;
            }
            assert_eq!(count, 7);
            let expected = value.clone().narrow(0, 96, 32);
            for ids in [vec![31, 0, 31], (0..33).map(|at| at * 5 % 32).collect()] {
                let rows = Streamed::of(&pair.one.weight).unwrap().rows(&ids);
                let expected: Vec<_> =
                    ids.iter().map(|row| expected.clone().narrow(0, *row, 1)).collect();
                rows.into_data().assert_eq(&Tensor::cat(expected, 0).into_data(), true);
            }
        })
        .unwrap();

    options.allow_extra = false;
    let unused = misfit(tree(&pair(LinearLayout::Row, 32), &checkpoint, &options)).unexpected;
    assert_eq!(unused, ["packed (part 1 of 4)", "packed (part 3 of 4)"]);
    options.names = names(1, 3);
    let misshaped = misfit(tree(&pair(LinearLayout::Row, 32), &checkpoint, &options)).misshaped;
    assert_eq!(misshaped, [("packed".to_string(), vec![128, WIDTH], vec![96, WIDTH])]);
    let error = Names::default().part("x", "y", 2, 2).unwrap_err();
    assert!(error.to_string().contains("there is no part 2 of 2"), "{error}");
}

#[derive(Module, Debug)]
struct Experts {
    experts: Vec<Pair>,
}

impl Experts {
    fn weights(&self) -> Vec<TensorData> {
        let layers = self.experts.iter().flat_map(|pair| [&pair.one, &pair.other]);
        layers.map(|layer| layer.weight.val().into_data()).collect()
    }
}

/// `[2 · experts, out, in]` or `[experts, 2 · out, in]`: the parts are the same. Not where a tensor
/// of a parameter's own is there too.
#[test]
fn modules_may_be_stacked() {
    let module =
        || Experts { experts: (0..3).map(|_| pair(LinearLayout::Col, 32)).collect::<Vec<_>>() };
    let filled = fill(module());
    let own = values(&filled);
    let wanted = filled.weights();
    let tensor = |data: &TensorData| Tensor::<2>::from_data(data.clone(), &Device::flex());
    let stack = Tensor::cat(wanted.iter().map(|data| tensor(data).transpose()).collect(), 0);
    let module_of = r"^experts\.(?<n>\d+)\.";
    let names = |modules| {
        let one = format!(r"{module_of}one\.weight$");
        let names = Names::default().stacked(&one, "experts.both", [0, 2], modules)?;
        names.stacked(&format!(r"{module_of}other\.weight$"), "experts.both", [1, 2], modules)
    };
    let both = "experts.both".to_string();
    for shape in [[6, 32, WIDTH], [3, 64, WIDTH]] {
        let (_dir, path) = folder();
        write(&path, &[(both.clone(), stack.clone().reshape(shape).into_data())], Dtype::F32);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let options = Options { names: names(3).unwrap(), ..options(None) };
        let model = streamed(module(), &checkpoint, &options).unwrap();
        assert_eq!(model.run(Experts::weights).unwrap(), wanted);
        // Of other sizes there are no such parts, of others none for the last.
        let options = Options { names: names(5).unwrap(), ..options.clone() };
        let misshaped = misfit(tree(&module(), &checkpoint, &options)).misshaped;
        assert_eq!(misshaped[0].0, "experts.both");
        let options = Options { names: names(2).unwrap(), ..options };
        let missing = misfit(tree(&module(), &checkpoint, &options)).missing;
        assert!(missing.iter().any(|(path, _)| path == "experts.2.one.weight"), "{missing:?}");
    }
    let (_dir, path) = folder();
    let mut stored = vec![(both, Tensor::zeros_like(&stack).into_data())];
    stored.extend(own.iter().filter(|(name, _)| name != "experts.1.other.weight").cloned());
    write(&path, &stored, Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = Options { names: names(3).unwrap(), allow_extra: true, ..options(None) };
    let found = streamed(module(), &checkpoint, &options).unwrap();
    let found = found.run(Experts::weights).unwrap();
    for (at, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        assert_eq!(found == wanted, at != 3, "{at}");
    }
    for (pattern, part, wanted) in [
        ("(", [0, 1], "regular expression"),
        ("x", [0, 1], "group"),
        (module_of, [2, 2], "no part 2 of 2"),
    ] {
        let error = Names::default().stacked(pattern, "y", part, 3).unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[derive(Module, Debug)]
struct Wide {
    table: Param<Tensor<2>>,
    scalar: Param<Tensor<1>>,
}

/// Rows larger than a tile, and `Access` where it makes no sense: the ring has room for what is
/// read.
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
    let mut options = Options { tile_bytes: 1000, ..options(None) };
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
                    let tile = tile.into_float(&Device::flex());
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
        let shifts: Vec<u8> =
            [-3, shift].iter().flat_map(|value: &i64| value.to_le_bytes()).collect();
        writer.write("shifts", &shifts).unwrap();
        writer.write("keep", &[1, keep]).unwrap();
        writer.finish().unwrap();
        streamed(module(), &Checkpoint::open(&path).unwrap(), &options(None))
    };
    let model = tried(5, 0).unwrap();
    let (shifts, keep) = model.run(|odd| (odd.shifts.val(), odd.keep.val())).unwrap();
    assert_eq!(shifts.into_data().iter::<i64>().collect::<Vec<_>>(), [-3, 5]);
    assert_eq!(keep.into_data().iter::<bool>().collect::<Vec<_>>(), [true, false]);
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

#[derive(Module, Debug)]
struct Parts {
    first: Param<Tensor<2>>,
    last: Param<Tensor<2>>,
}

/// Of several names that a tensor may have the first counts that there is, and a parameter may be
/// some parts of a tensor.
#[test]
fn a_parameter_may_be_several_parts_of_a_tensor() {
    let lazy = |rows: usize| {
        Param::uninitialized(
            ParamId::new(),
            move |device: &Device, _| Tensor::ones([rows, WIDTH], device),
            Device::flex(),
            false,
            [rows, WIDTH].into(),
        )
    };
    let module = || Parts { first: lazy(20), last: lazy(10) };
    let weights =
        |module: &Parts| [&module.first, &module.last].map(|weight| weight.val().into_data());
    let filled = fill(module());
    let wanted = weights(&filled);
    let both = Tensor::cat(vec![filled.first.val(), filled.last.val()], 0).into_data();
    let names = || {
        let names = Names::default().or_rename("^(first|last)$", "other.${1}")?;
        names.or_parts("^first$", "both", 0..2, 3)?.or_parts("^last$", "both", 2..3, 3)
    };
    let options = Options { names: names().unwrap(), ..options(None) };
    let (_dir, path) = folder();
    write(&path, &[("both".to_string(), both)], Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let model = streamed(module(), &checkpoint, &options).unwrap();
    assert_eq!(model.run(weights).unwrap(), wanted);
    let (_dir, path) = folder();
    write(&path, &[("both".to_string(), wanted[0].clone())], Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let misfit = misfit(tree(&module(), &checkpoint, &options));
    assert_eq!(misfit.misshaped[0].2, [30, WIDTH]);
    let error = Names::default().or_parts("x", "y", 2..4, 3).unwrap_err().to_string();
    assert!(error.contains("no parts 2..4 of 3"), "{error}");
}
