//! Hunyuan 4: experts and sparse attention as in DeepSeek-V3.2, with several residual streams, and attention with sinks and gates.
//! Tencent 2026 (<https://huggingface.co/tencent/Hy4-preview>).

use burn::module::Module;
use outsize_core::Names;

use super::deepseek::{self, RmsMoE};
use super::expert_fields::swiglu_limit;
use super::rms_config::{ExpertsConfig, RmsConfig};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::rms_layer::RmsFeedForward;
use crate::architecture::Init;
use crate::config::{Fields, KnownField};
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
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("hy_v4", "HYV4")];
    const NO_SPLIT: &'static [&'static str] = &["HyV4DecoderLayer"];

    fn has_more_layers(_: &str) -> bool {
        true
    }

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        deepseek::fields("hy_v4")
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let mut config = deepseek::read("hy_v4", fields)?;
        let small = |field, absent| match fields.get(field) {
            Some(_) => fields.number_within(field, 0.0, 1e3),
            None => Ok(absent),
        };
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
        let given = self.self_attn.forward(normed, rotation, &positions, cache, index)?;
        let (sum, streams) = self.hc_mlp_layer.enter(streams.with(given));
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
