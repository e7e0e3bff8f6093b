//! PyTorch's own modules, as PyTorch saves them, against what PyTorch computes. The fixtures come
//! from `scripts/fixtures/torch_modules.py`.

use crate::common::{Numbers, options, write};
use burn::module::Module;
use burn::nn::activation::ActivationConfig;
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::*;
use burn::nn::transformer::*;
use burn::nn::*;
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Error, FloatType, Layout, Names, Options, dispatch, load, save, tree};
use outsize_plan::{Budget, place};
use std::path::PathBuf;

fn fixture(name: &str) -> Checkpoint {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch");
    Checkpoint::open(folder.join(format!("{name}.safetensors"))).unwrap()
}

fn read<const D: usize>(checkpoint: &Checkpoint, name: &str) -> Tensor<D> {
    let info = checkpoint.get(name).unwrap();
    let bytes = checkpoint.read(info).unwrap();
    let data = TensorData::from_bytes_vec(bytes, info.shape.clone(), DType::F32);
    Tensor::from_data(data, &Device::flex())
}

fn torch(names: Names) -> Options {
    Options {
        names,
        ignore: ["io.input", "io.memory", "io.output"].map(String::from).to_vec(),
        ..options(None)
    }
}

/// Runs `forward` on the fixture's input with all weights streamed, and compares.
fn check_with<M: Module, const I: usize, const O: usize>(
    name: &str,
    names: Names,
    module: M,
    forward: impl Fn(&M, Tensor<I>, &Checkpoint) -> Tensor<O>,
) {
    let checkpoint = fixture(name);
    let options = torch(names);
    comes_back(&checkpoint, &options, module.clone());
    let tree =
        tree(&module, &checkpoint, &options).unwrap_or_else(|error| panic!("{name}: {error}"));
    let map = place(&tree, &Budget::default(), &options.plan(), |_| false).unwrap();
    let model = dispatch(module, &checkpoint, &map, &options).unwrap();
    let expected: Tensor<O> = read(&checkpoint, "io.output");
    for _ in 0..2 {
        let input = read(&checkpoint, "io.input");
        let output = model.run(|module| forward(module, input, &checkpoint)).unwrap();
        assert_eq!(output.dims(), expected.dims(), "{name}");
        let error: f32 = (output - expected.clone()).abs().max().into_scalar();
        let scale: f32 = expected.clone().abs().max().into_scalar();
        assert!(error <= 1e-5 * scale, "{name}: {error} of {scale}");
    }
}

/// Loads the fixture as for training, and saves it: the same tensors with the same bytes.
fn comes_back<M: Module>(checkpoint: &Checkpoint, options: &Options, module: M) {
    let options = Options { float_type: FloatType::AsStored, ..options.clone() };
    let loaded = load(module.fork(&Device::flex().autodiff()), checkpoint, &options).unwrap();
    let (_dir, path) = crate::common::folder();
    let out = path.with_file_name("saved");
    save(&loaded, &out, &options.names, 200).unwrap();
    let saved = Checkpoint::open(out).unwrap();
    let is_weight = |name: &str| !name.starts_with("io.") && !name.ends_with("batches_tracked");
    let weights = checkpoint.tensors().iter().filter(|tensor| is_weight(&tensor.name));
    let mut count = 0;
    for expected in weights {
        let found =
            saved.get(&expected.name).unwrap_or_else(|| panic!("{} is lost", expected.name));
        assert_eq!((&found.shape, found.dtype), (&expected.shape, expected.dtype));
        assert_eq!(saved.read(found).unwrap(), checkpoint.read(expected).unwrap());
        count += 1;
    }
    assert_eq!(saved.tensors().len(), count);
}

fn check<M: Module, const I: usize, const O: usize>(
    name: &str,
    module: M,
    forward: impl Fn(&M, Tensor<I>) -> Tensor<O>,
) {
    check_with(name, Names::new(Layout::PyTorch), module, |module, input, _| {
        forward(module, input)
    });
}

#[test]
fn linear() {
    let device = &Device::flex();
    let config = LinearConfig::new(5, 7);
    check::<_, 2, 2>("linear", config.init(device), |m, x| m.forward(x));
    let column = config.with_layout(LinearLayout::Col).init(device);
    check::<_, 2, 2>("linear", column, |m, x| m.forward(x));
}

#[test]
fn norms() {
    let device = &Device::flex();
    check::<_, 2, 2>("layer_norm", LayerNormConfig::new(6).init(device), |m, x| m.forward(x));
    check::<_, 2, 2>("rms_norm", RmsNormConfig::new(6).init(device), |m, x| m.forward(x));
    check::<_, 3, 3>("group_norm", GroupNormConfig::new(2, 6).init(device), |m, x| m.forward(x));
    check::<_, 3, 3>("instance_norm", InstanceNormConfig::new(6).init(device), |m, x| m.forward(x));
    check::<_, 4, 4>("batch_norm", BatchNormConfig::new(4).init(device), |m, x| m.forward(x));
    let prelu = PReluConfig::new().with_num_parameters(4).init(device);
    check::<_, 3, 3>("prelu", prelu, |m, x| m.forward(x));
}

#[test]
fn embedding() {
    let checkpoint = fixture("embedding");
    let ids = checkpoint.read(checkpoint.get("io.input").unwrap()).unwrap();
    let ids = TensorData::from_bytes_vec(ids, [2, 5], DType::I64);
    let module = EmbeddingConfig::new(11, 6).init(&Device::flex());
    let options = torch(Names::new(Layout::PyTorch));
    let tree = tree(&module, &checkpoint, &options).unwrap();
    let map = place(&tree, &Budget::default(), &options.plan(), |_| false).unwrap();
    let model = dispatch(module, &checkpoint, &map, &options).unwrap();
    let ids = Tensor::<2, Int>::from_data(ids, &Device::flex());
    let output = model.run(|module| module.forward(ids)).unwrap();
    let expected: Tensor<3> = read(&checkpoint, "io.output");
    output.into_data().assert_eq(&expected.into_data(), true);
}

#[test]
fn convolutions() {
    let device = &Device::flex();
    let conv = Conv1dConfig::new(4, 6, 3).with_stride(2).with_groups(2).init(device);
    check::<_, 3, 3>("conv1d", conv, |m, x| m.forward(x));
    let conv = Conv2dConfig::new([3, 5], [3, 2]).with_stride([2, 1]).init(device);
    check::<_, 4, 4>("conv2d", conv, |m, x| m.forward(x));
    let conv = Conv3dConfig::new([2, 3], [2, 3, 2]).init(device);
    check::<_, 5, 5>("conv3d", conv, |m, x| m.forward(x));
    let conv = ConvTranspose1dConfig::new([4, 6], 3).with_stride(2).with_groups(2).init(device);
    check::<_, 3, 3>("conv_transpose1d", conv, |m, x| m.forward(x));
    let conv = ConvTranspose2dConfig::new([3, 5], [3, 2]).with_stride([2, 1]).init(device);
    check::<_, 4, 4>("conv_transpose2d", conv, |m, x| m.forward(x));
    let conv = ConvTranspose3dConfig::new([2, 3], [2, 3, 2]).init(device);
    check::<_, 5, 5>("conv_transpose3d", conv, |m, x| m.forward(x));
}

/// The gates are rows of packed tensors.
#[test]
fn recurrent() {
    let device = &Device::flex();
    check::<_, 3, 3>("rnn", RnnConfig::new(5, 4, true).init(device), |m, x| m.forward(x, None).0);
    check::<_, 3, 3>("lstm", LstmConfig::new(5, 4, true).init(device), |m, x| m.forward(x, None).0);
    check::<_, 3, 3>("bi_lstm", BiLstmConfig::new(5, 4, true).init(device), |m, x| {
        m.forward(x, None).0
    });
    check::<_, 3, 3>("gru", GruConfig::new(5, 4, true).init(device), |m, x| m.forward(x, None));
    check::<_, 3, 3>("bi_gru", BiGruConfig::new(5, 4, true).init(device), |m, x| {
        m.forward(x, None).0
    });
}

/// Layers of one recurrent module in PyTorch are modules of their own in Burn: a rule names them.
#[test]
fn recurrent_layers() {
    #[derive(Module, Debug)]
    struct Layers {
        layers: Vec<Lstm>,
    }
    let layers = Layers {
        layers: (0..2).map(|_| LstmConfig::new(5, 5, true).init(&Device::flex())).collect(),
    };
    let names =
        Names::new(Layout::PyTorch).rename(r"^layers\.(\d+)\.(.*)_l0$", "${2}_l$1").unwrap();
    check_with::<_, 3, 3>("lstm_layers", names, layers, |module, mut x, _| {
        for layer in &module.layers {
            x = layer.forward(x, None).0;
        }
        x
    });
    // Without it nothing fits, and the error says what was looked for.
    let one = LstmConfig::new(5, 5, true).init(&Device::flex());
    let error =
        tree(&one, &fixture("lstm_layers"), &torch(Names::new(Layout::PyTorch))).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("weight_ih_l1"), "{message}");
}

/// A coupled LSTM takes three of four gates: the fourth is not dropped in silence.
#[test]
fn a_part_that_nobody_takes_is_an_error() {
    let coupled = LstmConfig::new(5, 4, true).with_input_forget(true).init(&Device::flex());
    let error = tree(&coupled, &fixture("lstm"), &torch(Names::new(Layout::PyTorch))).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("weight_ih_l0 (part 2 of 4)"), "{message}");
    let Error::Mismatch(misfit) = error else { panic!() };
    assert_eq!(misfit.unexpected.len(), 4);
}

#[test]
fn attention() {
    let config = MultiHeadAttentionConfig::new(8, 2);
    check::<MultiHeadAttention, 3, 3>("attention", config.init(&Device::flex()), |m, x| {
        m.forward(MhaInput::self_attn(x)).context
    });
}

#[test]
fn transformers() {
    let device = &Device::flex();
    for norm_first in [false, true] {
        let end = if norm_first { "norm_first" } else { "norm_last" };
        let names = Names::new(Layout::PyTorch).norm_first(norm_first);
        let encoder = TransformerEncoderConfig::new(8, 16, 2, 2)
            .with_norm_first(norm_first)
            .with_activation(ActivationConfig::Relu)
            .init(device);
        check_with::<_, 3, 3>(&format!("encoder_{end}"), names.clone(), encoder, |module, x, _| {
            module.forward(TransformerEncoderInput::new(x))
        });
        let decoder = TransformerDecoderConfig::new(8, 16, 2, 2)
            .with_norm_first(norm_first)
            .with_activation(ActivationConfig::Relu)
            .init(device);
        check_with::<_, 3, 3>(
            &format!("decoder_{end}"),
            names,
            decoder,
            |module, x, checkpoint| {
                let memory = read(checkpoint, "io.memory");
                module.forward(TransformerDecoderInput::new(x, memory))
            },
        );
    }
}

/// Which norm is which cannot be seen in the module: it must be said.
#[test]
fn the_order_of_norms_is_not_guessed() {
    let encoder = TransformerEncoderConfig::new(8, 16, 2, 2).init(&Device::flex());
    let options = torch(Names::new(Layout::PyTorch));
    let error = tree(&encoder, &fixture("encoder_norm_first"), &options).unwrap_err();
    assert!(matches!(error, Error::NormOrder { .. }), "{error}");
    assert!(error.to_string().contains("Names::norm_first"), "{error}");
}

/// What is stored under the plain names is taken from there.
#[test]
fn plain_names_come_first() {
    let module = MultiHeadAttentionConfig::new(8, 2).init(&Device::flex());
    let mut numbers = Numbers(3);
    let mut stored = Vec::new();
    for part in ["query", "key", "value", "output"] {
        stored.push((format!("{part}.weight"), numbers.tensor([8, 8]).into_data()));
        stored.push((format!("{part}.bias"), numbers.tensor([8]).into_data()));
    }
    let (_dir, path) = crate::common::folder();
    write(&path, &stored, Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let options = torch(Names::new(Layout::PyTorch));
    let tree = tree(&module, &checkpoint, &options).unwrap();
    let map = place(&tree, &Budget::default(), &options.plan(), |_| false).unwrap();
    let model = dispatch(module, &checkpoint, &map, &options).unwrap();
    let key = model.run(|module| module.key.weight.val()).unwrap();
    let expected: Tensor<2> = read(&checkpoint, "key.weight");
    key.into_data().assert_eq(&expected.transpose().into_data(), true);
}
