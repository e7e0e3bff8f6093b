//! Which tensor belongs to which parameter: rules, strictness, parts, and checkpoints of
//! burn-store's.

#[path = "../common/mod.rs"]
mod common;
mod values;

use burn::module::Module;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, LinearLayout};
use burn::tensor::{Device, Tensor};
use burn_store::{ModuleSnapshot, SafetensorsStore};
use common::{Numbers, bits, fill, flat, folder, options, values, write};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{
    Dispatched, Error, FloatType, KeyMismatch, Layout, Names, Options, Streamed, dispatch, tree,
};
use outsize_plan::{Budget, place};

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
            head: LinearConfig::new(WIDTH, 10).with_layout(LinearLayout::Col).init(device),
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

fn misfit<T>(result: Result<T, Error>) -> KeyMismatch {
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

#[test]
fn the_other_layout_is_advised() {
    let module = fill(Model::new());
    let (_dir, path) = folder();
    std::fs::create_dir(&path).unwrap();
    let file = path.join("model.bpk");
    module.clone().save_file(&file).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let torch = Options { names: Names::new(Layout::PyTorch), ..options(None) };
    match tree(&Model::new(), &checkpoint, &torch) {
        Err(error @ Error::Layout { .. }) => {
            assert!(error.to_string().contains("use Names::default()"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let model = streamed(Model::new(), &checkpoint, &options(None)).unwrap();
    let output = model.run(|model| bits(model.forward())).unwrap();
    assert!(output == bits(module.forward()));
    // The same tensors elsewhere.
    let (_dir, path) = folder();
    write(&path, &values(&module), Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let said = misfit(tree(&Model::new(), &checkpoint, &torch)).to_string();
    assert!(said.ends_with("say so with Names::default()"), "{said}");
    let (_dir, path) = folder();
    outsize_core::save(&module, &path, &torch.names, u64::MAX).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let said = misfit(tree(&Model::new(), &checkpoint, &options(None))).to_string();
    assert!(said.ends_with("say so with Names::new(Layout::PyTorch)"), "{said}");
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
    assert!(stored.iter().any(|(name, _)| name == "net/block_01/dense_in:kernel"));
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
    let complete =
        Options { names: names.clone().rename("weight$", "kernel").unwrap(), ..options(None) };
    let model = streamed(Model::new(), &checkpoint, &complete).unwrap();
    let output = model.run(|model| bits(model.forward())).unwrap();
    assert!(output == bits(module.forward()));
    // With a slip in a rule, the error names the rule.
    let slip = Options { names: names.rename("weigth$", "kernel").unwrap(), ..options(None) };
    let misfit = misfit(tree(&Model::new(), &checkpoint, &slip));
    assert_eq!(misfit.unused_rules, ["weigth$"]);
    assert!(
        misfit.to_string().contains("1 name rules matched no parameter:\n    `weigth$`"),
        "{misfit}"
    );
    assert_eq!((misfit.missing.len(), misfit.unexpected.len()), (5, 5));
}

#[test]
fn strictness() {
    let mut stored = values(&fill(Model::new()));
    let head = stored.iter().position(|(name, _)| name == "head.bias").unwrap();
    stored[head].0 = "stranger".to_string();
    let (_dir, path) = folder();
    write(&path, &stored, Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let tried = |options: Options| streamed(Model::new(), &checkpoint, &options);
    let strict = misfit(tried(options(None)));
    assert_eq!(strict.unexpected, ["stranger"]);
    assert_eq!(strict.missing, [("head.bias".to_string(), "head.bias".to_string())]);
    assert_eq!(misfit(tried(options(None).strict(true))), strict);
    let extra = misfit(tried(Options { allow_extra: true, ..options(None) }));
    assert!(extra.unexpected.is_empty() && extra.missing == strict.missing);
    let ignored = misfit(tried(Options { ignore: vec!["ranger".to_string()], ..options(None) }));
    assert!(ignored.unexpected.is_empty() && ignored.missing == strict.missing);
    let missing = misfit(tried(Options { allow_missing: true, ..options(None) }));
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
    let wrong = misfit(streamed(Model::new(), &checkpoint, &options(None).strict(false)));
    assert_eq!(wrong.misshaped, [("head.bias".to_string(), vec![11], vec![10])]);
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
