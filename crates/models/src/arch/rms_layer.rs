//! The decoder layer of Llama and of the models that took its shape, with an MLP or with experts.

use std::fmt::Debug;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;
use outsize_core::Names;

use super::cohere::LAYER_NORM_FIELDS;
use super::rms_config::{BlockNorms, ExpertsConfig, FIELDS, RmsConfig};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::{
    cohere, ernie4_5, exaone4, gemma, gemma3, granite, hunyuan, llama, mistral3, olmo2, qwen_vl,
    qwen3, qwen3_next, seed_oss, smollm3, stablelm,
};
use crate::architecture::{Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::decoder::Pass;
use crate::layers::{
    Attention, Either, GatedDeltaNet, LatentAttention, Mlp, Norm, Rotation, either,
};
use crate::{Activations, Error, KvCache, PassShape};

/// A Llama, or a model of its shape, with its language-modelling head.
pub type LlamaForCausalLm = RmsForCausalLm<RmsDecoderLayer<Mlp>>;

/// What a decoder layer has behind attention, and the models that have it.
pub trait RmsFeedForward: Module + ModuleDisplay + Debug + Send + Sync + 'static {
    /// As [`RmsBlock::MODEL_TYPES`].
    const MODEL_TYPES: &'static [(&'static str, &'static str)];

    /// Whether checkpoints call it `block_sparse_moe` rather than `mlp`.
    const IS_BLOCK_SPARSE_MOE: bool = false;

    /// As [`RmsBlock::IS_STACKED`].
    const IS_STACKED: bool = false;

    /// As [`Decoder::has_more_layers`](crate::Decoder::has_more_layers).
    fn has_more_layers(_model_type: &str) -> bool {
        false
    }

    /// As [`RmsBlock::fields`].
    fn fields(model_type: &str) -> &'static [&'static [KnownField]];

    /// As [`RmsBlock::multimodal`].
    fn multimodal(_model_type: &str) -> Option<&'static MultimodalNames> {
        None
    }

    /// As [`RmsBlock::read`].
    ///
    /// # Errors
    /// As there.
    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error>;

    /// As [`RmsBlock::stacked`].
    ///
    /// # Errors
    /// As there.
    fn stacked(names: Names, _experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        Ok(names)
    }

    /// The block of the layer of that number, without storage.
    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self;

    /// Says which weights a pass of `rows` tokens will ask for, where that is not always the same.
    fn announce(&self, _rows: usize) {}

    /// `[batch, tokens, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3>;

    /// What it holds at most, besides the residual stream.
    fn activations(&self, pass: &PassShape) -> Activations;
}

/// One decoder layer: attention, then MLP or experts, with norms before, behind or around them, each added to the residual
/// stream.
#[derive(Module, Debug)]
pub struct RmsDecoderLayer<F: Module> {
    /// `[hidden]`; none where norms are behind.
    pub input_layernorm: Option<Norm>,
    /// Causal self-attention, unless it is linear.
    pub self_attn: Option<Either<Attention, LatentAttention>>,
    /// Linear attention.
    pub linear_attn: Option<GatedDeltaNet>,
    /// `[hidden]`: of what attention gives, where the next norm is before the MLP.
    pub post_self_attn_layernorm: Option<Norm>,
    /// `[hidden]`: before the MLP if that is the only norm between the two, else of what attention gives; none where both are side
    /// by side.
    pub post_attention_layernorm: Option<Norm>,
    /// `[hidden]`.
    pub pre_feedforward_layernorm: Option<Norm>,
    /// Gated feed-forward block, or experts.
    pub mlp: Option<F>,
    /// The same where it has this name.
    pub block_sparse_moe: Option<F>,
    /// `[hidden]`.
    pub post_feedforward_layernorm: Option<Norm>,
    /// `[hidden]`, likewise, with another name.
    pub post_mlp_layernorm: Option<Norm>,
    /// Which of the rotary embeddings it takes, if any.
    #[module(skip)]
    rotation: Option<usize>,
    #[module(skip)]
    residual_scale: Option<f64>,
}

impl RmsFeedForward for Mlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("llama", "Llama"),
        ("mistral", "Mistral"),
        ("qwen2", "Qwen2"),
        ("qwen3", "Qwen3"),
        ("olmo2", "Olmo2"),
        ("olmo3", "Olmo3"),
        ("exaone4", "Exaone4"),
        ("ernie4_5", "Ernie4_5"),
        ("hunyuan_v1_dense", "HunYuanDenseV1"),
        ("cohere", "Cohere"),
        ("cohere2", "Cohere2"),
        ("stablelm", "StableLm"),
        ("ministral3", "Ministral3"),
        ("mistral3", "Mistral3"),
        ("qwen2_5_vl", "Qwen2_5_VL"),
        ("qwen3_vl", "Qwen3VLText"),
        ("granite", "Granite"),
        ("smollm3", "SmolLM3"),
        ("seed_oss", "SeedOss"),
        ("gemma", "Gemma"),
        ("gemma2", "Gemma2"),
        ("gemma3_text", "Gemma3"),
        ("gemma3", "Gemma3"),
        ("qwen3_5_text", "Qwen3_5"),
        ("qwen3_5", "Qwen3_5"),
    ];

    fn has_more_layers(model_type: &str) -> bool {
        qwen3_next::is_one(model_type)
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "mistral" => &[llama::MISTRAL, llama::ACT, FIELDS],
            "qwen2" => &[llama::QWEN2, llama::ACT, FIELDS],
            "qwen3" => &[qwen3::QWEN3, FIELDS],
            "olmo2" => &[olmo2::OLMO2, FIELDS],
            "olmo3" => &[olmo2::OLMO3, FIELDS],
            "exaone4" => &[exaone4::EXAONE4, FIELDS],
            "ernie4_5" => &[ernie4_5::ERNIE4_5, FIELDS],
            "hunyuan_v1_dense" => &[hunyuan::DENSE, hunyuan::HUNYUAN, FIELDS],
            "cohere" => &[cohere::COHERE1, cohere::COHERE, LAYER_NORM_FIELDS],
            "cohere2" => &[cohere::COHERE2, cohere::COHERE, LAYER_NORM_FIELDS],
            "stablelm" => &[stablelm::STABLELM, LAYER_NORM_FIELDS],
            "ministral3" => &[mistral3::MINISTRAL3, FIELDS],
            "mistral3" => &[mistral3::MULTIMODAL],
            "qwen2_5_vl" => &[qwen_vl::MULTIMODAL, llama::QWEN2, llama::ACT, FIELDS],
            "qwen3_vl" => &[qwen_vl::MULTIMODAL],
            "granite" => &[granite::GRANITE, FIELDS],
            "smollm3" => &[smollm3::SMOLLM3, FIELDS],
            "seed_oss" => &[seed_oss::SEED_OSS, FIELDS],
            "gemma" => &[gemma::GEMMA, FIELDS],
            "gemma2" => &[gemma::GEMMA2, FIELDS],
            "gemma3_text" => &[gemma3::TEXT, FIELDS],
            "gemma3" => &[gemma3::MULTIMODAL],
            linear if qwen3_next::is_one(linear) => qwen3_next::fields(linear),
            _ => &[llama::LLAMA, llama::ACT, FIELDS],
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        match model_type {
            "gemma3" | "mistral3" => Some(&gemma3::NAMES),
            "qwen2_5_vl" | "qwen3_vl" => Some(&qwen_vl::NAMES),
            _ => qwen3_next::multimodal(model_type),
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        match model_type {
            "qwen3" => qwen3::read(fields),
            "olmo2" => olmo2::read(fields),
            "olmo3" => olmo2::read_olmo3(fields),
            "exaone4" => exaone4::read(fields),
            "ernie4_5" => ernie4_5::read(fields),
            "hunyuan_v1_dense" => hunyuan::read(fields),
            "cohere" => cohere::read(fields),
            "cohere2" => cohere::read_cohere2(fields),
            "stablelm" => stablelm::read(fields),
            "ministral3" => mistral3::read_text(fields),
            "mistral3" => mistral3::read(fields),
            "qwen2_5_vl" => qwen_vl::read_qwen2_5_vl(fields),
            "qwen3_vl" => qwen_vl::read_qwen3_vl(fields),
            "granite" => granite::read(fields),
            "smollm3" => smollm3::read(fields),
            "seed_oss" => seed_oss::read(fields),
            "gemma" => gemma::read(fields),
            "gemma2" => gemma::read_gemma2(fields),
            "gemma3_text" => gemma3::read_text(fields),
            "gemma3" => gemma3::read(fields),
            linear if qwen3_next::is_one(linear) => qwen3_next::read(model_type, fields),
            _ => llama::read(model_type, fields),
        }
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        config.mlp(config.intermediate_size, init)
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        Self::forward(self, x)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        Self::activations(self, pass)
    }
}

/// An MLP in some layers, experts in the others.
impl<E: RmsFeedForward> RmsFeedForward for Either<Mlp, E> {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = E::MODEL_TYPES;
    const IS_BLOCK_SPARSE_MOE: bool = E::IS_BLOCK_SPARSE_MOE;
    const IS_STACKED: bool = E::IS_STACKED;

    fn has_more_layers(model_type: &str) -> bool {
        E::has_more_layers(model_type)
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        E::fields(model_type)
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        E::multimodal(model_type)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        E::read(model_type, fields)
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        E::stacked(names, experts)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        match config.sparse_layers[index] {
            false => Self::One(config.mlp(config.intermediate_size, init)),
            true => Self::Other(E::new(config, index, init)),
        }
    }

    fn announce(&self, rows: usize) {
        either!(self, block => block.announce(rows));
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        either!(self, block => block.forward(x))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        either!(self, block => block.activations(pass))
    }
}

impl<F: RmsFeedForward> RmsBlock for RmsDecoderLayer<F> {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = F::MODEL_TYPES;
    const NO_SPLIT: &'static [&'static str] = &["RmsDecoderLayer"];
    const IS_STACKED: bool = F::IS_STACKED;

    fn has_more_layers(model_type: &str) -> bool {
        F::has_more_layers(model_type)
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        F::fields(model_type)
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        F::multimodal(model_type)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        F::read(model_type, fields)
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        F::stacked(names, experts)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let norm = || config.block_norm(init);
        let norm_if = |has: bool| has.then(norm);
        let (norms, is_glm) = (config.norms, config.norms == BlockNorms::AroundGlm);
        let linear = config.linear_attention.filter(|_| config.linear_layers[index]);
        Self {
            input_layernorm: norm_if(norms != BlockNorms::Behind),
            self_attn: linear.is_none().then(|| config.attention(init)),
            linear_attn: linear.map(|linear| GatedDeltaNet::new(config.hidden_size, &linear, init)),
            post_self_attn_layernorm: norm_if(is_glm),
            post_attention_layernorm: norm_if(norms != BlockNorms::Parallel),
            pre_feedforward_layernorm: norm_if(norms == BlockNorms::Around),
            mlp: (!F::IS_BLOCK_SPARSE_MOE).then(|| F::new(config, index, init)),
            block_sparse_moe: F::IS_BLOCK_SPARSE_MOE.then(|| F::new(config, index, init)),
            post_feedforward_layernorm: norm_if(
                norms == BlockNorms::Behind || norms == BlockNorms::Around,
            ),
            post_mlp_layernorm: norm_if(is_glm),
            rotation: config.rotated_layers[index].then_some({
                usize::from(config.local_rope.is_some() && config.windows[index].is_some())
            }),
            residual_scale: config.residual_scale,
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
        let feed_forward = self.feed_forward();
        feed_forward.announce(pass.rows());
        let behind = self.post_attention_layernorm.as_ref();
        let (x, normed) = match (&self.input_layernorm, behind, pending) {
            (Some(norm), _, pending) => norm.after(x, pending),
            (None, Some(norm), Some(pending)) => twice(norm.entered(x) + norm.entered(pending)),
            (None, Some(norm), None) => twice(norm.entered(x)),
            (None, None, _) => unreachable!("a layer is made with one of them"),
        };
        let beside = behind.is_none().then(|| normed.clone());
        let rotation = self.rotation.map(|rotation| &rotations[rotation]);
        let positions = pass.query_positions();
        let mixed = match (&self.linear_attn, &self.self_attn) {
            (Some(linear), _) => linear.forward(normed, &positions, cache, index),
            (None, Some(attention)) => either!(attention, attention => {
                attention.forward(normed, rotation, &positions, cache, index)
            }),
            (None, None) => unreachable!("a layer is made with one of them"),
        }?;
        let mixed = normed_if(&self.post_self_attn_layernorm, self.scaled(mixed));
        let (x, normed) =
            match (behind, &self.pre_feedforward_layernorm, &self.post_feedforward_layernorm) {
                (None, ..) => {
                    let normed = beside.expect("what is side by side takes the same");
                    return Ok((x, mixed + self.scaled(feed_forward.forward(normed))));
                }
                (Some(behind), _, None) => behind.after(x, Some(mixed)),
                (Some(behind), None, Some(_)) => twice(x + behind.forward(mixed)),
                (Some(behind), Some(before), Some(_)) => {
                    before.after(x, Some(behind.forward(mixed)))
                }
            };
        let inner = self.scaled(feed_forward.forward(normed));
        let inner = normed_if(&self.post_feedforward_layernorm, inner);
        Ok((x, normed_if(&self.post_mlp_layernorm, inner)))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let linear = self.linear_attn.as_ref().map(|linear| linear.activations(pass));
        let attention = (self.self_attn.as_ref())
            .map(|attention| either!(attention, attention => attention.activations(pass)));
        let mixed = linear.or(attention).unwrap_or_default();
        let most = mixed.or(self.feed_forward().activations(pass));
        match &self.input_layernorm {
            // What both take waits for the second, then what the first gave.
            Some(norm) if self.post_attention_layernorm.is_none() => {
                most.and(Activations::values(pass.rows() * norm.width() as u64))
            }
            _ => most,
        }
    }
}

impl<F: RmsFeedForward> RmsDecoderLayer<F> {
    fn feed_forward(&self) -> &F {
        let both = self.mlp.as_ref().or(self.block_sparse_moe.as_ref());
        both.expect("a layer is made with one of them")
    }

    /// What attention or MLP gave, as it is added to the residual stream.
    fn scaled(&self, x: Tensor<3>) -> Tensor<3> {
        match self.residual_scale {
            Some(scale) => x * scale,
            None => x,
        }
    }
}

/// What a norm makes of it, if there is one.
fn normed_if(norm: &Option<Norm>, x: Tensor<3>) -> Tensor<3> {
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}

/// The residual stream, and what is computed of it as it is.
fn twice(x: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
    (x.clone(), x)
}
