//! LFM2 and LFM3: short convolutions in most layers, attention in the others; in some models with
//! experts. Liquid AI 2025 (arXiv:2511.23404).

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use outsize_core::Names;
use serde_json::Value;

use super::cohere::LAYER_NORM_FIELDS;
use super::expert_fields::layers_named;
use super::lfm3;
use super::mixtral::MixtralExpert;
use super::qwen3_next::convolution_taps;
use super::rms_config::{
    BlockNorms, ConvolutionConfig, DEFAULTS, ExpertsConfig, LayerMixer, QueryKeyNorms, RmsConfig,
    RmsDefaults,
};
use super::rms_decoder::{FinalNormName, RmsBlock, RmsForCausalLm};
use super::sparse_moe::stacked_in;
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS};
use crate::layers::{
    Attention, Either, Expert, RmsNorm, Rotation, Router, Routing, Shares, ShortConvolution,
    announce_all, correction_of, either, expert_activations, mixed_with, zeros,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// An LFM2 with its language-modelling head.
pub type Lfm2ForCausalLm = RmsForCausalLm<Lfm2DecoderLayer>;

/// One decoder layer: a short convolution or attention, then an MLP or experts, each added to the
/// residual stream.
#[derive(Module, Debug)]
pub struct Lfm2DecoderLayer {
    /// `[hidden]`.
    pub operator_norm: RmsNorm,
    /// A gated convolution, in most layers.
    pub conv: Option<ShortConvolution>,
    /// Causal self-attention, in the others.
    pub self_attn: Option<Attention>,
    /// `[hidden]`: of what either gives, in LFM3.
    pub post_operator_norm: Option<RmsNorm>,
    /// `[hidden]`.
    pub ffn_norm: RmsNorm,
    /// Gated feed-forward block, or experts.
    pub feed_forward: Either<MixtralExpert, Lfm2Moe>,
    /// `[hidden]`: of what that gives, in LFM3.
    pub post_ffn_norm: Option<RmsNorm>,
    /// Which of the rotary embeddings it takes, if any.
    #[module(skip)]
    rotation: Option<usize>,
}

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct Lfm2Moe {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// `[experts]`: added to the experts' shares while they are chosen, where there is one.
    pub expert_bias: Option<Param<Tensor<1>>>,
    /// Gated feed-forward blocks.
    pub experts: Vec<MixtralExpert>,
}

impl Lfm2Moe {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let correction = self.expert_bias.as_ref().map(correction_of);
        mixed_with(x, &self.gate, correction, &self.experts)
    }
}

impl RmsBlock for Lfm2DecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("lfm2", "Lfm2"), ("lfm2_moe", "Lfm2Moe"), ("lfm3", "Lfm3")];
    const NO_SPLIT: &'static [&'static str] = &["Lfm2DecoderLayer"];
    const FINAL_NORM: FinalNormName = FinalNormName::EmbeddingNorm;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "lfm2_moe" => &[MOE, LFM2, LAYER_NORM_FIELDS],
            "lfm3" => &[lfm3::LFM3, LAYER_NORM_FIELDS],
            _ => &[DENSE, LFM2, LAYER_NORM_FIELDS],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        if model_type == "lfm3" {
            return lfm3::read(fields);
        }
        let is_moe = model_type == "lfm2_moe";
        let config = read(fields, is_moe)?;
        if is_moe { with_experts(fields, config) } else { Ok(config) }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        stacked_in(names, r"\.feed_forward", ".feed_forward", ["w1", "w3", "w2"], experts.count)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let hidden = config.hidden_size;
        let norm = || config.norm(hidden, init);
        let norm_behind = || (config.norms == BlockNorms::Around).then(norm);
        let convolution = config.convolution.filter(|_| config.mixers[index].has_linear());
        let gated = |inner| MixtralExpert::new(hidden, inner, config.activation, init);
        let experts = config.experts.filter(|_| config.sparse_layers[index]);
        Self {
            operator_norm: norm(),
            conv: convolution.map(|it| ShortConvolution::new(hidden, it.taps, it.bias, init)),
            self_attn: convolution.is_none().then(|| config.plain_attention(index, init)),
            post_operator_norm: norm_behind(),
            ffn_norm: norm(),
            feed_forward: match experts {
                None => Either::One(gated(config.intermediate_size)),
                Some(experts) => Either::Other(Lfm2Moe {
                    gate: Router::new(hidden, experts.count, experts.routing, init),
                    expert_bias: experts.is_corrected.then(|| zeros(experts.count, &init.device)),
                    experts: (0..experts.count).map(|_| gated(experts.intermediate_size)).collect(),
                }),
            },
            post_ffn_norm: norm_behind(),
            rotation: config.rotation(index),
        }
    }

    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        if let Either::Other(experts) = &self.feed_forward {
            announce_all(&experts.experts, &experts.gate, pass.rows());
        }
        let (x, normed) = self.operator_norm.after(x, pending);
        let positions = pass.query_positions();
        let mixed = match (&self.conv, &self.self_attn) {
            (Some(convolution), _) => convolution.forward(normed, &positions, cache, index),
            (None, Some(attention)) => {
                let rotation = self.rotation.map(|rotation| &rotations[rotation]);
                attention.forward(normed, rotation, &positions, cache, index)
            }
            (None, None) => unreachable!("a layer is made with one of them"),
        }?;
        let behind = |norm: &Option<RmsNorm>, x| match norm {
            Some(norm) => norm.forward(x),
            None => x,
        };
        let mixed = behind(&self.post_operator_norm, mixed);
        let [x, mixed] = [x, mixed].map(|x| pass.needed(x));
        let (x, normed) = self.ffn_norm.add_forward(x, mixed);
        let given = either!(&self.feed_forward, block => block.forward(normed));
        Ok(Residual { stream: x, pending: Some(behind(&self.post_ffn_norm, given)) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let convolution = self.conv.as_ref().map(|convolution| convolution.activations(pass));
        let attention = self.self_attn.as_ref().map(|attention| attention.activations(pass));
        let mixed = convolution.or(attention).unwrap_or_default();
        mixed.or(match &self.feed_forward {
            Either::One(block) => Expert::activations(block, pass),
            Either::Other(block) => expert_activations(&block.gate, &block.experts, pass),
        })
    }
}

fn read(fields: &Fields<'_>, is_moe: bool) -> Result<RmsConfig, Error> {
    let absent = if is_moe { MOE_ABSENT } else { ABSENT };
    let inner = match !is_moe && fields.get("block_ff_dim").is_some() {
        true => fields.size("block_ff_dim", MAX_INTERMEDIATE)?,
        false => fields.size_or(
            "intermediate_size",
            if is_moe { 7168 } else { 12_288 },
            MAX_INTERMEDIATE,
        )?,
    };
    let inner = if is_moe { inner } else { adjusted(fields, inner)? };
    let config = RmsConfig::read_with_inner(fields, &absent, inner)?.with_rope(fields)?;
    let layers = config.num_hidden_layers;
    let attends = match (fields.get("layer_types"), layers_named(fields, "full_attn_idxs")?) {
        (Some(_), _) => None,
        (None, Some(named)) => Some((0..layers).map(|at| named.contains(&(at as u64))).collect()),
        (None, None) if is_moe => return Err(fields.missing("layer_types")),
        (None, None) => Some(vec![true; layers]),
    };
    let attends = match attends {
        Some(attends) => attends,
        None => kinds(fields, layers)?,
    };
    let tied = match fields.get("tie_embedding") {
        Some(_) => fields.flag_or("tie_embedding", true)?,
        None => config.tie_word_embeddings,
    };
    Ok(RmsConfig {
        tie_word_embeddings: tied,
        query_key_norms: Some(QueryKeyNorms::EachHeadLfm2),
        convolution: Some(ConvolutionConfig {
            taps: convolution_taps(fields, "conv_L_cache", 3)?,
            bias: fields.flag_or("conv_bias", false)?,
        }),
        mixers: attends.into_iter().map(LayerMixer::attends).collect(),
        ..config
    })
}

/// Of each layer, whether it has attention.
fn kinds(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    fields.listed("layer_types", layers, &[("conv", false), ("full_attention", true)])
}

/// The width of the MLP's inner layer, of what the file says.
fn adjusted(fields: &Fields<'_>, inner: usize) -> Result<usize, Error> {
    let multiple = fields.size_or("block_multiple_of", 256, MAX_HIDDEN)?;
    let factor = match fields.has("block_ffn_dim_multiplier") {
        false => Some(1.0),
        true if fields.get("block_ffn_dim_multiplier").is_none() => None,
        true => Some(fields.number_within("block_ffn_dim_multiplier", 1e-6, 1e6)?),
    };
    if !fields.flag_or("block_auto_adjust_ff_dim", true)? {
        return Ok(inner);
    }
    let inner = 2 * inner / 3;
    let adjusted = match factor {
        Some(factor) => ((factor * inner as f64) as usize).next_multiple_of(multiple),
        None => inner,
    };
    match (1..=MAX_INTERMEDIATE).contains(&adjusted) {
        true => Ok(adjusted),
        false => {
            let expected =
                format!("what comes of it, {adjusted}, must be from 1 to {MAX_INTERMEDIATE}");
            Err(fields.refuse("block_ffn_dim_multiplier", expected))
        }
    }
}

fn with_experts(fields: &Fields<'_>, config: RmsConfig) -> Result<RmsConfig, Error> {
    let normalized = fields.flag_or("norm_topk_prob", true)?;
    let dense = match fields.get("num_dense_layers").and_then(Value::as_u64) {
        Some(0) => 0,
        _ => fields.size_or("num_dense_layers", 2, MAX_LAYERS)?,
    };
    let mut config =
        config.with_experts(fields, ["num_experts", "num_local_experts"], (32, 4), normalized)?;
    let scale = fields.number_within_or("routed_scaling_factor", 1.0, 0.0, 1e6)?;
    if let Some(experts) = &mut config.experts {
        *experts = ExpertsConfig {
            intermediate_size: fields.size_or("moe_intermediate_size", 1792, MAX_INTERMEDIATE)?,
            is_corrected: fields.flag_or("use_expert_bias", true)?,
            routing: Routing { shares: Shares::Sigmoid, epsilon: 1e-6, scale, ..experts.routing },
            ..*experts
        };
    }
    config.sparse_layers = (0..config.num_hidden_layers).map(|layer| layer >= dense).collect();
    Ok(config)
}

/// Those of `Lfm2Config`.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 65_536),
        ("hidden_size", 2560),
        ("num_hidden_layers", 32),
        ("num_attention_heads", 32),
    ],
    key_value_heads: Some(8),
    max_position_embeddings: 128_000,
    rms_norm_eps: 1e-5,
    epsilon: "norm_eps",
    rope_theta: 1e6,
    tie_word_embeddings: true,
    ..DEFAULTS
};

/// Those of `Lfm2MoeConfig`.
const MOE_ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 65_536),
        ("hidden_size", 2048),
        ("num_hidden_layers", 32),
        ("num_attention_heads", 32),
    ],
    ..ABSENT
};

const LFM2: &[KnownField] = &[
    ("conv_L_cache", Read),
    ("conv_bias", Read),
    ("norm_eps", Read),
    ("tie_embedding", Read),
    // Said again for other software, or of how weights were drawn.
    ("conv_dim", Harmless),
    ("conv_dim_out", Harmless),
    ("conv_use_xavier_init", Harmless),
    ("num_heads", Harmless),
    ("theta", Harmless),
    ("use_pos_enc", Effect::ON),
    ("hidden_act", Effect::Only(&["\"silu\""])),
];

const DENSE: &[KnownField] = &[
    ("block_auto_adjust_ff_dim", Read),
    ("block_dim", Harmless),
    ("block_ff_dim", Read),
    ("block_ffn_dim_multiplier", Read),
    ("block_mlp_init_scale", Harmless),
    ("block_multiple_of", Read),
    ("block_norm_eps", Harmless),
    ("block_out_init_scale", Harmless),
    ("block_use_swiglu", Effect::ON),
    ("block_use_xavier_init", Harmless),
    ("full_attn_idxs", Read),
];

const MOE: &[KnownField] = &[
    ("moe_intermediate_size", Read),
    ("norm_topk_prob", Read),
    ("num_dense_layers", Read),
    ("num_experts", Read),
    ("num_experts_per_tok", Read),
    ("output_router_logits", Harmless),
    ("routed_scaling_factor", Read),
    ("use_expert_bias", Read),
];
