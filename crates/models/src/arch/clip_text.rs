//! The text encoder of CLIP, Radford et al. 2021 (arXiv:2103.00020), and that of OpenCLIP.

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;
use serde_json::Value;

use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{self, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{
    Activation, Embedding, LayerNorm, Linear, attend_causal, entered, fetched, three,
};
use crate::{Activations, Error, PicturePass, WeightUse};

use super::sizes::LayerNormSizes;

/// The name of a projection's tensor that is stored the other way round, as OpenCLIP has it.
pub const PROJECTION_IN_OUT: &str = "text_projection";

/// The configuration of a CLIP text encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipTextConfig {
    /// Its sizes; the layers are those that are run, which may be fewer than were trained.
    pub sizes: LayerNormSizes,
    /// The token whose first place in a text tells of all of it. `None`: the largest of the text,
    /// as older files have it.
    pub eos_token_id: Option<u32>,
    /// Width of what is made of that place (`projection_dim`), in a `CLIPTextModelWithProjection`.
    pub projection: Option<usize>,
    /// Whether the projection is stored as `[hidden, projection]`, as OpenCLIP has it, under
    /// `text_projection`.
    pub projection_in_out: bool,
}

impl ClipTextConfig {
    /// Width of a text as a whole.
    pub fn pooled(&self) -> usize {
        self.projection.unwrap_or(self.sizes.hidden)
    }
}

/// A CLIP text encoder, with a projection or without one.
#[derive(Module, Debug)]
pub struct ClipTextModel {
    /// All but the projection.
    pub text_model: ClipTextTransformer,
    /// `[projection, hidden]`.
    pub text_projection: Option<Linear>,
    eos_token_id: Option<u32>,
}

/// What a text encoder makes of texts, in main memory.
#[derive(Debug)]
pub struct ClipTextStates {
    /// Of the last layer but one, `[rows, tokens, hidden]` f32.
    pub penultimate: Tensor<3>,
    /// Of the last layer, behind the final norm, `[rows, tokens, hidden]` f32.
    pub last: Tensor<3>,
}

/// Embeddings, layers and final norm.
#[derive(Module, Debug)]
pub struct ClipTextTransformer {
    /// Of tokens and positions.
    pub embeddings: ClipTextEmbeddings,
    /// The layers.
    pub encoder: ClipTextEncoder,
    /// `[hidden]`.
    pub final_layer_norm: LayerNorm,
}

/// Embeddings of tokens and positions, which are added.
#[derive(Module, Debug)]
pub struct ClipTextEmbeddings {
    /// `[vocabulary, hidden]`.
    pub token_embedding: Embedding,
    /// `[positions, hidden]`.
    pub position_embedding: Embedding,
}

/// The layers.
#[derive(Module, Debug)]
pub struct ClipTextEncoder {
    /// In order of execution.
    pub layers: Vec<ClipTextEncoderLayer>,
}

/// Attention, then MLP, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct ClipTextEncoderLayer {
    /// `[hidden]`.
    pub layer_norm1: LayerNorm,
    /// Causal self-attention.
    pub self_attn: ClipTextAttention,
    /// `[hidden]`.
    pub layer_norm2: LayerNorm,
    /// The MLP.
    pub mlp: ClipTextMlp,
}

/// Causal self-attention.
#[derive(Module, Debug)]
pub struct ClipTextAttention {
    /// `[hidden, hidden]`.
    pub q_proj: Linear,
    /// `[hidden, hidden]`.
    pub k_proj: Linear,
    /// `[hidden, hidden]`.
    pub v_proj: Linear,
    /// `[hidden, hidden]`.
    pub out_proj: Linear,
    heads: usize,
}

/// `fc2(act(fc1(x)))`.
#[derive(Module, Debug)]
pub struct ClipTextMlp {
    /// `[inner, hidden]`.
    pub fc1: Linear,
    /// `[hidden, inner]`.
    pub fc2: Linear,
    #[module(skip)]
    activation: Activation,
}

impl Architecture for ClipTextModel {
    type Config = ClipTextConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("clip_text_model", "CLIPText")];
    const CLASS_PREFIX: &'static str = "ClipText";
    const HEADS: &'static [&'static str] = &["CLIPTextModel", PROJECTS];
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("ClipTextEncoder", "CLIPEncoder"),
        ("ClipTextEncoderLayer", "CLIPEncoderLayer"),
        ("ClipTextAttention", "CLIPAttention"),
        ("ClipTextMlp", "CLIPMLP"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["ClipTextEncoderLayer"];
    const OPTIONAL_PREFIX: &'static str = "text_model.";
    // A buffer that older versions saved.
    const IGNORED: &'static [&'static str] = &["embeddings.position_ids"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<ClipTextConfig, Error> {
        let names = ["hidden_size", "num_hidden_layers", "num_attention_heads"];
        let sizes = LayerNormSizes::read(fields, names, Some("layer_norm_eps"), |_| {
            Ok((
                fields.size("intermediate_size", MAX_INTERMEDIATE)?,
                fields.size_or("max_position_embeddings", 77, MAX_CONTEXT)?,
                config::activation(fields, "hidden_act", Activation::QuickGelu)?,
                false,
            ))
        })?;
        let heads = fields.get("architectures").and_then(Value::as_array);
        let projects = heads.is_some_and(|heads| heads.iter().any(|head| head == PROJECTS));
        Ok(ClipTextConfig {
            eos_token_id: match fields.get("eos_token_id").map(Value::as_u64) {
                // The number that files had when nobody read it.
                Some(Some(2)) => None,
                Some(Some(id)) if id < sizes.vocabulary as u64 => Some(id as u32),
                Some(_) => {
                    let expected = "it must be a token of the vocabulary".to_owned();
                    return Err(fields.refuse("eos_token_id", expected));
                }
                None => (sizes.vocabulary > EOS as usize).then_some(EOS),
            },
            projection_in_out: false,
            projection: match projects {
                true => Some(fields.size_or("projection_dim", 512, MAX_HIDDEN)?),
                false => None,
            },
            sizes,
        })
    }

    fn new(config: &ClipTextConfig, init: &Init) -> Self {
        let sizes = &config.sizes;
        let hidden = sizes.hidden;
        let square = || Linear::new(hidden, hidden, true, init);
        let layer = |_| ClipTextEncoderLayer {
            layer_norm1: sizes.norm(init),
            self_attn: ClipTextAttention {
                q_proj: square(),
                k_proj: square(),
                v_proj: square(),
                out_proj: square(),
                heads: sizes.heads,
            },
            layer_norm2: sizes.norm(init),
            mlp: ClipTextMlp {
                fc1: Linear::new(hidden, sizes.inner, true, init),
                fc2: Linear::new(sizes.inner, hidden, true, init),
                activation: sizes.activation,
            },
        };
        Self {
            text_model: ClipTextTransformer {
                embeddings: ClipTextEmbeddings {
                    token_embedding: Embedding::new(sizes.vocabulary, hidden, init),
                    position_embedding: Embedding::new(sizes.positions, hidden, init),
                },
                encoder: ClipTextEncoder { layers: (0..sizes.layers).map(layer).collect() },
                final_layer_norm: sizes.norm(init),
            },
            text_projection: config.projection.map(|width| match config.projection_in_out {
                true => Linear::in_out(hidden, width, false, init),
                false => Linear::new(hidden, width, false, init),
            }),
            eos_token_id: config.eos_token_id,
        }
    }
}

impl Component for ClipTextModel {
    fn names(_: &ClipTextConfig, _: &[TensorInfo]) -> Names {
        let names = Names::default().optional_prefix(Self::OPTIONAL_PREFIX);
        let projection = names.clone().or_rename(r"^text_projection\.weight$", PROJECTION_IN_OUT);
        // The expression is ours, and valid.
        projection.unwrap_or(names)
    }

    fn weight_use(_: &ClipTextConfig, path: &str, pass: &PicturePass) -> WeightUse {
        if path.starts_with("text_projection.") {
            return WeightUse::of_rows(pass.latents.batch as u64);
        }
        // A token attends to those before it.
        let attended = if path.contains(".q_proj.") { pass.tokens as u64 / 2 } else { 0 };
        WeightUse { rows: pass.all_tokens(), attended }
    }
}

impl ClipTextModel {
    /// Runs `rows` texts of equal length, whose token ids are one behind the other.
    ///
    /// # Errors
    /// No ids, ids that do not fill the rows, an id outside the vocabulary, or more tokens than
    /// there are positions.
    pub fn forward(&self, ids: &[u32], rows: usize) -> Result<ClipTextStates, Error> {
        let ClipTextTransformer { embeddings, encoder, final_layer_norm } = &self.text_model;
        let [vocabulary, positions] = [&embeddings.token_embedding, &embeddings.position_embedding]
            .map(|table| table.weight.lazy_shape()[0]);
        if ids.is_empty() || rows == 0 || !ids.len().is_multiple_of(rows) {
            return Err(Error::NoTokens);
        }
        let tokens = ids.len() / rows;
        if tokens > positions {
            return Err(Error::Context { context: tokens, max: positions });
        }
        if let Some(index) = ids.iter().position(|id| *id as usize >= vocabulary) {
            return Err(Error::TokenId { id: ids[index], index, vocab_size: vocabulary });
        }
        let places: Vec<u32> = (0..tokens as u32).collect();
        let [places, x] = [
            embeddings.position_embedding.forward(&places),
            embeddings.token_embedding.forward(ids),
        ]
        .map(|x| final_layer_norm.entered(x));
        let hidden = x.dims()[2];
        let (mut x, mut pending) = (x.reshape([rows, tokens, hidden]) + places, None);
        let mut penultimate = x.clone();
        for layer in &encoder.layers {
            let (sum, normed) = layer.layer_norm1.after(x, pending);
            penultimate = sum.clone();
            let mixed = layer.self_attn.forward(normed);
            let (sum, normed) = layer.layer_norm2.after(sum, Some(mixed));
            (x, pending) = (sum, Some(layer.mlp.forward(normed)));
        }
        let weight = final_layer_norm.weight.as_ref().expect("a norm of CLIP has a weight");
        let penultimate = fetched(penultimate, weight);
        let last = fetched(final_layer_norm.after(x, pending).1, weight);
        Ok(ClipTextStates { penultimate, last })
    }

    /// Each text as a whole, `[rows, pooled]` f32 in main memory: what the last layer,
    /// `[rows, tokens, hidden]`, has where the text ends, projected if there is a projection.
    pub fn pool(&self, ids: &[u32], last: &Tensor<3>) -> Tensor<2> {
        let [rows, tokens, hidden] = last.dims();
        let ends = ids.chunks(tokens).take(rows).enumerate().map(|(row, ids)| {
            let end = match self.eos_token_id {
                Some(eos) => ids.iter().position(|id| *id == eos),
                None => {
                    let largest = ids.iter().max();
                    ids.iter().position(|id| Some(id) == largest)
                }
            };
            // As in transformers, a text without an end is told by its first token.
            let place = end.unwrap_or(0);
            last.clone().slice([row..row + 1, place..place + 1]).reshape([1, hidden])
        });
        let pooled = Tensor::cat(ends.collect(), 0);
        match &self.text_projection {
            Some(projection) => {
                let entered = entered(pooled, &projection.weight);
                fetched(projection.forward(entered), &projection.weight)
            }
            None => pooled,
        }
    }

    /// An upper bound on the bytes of activations that a pass of `rows` texts of `tokens` tokens
    /// each holds at once, with the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, rows: usize, tokens: usize, threads: usize) -> u64 {
        let Some(layer) = self.text_model.encoder.layers.first() else {
            return Activations::default().bytes();
        };
        let [inner, hidden]: [usize; 2] = layer.mlp.fc1.weight.lazy_shape().dims();
        let count = (rows as u64).saturating_mul(tokens as u64);
        // The norm's output, queries, keys and values and a copy of one, or attention's result; or
        // the inner layer with a copy; beside the residual stream, and what it was before the
        // layer.
        let most = (7 * hidden).max(3 * hidden + 2 * inner) as u64;
        let heads = layer.self_attn.heads;
        let scratch = crate::pass_shape::attention_scratch(
            [rows, tokens, tokens],
            heads,
            hidden / heads,
            threads,
        );
        Activations::values(count.saturating_mul(most)).with_scratch(scratch).bytes()
    }
}

impl ClipTextAttention {
    /// `[rows, tokens, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [rows, tokens, hidden] = x.dims();
        let shape = [rows, tokens, self.heads, hidden / self.heads];
        let all = three([&self.q_proj, &self.k_proj, &self.v_proj], x).map(|y| y.reshape(shape));
        self.out_proj.forward(attend_causal(all, self.out_proj.compute))
    }
}

impl ClipTextMlp {
    /// `[rows, tokens, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.fc2.forward(self.activation.activate(self.fc1.forward(x)))
    }
}

/// The head of a text encoder with a projection.
const PROJECTS: &str = "CLIPTextModelWithProjection";

/// The token of a text's end in CLIP's vocabulary.
const EOS: u32 = 49407;

const FIELDS: &[KnownField] = &[
    ("dropout", Harmless),
    ("eos_token_id", Read),
    ("hidden_act", Read),
    ("hidden_size", Read),
    ("initializer_factor", Harmless),
    ("intermediate_size", Read),
    ("layer_norm_eps", Read),
    ("max_position_embeddings", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("projection_dim", Read),
    ("tie_word_embeddings", Harmless),
    ("use_attention_mask", Effect::OFF),
];
