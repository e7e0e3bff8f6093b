//! Hunyuan 4: experts and sparse attention as in DeepSeek-V3.2, with several residual streams, and
//! attention with sinks and gates. Of the one that sees images too, the text part. Tencent 2026
//! (<https://huggingface.co/tencent/Hy4-preview>, <https://huggingface.co/tencent/Hy4>).

use burn::module::Module;
use outsize_core::Names;

use super::deepseek::{self, HY_V4_IMAGES, HY_V4_PART, HY_V4_PARTS, HY_V4_TEXT, RmsMoE};
use super::expert_fields::swiglu_limit;
use super::rms_config::{ExpertsConfig, RmsConfig};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::rms_layer::RmsFeedForward;
use crate::architecture::{Init, MultimodalNames};
use crate::config::{COMMON, Fields, KnownField, check};
use crate::layers::{
    Either, HyperConnection, HyperConnectionConfig, LatentAttention, Mlp, MlpClamp, RmsNorm,
    Rotation,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Hunyuan 4 with its language-modelling head.
pub type HyV4ForCausalLm = RmsForCausalLm<HyV4DecoderLayer>;

/// One layer: attention, then an MLP or experts, each of which takes a sum of the residual streams.
#[derive(Module, Debug)]
pub struct HyV4DecoderLayer {
    /// What attention takes of the streams, and what they get.
    pub hc_attn_layer: HyperConnection,
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: LatentAttention,
    /// The same of what is behind attention.
    pub hc_mlp_layer: HyperConnection,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Gated feed-forward block, or experts.
    pub mlp: Either<Mlp, RmsMoE>,
}

impl RmsBlock for HyV4DecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("hy_v4", "HYV4"), ("hy_v4_vl", "HYV4VL")];
    const NO_SPLIT: &'static [&'static str] = &["HyV4DecoderLayer"];

    fn has_more_layers(_: &str) -> bool {
        true
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "hy_v4_vl" => &[HY_V4_IMAGES],
            _ => deepseek::fields(model_type),
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        (model_type == "hy_v4_vl").then_some(&HY_V4_PARTS)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        if model_type == "hy_v4_vl" {
            return read_part(fields);
        }
        let mut config = deepseek::read(model_type, fields)?;
        let small = |field, absent| fields.number_within_or(field, absent, 0.0, 1e3);
        config.hyper_connections = Some(HyperConnectionConfig {
            streams: fields.size_or("hc_mult", 4, 64)?,
            magnitude: small("hc_magnitude", 2.0)?,
            epsilon: small("hc_eps", 1e-6)?,
            mixing_steps: None,
            norm_epsilon: config.rms_norm_eps,
        });
        let limit = swiglu_limit(fields, 10.0)?;
        config.mlp_clamps.fill([Some(MlpClamp::Before(limit)), None]);
        Ok(config)
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        RmsMoE::stacked(names, experts)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let hidden = config.hidden_size;
        let hyper = config.hyper_connections.expect("the configuration of a Hunyuan 4");
        let connection = || HyperConnection::new(hidden, hyper, init);
        let Either::Other(self_attn) = config.attention(index, init) else {
            unreachable!("its attention is over a compressed cache")
        };
        Self {
            hc_attn_layer: connection(),
            input_layernorm: config.norm(hidden, init),
            self_attn,
            hc_mlp_layer: connection(),
            post_attention_layernorm: config.norm(hidden, init),
            mlp: Either::<Mlp, RmsMoE>::new(config, index, init),
        }
    }

    fn forward(
        &self,
        residual: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        self.mlp.announce(pass.rows());
        let (sum, streams) = self.hc_attn_layer.enter(residual.summed());
        let normed = self.input_layernorm.forward(sum);
        let positions = pass.query_positions();
        let rotation = rotations.first();
        let given =
            pass.needed(self.self_attn.forward(normed, rotation, &positions, cache, index)?);
        let (sum, streams) = self.hc_mlp_layer.enter(streams.needed(&positions).with(given));
        let given = self.mlp.forward(self.post_attention_layernorm.forward(sum));
        Ok(Residual::new(streams.with(given)))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let inner = RmsFeedForward::activations(&self.mlp, pass);
        // Beside what the streams get.
        let shares = Activations::values(pass.rows() * self.hc_attn_layer.streams() as u64);
        self.hc_attn_layer
            .activations(pass)
            .or(self.self_attn.activations(pass))
            .or(inner)
            .and(shares)
    }
}

/// The text part of a model that sees images too.
fn read_part(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    let tables = [HY_V4_TEXT, deepseek::fields(HY_V4_PART), &[COMMON]].concat();
    check(&text, &tables)?;
    let config = HyV4DecoderLayer::read(HY_V4_PART, &text)?;
    // That of the whole model counts.
    let tie_word_embeddings = fields.flag_or("tie_word_embeddings", false)?;
    Ok(RmsConfig { tie_word_embeddings, ..config })
}
