//! The decoder layer of Llama and of the models that took its shape, with an MLP or with experts.

use std::fmt::Debug;

use burn::module::{Module, ModuleDisplay};
use burn::tensor::Tensor;
use outsize_core::Names;

use super::rms_config::{BlockNorms, ExpertsConfig, RmsConfig};
use super::rms_decoder::RmsBlock;
use crate::architecture::{Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::layers::{
    Activation, Attention, DeltaAttention, Either, GatedDeltaNet, LatentAttention, Linear, Mlp,
    Norm, NormGate, Rotation, either, fused, fused_activations,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// What a decoder layer has behind attention, and the models that have it.
pub trait RmsFeedForward: Module + ModuleDisplay + Debug + Send + Sync + 'static {
    /// As [`RmsBlock::MODEL_TYPES`].
    const MODEL_TYPES: &'static [(&'static str, &'static str)];

    /// What checkpoints call it.
    const NAME: FeedForwardName = FeedForwardName::Mlp;

    /// As [`RmsBlock::IS_STACKED`].
    const IS_STACKED: bool = false;

    /// As [`DecoderArchitecture::has_more_layers`](crate::DecoderArchitecture::has_more_layers).
    fn has_more_layers(_model_type: &str) -> bool {
        false
    }

    /// As [`RmsBlock::fields`].
    fn fields(model_type: &str) -> &'static [&'static [KnownField]];

    /// As [`RmsBlock::text_types`].
    fn text_types(_model_type: &str) -> &'static [&'static str] {
        &[]
    }

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

    /// The one that all tokens go to beside it, where that is not a part of it, without storage.
    fn shared_mlp(_config: &RmsConfig, _init: &Init) -> Option<Either<SharedMlp, Mlp>> {
        None
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

/// `output(act(gate) · up)` of one product for both, beside experts, as in Granite.
#[derive(Module, Debug)]
pub struct SharedMlp {
    /// `[2 · intermediate, hidden]`: the gate, then what goes through it.
    pub input_linear: Linear,
    /// `[hidden, intermediate]`.
    pub output_linear: Linear,
    #[module(skip)]
    activation: Activation,
}

impl SharedMlp {
    /// A block without storage.
    pub fn new(hidden: usize, inner: usize, activation: Activation, init: &Init) -> Self {
        Self {
            input_linear: Linear::new(hidden, 2 * inner, false, init),
            output_linear: Linear::new(inner, hidden, false, init),
            activation,
        }
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        fused([&self.input_linear, &self.output_linear], self.activation, x)
    }

    pub(super) fn activations(&self, pass: &PassShape) -> Activations {
        fused_activations(&self.input_linear, &self.output_linear, pass)
    }
}

/// What checkpoints call what a decoder layer has behind attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForwardName {
    /// `mlp`.
    Mlp,
    /// `block_sparse_moe`.
    BlockSparseMoe,
    /// `feed_forward`.
    FeedForward,
}

/// One decoder layer: attention, then MLP or experts, with norms before, behind or around them,
/// each added to the residual stream.
#[derive(Module, Debug)]
pub struct RmsDecoderLayer<F: Module> {
    /// `[hidden]`; none where norms are behind.
    pub input_layernorm: Option<Norm>,
    /// The same with this name.
    pub attention_layernorm: Option<Norm>,
    /// What multiplies what that norm gives.
    pub input_gate: Option<NormGate>,
    /// Causal self-attention, unless it is linear.
    pub self_attn: Option<Either<Attention, LatentAttention>>,
    /// Linear attention.
    pub linear_attn: Option<Either<GatedDeltaNet, DeltaAttention>>,
    /// `[hidden]`: of what attention gives, where the next norm is before the MLP.
    pub post_self_attn_layernorm: Option<Norm>,
    /// `[hidden]`: before the MLP if that is the only norm between the two, else of what attention
    /// gives; none where both are side by side.
    pub post_attention_layernorm: Option<Norm>,
    /// What multiplies what the norm before experts gives.
    pub post_attention_gate: Option<NormGate>,
    /// `[hidden]`: before the MLP, with this name.
    pub feedforward_layernorm: Option<Norm>,
    /// `[hidden]`.
    pub pre_feedforward_layernorm: Option<Norm>,
    /// The same with this name.
    pub pre_mlp_layernorm: Option<Norm>,
    /// Gated feed-forward block, or experts.
    pub mlp: Option<F>,
    /// The same where it has this name.
    pub block_sparse_moe: Option<F>,
    /// The same where it has this one.
    pub feed_forward: Option<F>,
    /// One that all tokens go to, beside experts.
    pub shared_mlp: Option<Either<SharedMlp, Mlp>>,
    /// `[hidden]`.
    pub post_feedforward_layernorm: Option<Norm>,
    /// `[hidden]`, likewise, with another name.
    pub post_mlp_layernorm: Option<Norm>,
    /// Which of the rotary embeddings it takes, if any.
    #[module(skip)]
    rotation: Option<usize>,
    #[module(skip)]
    residual_scale: Option<f64>,
    #[module(skip)]
    norms: BlockNorms,
}

/// An MLP in some layers, experts in the others.
impl<E: RmsFeedForward> RmsFeedForward for Either<Mlp, E> {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = E::MODEL_TYPES;
    const NAME: FeedForwardName = E::NAME;
    const IS_STACKED: bool = E::IS_STACKED;

    fn has_more_layers(model_type: &str) -> bool {
        E::has_more_layers(model_type)
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        E::fields(model_type)
    }

    fn text_types(model_type: &str) -> &'static [&'static str] {
        E::text_types(model_type)
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
            false => {
                let [_, clamp] = config.mlp_clamps[index];
                Self::One(config.mlp(config.intermediate_size, init).clamped(clamp))
            }
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

    fn text_types(model_type: &str) -> &'static [&'static str] {
        F::text_types(model_type)
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
        let post_norm_if = |has: bool| has.then(|| config.post_norm(init));
        let called = |name| (F::NAME == name).then(|| F::new(config, index, init));
        let is_linear = config.mixers[index].has_linear();
        let norms = match config.norms {
            BlockNorms::BehindAttention if is_linear => BlockNorms::Before,
            BlockNorms::BehindAttention => BlockNorms::Behind,
            norms => norms,
        };
        let is_glm = norms == BlockNorms::AroundGlm;
        let is_apertus = norms == BlockNorms::BeforeApertus;
        let is_afmoe = norms == BlockNorms::AroundAfmoe;
        let is_axk1 = norms == BlockNorms::BeforeAndBehindExperts;
        let hidden = config.hidden_size;
        let gate = || config.norm_gate_rank.map(|rank| NormGate::new(hidden, rank, init));
        let joint = config.linear_attention.filter(|_| is_linear);
        let joint = joint.map(|linear| Either::One(GatedDeltaNet::new(hidden, &linear, init)));
        let apart = config.delta_attention.filter(|_| is_linear);
        let apart = apart.map(|delta| Either::Other(DeltaAttention::new(hidden, &delta, init)));
        let linear_attn = joint.or(apart);
        Self {
            input_layernorm: norm_if(norms != BlockNorms::Behind && !is_apertus),
            attention_layernorm: norm_if(is_apertus),
            input_gate: gate(),
            self_attn: linear_attn.is_none().then(|| config.attention(index, init)),
            linear_attn,
            post_self_attn_layernorm: norm_if(is_glm),
            post_attention_layernorm: post_norm_if(norms != BlockNorms::Parallel && !is_apertus),
            post_attention_gate: gate().filter(|_| config.sparse_layers[index]),
            feedforward_layernorm: norm_if(is_apertus),
            pre_feedforward_layernorm: norm_if(norms == BlockNorms::Around),
            pre_mlp_layernorm: norm_if(is_afmoe),
            mlp: called(FeedForwardName::Mlp),
            block_sparse_moe: called(FeedForwardName::BlockSparseMoe),
            feed_forward: called(FeedForwardName::FeedForward),
            shared_mlp: F::shared_mlp(config, init),
            post_feedforward_layernorm: post_norm_if(
                norms == BlockNorms::Behind || norms == BlockNorms::Around,
            ),
            post_mlp_layernorm: norm_if(
                is_glm || is_afmoe || (is_axk1 && config.sparse_layers[index]),
            ),
            rotation: config.rotation(index),
            residual_scale: config.residual_scale,
            norms,
        }
    }

    fn is_unused(&self, name: &str) -> bool {
        // Checkpoints have it in layers without experts too.
        self.norms == BlockNorms::BeforeAndBehindExperts
            && self.post_mlp_layernorm.is_none()
            && name == "post_mlp_layernorm.weight"
    }

    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        let feed_forward = self.behind_attention();
        feed_forward.announce(pass.rows());
        let behind = self.post_attention_layernorm.as_ref().or(self.feedforward_layernorm.as_ref());
        let before = self.input_layernorm.as_ref().or(self.attention_layernorm.as_ref());
        // A norm without a weight does not know where its block computes.
        let enter = |x| match &self.self_attn {
            Some(Either::One(attention)) => attention.entered(x),
            _ => x,
        };
        let (x, pending) = (enter(x), pending.map(enter));
        let (x, normed) = match (before, behind, pending) {
            (Some(norm), _, pending) => norm.after(x, pending),
            (None, Some(norm), Some(pending)) => twice(norm.entered(x) + norm.entered(pending)),
            (None, Some(norm), None) => twice(norm.entered(x)),
            (None, None, _) => unreachable!("a layer is made with one of them"),
        };
        let normed = gated_if(&self.input_gate, normed);
        let beside = behind.is_none().then(|| normed.clone());
        let rotation = self.rotation.map(|rotation| &rotations[rotation]);
        let positions = pass.query_positions();
        let mixed = match (&self.linear_attn, &self.self_attn) {
            (Some(linear), _) => {
                either!(linear, linear => linear.forward(normed, &positions, cache, index))
            }
            (None, Some(attention)) => either!(attention, attention => {
                attention.forward(normed, rotation, &positions, cache, index)
            }),
            (None, None) => unreachable!("a layer is made with one of them"),
        }?;
        if pass.only_keeps() {
            return Ok(Residual::new(x));
        }
        let [x, mixed] = [x, mixed].map(|x| pass.needed(x));
        let beside = beside.map(|normed| pass.needed(normed));
        let mixed = self.scaled(normed_if(&self.post_self_attn_layernorm, mixed));
        let before = self.pre_feedforward_layernorm.as_ref().or(self.pre_mlp_layernorm.as_ref());
        let (x, normed) = match (behind, before) {
            (None, _) => {
                let normed = beside.expect("what is side by side takes the same");
                return Ok(Residual {
                    stream: x,
                    pending: Some(mixed + self.scaled(feed_forward.forward(normed))),
                });
            }
            (Some(behind), Some(before)) => before.after(x, Some(behind.forward(mixed))),
            (Some(behind), None) if self.post_feedforward_layernorm.is_some() => {
                twice(x + behind.forward(mixed))
            }
            (Some(behind), None) => behind.after(x, Some(mixed)),
        };
        let normed = gated_if(&self.post_attention_gate, normed);
        let shared = self.shared_mlp.as_ref();
        let shared = shared.map(|mlp| either!(mlp, mlp => mlp.forward(normed.clone())));
        let inner = feed_forward.forward(normed);
        let inner = match shared {
            Some(shared) => inner + shared,
            None => inner,
        };
        let inner = normed_if(&self.post_feedforward_layernorm, inner);
        let inner = self.scaled(normed_if(&self.post_mlp_layernorm, inner));
        Ok(Residual { stream: x, pending: Some(inner) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let linear = (self.linear_attn.as_ref())
            .map(|linear| either!(linear, linear => linear.activations(pass)));
        let attention = (self.self_attn.as_ref())
            .map(|attention| either!(attention, attention => attention.activations(pass)));
        let mixed = linear.or(attention).unwrap_or_default();
        let mut inner = self.behind_attention().activations(pass);
        if let Some(shared) = &self.shared_mlp {
            // What it gives waits for the experts, with what both take.
            let last = match shared {
                Either::One(mlp) => &mlp.output_linear,
                Either::Other(mlp) => &mlp.down_proj,
            };
            let kept = Activations::values(pass.rows() * 2 * last.widths()[0] as u64);
            inner = inner.or(either!(shared, mlp => mlp.activations(pass))).and(kept);
        }
        let gates = [&self.input_gate, &self.post_attention_gate].into_iter().flatten();
        let gates = gates.map(|gate| gate.activations(pass));
        let most = gates.fold(mixed.or(inner), Activations::or);
        match &self.input_layernorm {
            // What both take waits for the second, then what the first gave.
            Some(norm) if self.post_attention_layernorm.is_none() => {
                most.and(Activations::values(pass.rows() * norm.width() as u64))
            }
            _ => most,
        }
    }

    fn left_for_others(&self, pass: &PassShape) -> Activations {
        match &self.self_attn {
            Some(Either::Other(attention)) => attention.left_for_others(pass),
            _ => Activations::default(),
        }
    }
}

impl<F: RmsFeedForward> RmsDecoderLayer<F> {
    fn behind_attention(&self) -> &F {
        let all = [&self.mlp, &self.block_sparse_moe, &self.feed_forward];
        let one = all.into_iter().flatten().next();
        one.expect("a layer is made with one of them")
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

/// What a gate makes of it, if there is one.
fn gated_if(gate: &Option<NormGate>, x: Tensor<3>) -> Tensor<3> {
    match gate {
        Some(gate) => gate.forward(x),
        None => x,
    }
}

/// The residual stream, and what is computed of it as it is.
fn twice(x: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
    (x.clone(), x)
}
