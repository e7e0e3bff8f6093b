//! Writes what other software reads, to be checked by it: a BERT of Burn's own layers as
//! transformers names it (`scripts/fixtures/saved_model.py`), and the event files of its training
//! (`scripts/fixtures/event_files.py`).
//!
//! `cargo run --release --example export -- OUT`

use std::error::Error;
use std::path::PathBuf;

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Int, Tensor, activation};
use outsize_checkpoint::{Dtype, FileWriter, TensorSpec};
use outsize_core::{Layout, Names};
use outsize_train::Accelerator;
use outsize_train::tracking::{MetricValue, TensorBoard};

const CONFIG: &str = r#"{"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 32,
"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
"max_position_embeddings": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-12}"#;
const WIDTH: usize = 16;
const HEADS: usize = 2;
const STEPS: u64 = 3;

#[derive(Module, Debug)]
struct Bert {
    embeddings: Embeddings,
    encoder: Encoder,
}

#[derive(Module, Debug)]
struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    layer_norm: LayerNorm,
}

#[derive(Module, Debug)]
struct Encoder {
    layer: Vec<Layer>,
}

#[derive(Module, Debug)]
struct Layer {
    attention: Attention,
    intermediate: Dense,
    output: Residual,
}

#[derive(Module, Debug)]
struct Attention {
    self_attention: SelfAttention,
    output: Residual,
}

#[derive(Module, Debug)]
struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
}

#[derive(Module, Debug)]
struct Dense {
    dense: Linear,
}

#[derive(Module, Debug)]
struct Residual {
    dense: Linear,
    layer_norm: LayerNorm,
}

impl Bert {
    fn new(device: &Device) -> Self {
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let norm = || LayerNormConfig::new(WIDTH).with_epsilon(1e-12).init(device);
        let table = |rows| EmbeddingConfig::new(rows, WIDTH).init(device);
        let residual = |inputs| Residual { dense: linear(inputs, WIDTH), layer_norm: norm() };
        let layer = |_| Layer {
            attention: Attention {
                self_attention: SelfAttention {
                    query: linear(WIDTH, WIDTH),
                    key: linear(WIDTH, WIDTH),
                    value: linear(WIDTH, WIDTH),
                },
                output: residual(WIDTH),
            },
            intermediate: Dense { dense: linear(WIDTH, 32) },
            output: residual(32),
        };
        Self {
            embeddings: Embeddings {
                word_embeddings: table(32),
                position_embeddings: table(12),
                token_type_embeddings: table(2),
                layer_norm: norm(),
            },
            encoder: Encoder { layer: (0..2).map(layer).collect() },
        }
    }

    /// `[batch, sequence]` to `[batch, sequence, width]`.
    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let Embeddings { word_embeddings, position_embeddings, token_type_embeddings, layer_norm } =
            &self.embeddings;
        let positions = Tensor::arange(0..ids.dims()[1] as i64, &ids.device()).unsqueeze();
        let types = token_type_embeddings.forward(ids.zeros_like());
        let x = word_embeddings.forward(ids) + position_embeddings.forward(positions) + types;
        self.encoder.layer.iter().fold(layer_norm.forward(x), |x, layer| layer.forward(x))
    }
}

impl Layer {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let SelfAttention { query, key, value } = &self.attention.self_attention;
        let [batch, length, _] = x.dims();
        let heads = |layer: &Linear| {
            let x = layer.forward(x.clone()).reshape([batch, length, HEADS, WIDTH / HEADS]);
            x.swap_dims(1, 2)
        };
        let scale = ((WIDTH / HEADS) as f64).sqrt();
        let scores = heads(query).matmul(heads(key).transpose()).div_scalar(scale);
        let mixed = activation::softmax(scores, 3).matmul(heads(value));
        let mixed = mixed.swap_dims(1, 2).reshape([batch, length, WIDTH]);
        let x = self.attention.output.forward(mixed, x);
        let inner = activation::gelu(self.intermediate.dense.forward(x.clone()));
        self.output.forward(inner, x)
    }
}

impl Residual {
    fn forward(&self, x: Tensor<3>, before: Tensor<3>) -> Tensor<3> {
        self.layer_norm.forward(self.dense.forward(x) + before)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let out = std::env::args_os().nth(1).ok_or("say where to write: export OUT")?;
    let out = PathBuf::from(out);
    let accelerator = Accelerator::builder().build()?;
    let device = accelerator.device();
    let mut model = Bert::new(&device);
    let mut optimizer = accelerator.prepare_optimizer(AdamConfig::new().init());
    let logs = TensorBoard::new(out.join("logs"));
    accelerator.init_trackers("bert", &[("lr", 0.01)], vec![Box::new(logs)])?;
    let ids = Tensor::<1, Int>::arange(3..11, &device).reshape([1, 8]);
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let loss = model.forward(ids.clone()).square().slice([0..1, 0..8, 0..4]).mean();
        losses.push(loss.clone().into_scalar::<f32>());
        accelerator.log(step, [("loss", losses[step as usize])])?;
        let gradients = accelerator.backward(loss, &model)?;
        model = optimizer.step(0.01, model, gradients);
    }
    accelerator.log(STEPS, [("says", MetricValue::from("done"))])?;
    accelerator.end_training()?;

    let names = Names::new(Layout::PyTorch)
        .rename(r"\blayer_norm\b", "LayerNorm")?
        .rename(r"\bself_attention\b", "self")?;
    accelerator.save_model(&model, out.join("model"), &names, 10_000)?;
    std::fs::write(out.join("model/config.json"), CONFIG)?;

    let hidden = model.forward(ids).into_data();
    let specs = vec![
        TensorSpec::new("hidden", Dtype::F32, hidden.shape().to_vec()),
        TensorSpec::new("losses", Dtype::F32, [losses.len()]),
    ];
    let mut writer = FileWriter::create(out.join("expected.safetensors"), specs)?;
    writer.write("hidden", hidden.as_bytes())?;
    writer
        .write("losses", &losses.iter().flat_map(|loss| loss.to_le_bytes()).collect::<Vec<_>>())?;
    writer.finish()?;
    Ok(())
}
