//! What `transformers` takes where a field of these models is absent.

use super::super::rms_config::{DEFAULTS, RmsDefaults};
use super::absent::{Absent, LatentWidths};
use super::dots3::DOTS3_TEXT;
use super::hunyuan::HY_V4_PART;
use super::minicpm::{self, MINICPM3, MINICPM5};
use super::mistral::LARGE;
use super::sarvam;

/// The text part of a GLM with experts that sees images too.
pub(super) const GLM_V: &str = "glm4v_moe_text";

/// What `transformers` takes where a field of a model of that type is absent.
pub(super) fn of(model_type: &str) -> Absent {
    let v3 = Absent {
        sizes: RmsDefaults {
            sizes: &[
                ("vocab_size", 129_280),
                ("hidden_size", 7168),
                ("intermediate_size", 18_432),
                ("num_hidden_layers", 61),
                ("num_attention_heads", 128),
            ],
            max_position_embeddings: 4096,
            ..DEFAULTS
        },
        experts: 256,
        per_token: Some(8),
        shared: 1,
        moe_intermediate_size: 2048,
        dense: 3,
        scale: 2.5,
        normalized: true,
        groups: (8, 4),
        latent: LatentWidths {
            query_rank: Some(1536),
            rank: 512,
            plain: 128,
            rotated: 64,
            value: 128,
        },
    };
    match model_type {
        "deepseek_v2" => Absent {
            sizes: DEFAULTS,
            experts: 64,
            per_token: None,
            shared: 2,
            moe_intermediate_size: 1407,
            dense: 0,
            scale: 1.0,
            normalized: false,
            ..v3
        },
        "dots1" => Absent {
            sizes: RmsDefaults { key_value_heads: Some(32), ..DEFAULTS },
            per_token: None,
            shared: 0,
            moe_intermediate_size: 1408,
            dense: 0,
            scale: 1.0,
            normalized: false,
            groups: (1, 1),
            ..v3
        },
        DOTS3_TEXT => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 152_064),
                    ("hidden_size", 5120),
                    ("intermediate_size", 13_824),
                    ("num_hidden_layers", 46),
                    ("num_attention_heads", 128),
                ],
                max_position_embeddings: 524_288,
                rms_norm_eps: 1e-5,
                rope_theta: 8e7,
                ..DEFAULTS
            },
            moe_intermediate_size: 1536,
            dense: 1,
            scale: 1.0,
            groups: (1, 1),
            latent: LatentWidths { query_rank: Some(1024), ..v3.latent },
            ..v3
        },
        "glm4_moe" | GLM_V => Absent {
            sizes: RmsDefaults {
                key_value_heads: Some(8),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                ..DEFAULTS
            },
            experts: 128,
            moe_intermediate_size: 1408,
            dense: 1,
            scale: 1.0,
            groups: (1, 1),
            ..v3
        },
        "exaone_moe" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 102_400),
                    ("hidden_size", 4096),
                    ("intermediate_size", 16_384),
                    ("num_hidden_layers", 32),
                    ("num_attention_heads", 32),
                ],
                key_value_heads: Some(32),
                rms_norm_eps: 1e-5,
                ..DEFAULTS
            },
            experts: 64,
            moe_intermediate_size: 1024,
            dense: 1,
            groups: (1, 1),
            ..v3
        },
        "solar_open" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 196_608),
                    ("hidden_size", 4096),
                    // There is no layer without experts.
                    ("intermediate_size", 1),
                    ("num_hidden_layers", 48),
                    ("num_attention_heads", 64),
                ],
                key_value_heads: Some(8),
                head_dim: Some(128),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                rope_theta: 1e6,
                ..DEFAULTS
            },
            experts: 128,
            moe_intermediate_size: 1280,
            dense: 0,
            scale: 1.0,
            groups: (1, 1),
            ..v3
        },
        "glm4_moe_lite" => Absent {
            sizes: RmsDefaults { max_position_embeddings: 202_752, rms_norm_eps: 1e-5, ..DEFAULTS },
            experts: 64,
            per_token: Some(4),
            moe_intermediate_size: 1536,
            dense: 1,
            scale: 1.8,
            groups: (1, 1),
            latent: LatentWidths { query_rank: Some(768), plain: 192, value: 256, ..v3.latent },
            ..v3
        },
        "deepseek_v32" => {
            Absent { sizes: RmsDefaults { max_position_embeddings: 163_840, ..v3.sizes }, ..v3 }
        }
        "glm_moe_dsa" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 154_880),
                    ("hidden_size", 6144),
                    ("intermediate_size", 12_288),
                    ("num_hidden_layers", 78),
                    ("num_attention_heads", 64),
                ],
                max_position_embeddings: 202_752,
                rms_norm_eps: 1e-5,
                ..DEFAULTS
            },
            groups: (1, 1),
            latent: LatentWidths { query_rank: Some(2048), plain: 192, value: 256, ..v3.latent },
            ..v3
        },
        "mistral4" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 131_072),
                    ("hidden_size", 4096),
                    ("intermediate_size", 12_288),
                    ("num_hidden_layers", 36),
                    ("num_attention_heads", 32),
                ],
                max_position_embeddings: 1_048_576,
                ..DEFAULTS
            },
            experts: 128,
            per_token: Some(4),
            dense: 0,
            scale: 1.0,
            groups: (1, 1),
            latent: LatentWidths { query_rank: Some(1024), rank: 256, plain: 64, ..v3.latent },
            ..v3
        },
        LARGE => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 204_800),
                    ("hidden_size", 6144),
                    ("intermediate_size", 24_576),
                    ("num_hidden_layers", 72),
                    ("num_attention_heads", 64),
                ],
                max_position_embeddings: 1_048_576,
                rms_norm_eps: 1e-5,
                ..DEFAULTS
            },
            experts: 128,
            per_token: Some(4),
            moe_intermediate_size: 6144,
            dense: 1,
            scale: 1.0,
            groups: (1, 1),
            latent: LatentWidths { query_rank: None, plain: 64, ..v3.latent },
            ..v3
        },
        "axk1" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 163_840),
                    ("hidden_size", 7168),
                    ("intermediate_size", 18_432),
                    ("num_hidden_layers", 61),
                    ("num_attention_heads", 64),
                ],
                max_position_embeddings: 32_768,
                ..DEFAULTS
            },
            experts: 192,
            dense: 1,
            ..v3
        },
        "axk2" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 163_840),
                    ("hidden_size", 2048),
                    ("intermediate_size", 5120),
                    ("num_hidden_layers", 48),
                    ("num_attention_heads", 32),
                ],
                max_position_embeddings: 131_072,
                ..DEFAULTS
            },
            experts: 128,
            moe_intermediate_size: 512,
            dense: 1,
            groups: (1, 1),
            latent: LatentWidths {
                query_rank: Some(384),
                rank: 128,
                plain: 64,
                rotated: 32,
                value: 64,
            },
            ..v3
        },
        "youtu" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 128_256),
                    ("hidden_size", 2048),
                    ("intermediate_size", 6144),
                    ("num_hidden_layers", 32),
                    ("num_attention_heads", 16),
                ],
                max_position_embeddings: 131_072,
                tie_word_embeddings: true,
                ..DEFAULTS
            },
            ..v3
        },
        "kimi_linear" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 163_840),
                    ("hidden_size", 2304),
                    ("intermediate_size", 9216),
                    ("num_hidden_layers", 27),
                    ("num_attention_heads", 32),
                ],
                rms_norm_eps: 1e-5,
                ..DEFAULTS
            },
            moe_intermediate_size: 1024,
            dense: 1,
            scale: 2.446,
            groups: (1, 1),
            latent: LatentWidths { query_rank: None, ..v3.latent },
            ..v3
        },
        "bailing_hybrid" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 157_184),
                    ("hidden_size", 2560),
                    ("intermediate_size", 6144),
                    ("num_hidden_layers", 42),
                    ("num_attention_heads", 32),
                ],
                rope_theta: 6e6,
                ..DEFAULTS
            },
            experts: 512,
            moe_intermediate_size: 768,
            dense: 2,
            latent: LatentWidths { query_rank: None, ..v3.latent },
            ..v3
        },
        "sarvam_mla" => sarvam::latent(v3),
        "sarvam_moe" => sarvam::plain(v3),
        "param2moe" => sarvam::param(v3),
        MINICPM3 => minicpm::absent3(v3),
        MINICPM5 => minicpm::absent5(v3),
        HY_V4_PART => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 120_832),
                    ("hidden_size", 6144),
                    ("intermediate_size", 18_432),
                    ("num_hidden_layers", 78),
                    ("num_attention_heads", 64),
                ],
                max_position_embeddings: 262_144,
                rms_norm_eps: 1e-5,
                ..DEFAULTS
            },
            moe_intermediate_size: 2048,
            latent: LatentWidths { query_rank: Some(2048), plain: 192, value: 256, ..v3.latent },
            ..of("hy_v4")
        },
        "hy_v4" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 120_832),
                    ("hidden_size", 2816),
                    ("intermediate_size", 6912),
                    ("num_hidden_layers", 34),
                    ("num_attention_heads", 32),
                ],
                max_position_embeddings: 262_144,
                rms_norm_eps: 1e-5,
                ..DEFAULTS
            },
            moe_intermediate_size: 768,
            dense: 1,
            scale: 2.827,
            groups: (1, 1),
            latent: LatentWidths { plain: 192, value: 256, ..v3.latent },
            ..v3
        },
        "hy_v3" => Absent {
            sizes: RmsDefaults {
                sizes: &[
                    ("vocab_size", 120_832),
                    ("hidden_size", 4096),
                    ("intermediate_size", 13_312),
                    ("num_hidden_layers", 80),
                    ("num_attention_heads", 64),
                ],
                key_value_heads: Some(8),
                head_dim: Some(128),
                max_position_embeddings: 131_072,
                rms_norm_eps: 1e-5,
                rope_theta: 11_158_840.0,
                ..DEFAULTS
            },
            experts: 192,
            moe_intermediate_size: 1536,
            dense: 1,
            scale: 2.826,
            groups: (1, 1),
            ..v3
        },
        _ => v3,
    }
}
