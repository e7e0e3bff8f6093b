//! Muse Spark, its text part: Muse Glimmer's layers with experts behind a narrower latent, what
//! attention gives normed head by head, and sums of residual stream and branch weighed by gates.
//! Meta 2026 (<https://huggingface.co/meta-models/Muse-Spark-Open-816B-A42B>).

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Tensor};
use outsize_core::Names;

use super::super::expert_fields::{listed_layers, share_scale};
use super::super::gemma3::TEXT_PART;
use super::super::rms_config::{DEFAULTS, ExpertsConfig, FIELDS, RmsConfig, RmsDefaults};
use super::super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::super::sparse_moe::stacked;
use super::experts::{InputScaledRmsNorm, MuseSparkMoe};
use super::{MULTIMODAL, NAMES, TEXT, read_text};
use crate::architecture::{Init, MultimodalNames};
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{COMMON, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE, check};
use crate::layers::{Attention, Either, Mlp, RmsNorm, Rotation, Shares, either, zeros};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Muse Spark with its language-modelling head.
pub type MuseSparkForCausalLm = RmsForCausalLm<MuseSparkTextDecoderLayer>;

/// One layer: attention, then an MLP or experts, each with norms around it, and each weighed
/// against the residual stream.
#[derive(Module, Debug)]
pub struct MuseSparkTextDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: Attention,
    /// Without a weight.
    pub post_attention_layernorm: RmsNorm,
    /// Of what attention gives.
    pub post_attention_residual_gate: MuseSparkResidualGate,
    /// `[hidden]`.
    pub pre_feedforward_layernorm: RmsNorm,
    /// Gated feed-forward block, or experts.
    pub mlp: Either<Mlp, MuseSparkMoe>,
    /// `[hidden]`.
    pub post_feedforward_layernorm: InputScaledRmsNorm,
    /// Of what that gives.
    pub post_feedforward_residual_gate: MuseSparkResidualGate,
    /// Which of the rotary embeddings it takes, if any.
    #[module(skip)]
    rotation: Option<usize>,
}

/// What of the residual stream and of a branch makes up their sum, of each element:
/// `b = σ(gate / temperature)` of the branch and `√((1 - b)(1 + b))` of the stream, at least
/// `√0.001`.
#[derive(Module, Debug)]
pub struct MuseSparkResidualGate {
    /// `[hidden]`.
    pub gate: Param<Tensor<1>>,
    temperature: f64,
}

impl MuseSparkResidualGate {
    fn new(config: &RmsConfig, init: &Init) -> Self {
        let temperature = config.residual_gate_temperature.expect("of a Muse Spark");
        Self { gate: zeros(config.hidden_size, &init.device), temperature }
    }

    /// `[batch, tokens, hidden]` f32 each to the same.
    fn forward(&self, residual: Tensor<3>, branch: Tensor<3>) -> Tensor<3> {
        let scores = self.gate.val().cast(DType::F32) / self.temperature;
        let scores = scores.to_device(&branch.device());
        let of_branch = sigmoid(scores.clone());
        let of_residual = (sigmoid(scores.neg()) * (of_branch.clone() + 1.0)).clamp_min(1e-3);
        let residual = residual.to_device(&branch.device());
        residual * of_residual.sqrt().unsqueeze::<3>() + branch * of_branch.unsqueeze::<3>()
    }
}

impl RmsBlock for MuseSparkTextDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("muse_spark", "MuseSparkText")];
    const NO_SPLIT: &'static [&'static str] = &["MuseSparkTextDecoderLayer"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[MULTIMODAL]
    }

    fn multimodal(_: &str) -> Option<&'static MultimodalNames> {
        Some(&NAMES)
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        read(fields)
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        let layers = ["gate_proj", "up_proj", "down_proj"];
        stacked(names, r"\.mlp", layers, experts.count)?
            .or_rename(r"\.mlp\.post_expert_norm\.", ".mlp.experts.post_expert_norm.")
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let norm = || config.norm(config.hidden_size, init);
        let epsilon = config.post_norm_eps.expect("of a Muse Spark");
        let attention = config.plain_attention(index, init);
        Self {
            input_layernorm: norm(),
            self_attn: attention.normed_to_unit_behind(config.rms_norm_eps),
            post_attention_layernorm: norm().with_epsilon(epsilon).unweighted(),
            post_attention_residual_gate: MuseSparkResidualGate::new(config, init),
            pre_feedforward_layernorm: norm(),
            mlp: match config.sparse_layers[index] {
                true => Either::Other(MuseSparkMoe::new(config, init)),
                false => Either::One(config.mlp(config.intermediate_size, init)),
            },
            post_feedforward_layernorm: InputScaledRmsNorm::new(config.hidden_size, epsilon, init),
            post_feedforward_residual_gate: MuseSparkResidualGate::new(config, init),
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
        if let Either::Other(experts) = &self.mlp {
            experts.announce(pass.rows());
        }
        let (x, normed) = self.input_layernorm.after(x, pending);
        let rotation = self.rotation.map(|rotation| &rotations[rotation]);
        let positions = pass.query_positions();
        let given = self.self_attn.forward(normed, rotation, &positions, cache, index)?;
        let given = self.post_attention_layernorm.forward(given);
        let [x, given] = [x, given].map(|x| pass.needed(x));
        let x = self.post_attention_residual_gate.forward(x, given);
        let normed = self.pre_feedforward_layernorm.forward(x.clone());
        let given = either!(&self.mlp, mlp => mlp.forward(normed));
        let given = self.post_feedforward_layernorm.forward(given);
        Ok(Residual::new(self.post_feedforward_residual_gate.forward(x, given)))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let inner = either!(&self.mlp, mlp => mlp.activations(pass));
        // What a branch gives, normed, and both parts of the sum.
        let sum = Activations::values(pass.rows() * 5 * self.input_layernorm.width() as u64);
        self.self_attn.activations(pass).or(inner).or(sum)
    }
}

/// Reads the text part.
fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[SPARK, TEXT, TEXT_PART, FIELDS, COMMON])?;
    let config = read_text(fields, &text, &ABSENT, [5.473_006_486_387_5, 0.176_776_695_296_636_9])?;
    let mut config = config.with_experts(&text, ["num_local_experts"], (256, 8), true)?;
    if let Some(experts) = &mut config.experts {
        experts.intermediate_size =
            text.size_or("moe_intermediate_size", 4096, MAX_INTERMEDIATE)?;
        experts.latent_size = Some(text.size_or("moe_hidden_size", 4096, MAX_HIDDEN)?);
        experts.routing.shares = Shares::Sigmoid;
        experts.routing.epsilon = 1e-15;
        experts.routing.scale = share_scale(&text, "routed_scaling_factor", 1.0)?;
    }
    if let Some(kinds) = text.get("mlp_layer_types") {
        config.sparse_layers = listed_layers(&text, kinds, config.num_hidden_layers)?;
    }
    let temperature = text.number_within_or("residual_gate_temperature", 0.3, 1e-3, 1e3)?;
    Ok(RmsConfig { residual_gate_temperature: Some(temperature), ..config })
}

/// Those of `MuseSparkTextConfig`.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 202_048),
        ("hidden_size", 8192),
        ("intermediate_size", 16_384),
        ("num_hidden_layers", 62),
        ("num_attention_heads", 128),
    ],
    key_value_heads: Some(16),
    head_dim: Some(64),
    max_position_embeddings: 1_048_576,
    rms_norm_eps: 1e-5,
    rope_theta: 500_000.0,
    ..DEFAULTS
};

const SPARK: &[KnownField] = &[
    ("hidden_act", Read),
    ("mlp_layer_types", Read),
    ("model_type", Only(&["\"muse_spark_text\""])),
    ("moe_hidden_size", Read),
    ("moe_intermediate_size", Read),
    ("num_experts_per_tok", Read),
    ("num_local_experts", Read),
    ("output_router_logits", Harmless),
    ("residual_gate_temperature", Read),
    ("routed_scaling_factor", Read),
];
