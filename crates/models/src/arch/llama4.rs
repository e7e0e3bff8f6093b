//! Llama 4, its text part: experts behind a sigmoid and one beside them, layers that see chunks of
//! a text and rotate, and between these some that see everything and rotate nothing. Meta 2025
//! (<https://ai.meta.com/blog/llama-4-multimodal-intelligence>).

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;
use serde_json::Value;

use super::expert_fields::{EXPERTS, layers_named};
use super::gemma3::TEXT_PART;
use super::rms_config::{DEFAULTS, ExpertsConfig, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{FeedForwardName, RmsDecoderLayer, RmsFeedForward};
use super::smollm3::rotated_layers;
use crate::architecture::{Init, MultimodalNames};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    COMMON, Fields, KnownField, MAX_INTERMEDIATE, MAX_LAYERS, MAX_POSITIONS, check, chunked_layers,
};
use crate::layers::{
    Either, FusedMlp, Mlp, QueryGrowth, Router, Routing, Shares, announce_all, beside_activations,
    mixed_beside,
};
use crate::{Activations, Error, PassShape};

/// The text part of a Llama 4, with its language-modelling head.
pub type Llama4ForCausalLm = RmsForCausalLm<RmsDecoderLayer<Either<Mlp, Llama4Moe>>>;

/// Experts, a few of which each token goes to, and one that all go to.
#[derive(Module, Debug)]
pub struct Llama4Moe {
    /// `[experts, hidden]`: scores the experts.
    pub router: Router,
    /// Gated feed-forward blocks, whose weights are `[in, out]`, or `[out, in]` with gates apart.
    pub experts: Vec<Either<FusedMlp, Mlp>>,
    /// One that all tokens go to.
    pub shared_expert: Mlp,
}

impl RmsFeedForward for Llama4Moe {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("llama4_text", "Llama4Text"), ("llama4", "Llama4Text")];
    const NAME: FeedForwardName = FeedForwardName::FeedForward;
    const IS_STACKED: bool = true;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "llama4" => &[MULTIMODAL],
            _ => &[TEXT, EXPERTS, FIELDS],
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        (model_type == "llama4").then_some(&NAMES)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        if model_type != "llama4" {
            return read_text(fields);
        }
        let text = fields.required_object("text_config")?;
        check(&text, &[TEXT_TYPE, TEXT_PART, TEXT, EXPERTS, FIELDS, COMMON])?;
        // That of the whole model counts.
        let tie_word_embeddings = fields.flag_or("tie_word_embeddings", false)?;
        Ok(RmsConfig { tie_word_embeddings, ..read_text(&text)? })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let (hidden, inner) = (config.hidden_size, experts.intermediate_size);
        let one = |_| match config.gates_apart {
            false => Either::One(FusedMlp::in_out(hidden, inner, config.activation, init)),
            true => Either::Other(config.mlp(inner, init)),
        };
        Self {
            router: Router::new(hidden, experts.count, experts.routing, init),
            experts: (0..experts.count).map(one).collect(),
            shared_expert: config.mlp(inner, init),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        let module = r"\.feed_forward\.experts\.(?<n>\d+)\.(gate_up_proj|down_proj)\.weight$";
        names.stacked(module, ".feed_forward.experts.${2}", [0, 1], experts.count)
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.router, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        mixed_beside(x, Some(&self.shared_expert), &self.router, None, &self.experts)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        beside_activations(Some(&self.shared_expert), &self.router, &self.experts, pass)
    }
}

fn read_text(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config =
        RmsConfig::read(fields, &ABSENT)?.with_rope(fields)?.with_attention_bias(fields)?;
    let layers = config.num_hidden_layers;
    let names = ["num_local_experts", "num_experts"];
    let mut config = config.with_experts(fields, names, (16, 1), false)?;
    if let Some(experts) = &mut config.experts {
        let routing =
            Routing { shares: Shares::SigmoidOfChosen, of_input: true, ..experts.routing };
        *experts = ExpertsConfig { routing, ..*experts };
    }
    // An empty list says nothing.
    let lists = fields.get("no_rope_layers").and_then(Value::as_array);
    let rotated_layers = match lists.is_some_and(Vec::is_empty) {
        true => by_interval(layers, rotation_interval(fields)?, false),
        false => rotated_layers(fields, layers)?,
    };
    let chunk = "attention_chunk_size";
    let chunk = match fields.has(chunk) && fields.get(chunk).is_none() {
        true => None,
        false => Some(fields.size_or(chunk, 8192, MAX_POSITIONS)?),
    };
    let by_rule = rotated_layers.iter().map(|rotates| chunk.filter(|_| *rotates)).collect();
    let step = fields.size_or("interleave_moe_layer_step", 1, MAX_LAYERS)?;
    let unrotated_growth = match is_tuned(fields)? {
        false => None,
        true => Some(QueryGrowth {
            rate: fields.number_within_or("attn_scale", 0.1, 0.0, 1e3)?,
            every: fields.size_or("floor_scale", 8192, MAX_POSITIONS)?,
            first: 1,
        }),
    };
    Ok(RmsConfig {
        intermediate_size: fields.size_or("intermediate_size_mlp", 16_384, MAX_INTERMEDIATE)?,
        sparse_layers: match layers_named(fields, "moe_layers")? {
            Some(named) => (0..layers).map(|layer| named.contains(&(layer as u64))).collect(),
            None => by_interval(layers, step, true),
        },
        query_key_norms: (fields.flag_or("use_qk_norm", true)?)
            .then_some(QueryKeyNorms::UnitRotated),
        rope_interleaved: true,
        gates_apart: fields.flag_or("gates_apart", false)?,
        unrotated_growth,
        windows: chunked_layers(fields, chunk, by_rule)?,
        chunked: true,
        rotated_layers,
        ..config
    })
}

/// Of each layer whether it is one of every so many, or one of the others.
fn by_interval(layers: usize, interval: usize, is_one: bool) -> Vec<bool> {
    (1..=layers).map(|layer| layer.is_multiple_of(interval) == is_one).collect()
}

fn rotation_interval(fields: &Fields<'_>) -> Result<usize, Error> {
    fields.size_or("no_rope_layer_interval", 4, MAX_LAYERS)
}

/// Whether queries grow where nothing is rotated. Files as first published have a number.
fn is_tuned(fields: &Fields<'_>) -> Result<bool, Error> {
    let field = "attn_temperature_tuning";
    match fields.get(field).and_then(Value::as_u64) {
        Some(number) => Ok(number != 0),
        None => fields.flag_or(field, true),
    }
}

/// Those of `Llama4TextConfig`.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("hidden_size", 5120),
        ("intermediate_size", 8192),
        ("num_attention_heads", 40),
        ("num_hidden_layers", 48),
        ("vocab_size", 202_048),
    ],
    key_value_heads: Some(8),
    head_dim: Some(128),
    max_position_embeddings: 131_072,
    rms_norm_eps: 1e-5,
    rope_theta: 500_000.0,
    ..DEFAULTS
};

const TEXT: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_chunk_size", Read),
    ("attn_scale", Read),
    ("attn_temperature_tuning", Read),
    ("floor_scale", Read),
    // Of other software.
    ("for_llm_compressor", Harmless),
    ("gates_apart", Read),
    ("interleave_moe_layer_step", Read),
    ("intermediate_size_mlp", Read),
    ("moe_layers", Read),
    ("no_rope_layer_interval", Read),
    ("no_rope_layers", Read),
    ("sliding_window", Effect::UNSET),
    ("use_qk_norm", Read),
];

const TEXT_TYPE: &[KnownField] =
    &[("model_type", Only(&["\"llama4_text\""])), ("tie_word_embeddings", Harmless)];

/// Of a model that sees images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("boi_token_id", Harmless),
    ("boi_token_index", Harmless),
    ("eoi_token_id", Harmless),
    ("eoi_token_index", Harmless),
    ("image_token_id", Harmless),
    ("image_token_index", Harmless),
    ("text_config", Read),
    ("vision_config", Harmless),
];

const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("language_model.", "")],
    others: &["vision_model.", "multi_modal_projector."],
};
