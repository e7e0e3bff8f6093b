//! Gemma 3n, its text part: several residual streams of which layers compute one and predict the
//! others, a low-rank path beside attention, inputs that each layer has of its own, and layers that
//! share keys and values. Gemma Team 2025.

mod altup;
mod config;
mod layer;

use burn::module::Module;
use burn::tensor::Tensor;

use super::gemma4::{NAMES, PerLayerInputs, per_layer_inputs};
use crate::architecture::{Architecture, Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::layers::{Embedding, Linear, RmsNorm, Rope, entered};
use crate::pass::Pass;
use crate::{Activations, CacheSpec, Error, KvCache, PassShape};

pub use altup::Gemma3nAltUp;
pub use config::{AltUpConfig, Gemma3nConfig};
pub use layer::{Gemma3nDecoderLayer, Gemma3nLaurelBlock, Gemma3nMlp};

/// The text part of a Gemma 3n, with its language-modelling head.
#[derive(Module, Debug)]
pub struct Gemma3nForCausalLm {
    /// The transformer.
    pub model: Gemma3nModel,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    #[module(skip)]
    ropes: [Rope; 2],
    #[module(skip)]
    cache: CacheSpec,
    #[module(skip)]
    config: Gemma3nConfig,
}

/// Embeddings, decoder layers, and what makes several residual streams of one and one of several.
#[derive(Module, Debug)]
pub struct Gemma3nModel {
    /// `[vocabulary, hidden]`.
    pub embed_tokens: Embedding,
    /// `[vocabulary, layers · width]`: of each layer its own.
    pub embed_tokens_per_layer: Embedding,
    /// `[layers · width, hidden]`: what is added to these.
    pub per_layer_model_projection: Linear,
    /// `[width]`: of each layer's part of that.
    pub per_layer_projection_norm: RmsNorm,
    /// `[hidden, hidden]` each: what makes the streams behind the first.
    pub altup_projections: Vec<Linear>,
    /// In order of execution.
    pub layers: Vec<Gemma3nDecoderLayer>,
    /// `[hidden, hidden]` each: what the streams behind the first become in the end.
    pub altup_unembed_projections: Vec<Linear>,
    /// `[hidden]`.
    pub norm: RmsNorm,
}

impl Gemma3nModel {
    fn per_layer_inputs(&self) -> PerLayerInputs<'_> {
        PerLayerInputs {
            table: &self.embed_tokens_per_layer,
            projection: &self.per_layer_model_projection,
            norm: &self.per_layer_projection_norm,
        }
    }
}

impl Architecture for Gemma3nForCausalLm {
    type Config = Gemma3nConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("gemma3n_text", "Gemma3nText"), ("gemma3n", "Gemma3nText")];
    const CLASS_PREFIX: &'static str = "Gemma3n";
    const NO_SPLIT: &'static [&'static str] = &["Gemma3nDecoderLayer"];
    const HEADS: &'static [&'static str] = &["ForCausalLM", "Gemma3nForConditionalGeneration"];
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] =
        &[("model.rotary_emb", "RotaryEmbedding"), ("model.layers.*.mlp.act_fn", "Activation")];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        config::fields(model_type)
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        (model_type == "gemma3n").then_some(&NAMES)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<Gemma3nConfig, Error> {
        config::read(model_type, fields)
    }

    fn new(config: &Gemma3nConfig, init: &Init) -> Self {
        let (text, inputs) = (&config.base.text, config.inputs);
        let (hidden, vocabulary) = (text.hidden_size, text.vocab_size);
        let layers = 0..config.base.layers.len();
        let norm = |width| RmsNorm::new(width, text.rms_norm_eps, init);
        let all = layers.len() * inputs.width;
        let streams = || {
            let others = 1..config.altup.streams;
            others.map(|_| Linear::new(hidden, hidden, false, init)).collect()
        };
        Self {
            model: Gemma3nModel {
                embed_tokens: Embedding::new(vocabulary, hidden, init),
                embed_tokens_per_layer: Embedding::new(inputs.vocab_size, all, init),
                per_layer_model_projection: Linear::new(hidden, all, false, init),
                per_layer_projection_norm: norm(inputs.width),
                altup_projections: streams(),
                layers: layers.map(|index| Gemma3nDecoderLayer::new(config, index, init)).collect(),
                altup_unembed_projections: streams(),
                norm: norm(hidden),
            },
            lm_head: (!text.tie_word_embeddings)
                .then(|| Linear::new(hidden, vocabulary, false, init)),
            ropes: config.base.ropes(),
            cache: config.base.cache(),
            config: config.clone(),
        }
    }
}

impl DecoderArchitecture for Gemma3nForCausalLm {
    const LAYERS: &'static str = "model.layers";
}

impl Decoder for Gemma3nForCausalLm {
    fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    fn is_unused(&self, name: &str) -> bool {
        self.config.base.is_unused(name)
    }

    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        let model = &self.model;
        let hidden = self.config.base.text.hidden_size as f64;
        let first = pass.embed(&model.embed_tokens) * hidden.sqrt();
        // The table may be elsewhere.
        let first = match model.altup_projections.first() {
            Some(projection) => entered(first, &projection.weight),
            None => first,
        };
        let inputs = model.per_layer_inputs().of(pass, first.clone());
        let rotations = self.ropes.each_ref().map(|rope| pass.rotation(rope, &first.device()));
        let size = magnitude(first.clone());
        let others = model.altup_projections.iter();
        let others = others.map(|layer| resized(layer.forward(first.clone()), &size));
        let mut streams: Vec<_> = std::iter::once(first.clone()).chain(others).collect();
        let last = self.cache.last_that_keeps();
        for (index, layer) in model.layers.iter().enumerate() {
            let Some(pass) = pass.of_block(index, last) else { break };
            let input = per_layer_inputs(&inputs, index);
            streams = layer.forward(streams, input, &rotations, &pass, cache, index)?;
        }
        cache.keep_shared()?;
        let mut streams = streams.into_iter().map(|stream| pass.wanted(stream));
        let first = streams.next().expect("there is a first stream");
        let (size, count) = (magnitude(first.clone()), self.config.altup.streams);
        let others = model.altup_unembed_projections.iter().zip(streams);
        let sum = others.fold(first, |sum, (layer, stream)| {
            let other = resized(layer.forward(stream), &size);
            sum.to_device(&other.device()) + other
        });
        Ok(model.norm.forward(sum * (1.0 / count as f64)))
    }

    fn head(&self) -> Head<'_> {
        Head::new(self.lm_head.as_ref(), &self.model.embed_tokens)
    }

    fn logit_softcap(&self) -> Option<f64> {
        self.config.base.text.logit_softcap
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let layers = self.model.layers.iter();
        let left = layers.clone().map(|layer| layer.self_attn.left_for_others(pass));
        let left = left.fold(Activations::default(), Activations::and);
        let head = self.head().activations(pass);
        let last = self.cache.last_that_keeps();
        let most = layers
            .enumerate()
            .map(|(index, layer)| layer.activations(&pass.of_block(index, last)))
            .fold(head, Activations::or);
        // Alive throughout: the residual streams, the rotations and the layers' own inputs. While
        // these are made, what is looked up, what is projected and their copies.
        let inputs = self.model.per_layer_inputs().values();
        let rotations: usize = self.ropes.iter().map(Rope::width).sum();
        let hidden = self.model.embed_tokens.width();
        let alive = (self.config.altup.streams * hidden + rotations) as u64 + inputs;
        let made = Activations::values(pass.rows() * (4 * inputs + 3 * hidden as u64));
        most.or(made).and(left).and(Activations::values(pass.rows() * alive))
    }
}

/// The root of the mean square over the last dimension.
fn magnitude(x: Tensor<3>) -> Tensor<3> {
    (x.clone() * x).mean_dim(2).sqrt()
}

/// The same values, of which the magnitude is another.
fn resized(x: Tensor<3>, size: &Tensor<3>) -> Tensor<3> {
    let own = (x.clone() * x.clone()).mean_dim(2).clamp_min(1e-5).sqrt();
    let size = size.clone().to_device(&x.device());
    x * size / own
}
