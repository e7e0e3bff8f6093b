//! Decoders of RMSNorm and rotary positions with an MLP in every layer, in the layers of a Llama.

use burn::tensor::Tensor;

use super::cohere::LAYER_NORM_FIELDS;
use super::idefics3::{IDEFICS3, SMOLVLM};
use super::internvl::INTERNVL;
use super::rms_config::{FIELDS, RmsConfig};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::{
    cohere, cwm, deepseek, ernie4_5, exaone, exaone4, gemma, gemma3, granite, helium, hunyuan,
    idefics3, internvl, llama, mistral3, muse, olmo, olmo_hybrid, olmo2, qwen_omni, qwen_vl, qwen3,
    qwen3_next, seed_oss, smollm3, stablelm,
};
use crate::architecture::{Init, MultimodalNames};
use crate::config::{Fields, KnownField};
use crate::layers::Mlp;
use crate::{Activations, Error, PassShape};

/// A Llama, or a model of its shape, with its language-modelling head.
pub type LlamaForCausalLm = RmsForCausalLm<RmsDecoderLayer<Mlp>>;

impl RmsFeedForward for Mlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("llama", "Llama"),
        ("mistral", "Mistral"),
        ("ministral", "Ministral"),
        ("internlm3", "Llama"),
        ("iquestcoder", "Llama"),
        ("qwen2", "Qwen2"),
        ("qwen3", "Qwen3"),
        ("cwm", "Cwm"),
        ("helium", "Helium"),
        ("youtu", "Youtu"),
        (deepseek::MINICPM3, "MiniCPM3"),
        ("olmo", "Olmo"),
        ("olmo2", "Olmo2"),
        ("olmo3", "Olmo3"),
        ("olmo_hybrid", "OlmoHybrid"),
        ("exaone", "Llama"),
        ("exaone4", "Exaone4"),
        ("ernie4_5", "Ernie4_5"),
        ("hunyuan_v1_dense", "HunYuanDenseV1"),
        ("cohere", "Cohere"),
        ("cohere2", "Cohere2"),
        (cohere::VISION, "Cohere2"),
        (cohere::AYA_VISION, "Cohere2"),
        (IDEFICS3, "Llama"),
        (SMOLVLM, "Llama"),
        ("stablelm", "StableLm"),
        ("ministral3", "Ministral3"),
        ("mistral3", "Mistral3"),
        ("qwen2_vl", "Qwen2VL"),
        ("qwen2_5_vl", "Qwen2_5_VL"),
        ("qwen3_vl", "Qwen3VLText"),
        ("granite", "Granite"),
        ("granite_swa", "GraniteSWA"),
        ("hyperclovax", "HyperCLOVAX"),
        ("smollm3", "SmolLM3"),
        ("seed_oss", "SeedOss"),
        ("gemma", "Gemma"),
        ("gemma2", "Gemma2"),
        ("vaultgemma", "VaultGemma"),
        ("gemma3_text", "Gemma3"),
        ("gemma3", "Gemma3"),
        ("qwen3_5_text", "Qwen3_5"),
        ("qwen3_5", "Qwen3_5"),
        ("exaone4_5", "Exaone4"),
        ("muse_glimmer", "MuseGlimmerText"),
        (INTERNVL, "Qwen2"),
        ("qwen2_5_omni", "Qwen2_5OmniThinkerText"),
    ];

    fn has_more_layers(model_type: &str) -> bool {
        qwen3_next::is_one(model_type)
    }

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "mistral" | "ministral" => &[llama::MISTRAL, llama::ACT, FIELDS],
            "internlm3" => &[llama::INTERNLM3, llama::ACT, FIELDS],
            "iquestcoder" => &[llama::IQUESTCODER, llama::LLAMA, llama::ACT, FIELDS],
            "qwen2" => &[llama::QWEN2, llama::ACT, FIELDS],
            "qwen3" => &[qwen3::QWEN3, FIELDS],
            "cwm" => &[cwm::CWM, FIELDS],
            "helium" => &[helium::HELIUM, FIELDS],
            "youtu" => &[deepseek::YOUTU, deepseek::ROPE, deepseek::LATENT, FIELDS],
            deepseek::MINICPM3 => &[deepseek::MINICPM3_FIELDS, deepseek::LATENT, FIELDS],
            "olmo" => &[olmo::OLMO, LAYER_NORM_FIELDS],
            "olmo2" => &[olmo2::OLMO2, FIELDS],
            "olmo3" => &[olmo2::OLMO3, FIELDS],
            "olmo_hybrid" => &[olmo_hybrid::OLMO_HYBRID, FIELDS],
            "exaone" => &[exaone::EXAONE, FIELDS],
            "exaone4" => &[exaone4::EXAONE4, exaone4::WINDOWS, FIELDS],
            "ernie4_5" => &[ernie4_5::ERNIE4_5, FIELDS],
            "hunyuan_v1_dense" => &[hunyuan::DENSE, hunyuan::HUNYUAN, FIELDS],
            "cohere" => &[cohere::COHERE1, cohere::COHERE, LAYER_NORM_FIELDS],
            "cohere2" => &[cohere::COHERE2, cohere::COHERE, LAYER_NORM_FIELDS],
            cohere::VISION => &[cohere::MULTIMODAL],
            cohere::AYA_VISION => &[cohere::AYA_MULTIMODAL],
            IDEFICS3 | SMOLVLM => &[idefics3::MULTIMODAL],
            "stablelm" => &[stablelm::STABLELM, LAYER_NORM_FIELDS],
            "ministral3" => &[mistral3::MINISTRAL3, FIELDS],
            "mistral3" => &[mistral3::MULTIMODAL],
            "qwen2_vl" | "qwen2_5_vl" => &[qwen_vl::MULTIMODAL, llama::QWEN2, llama::ACT, FIELDS],
            "qwen3_vl" => &[qwen_vl::MULTIMODAL],
            "granite" => &[granite::GRANITE, FIELDS],
            "granite_swa" => &[granite::WINDOWS, granite::GRANITE, FIELDS],
            "hyperclovax" => &[granite::HYPERCLOVAX, granite::GRANITE, FIELDS],
            "smollm3" => &[smollm3::SMOLLM3, FIELDS],
            "seed_oss" => &[seed_oss::SEED_OSS, FIELDS],
            "gemma" => &[gemma::GEMMA, FIELDS],
            "gemma2" | "vaultgemma" => &[gemma::GEMMA2, FIELDS],
            "gemma3_text" => &[gemma3::TEXT, FIELDS],
            "gemma3" => &[gemma3::MULTIMODAL],
            "exaone4_5" => &[qwen_vl::MULTIMODAL],
            "muse_glimmer" => &[muse::MULTIMODAL],
            INTERNVL => &[internvl::MULTIMODAL],
            "qwen2_5_omni" => &[qwen_omni::OMNI],
            linear if qwen3_next::is_one(linear) => qwen3_next::fields(linear),
            _ => &[llama::LLAMA, llama::ACT, FIELDS],
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        match model_type {
            "gemma3" | "mistral3" | cohere::VISION | cohere::AYA_VISION | INTERNVL => {
                Some(&gemma3::NAMES)
            }
            IDEFICS3 | SMOLVLM => Some(&idefics3::NAMES),
            "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" => Some(&qwen_vl::NAMES),
            "exaone4_5" => Some(&exaone4::NAMES),
            "muse_glimmer" => Some(&muse::NAMES),
            "qwen2_5_omni" => Some(&qwen_omni::NAMES),
            _ => qwen3_next::multimodal(model_type),
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        match model_type {
            "qwen3" => qwen3::read(fields),
            "cwm" => cwm::read(fields),
            "helium" => helium::read(fields),
            "youtu" => deepseek::read_youtu(fields),
            deepseek::MINICPM3 => deepseek::read_minicpm3(fields),
            "olmo" => olmo::read(fields),
            "olmo2" => olmo2::read(fields),
            "olmo3" => olmo2::read_olmo3(fields),
            "olmo_hybrid" => olmo_hybrid::read(fields),
            "exaone" => exaone::read(fields),
            "exaone4" => exaone4::read(fields),
            "ernie4_5" => ernie4_5::read(fields),
            "hunyuan_v1_dense" => hunyuan::read(fields),
            "cohere" => cohere::read(fields),
            "cohere2" => cohere::read_cohere2(fields),
            cohere::VISION | cohere::AYA_VISION => cohere::read_part(model_type, fields),
            IDEFICS3 | SMOLVLM => idefics3::read_part(fields),
            "stablelm" => stablelm::read(fields),
            "ministral3" => mistral3::read_text(fields),
            "mistral3" => mistral3::read(fields),
            "qwen2_vl" | "qwen2_5_vl" => qwen_vl::read_qwen2_vl(fields),
            "qwen3_vl" => qwen_vl::read_qwen3_vl(fields),
            "granite" => granite::read(fields),
            "granite_swa" => granite::read_swa(fields),
            "hyperclovax" => granite::read_hyperclovax(fields),
            "smollm3" => smollm3::read(fields),
            "seed_oss" => seed_oss::read(fields),
            "gemma" => gemma::read(fields),
            "gemma2" => gemma::read_gemma2(fields),
            "vaultgemma" => gemma::read_vaultgemma(fields),
            "gemma3_text" => gemma3::read_text(fields),
            "gemma3" => gemma3::read(fields),
            "exaone4_5" => exaone4::read_part(fields),
            "muse_glimmer" => muse::read(fields),
            "qwen2_5_omni" => qwen_omni::read_qwen2_5(fields),
            INTERNVL => internvl::read_part::<Self>(fields, &["qwen2", "qwen3", "llama"]),
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
