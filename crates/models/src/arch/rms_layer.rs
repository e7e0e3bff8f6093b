//! The decoder layer of Llama and of the models that took its shape.

use burn::module::Module;
use burn::tensor::Tensor;

use super::rms_config::{BlockNorms, FIELDS, RmsConfig};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::{gemma3, llama, olmo2, qwen3};
use crate::architecture::{Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::decoder::Pass;
use crate::layers::{Attention, Mlp, RmsNorm, Rotation};
use crate::{Activations, Error, KvCache, PassShape};

/// A Llama, or a model of its shape, with its language-modelling head.
pub type LlamaForCausalLm = RmsForCausalLm<RmsDecoderLayer>;

/// One decoder layer: attention, then MLP, with norms before, behind or around them, each added to the residual stream.
#[derive(Module, Debug)]
pub struct RmsDecoderLayer {
    /// `[hidden]`; none where norms are behind.
    pub input_layernorm: Option<RmsNorm>,
    /// Causal self-attention.
    pub self_attn: Attention,
    /// `[hidden]`: before the MLP if that is the only norm between the two, else of what attention gives.
    pub post_attention_layernorm: RmsNorm,
    /// `[hidden]`.
    pub pre_feedforward_layernorm: Option<RmsNorm>,
    /// Gated feed-forward block.
    pub mlp: Mlp,
    /// `[hidden]`.
    pub post_feedforward_layernorm: Option<RmsNorm>,
    /// Which of the rotary embeddings it takes.
    rotation: usize,
}

impl RmsBlock for RmsDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("llama", "Llama"),
        ("mistral", "Mistral"),
        ("qwen2", "Qwen2"),
        ("qwen3", "Qwen3"),
        ("olmo2", "Olmo2"),
        ("gemma3_text", "Gemma3"),
        ("gemma3", "Gemma3"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["RmsDecoderLayer"];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "mistral" => &[llama::MISTRAL, llama::ACT, FIELDS],
            "qwen2" => &[llama::QWEN2, llama::ACT, FIELDS],
            "qwen3" => &[qwen3::QWEN3, FIELDS],
            "olmo2" => &[olmo2::OLMO2, FIELDS],
            "gemma3_text" => &[gemma3::TEXT, FIELDS],
            "gemma3" => &[gemma3::MULTIMODAL],
            _ => &[llama::LLAMA, llama::ACT, FIELDS],
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        (model_type == "gemma3").then_some(&gemma3::NAMES)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        match model_type {
            "qwen3" => qwen3::read(fields),
            "olmo2" => olmo2::read(fields),
            "gemma3_text" => gemma3::read_text(fields),
            "gemma3" => gemma3::read(fields),
            _ => llama::read(model_type, fields),
        }
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let norm = || config.norm(config.hidden_size, init);
        let norm_if = |has: bool| has.then(norm);
        Self {
            input_layernorm: norm_if(config.norms != BlockNorms::Behind),
            self_attn: config.attention(init),
            post_attention_layernorm: norm(),
            pre_feedforward_layernorm: norm_if(config.norms == BlockNorms::Around),
            mlp: config.mlp(init),
            post_feedforward_layernorm: norm_if(config.norms != BlockNorms::Before),
            rotation: usize::from(config.local_rope.is_some() && config.windows[index].is_some()),
        }
    }

    fn forward(
        &self,
        x: Tensor<3>,
        pending: Option<Tensor<3>>,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<(Tensor<3>, Tensor<3>), Error> {
        let behind = &self.post_attention_layernorm;
        let (x, normed) = match (&self.input_layernorm, pending) {
            (Some(norm), pending) => norm.after(x, pending),
            (None, Some(pending)) => twice(behind.entered(x) + behind.entered(pending)),
            (None, None) => twice(behind.entered(x)),
        };
        let (rotation, positions) = (&rotations[self.rotation], pass.query_positions());
        let mixed = self.self_attn.forward(normed, rotation, &positions, cache, index)?;
        let (x, normed) = match (&self.pre_feedforward_layernorm, &self.post_feedforward_layernorm)
        {
            (_, None) => behind.add_forward(x, mixed),
            (None, Some(_)) => twice(x + behind.forward(mixed)),
            (Some(before), Some(_)) => before.add_forward(x, behind.forward(mixed)),
        };
        let inner = self.mlp.forward(normed);
        Ok(match &self.post_feedforward_layernorm {
            None => (x, inner),
            Some(norm) => (x, norm.forward(inner)),
        })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        self.self_attn.activations(pass).or(self.mlp.activations(pass))
    }
}

/// The residual stream, and what is computed of it as it is.
fn twice(x: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
    (x.clone(), x)
}
