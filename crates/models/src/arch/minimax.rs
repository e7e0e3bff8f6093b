//! MiniMax-01: Mixtral's experts, lightning attention in most layers, and residual streams of what
//! norms give. MiniMax 2025 (arXiv:2501.08313).

use burn::module::Module;
use outsize_core::Names;

use super::expert_fields::EXPERTS;
use super::mixtral::MixtralMoe;
use super::qwen3_next::listed_mixers;
use super::rms_config::{
    DEFAULTS, ExpertsConfig, FIELDS, LayerMixer, ResidualScales, RmsConfig, RmsDefaults,
};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::rms_layer::RmsFeedForward;
use crate::architecture::Init;
use crate::config::Effect::{Harmless, Read};
use crate::config::{Fields, KnownField, MAX_HEAD_DIM, RopeConfig, sliding_window};
use crate::layers::{
    Attention, Either, LightningAttention, LightningAttentionConfig, RmsNorm, Rotation, either,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A MiniMax-01 with its language-modelling head.
pub type MiniMaxForCausalLm = RmsForCausalLm<MiniMaxDecoderLayer>;

/// One layer: attention, linear or not, then experts. What norms give is what each is added to.
#[derive(Module, Debug)]
pub struct MiniMaxDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: Either<Attention, LightningAttention>,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Experts.
    pub block_sparse_moe: MixtralMoe,
    #[module(skip)]
    scales: ResidualScales,
}

impl RmsBlock for MiniMaxDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("minimax", "MiniMax")];
    const NO_SPLIT: &'static [&'static str] = &["MiniMaxDecoderLayer"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MINIMAX, EXPERTS, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        read(fields)
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        MixtralMoe::stacked(names, experts)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let hidden = config.hidden_size;
        let is_linear = config.mixers[index].has_linear();
        let lightning = config.lightning_attention.filter(|_| is_linear);
        let of_kind = usize::from(is_linear);
        let [attention, experts] = [config.residual_scales[of_kind], config.residual_scales[2]];
        Self {
            input_layernorm: config.norm(hidden, init),
            self_attn: match lightning {
                Some(lightning) => {
                    Either::Other(LightningAttention::new(hidden, &lightning, index, init))
                }
                None => Either::One(config.plain_attention(index, init)),
            },
            post_attention_layernorm: config.norm(hidden, init),
            block_sparse_moe: MixtralMoe::new(config, index, init),
            scales: ResidualScales { attention, experts },
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
        self.block_sparse_moe.announce(pass.rows());
        let (_, x) = self.input_layernorm.after(x, pending);
        let positions = pass.query_positions();
        let mixed = match &self.self_attn {
            Either::One(attention) => {
                attention.forward(x.clone(), rotations.first(), &positions, cache, index)
            }
            Either::Other(linear) => linear.forward(x.clone(), &positions, cache, index),
        }?;
        let [x, mixed] = [x, mixed].map(|x| pass.needed(x));
        let [kept, added] = self.scales.attention;
        let (_, x) = self.post_attention_layernorm.add_forward(x * kept, mixed * added);
        let inner = self.block_sparse_moe.forward(x.clone());
        let [kept, added] = self.scales.experts;
        Ok(Residual { stream: x * kept, pending: Some(inner * added) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mixed = either!(&self.self_attn, attention => attention.activations(pass));
        let inner = self.block_sparse_moe.activations(pass);
        // What norms give waits to be added to.
        let kept = Activations::values(pass.rows() * self.input_layernorm.width() as u64);
        mixed.or(inner).and(kept)
    }
}

fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 32_000),
            ("hidden_size", 4096),
            ("intermediate_size", 14_336),
            ("num_hidden_layers", 32),
            ("num_attention_heads", 32),
        ],
        key_value_heads: Some(8),
        max_position_embeddings: 4096 * 32,
        rms_norm_eps: 1e-5,
        rope_theta: 1e6,
        ..DEFAULTS
    };
    let config = RmsConfig::read(fields, &absent)?;
    let layers = config.num_hidden_layers;
    // As the makers have it.
    let width = fields.size_or("rotary_dim", config.head_dim, MAX_HEAD_DIM)?;
    if width > config.head_dim {
        let expected = format!("a head has {} elements", config.head_dim);
        return Err(fields.refuse("rotary_dim", expected));
    }
    let names = ["rope_theta", "partial_rotary_factor"];
    let share = width as f64 / config.head_dim as f64;
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(fields), names, share)?;
    let names = ["num_local_experts", "num_experts"];
    let config = config.with_experts(fields, names, (8, 2), true)?;
    let mixers = match fields.get("layer_types") {
        Some(_) => listed_mixers(fields, "layer_types", layers)?,
        None => (0..layers).map(|layer| LayerMixer::attends(layer % 2 == 0)).collect(),
    };
    let window = match fields.has("sliding_window") {
        true => sliding_window(fields, 0)?,
        false => None,
    };
    let scale = |field: String| fields.number_within_or(&field, 1.0, 1e-6, 1e6);
    let scales = |of: &str| {
        Ok::<_, Error>([scale(format!("{of}_alpha_factor"))?, scale(format!("{of}_beta_factor"))?])
    };
    Ok(RmsConfig {
        rope,
        rotary_dim,
        lightning_attention: Some(LightningAttentionConfig {
            heads: config.num_attention_heads,
            head_dim: config.head_dim,
            layers,
            activation: config.activation,
        }),
        mixers,
        windows: vec![window; layers],
        residual_scales: [scales("full_attn")?, scales("linear_attn")?, scales("mlp")?],
        ..config
    })
}

const MINIMAX: &[KnownField] = &[
    // Of tokens that are taken together.
    ("block_size", Harmless),
    ("full_attn_alpha_factor", Read),
    ("full_attn_beta_factor", Read),
    ("linear_attn_alpha_factor", Read),
    ("linear_attn_beta_factor", Read),
    ("mlp_alpha_factor", Read),
    ("mlp_beta_factor", Read),
    ("partial_rotary_factor", Read),
    ("rotary_dim", Read),
    ("sliding_window", Read),
];
