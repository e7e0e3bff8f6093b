//! What the configuration of a decoder of RMSNorm and rotary positions is made of.

use outsize_core::Routed;

use crate::layers::Routing;

/// What makes the tokens of a layer know of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerMixer {
    /// Attention.
    Attention,
    /// Linear attention, Mamba-2 or a convolution.
    Linear,
    /// Attention and one of these, side by side.
    Both,
    /// Nothing.
    None,
}

impl LayerMixer {
    /// Attention where that is so, else what the model has in its place.
    pub(super) fn attends(attends: bool) -> Self {
        if attends { Self::Attention } else { Self::Linear }
    }

    /// Whether there is attention.
    pub fn has_attention(self) -> bool {
        matches!(self, Self::Attention | Self::Both)
    }

    /// Whether there is something in its place, or beside it.
    pub fn has_linear(self) -> bool {
        matches!(self, Self::Linear | Self::Both)
    }
}

/// Which layers have sinks of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SinkLayers {
    /// None.
    None,
    /// All.
    All,
    /// Those with a sliding window.
    Sliding,
}

/// A short convolution in place of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolutionConfig {
    /// Tokens that it is over, the last one's included.
    pub taps: usize,
    /// Whether it and the projections around it have a bias.
    pub bias: bool,
}

/// What the branches of a block of Falcon-H1 are multiplied by, where that is not one.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BranchScales {
    /// What Mamba-2 takes.
    pub mamba_in: Option<f64>,
    /// What Mamba-2 gives.
    pub mamba_out: Option<f64>,
    /// What attention takes.
    pub attention_in: Option<f64>,
    /// What attention gives.
    pub attention_out: Option<f64>,
    /// The MLP's gate, before its function.
    pub gate: Option<f64>,
    /// What the MLP gives.
    pub mlp_out: Option<f64>,
}

/// What is added up in a block of MiniMax-01: what the residual stream is multiplied by, then what
/// is added.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ResidualScales {
    /// Behind attention.
    pub attention: [f64; 2],
    /// Behind experts.
    pub experts: [f64; 2],
}

/// The experts of a block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertsConfig {
    /// How many there are.
    pub count: usize,
    /// How a router chooses some of them for each token.
    pub routing: Routing,
    /// Width of the inner layer of each.
    pub intermediate_size: usize,
    /// Width of the inner layer of one more that all tokens go to, if there is one.
    pub shared_intermediate_size: Option<usize>,
    /// Whether that one and the others together are averaged rather than added.
    pub is_mean: bool,
    /// Width of what they take and give, where that is not the residual stream's.
    pub latent_size: Option<usize>,
    /// How many of them, the last ones, have no weights and give what they take.
    pub identities: usize,
    /// Whether something is added while they are chosen though their shares do not say so: in LFM2,
    /// where it is beside the router, and in Kolibri 1.
    pub is_corrected: bool,
    /// What checkpoints call parts of the block otherwise: patterns, and what stands in their
    /// place.
    pub renamed: &'static [(&'static str, &'static str)],
    /// What gate and up are clamped to, in gpt-oss.
    pub swiglu_limit: Option<f64>,
    /// How the matrices of an expert lie.
    pub layout: ExpertLayout,
}

impl ExpertsConfig {
    /// How the router chooses among their weights.
    pub(super) fn routed(&self) -> Routed {
        Routed { per_token: self.routing.per_token as u32, experts: self.count as u32 }
    }
}

/// How the matrices of an expert lie in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertLayout {
    /// `[out, in]`, gate and up apart.
    Apart,
    /// The same, or each of the three in one stack of all experts.
    StacksApart,
    /// `[out, in]`, the rows of gate and up in turns.
    OutIn,
    /// `[in, out]`, the columns of gate and up in turns.
    InOut,
}

/// Where the norms of a block are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockNorms {
    /// Before attention and MLP.
    Before,
    /// Behind both.
    Behind,
    /// The same in layers of attention; before linear attention and MLP in the others.
    BehindAttention,
    /// Before and behind both.
    Around,
    /// The same with GLM's names.
    AroundGlm,
    /// The same with AFMoE's names.
    AroundAfmoe,
    /// Before attention and MLP, with Apertus's names.
    BeforeApertus,
    /// Before attention and MLP, and behind experts.
    BeforeAndBehindExperts,
    /// Before both, which are side by side: one.
    Parallel,
}

/// What kind of norms blocks have, and what comes behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockNormKind {
    /// Without their mean, and without a bias.
    Rms,
    /// The same without a weight.
    UnweightedRms,
    /// Of what is beside the mean, perhaps with a bias.
    Layer {
        /// Whether they have one.
        bias: bool,
    },
    /// The same without a weight and without a bias.
    UnweightedLayer,
}

/// Of what queries and keys are normed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKeyNorms {
    /// Of each head by itself.
    EachHead,
    /// Of each head by itself, once it is rotated.
    EachHeadRotated,
    /// Of all heads together.
    AllHeads,
    /// As the first, with LFM2's names.
    EachHeadLfm2,
    /// Of each head by itself, once it is rotated; without weights.
    Unit,
    /// The same in layers that rotate, alone.
    UnitRotated,
}
