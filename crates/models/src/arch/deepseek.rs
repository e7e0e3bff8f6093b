//! DeepSeek-V2, V3 and V3.2, Kimi K2, dots.llm1, GLM-4.5 to 5, Mistral 4 and Large 4, A.X-K1 and
//! K2, Sarvam, Param-2, MiniCPM5, Hunyuan 3, Step 3.7 and MiniMax-M3: experts in groups, beside
//! shared ones, behind a few dense layers; most with attention over a compressed cache, some of
//! tokens that an indexer chooses. DeepSeek-AI 2024 (arXiv:2405.04434, arXiv:2412.19437) and 2025
//! (arXiv:2512.02556), GLM-4.5 Team 2025 (arXiv:2508.06471).

mod absent;
mod axk2;
mod config;
mod defaults;
mod dots3;
mod hunyuan;
mod indexer;
mod known_fields;
mod linear;
mod minicpm;
mod mistral;
mod sarvam;

pub(super) use config::{read, read_minicpm3, read_youtu, softmax_stretch};
pub(super) use hunyuan::{HY_V4_IMAGES, HY_V4_PART, HY_V4_PARTS, HY_V4_TEXT};
pub(super) use known_fields::{KIMI_IMAGES, LATENT, ROPE, YOUTU, fields};
pub(super) use minicpm::{MINICPM3, MINICPM3_FIELDS};

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;

use super::rms_config::{ExpertLayout, ExpertsConfig, RmsConfig};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::sparse_moe::stacked;
use super::{gemma3, minimax_m3, qwen_vl, step3p7};
use crate::architecture::{Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::layers::{
    Either, Mlp, Router, Shares, announce_all, beside_activations, mixed_beside,
    mixed_chosen_beside,
};
use crate::{Activations, Error, PassShape};

/// A DeepSeek, or a model with its experts, with its language-modelling head.
pub type DeepseekForCausalLm = RmsForCausalLm<RmsDecoderLayer<Either<Mlp, RmsMoE>>>;

/// Experts, a few of which each token goes to, and one that all go to.
#[derive(Module, Debug)]
pub struct RmsMoE {
    /// `[experts, hidden]`: scores the experts.
    pub gate: Router,
    /// Gated feed-forward blocks.
    pub experts: Vec<Mlp>,
    /// As wide as all shared experts together.
    pub shared_experts: Option<Mlp>,
    /// Whether that one and the others together are averaged.
    is_mean: bool,
}

impl RmsFeedForward for RmsMoE {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("deepseek_v2", "DeepseekV2"),
        ("deepseek_v3", "DeepseekV3"),
        ("kimi_k2", "DeepseekV3"),
        ("dots1", "Dots1"),
        (dots3::DOTS3, "Dots3NoteText"),
        (dots3::DOTS3_TEXT, "Dots3NoteText"),
        ("glm4_moe", "Glm4Moe"),
        ("glm4v_moe", "Glm4vMoeText"),
        ("glm46v", "Glm4vMoeText"),
        ("glm4_moe_lite", "Glm4MoeLite"),
        ("solar_open", "SolarOpen"),
        ("exaone_moe", "ExaoneMoe"),
        ("deepseek_v32", "DeepseekV32"),
        ("glm_moe_dsa", "GlmMoeDsa"),
        ("mistral4", "Mistral4"),
        ("mistral3", "Mistral4"),
        ("mistral_large4", "MistralLarge4Text"),
        ("kimi_k25", "DeepseekV3"),
        ("axk1", "AXK1"),
        ("axk2", "AXK2"),
        ("sarvam_mla", "DeepseekV3"),
        ("sarvam_moe", "Glm4Moe"),
        ("param2moe", "Glm4Moe"),
        (minicpm::MINICPM5, "MiniCPM5Moe"),
        ("hy_v3", "HYV3"),
        ("afmoe", "Afmoe"),
        ("laguna", "Laguna"),
        ("kolibri1", "Kolibri1"),
        ("flint", "Flint"),
        ("lara_mini", "LaraMini"),
        ("mimo_v2_flash", "MiMoV2Flash"),
        ("step3p5", "Step3p7"),
        ("step3p7", "Step3p7"),
        ("minimax_m3_vl", "MiniMaxM3VL"),
        ("cohere2_moe", "Cohere2Moe"),
    ];

    fn text_types(model_type: &str) -> &'static [&'static str] {
        match model_type {
            "mistral3" => &["mistral4"],
            "glm46v" => &["glm4v_moe_text"],
            _ => &[],
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        match model_type {
            "mistral3" => Some(&gemma3::NAMES),
            "mistral_large4" => Some(&mistral::LARGE_PARTS),
            "kimi_k25" => Some(&KIMI_NAMES),
            dots3::DOTS3 => Some(&dots3::NAMES),
            "glm4v_moe" | "glm46v" => Some(&qwen_vl::NAMES),
            "step3p7" => Some(&step3p7::NAMES),
            "minimax_m3_vl" => Some(&minimax_m3::NAMES),
            _ => None,
        }
    }

    fn has_more_layers(_: &str) -> bool {
        true
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        known_fields::fields(model_type)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        config::read(model_type, fields)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let [clamp, others] = config.mlp_clamps[index];
        let one = |_| config.mlp(experts.intermediate_size, init).clamped(clamp);
        let shared = |inner| config.mlp(inner, init).clamped(others);
        let gate = Router::new(config.hidden_size, experts.count, experts.routing, init);
        Self {
            gate: match experts.routing.shares {
                Shares::Sigmoid | Shares::RootSoftplus => gate.corrected(init),
                _ if experts.is_corrected => gate.corrected(init),
                Shares::Softmax | Shares::SigmoidOfChosen | Shares::SparseMixer { .. } => gate,
            },
            experts: (0..experts.count).map(one).collect(),
            shared_experts: experts.shared_intermediate_size.map(shared),
            is_mean: experts.is_mean,
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        let renamed = |names: Names, (pattern, with): &(&str, &str)| names.or_rename(pattern, with);
        let names = experts.renamed.iter().try_fold(names, renamed)?;
        let layers = ["gate_proj", "up_proj", "down_proj"];
        if experts.layout == ExpertLayout::StacksApart {
            let one = |names: Names, layer| {
                let module = format!(r"\.mlp\.experts\.(?<n>\d+)\.{layer}\.weight$");
                names.stacked(&module, &format!(".moe.{layer}.weight"), [0, 1], experts.count)
            };
            return layers.into_iter().try_fold(names, one);
        }
        stacked(names, r"\.mlp", layers, experts.count)?
            // As K-EXAONE is published.
            .or_rename(r"\.mlp\.gate\.e_score_correction_bias$", ".mlp.e_score_correction_bias")
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.gate, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let sum = mixed_beside(x, self.shared_experts.as_ref(), &self.gate, None, &self.experts);
        if self.is_mean { sum * 0.5 } else { sum }
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        beside_activations(self.shared_experts.as_ref(), &self.gate, &self.experts, pass)
    }
}

impl RmsMoE {
    /// As its [`forward`](RmsFeedForward::forward), of tokens with these ids.
    ///
    /// # Errors
    /// [`Error::ExpertTable`]: a table is to choose experts, and names none for a token.
    pub(super) fn forward_of(&self, x: Tensor<3>, ids: &[u32]) -> Result<Tensor<3>, Error> {
        let (shared, gate) = (self.shared_experts.as_ref(), &self.gate);
        Ok(match gate.tabled_experts(ids)? {
            Some(chosen) => mixed_chosen_beside(x, shared, gate, chosen, &self.experts),
            None => self.forward(x),
        })
    }
}

/// As Kimi K2.5 is published.
const KIMI_NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model."), ("language_model.", "")],
    others: &["vision_tower.", "mm_projector.", "model.vision_tower.", "model.mm_projector."],
};
