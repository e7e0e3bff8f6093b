//! DeepSeek-V4: attention over the last tokens and over entries that stand for blocks of tokens,
//! several residual streams that are mixed, and experts, which in the first layers a table chooses.
//! DeepSeek-AI 2026 (<https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro>).

mod config;
mod names;

use burn::module::Module;
use outsize_core::Names;

use super::deepseek::RmsMoE;
use super::rms_config::{ExpertsConfig, RmsConfig};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::rms_layer::RmsFeedForward;
use crate::architecture::Init;
use crate::config::{Fields, KnownField};
use crate::layers::{CompressedAttention, HyperConnection, RmsNorm, Rotation, SeenBlocks};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A DeepSeek-V4 with its language-modelling head.
pub type DeepseekV4ForCausalLm = RmsForCausalLm<DeepseekV4DecoderLayer>;

/// One layer: attention, then experts, each of which takes a sum of the residual streams.
#[derive(Module, Debug)]
pub struct DeepseekV4DecoderLayer {
    /// What attention takes of the streams, and what they get and have of each other.
    pub attn_hc: HyperConnection,
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: CompressedAttention,
    /// The same of what is behind attention.
    pub ffn_hc: HyperConnection,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Experts.
    pub mlp: RmsMoE,
    /// Which of the rotary embeddings it takes.
    rotation: usize,
}

impl RmsBlock for DeepseekV4DecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("deepseek_v4", "DeepseekV4")];
    const NO_SPLIT: &'static [&'static str] = &["DeepseekV4DecoderLayer"];

    fn has_more_layers(_: &str) -> bool {
        true
    }

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        config::FIELDS
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        config::read(fields)
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        names::with_other_names(names, experts)
    }

    fn with_parts(&self, names: Names) -> Result<Names, outsize_core::Error> {
        names::with_groups(names, self.self_attn.o_a_proj.len())
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let hidden = config.hidden_size;
        let hyper = config.hyper_connections.expect("the configuration of a DeepSeek-V4");
        let connection = || HyperConnection::new(hidden, hyper, init);
        let attention = config.compressed_attention.expect("the configuration of a DeepSeek-V4");
        let kind = config.seen_blocks[index];
        // Those that see the last tokens alone have one of their own.
        let rotation = usize::from(kind == SeenBlocks::None);
        let rope = config.ropes().swap_remove(rotation);
        let mut mlp = RmsMoE::new(config, index, init);
        if index < config.tabled_layers {
            // Nothing is added to shares that choose nothing.
            mlp.gate.e_score_correction_bias = None;
            mlp.gate = mlp.gate.tabled(config.vocab_size, init);
        }
        Self {
            attn_hc: connection(),
            input_layernorm: config.norm(hidden, init),
            self_attn: CompressedAttention::new(hidden, attention, kind, rope, init),
            ffn_hc: connection(),
            post_attention_layernorm: config.norm(hidden, init),
            mlp,
            rotation,
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
        let (sum, streams) = self.attn_hc.enter(residual.summed());
        let normed = self.input_layernorm.forward(sum);
        let (rotation, positions) = (&rotations[self.rotation], pass.query_positions());
        let given = self.self_attn.forward(normed, rotation, &positions, cache, index)?;
        let (sum, streams) = self.ffn_hc.enter(pass.needed(streams.with(given)));
        let normed = self.post_attention_layernorm.forward(sum);
        let given = self.mlp.forward_of(normed, &pass.needed_ids())?;
        Ok(Residual::new(streams.with(given)))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        // Beside what the streams get, and have of each other.
        let streams = self.attn_hc.streams() as u64;
        let shares = Activations::values(pass.rows() * streams * (1 + streams));
        self.attn_hc
            .activations(pass)
            .or(self.self_attn.activations(pass))
            .or(self.mlp.activations(pass))
            .and(shares)
    }
}
