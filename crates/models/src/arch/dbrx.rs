//! DBRX: many experts, whose matrices a layer has in three stacks, clipped queries, keys and
//! values, and LayerNorm. Databricks 2024 (<https://github.com/databricks/dbrx>).

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;
use serde_json::{Map, Value};

use super::rms_config::{BlockNormKind, DEFAULTS, ExpertsConfig, RmsConfig, RmsDefaults};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{FeedForwardName, RmsDecoderLayer, RmsFeedForward};
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    COMMON, Fields, KnownField, MAX_EXPERTS, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS,
    MAX_POSITIONS, MAX_VOCAB, RopeConfig, activation, check, theta,
};
use crate::layers::{
    Activation, Expert, Linear, Router, announce_all, expert_activations, gated_activations,
    gated_down, mixed,
};
use crate::{Activations, Error, PassShape};

/// A DBRX with its language-modelling head.
pub type DbrxForCausalLm = RmsForCausalLm<RmsDecoderLayer<DbrxFfn>>;

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct DbrxFfn {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// Gated feed-forward blocks.
    pub experts: Vec<DbrxExpert>,
}

/// A gated feed-forward block.
#[derive(Module, Debug)]
pub struct DbrxExpert {
    /// `[intermediate, hidden]`: the gate.
    pub w1: Linear,
    /// `[intermediate, hidden]`: what goes through the gate.
    pub v1: Linear,
    /// `[intermediate, hidden]`, the other way round than others.
    pub w2: Linear,
    #[module(skip)]
    activation: Activation,
}

impl Expert for DbrxExpert {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        gated_down([&self.w1, &self.v1], &self.w2, self.activation, x)
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        [&self.w1, &self.v1, &self.w2].into_iter()
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        gated_activations(&self.w1, pass)
    }
}

impl RmsFeedForward for DbrxFfn {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("dbrx", "Dbrx")];
    const NAME: FeedForwardName = FeedForwardName::BlockSparseMoe;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[DBRX]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        read(fields)
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let (hidden, inner) = (config.hidden_size, experts.intermediate_size);
        let one = |_| DbrxExpert {
            w1: Linear::new(hidden, inner, false, init),
            v1: Linear::new(hidden, inner, false, init),
            w2: Linear::in_out(inner, hidden, false, init),
            activation: config.activation,
        };
        Self {
            gate: Router::new(hidden, experts.count, experts.routing, init),
            experts: (0..experts.count).map(one).collect(),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        let of_block = |names: Names, (ours, theirs): &(&str, &str)| {
            let pattern = format!(r"^model\.layers\.(?<layer>\d+)\.{ours}\.");
            names.or_rename(&pattern, &format!("transformer.blocks.${{layer}}.{theirs}."))
        };
        let names = BLOCK.iter().try_fold(names, of_block)?;
        let names = (names.or_rename(r"^model\.embed_tokens\.", "transformer.wte.")?)
            .or_rename(r"^model\.norm\.", "transformer.norm_f.")?;
        ["w1", "v1", "w2"].into_iter().try_fold(names, |names, matrix| {
            let module = r"^model\.layers\.(?<layer>\d+)\.block_sparse_moe\.experts\.(?<n>\d+)";
            let with = format!("transformer.blocks.${{layer}}.ffn.experts.mlp.{matrix}");
            let pattern = format!(r"{module}\.{matrix}\.weight$");
            names.stacked(&pattern, &with, [0, 1], experts.count)
        })
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.gate, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        mixed(x, &self.gate, &self.experts)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        expert_activations(&self.gate, &self.experts, pass)
    }
}

fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let size = |field, absent, max| fields.size_or(field, absent, max);
    let (hidden, heads) = (size("d_model", 2048, MAX_HIDDEN)?, size("n_heads", 16, MAX_HEADS)?);
    if !hidden.is_multiple_of(2 * heads) {
        let expected = format!("of {heads} heads each must have an even part of it");
        return Err(fields.refuse("d_model", expected));
    }
    let layers = size("n_layers", 24, MAX_LAYERS)?;
    let vocabulary = size("vocab_size", 32_000, MAX_VOCAB)?;
    let positions = size("max_seq_len", 2048, MAX_POSITIONS)?;
    let nothing = Map::new();
    let attention = fields.object("attn_config")?;
    let experts = fields.object("ffn_config")?;
    for (object, table) in [(&attention, ATTENTION), (&experts, EXPERTS)] {
        object.as_ref().map_or(Ok(()), |object| check(object, &[table, COMMON]))?;
    }
    let attention = attention.unwrap_or(Fields::new(&nothing));
    let experts = experts.unwrap_or(Fields::new(&nothing));
    let key_value_heads = attention.size_or("kv_n_heads", 1, MAX_HEADS)?;
    if !heads.is_multiple_of(key_value_heads) {
        return Err(attention.refuse("kv_n_heads", format!("it must divide n_heads, {heads}")));
    }
    let inner = experts.size_or("ffn_hidden_size", 3584, MAX_INTERMEDIATE)?;
    let count = experts.size_or("moe_num_experts", 4, MAX_EXPERTS)?;
    let per_token = experts.size_or("moe_top_k", 1, MAX_EXPERTS)?;
    // Null says that shares are as they are.
    let field = "moe_normalize_expert_weights";
    let normalized = match experts.get(field) {
        Some(_) => experts.number_within(field, 1.0, 1.0).map(|_| true)?,
        None => !experts.has(field),
    };
    let function = experts.object("ffn_act_fn")?;
    let function = function.map(|object| activation(&object, "name", Activation::Silu));
    // Under the names of others, with what was checked under its own.
    let named: Map<String, Value> = [
        ("hidden_size", hidden),
        ("num_attention_heads", heads),
        ("num_key_value_heads", key_value_heads),
        ("num_hidden_layers", layers),
        ("intermediate_size", inner),
        ("vocab_size", vocabulary),
        ("max_position_embeddings", positions),
    ]
    .into_iter()
    .map(|(name, size)| (name.to_owned(), size.into()))
    .collect();
    let absent = RmsDefaults { rms_norm_eps: 1e-5, ..DEFAULTS };
    let mut config = RmsConfig::read(&Fields::new(&named), &absent)?;
    config.rope.theta = theta(&attention, "rope_theta", DEFAULTS.rope_theta)?;
    let rope = RopeConfig::read(&config.rope_context(fields))?;
    let clip = match attention.get("clip_qkv") {
        Some(_) => Some(attention.number_within("clip_qkv", 1e-3, 1e6)?),
        None => None,
    };
    let config = RmsConfig {
        activation: function.transpose()?.unwrap_or(Activation::Silu),
        rope,
        attention_clip: clip,
        norm_kind: BlockNormKind::Layer { bias: false },
        fused_projections: Some("transformer.blocks.$1.norm_attn_norm.attn.Wqkv."),
        ..config
    };
    let (count, per_token) = (("moe_num_experts", count), ("moe_top_k", per_token));
    config.with_experts_of(&experts, count, per_token, normalized)
}

/// What checkpoints call parts of a block.
const BLOCK: &[(&str, &str)] = &[
    ("input_layernorm", "norm_attn_norm.norm_1"),
    (r"self_attn\.o_proj", "norm_attn_norm.attn.out_proj"),
    ("post_attention_layernorm", "norm_attn_norm.norm_2"),
    (r"block_sparse_moe\.gate", "ffn.router.layer"),
];

const DBRX: &[KnownField] = &[
    ("attn_config", Read),
    ("auto_map", Harmless),
    ("d_model", Read),
    ("emb_pdrop", Harmless),
    ("ffn_config", Read),
    ("max_seq_len", Read),
    ("n_heads", Read),
    ("n_layers", Read),
    ("num_key_value_heads", Harmless),
    ("output_router_logits", Harmless),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rope_theta", Read),
    ("router_aux_loss_coef", Harmless),
    ("tie_word_embeddings", Effect::OFF),
];

/// Of `attn_config`.
const ATTENTION: &[KnownField] =
    &[("attn_pdrop", Harmless), ("clip_qkv", Read), ("kv_n_heads", Read), ("rope_theta", Read)];

/// Of `ffn_config`.
const EXPERTS: &[KnownField] = &[
    ("ffn_act_fn", Read),
    ("ffn_hidden_size", Read),
    // As wide as the model.
    ("hidden_size", Harmless),
    ("moe_jitter_eps", Harmless),
    ("moe_loss_weight", Harmless),
    ("moe_normalize_expert_weights", Read),
    ("moe_num_experts", Read),
    ("moe_top_k", Read),
    ("uniform_expert_assignment", Only(&["false"])),
];
