//! Granite with experts: Granite's blocks with many small experts in place of the MLP, and in some
//! models one more beside them. Granite Team 2024
//! (<https://github.com/ibm-granite/granite-3.0-language-models>).

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;

use super::expert_fields::EXPERTS;
use super::granite;
use super::rms_config::{DEFAULTS, ExpertsConfig, FIELDS, RmsConfig};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{FeedForwardName, RmsDecoderLayer, RmsFeedForward, SharedMlp};
use crate::architecture::Init;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE};
use crate::layers::{Either, FusedMlp, Mlp, Router, announce_all, expert_activations, mixed};
use crate::{Activations, Error, PassShape};

/// A Granite with experts, with its language-modelling head.
pub type GraniteMoeForCausalLm = RmsForCausalLm<RmsDecoderLayer<GraniteMoe>>;

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct GraniteMoe {
    /// Scores the experts.
    pub router: GraniteRouter,
    /// Gated feed-forward blocks.
    pub experts: Vec<Either<FusedMlp, Mlp>>,
}

/// What scores experts.
#[derive(Module, Debug)]
pub struct GraniteRouter {
    /// `[experts, hidden]`.
    pub layer: Router,
}

impl RmsFeedForward for GraniteMoe {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("granitemoe", "GraniteMoe"),
        ("granitemoeshared", "GraniteMoeShared"),
        ("granitemoe_swa", "GraniteMoeSWA"),
    ];
    const NAME: FeedForwardName = FeedForwardName::BlockSparseMoe;
    const IS_STACKED: bool = true;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "granitemoeshared" => &[SHARED, MOE, EXPERTS, FIELDS],
            "granitemoe_swa" => &[granite::WINDOWS, SHARED, MOE, EXPERTS, FIELDS],
            _ => &[MOE, EXPERTS, FIELDS],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let names = ["num_local_experts", "num_experts"];
        let config = match model_type {
            "granitemoe_swa" => granite::with_windows(fields, RmsConfig::read(fields, &DEFAULTS)?)?,
            _ => granite::read(fields)?,
        };
        let mut config = config.with_experts(fields, names, (8, 2), true)?;
        let shared = "shared_intermediate_size";
        let is_none = fields.get(shared).is_none_or(|value| value.as_u64() == Some(0));
        if let Some(experts) = &mut config.experts
            && model_type != "granitemoe"
            && !is_none
        {
            experts.shared_intermediate_size = Some(fields.size(shared, MAX_INTERMEDIATE)?);
        }
        Ok(config)
    }

    fn shared_mlp(config: &RmsConfig, init: &Init) -> Option<Either<SharedMlp, Mlp>> {
        let inner = config.experts?.shared_intermediate_size?;
        Some(shared_mlp(config, inner, init))
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let (hidden, inner) = (config.hidden_size, experts.intermediate_size);
        let one = |_| match config.gates_apart {
            false => Either::One(FusedMlp::new(hidden, inner, config.activation, init)),
            true => Either::Other(config.mlp(inner, init)),
        };
        Self {
            router: GraniteRouter {
                layer: Router::new(hidden, experts.count, experts.routing, init),
            },
            experts: (0..experts.count).map(one).collect(),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        let module = |layer| format!(r"\.block_sparse_moe\.experts\.(?<n>\d+)\.{layer}\.weight$");
        let to = |layer| format!(".block_sparse_moe.{layer}");
        // As they are published, and as those with a sliding window are.
        let all = [
            ("gate_up_proj", "input_linear.weight"),
            ("down_proj", "output_linear.weight"),
            ("gate_up_proj", "experts.gate_up_proj"),
            ("down_proj", "experts.down_proj"),
        ];
        let names = all.into_iter().try_fold(names, |names, (layer, stack)| {
            names.stacked(&module(layer), &to(stack), [0, 1], experts.count)
        })?;
        names.or_rename(r"\.block_sparse_moe\.router\.layer\.", ".block_sparse_moe.router.")
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.router.layer, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        mixed(x, &self.router.layer, &self.experts)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        expert_activations(&self.router.layer, &self.experts, pass)
    }
}

/// The block that all tokens go to, without storage.
pub(super) fn shared_mlp(config: &RmsConfig, inner: usize, init: &Init) -> Either<SharedMlp, Mlp> {
    match config.gates_apart {
        false => Either::One(SharedMlp::new(config.hidden_size, inner, config.activation, init)),
        true => Either::Other(config.mlp(inner, init)),
    }
}

pub(super) const MOE: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_multiplier", Read),
    ("embedding_multiplier", Read),
    ("gates_apart", Read),
    ("logits_scaling", Read),
    ("residual_multiplier", Read),
    ("rope_interleaved", Read),
];

const SHARED: &[KnownField] = &[("shared_intermediate_size", Read)];
