//! Gemma 4, its text part: layers that share keys and values, heads of two widths, inputs that each
//! layer has of its own, and in some models experts beside the MLP. Gemma Team 2026.

mod config;
mod inputs;
mod layer;

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::{Names, Routed};

use crate::architecture::{Architecture, Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::layers::{Embedding, Linear, RmsNorm, Rope};
use crate::pass::Pass;
use crate::{Activations, CacheSpec, Error, KvCache, PassShape};

pub use config::{Gemma4Config, Gemma4Layer, PerLayerConfig};
pub(super) use config::{MULTIMODAL, UNIFIED, key_value_sources, rope};
pub(super) use inputs::PerLayerInputs;
pub use layer::{Gemma4DecoderLayer, Gemma4Router};

/// The text part of a Gemma 4, with its language-modelling head.
#[derive(Module, Debug)]
pub struct Gemma4ForCausalLm {
    /// The transformer.
    pub model: Gemma4Model,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    #[module(skip)]
    ropes: [Rope; 2],
    #[module(skip)]
    cache: CacheSpec,
    #[module(skip)]
    config: Gemma4Config,
}

/// Embeddings, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct Gemma4Model {
    /// `[vocabulary, hidden]`.
    pub embed_tokens: Embedding,
    /// `[vocabulary, layers · width]`: of each layer its own.
    pub embed_tokens_per_layer: Option<Embedding>,
    /// `[layers · width, hidden]`: what is added to these.
    pub per_layer_model_projection: Option<Linear>,
    /// `[width]`: of each layer's part of that.
    pub per_layer_projection_norm: Option<RmsNorm>,
    /// In order of execution.
    pub layers: Vec<Gemma4DecoderLayer>,
    /// `[hidden]`.
    pub norm: RmsNorm,
}

impl Gemma4Model {
    fn per_layer_inputs(&self) -> Option<PerLayerInputs<'_>> {
        Some(PerLayerInputs {
            table: self.embed_tokens_per_layer.as_ref()?,
            projection: self.per_layer_model_projection.as_ref()?,
            norm: self.per_layer_projection_norm.as_ref()?,
        })
    }
}

impl Architecture for Gemma4ForCausalLm {
    type Config = Gemma4Config;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("gemma4_text", "Gemma4Text"),
        ("gemma4", "Gemma4Text"),
        ("gemma4_unified_text", "Gemma4UnifiedText"),
        (UNIFIED, "Gemma4UnifiedText"),
    ];
    const CLASS_PREFIX: &'static str = "Gemma4";
    const NO_SPLIT: &'static [&'static str] = &["Gemma4DecoderLayer"];
    const HEADS: &'static [&'static str] =
        &["ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"];
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] =
        &[("model.rotary_emb", "RotaryEmbedding"), ("model.layers.*.mlp.act_fn", "Activation")];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        config::fields(model_type)
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        ["gemma4", UNIFIED].contains(&model_type).then_some(&NAMES)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<Gemma4Config, Error> {
        config::read(model_type, fields)
    }

    fn new(config: &Gemma4Config, init: &Init) -> Self {
        let (hidden, vocabulary) = (config.text.hidden_size, config.text.vocab_size);
        let layers = 0..config.layers.len();
        let norm = |width| RmsNorm::new(width, config.text.rms_norm_eps, init);
        let all = |per_layer: PerLayerConfig| config.layers.len() * per_layer.width;
        let per_layer = config.per_layer;
        Self {
            model: Gemma4Model {
                embed_tokens: Embedding::new(vocabulary, hidden, init),
                embed_tokens_per_layer: per_layer
                    .map(|inputs| Embedding::new(inputs.vocab_size, all(inputs), init)),
                per_layer_model_projection: per_layer
                    .map(|inputs| Linear::new(hidden, all(inputs), false, init)),
                per_layer_projection_norm: per_layer.map(|inputs| norm(inputs.width)),
                layers: layers.map(|index| Gemma4DecoderLayer::new(config, index, init)).collect(),
                norm: norm(hidden),
            },
            lm_head: (!config.text.tie_word_embeddings)
                .then(|| Linear::new(hidden, vocabulary, false, init)),
            ropes: config.ropes(),
            cache: config.cache(),
            config: config.clone(),
        }
    }
}

impl DecoderArchitecture for Gemma4ForCausalLm {
    const LAYERS: &'static str = "model.layers";
    const IS_STACKED: bool = true;
}

impl Decoder for Gemma4ForCausalLm {
    fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    fn is_unused(&self, name: &str) -> bool {
        self.config.is_unused(name)
    }

    fn routed(&self, path: &str) -> Option<Routed> {
        let experts = self.config.text.experts.filter(|_| path.contains(".experts."))?;
        Some(experts.routed())
    }

    fn names(&self, names: Names) -> Result<Names, outsize_core::Error> {
        let Some(experts) = self.config.text.experts else {
            return Ok(names);
        };
        let module = r"\.experts\.(?<n>\d+)\.(gate_up_proj|down_proj)\.weight$";
        names.stacked(module, ".experts.${2}", [0, 1], experts.count)
    }

    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        let hidden = self.config.text.hidden_size as f64;
        let mut x = pass.embed_images(pass.embed(&self.model.embed_tokens) * hidden.sqrt());
        let inputs = self.model.per_layer_inputs().map(|inputs| inputs.of(pass, x.clone()));
        let rotations = self.ropes.each_ref().map(|rope| pass.rotation(rope, &x.device()));
        let last = self.cache.last_that_keeps();
        for (index, layer) in self.model.layers.iter().enumerate() {
            let Some(pass) = pass.of_block(index, last) else { break };
            let input = inputs.as_ref().map(|inputs| per_layer_inputs(inputs, index));
            x = layer.forward(x, input, &rotations, &pass, cache, index)?;
        }
        cache.keep_shared()?;
        Ok(self.model.norm.forward(pass.wanted(x)))
    }

    fn head(&self) -> Head<'_> {
        Head::new(self.lm_head.as_ref(), &self.model.embed_tokens)
    }

    fn logit_softcap(&self) -> Option<f64> {
        self.config.text.logit_softcap
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let layers = self.model.layers.iter();
        let left = layers.clone().map(|layer| layer.self_attn.left_for_others(pass));
        let left = left.fold(Activations::default(), Activations::and);
        let last = self.cache.last_that_keeps();
        let most = layers
            .enumerate()
            .map(|(index, layer)| layer.activations(&pass.of_block(index, last)))
            .fold(self.head().activations(pass), Activations::or);
        // Alive throughout: the residual stream, the rotations and the layers' own inputs. While
        // these are made, what is looked up, what is projected and their copies.
        let inputs = self.model.per_layer_inputs().map_or(0, |inputs| inputs.values());
        let rotations: usize = self.ropes.iter().map(Rope::width).sum();
        let alive = (self.model.embed_tokens.width() + rotations) as u64 + inputs;
        let made = Activations::values(pass.rows() * 4 * inputs);
        most.or(made).and(left).and(Activations::values(pass.rows() * alive))
    }
}

/// Of the inputs of all layers, `[batch, tokens, layers, width]`, those of one.
pub(super) fn per_layer_inputs(inputs: &Tensor<4>, layer: usize) -> Tensor<3> {
    let [batch, tokens, _, width] = inputs.dims();
    inputs.clone().narrow(2, layer, 1).reshape([batch, tokens, width])
}

/// Of Gemma 3n too.
pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model.")],
    others: &[
        "model.vision_tower.",
        "model.vision_embedder.",
        "model.embed_vision.",
        "model.audio_tower.",
        "model.embed_audio.",
    ],
};
