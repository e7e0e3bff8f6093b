//! Nemotron-H, Nemotron Nano 2 and Nemotron 3: blocks of one part each, which is Mamba-2, attention
//! without positions, an MLP with a squared ReLU, or experts. NVIDIA 2025 (arXiv:2504.03624,
//! arXiv:2508.14444, arXiv:2512.20848).

mod config;
mod moe;

use burn::module::Module;
use outsize_core::Names;

use super::arcee::ArceeMlp;
use super::mamba;
use super::rms_config::{ExpertsConfig, LayerMixer, RmsConfig};
use super::rms_decoder::{EmbeddingsName, FinalNormName, RmsBlock, RmsForCausalLm};
use crate::architecture::{Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::layers::{
    Attention, Either, Expert, Mamba2Mixer, MambaMixer, RmsNorm, Rotation, either,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

pub use moe::NemotronHMoe;

/// A Nemotron-H with its language-modelling head.
pub type NemotronHForCausalLm = RmsForCausalLm<NemotronHBlock>;

/// One block: a norm and what is added to the residual stream.
#[derive(Module, Debug)]
pub struct NemotronHBlock {
    /// `[hidden]`.
    pub norm: RmsNorm,
    /// What makes tokens know of each other, or what each token goes through by itself.
    pub mixer: NemotronHMixer,
}

/// What a block has.
pub type NemotronHMixer =
    Either<Either<Either<Mamba2Mixer, MambaMixer>, Attention>, Either<ArceeMlp, NemotronHMoe>>;

impl RmsBlock for NemotronHBlock {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("nemotron_h", "NemotronH"),
        ("mamba", "Mamba"),
        ("falcon_mamba", "FalconMamba"),
        ("mamba2", "Mamba2"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["NemotronHBlock"];
    const FINAL_NORM: FinalNormName = FinalNormName::NormF;
    const EMBEDDINGS: EmbeddingsName = EmbeddingsName::Embeddings;

    fn has_more_layers(model_type: &str) -> bool {
        model_type == "nemotron_h"
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "nemotron_h" => &[config::FIELDS],
            other => mamba::fields(other),
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        const OURS: (&str, &str) = ("model.", "model.");
        // As all are published.
        const BACKBONE: (&str, &str) = ("backbone.", "model.");
        Some(match model_type {
            "nemotron_h" => &MultimodalNames { prefixes: &[OURS, BACKBONE], others: &[] },
            _ => &MultimodalNames { prefixes: &[BACKBONE, OURS], others: &[] },
        })
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        match model_type {
            "nemotron_h" => config::read(fields),
            other => mamba::read(other, fields),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        let module = |layer| format!(r"\.mixer\.experts\.(?<n>\d+)\.{layer}\.weight$");
        let to = |layer| format!(".mixer.experts.{layer}");
        names.stacked(&module("up_proj"), &to("up_proj"), [0, 1], experts.count)?.stacked(
            &module("down_proj"),
            &to("down_proj"),
            [0, 1],
            experts.count,
        )
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let (hidden, mixer) = (config.hidden_size, config.mixers[index]);
        let experts = config.experts.filter(|_| config.sparse_layers[index]);
        Self {
            norm: config.norm(hidden, init),
            mixer: match (config.mamba_mixer(index, init), mixer, experts) {
                (Some(mamba), ..) => Either::One(Either::One(mamba)),
                (_, LayerMixer::Attention, _) => {
                    Either::One(Either::Other(config.plain_attention(index, init)))
                }
                (.., Some(experts)) => {
                    Either::Other(Either::Other(NemotronHMoe::new(config, &experts, init)))
                }
                (.., None) => {
                    let sizes = [hidden, config.intermediate_size];
                    let mlp = ArceeMlp::of(sizes, config.mlp_bias, config.activation, init);
                    Either::Other(Either::One(mlp))
                }
            },
        }
    }

    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        _: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        if let Either::Other(Either::Other(experts)) = &self.mixer {
            experts.announce(pass.rows());
        }
        let (x, normed) = self.norm.after(x, pending);
        // Feed-forward layers keep nothing.
        let normed = match &self.mixer {
            Either::One(_) => normed,
            Either::Other(_) => pass.needed(normed),
        };
        let positions = pass.query_positions();
        let mixed = match &self.mixer {
            Either::One(Either::One(mamba)) => {
                either!(mamba, mamba => mamba.forward(normed, &positions, cache, index))?
            }
            Either::One(Either::Other(attention)) => {
                attention.forward(normed, None, &positions, cache, index)?
            }
            Either::Other(Either::One(mlp)) => Expert::forward(mlp, normed),
            Either::Other(Either::Other(experts)) => experts.forward(normed),
        };
        let [x, mixed] = [x, mixed].map(|x| pass.needed(x));
        Ok(Residual { stream: x, pending: Some(mixed) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        match &self.mixer {
            Either::One(Either::One(mamba)) => either!(mamba, mamba => mamba.activations(pass)),
            Either::One(Either::Other(attention)) => attention.activations(pass),
            Either::Other(Either::One(mlp)) => Expert::activations(mlp, pass),
            Either::Other(Either::Other(experts)) => experts.activations(pass),
        }
    }
}
