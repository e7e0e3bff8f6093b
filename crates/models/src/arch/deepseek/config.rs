//! `config.json` of DeepSeek and of the models with its experts.

use super::super::exaone4;
use super::super::expert_fields::{
    dense_layers, expert_groups, listed_layers, share_scale, shared_width,
};
use super::super::llama::first_window;
use super::super::rms_config::{
    BlockNorms, ExpertsConfig, QueryKeyNorms, RmsConfig, RmsDefaults, field_of,
};
use super::super::{
    afmoe, cohere2_moe, flint, gemma, kolibri1, laguna, lara_mini, mimo_v2, minimax_m3, mistral3,
    step3p7,
};
use super::absent::{Absent, LatentWidths};
use super::axk2::{self, AXK2_NAMES};
use super::defaults::{self, GLM_V};
use super::dots3::{self, DOTS3, DOTS3_TEXT};
use super::hunyuan::{HY_NAMES, HY_V4_NAMES, HY_V4_PART, is_hy_v4};
use super::known_fields::{DOTS3_OF_PARTS, GLM_V_TEXT, KIMI_TEXT, LARGE_TEXT, MISTRAL4_TEXT};
use super::minicpm::{self, MINICPM3, MINICPM5, MINICPM5_NAMES};
use super::mistral::{LARGE, LARGE_NAMES, with_large_layers};
use super::sarvam::{self, SARVAM_NAMES};
use super::{indexer, linear};
use crate::Error;
use crate::config::{
    DEFAULT_WINDOW, Fields, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HIDDEN, MAX_INTERMEDIATE, RopeConfig,
    RopeContext, RopeScaling, check, layer_windows, rope_object, sliding_window, yarn_stretch,
};
use crate::layers::{KeyValueSource, LatentAttentionConfig, LatentGate, Routing, Shares};

/// Reads the configuration of a model of that type.
pub(in super::super) fn read(
    model_type: &'static str,
    fields: &Fields<'_>,
) -> Result<RmsConfig, Error> {
    if let "mistral3" | "mistral_large4" | "kimi_k25" | "glm4v_moe" | "glm46v" = model_type {
        return read_text_part(model_type, fields);
    }
    match model_type {
        DOTS3 if fields.get("text_config").is_some() => return read_text_part(model_type, fields),
        // As it is published.
        DOTS3 => return read(DOTS3_TEXT, fields),
        "afmoe" => return afmoe::read(fields),
        "laguna" => return laguna::read(fields),
        "kolibri1" => return kolibri1::read(fields),
        "flint" => return flint::read(fields),
        "lara_mini" => return lara_mini::read(fields),
        "mimo_v2_flash" => return mimo_v2::read(fields),
        "step3p5" => return step3p7::read_text(fields),
        "step3p7" => return step3p7::read(fields),
        "minimax_m3_vl" => return minimax_m3::read(fields),
        "cohere2_moe" => return cohere2_moe::read(fields),
        _ => {}
    }
    let absent = defaults::of(model_type);
    let config = match model_type {
        "dots1" => with_attention_of_dots1(fields, &absent.sizes)?,
        "glm4_moe" => with_attention(fields, &absent.sizes, 0.5, false)?,
        GLM_V => RmsConfig {
            attention_in_bias: fields.flag_or("attention_bias", true)?,
            ..with_attention(fields, &absent.sizes, 0.5, false)?
        },
        "sarvam_moe" | "param2moe" => {
            sarvam::joined(fields, with_attention(fields, &absent.sizes, 1.0, true)?)?
        }
        MINICPM5 => minicpm::with_attention(fields, &absent.sizes)?,
        "exaone_moe" => {
            if fields.flag_or("attention_bias", false)? {
                let expected = "only false is supported".to_owned();
                return Err(fields.refuse("attention_bias", expected));
            }
            exaone4::with_attention(fields, &absent.sizes)?
        }
        "solar_open" => with_attention_of_solar(fields, &absent.sizes)?,
        "hy_v3" => with_attention_of_hy(fields, &absent.sizes)?,
        _ => with_latent_attention(model_type, fields, &absent)?,
    };
    match model_type {
        "dots1" => {
            for field in ["n_routed_experts", "n_shared_experts"] {
                fields.size(field, MAX_EXPERTS)?;
            }
        }
        // Of several kinds, which are read elsewhere.
        "exaone_moe" | "kimi_linear" | "bailing_hybrid" | DOTS3_TEXT => {}
        _ if config.latent_attention.is_some_and(|latent| latent.indexer.is_some()) => {
            indexer::check_layer_types(fields, config.num_hidden_layers)?;
        }
        _ => {
            // All layers see everything, whatever else a file may ask for.
            layer_windows(fields, None, config.windows.clone())?;
        }
    }
    if absent.per_token.is_none() && fields.get("num_experts_per_tok").is_none() {
        return Err(fields.missing("num_experts_per_tok"));
    }
    let names = ["n_routed_experts", "num_experts", "num_local_experts"];
    let defaults = (absent.experts, absent.per_token.unwrap_or(1));
    let is_hy = model_type == "hy_v3";
    let normalized = field_of(fields, ["norm_topk_prob", "moe_renormalize"])?;
    let normalized = fields.flag_or(normalized, absent.normalized)?;
    if is_hy && !normalized {
        return Err(fields.refuse("norm_topk_prob", "only true is supported".to_owned()));
    }
    let mut config = config.with_experts(fields, names, defaults, normalized)?;
    let layers = config.num_hidden_layers;
    let dense = dense_layers(fields, "first_k_dense_replace", absent.dense)?;
    config.sparse_layers = match fields.get("mlp_layer_types") {
        Some(kinds) => listed_layers(fields, kinds, layers)?,
        None if model_type == DOTS3_TEXT => dots3::sparse_layers(fields, layers, dense)?,
        None => (0..layers).map(|layer| layer >= dense).collect(),
    };
    let inner =
        fields.size_or("moe_intermediate_size", absent.moe_intermediate_size, MAX_INTERMEDIATE)?;
    let field = match model_type {
        "exaone_moe" | "hy_v3" | "sarvam_mla" | "sarvam_moe" | "param2moe" | "kimi_linear"
        | "bailing_hybrid" => field_of(fields, ["num_shared_experts", "n_shared_experts"])?,
        _ => "n_shared_experts",
    };
    let of_shared = match model_type {
        DOTS3_TEXT => {
            let names = ["moe_shared_expert_intermediate_size", "shared_experts_intermediate_size"];
            fields.size_or(field_of(fields, names)?, 1536, MAX_INTERMEDIATE)?
        }
        _ => inner,
    };
    let shared = shared_width(fields, field, absent.shared, of_shared)?;
    let field = match is_hy {
        true => field_of(fields, ["router_scaling_factor", "routed_scaling_factor"])?,
        false => "routed_scaling_factor",
    };
    let scale = share_scale(fields, field, absent.scale)?;
    if model_type == "axk1" {
        config.norms = BlockNorms::BeforeAndBehindExperts;
    }
    if let Some(experts) = &mut config.experts {
        let is_v2 = model_type == "deepseek_v2";
        let is_softmax = is_v2 || ["mistral4", LARGE].contains(&model_type);
        *experts = ExpertsConfig {
            intermediate_size: inner,
            shared_intermediate_size: shared,
            renamed: match model_type {
                "hy_v3" => HY_NAMES,
                "hy_v4" | HY_V4_PART => HY_V4_NAMES,
                "sarvam_moe" | "param2moe" => SARVAM_NAMES,
                LARGE => LARGE_NAMES,
                MINICPM5 => MINICPM5_NAMES,
                "axk2" => AXK2_NAMES,
                "kimi_linear" => linear::KIMI_NAMES,
                "bailing_hybrid" => linear::LING_NAMES,
                _ => &[],
            },
            routing: Routing {
                shares: if is_softmax { Shares::Softmax } else { Shares::Sigmoid },
                scale,
                groups: expert_groups(fields, is_v2, experts, absent.groups)?,
                ..experts.routing
            },
            ..*experts
        };
    }
    if model_type == "axk2" { axk2::with_gates(fields, config) } else { Ok(config) }
}

/// Attention as Llama's, of whose heads a part is rotated: so much, and with norms or not, if the
/// file says nothing else.
fn with_attention(
    fields: &Fields<'_>,
    absent: &RmsDefaults<'_>,
    part: f64,
    normed: bool,
) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?;
    let names = ["rope_theta", "partial_rotary_factor"];
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(fields), names, part)?;
    let normed = fields.flag_or("use_qk_norm", normed)?;
    Ok(RmsConfig {
        rope,
        rotary_dim,
        attention_in_bias: fields.flag_or("attention_bias", false)?,
        query_key_norms: normed.then_some(QueryKeyNorms::EachHead),
        ..config
    })
}

/// Attention as Llama's.
fn with_attention_of_solar(
    fields: &Fields<'_>,
    absent: &RmsDefaults<'_>,
) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?.with_rope(fields)?;
    let attention_in_bias = fields.flag_or("attention_bias", false)?;
    Ok(RmsConfig { attention_in_bias, ..config })
}

/// Attention as Qwen3's.
fn with_attention_of_dots1(
    fields: &Fields<'_>,
    absent: &RmsDefaults<'_>,
) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?.with_attention_bias(fields)?.with_rope(fields)?;
    let window = sliding_window(fields, DEFAULT_WINDOW)?;
    let first = first_window(fields, 62)?;
    let by_rule = (0..config.num_hidden_layers).map(|layer| window.filter(|_| layer >= first));
    Ok(RmsConfig {
        query_key_norms: Some(QueryKeyNorms::EachHead),
        windows: layer_windows(fields, window, by_rule.collect())?,
        ..config
    })
}

/// Attention as Qwen3's, with the norms of Hunyuan 3.
fn with_attention_of_hy(fields: &Fields<'_>, absent: &RmsDefaults<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?.with_attention_bias(fields)?.with_rope(fields)?;
    Ok(RmsConfig { query_key_norms: Some(QueryKeyNorms::EachHead), ..config })
}

/// The text part of a model that sees images too.
fn read_text_part(model_type: &str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    let (text_type, tables) = match model_type {
        "mistral3" => ("mistral4", MISTRAL4_TEXT),
        "mistral_large4" => (LARGE, LARGE_TEXT),
        "kimi_k25" => ("kimi_k2", KIMI_TEXT),
        DOTS3 => (DOTS3_TEXT, DOTS3_OF_PARTS),
        _ => (GLM_V, GLM_V_TEXT),
    };
    check(&text, tables)?;
    let config = read(text_type, &text)?;
    // That of the whole model counts, in Mistral Large 4 and dots3 where it says nothing too; where
    // both are looked at, either.
    let tied = ![LARGE, DOTS3_TEXT].contains(&text_type) && config.tie_word_embeddings;
    let tied = fields.flag_or("tie_word_embeddings", tied)?
        || (text_type == GLM_V && config.tie_word_embeddings);
    Ok(RmsConfig { tie_word_embeddings: tied, ..config })
}

/// A model of layers of Llama with this attention: Youtu-LLM. Tencent 2025
/// (<https://huggingface.co/tencent/Youtu-LLM-2B>).
pub(in super::super) fn read_youtu(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = with_latent_attention("youtu", fields, &defaults::of("youtu"))?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    Ok(config)
}

/// The same with scaled blocks: MiniCPM3.
pub(in super::super) fn read_minicpm3(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = with_latent_attention(MINICPM3, fields, &defaults::of(MINICPM3))?;
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, config.windows.clone())?;
    minicpm::scaled(fields, config)
}

/// Attention over a compressed cache.
fn with_latent_attention(
    model_type: &str,
    fields: &Fields<'_>,
    absent: &Absent,
) -> Result<RmsConfig, Error> {
    let LatentWidths { query_rank, rank, plain, rotated, value } = absent.latent;
    let width = |field, absent| fields.size_or(field, absent, MAX_HEAD_DIM);
    let rotated = width("qk_rope_head_dim", rotated)?;
    if rotated % 2 != 0 {
        return Err(fields.refuse("qk_rope_head_dim", "it must be even".to_owned()));
    }
    let plain = width("qk_nope_head_dim", plain)?;
    let is_mistral = model_type == "mistral4";
    // What transformers calls the width of a head there.
    let (head, parts) = match is_mistral {
        true => (plain + rotated, "qk_nope_head_dim and qk_rope_head_dim together"),
        false => (rotated, "qk_rope_head_dim"),
    };
    let config = RmsConfig::read(fields, &RmsDefaults { head_dim: Some(head), ..absent.sizes })?;
    let is_hy = is_hy_v4(model_type);
    if config.num_key_value_heads != config.num_attention_heads && !is_hy {
        let expected = "all heads have keys of their own".to_owned();
        return Err(fields.refuse("num_key_value_heads", expected));
    }
    // Of Sarvam it was published as something else, which does not count; nor does that of
    // MiniCPM3, nor either of Hunyuan 4. That of others may be of linear attention.
    let is_other = ["sarvam_mla", MINICPM3, "kimi_linear", "bailing_hybrid", DOTS3_TEXT];
    let is_other = is_other.contains(&model_type);
    if config.head_dim != head && !is_other && !is_hy {
        return Err(fields.refuse("head_dim", format!("it must be {parts}, {head}")));
    }
    let config = RmsConfig { head_dim: rotated, rotary_dim: rotated, ..config };
    let is_large = model_type == LARGE;
    let config = match model_type {
        "mistral4" => with_growth(fields, config, head)?,
        LARGE => with_large_layers(fields, config)?,
        // Each kind of layers has its own.
        DOTS3_TEXT => config,
        _ => config.with_rope(fields)?,
    };
    let field = "q_lora_rank";
    let query_rank = match fields.get(field) {
        Some(_) => Some(fields.size(field, MAX_HIDDEN)?),
        // Absent and null are not the same here.
        None => query_rank.filter(|_| !fields.has(field)),
    };
    let indexer = match model_type {
        "deepseek_v32" | "glm_moe_dsa" | "hy_v4" | HY_V4_PART | "axk2" | LARGE | DOTS3_TEXT => {
            Some(indexer::read(model_type, fields, rotated, config.rms_norm_eps)?)
        }
        _ => None,
    };
    if query_rank.is_none() && !is_large && (indexer.is_some() || model_type == "axk1") {
        return Err(fields.refuse(field, format!("a {model_type} needs one")));
    }
    let scale = ((plain + rotated) as f64).powf(-0.5) * softmax_stretch(fields, &config.rope)?;
    let latent = LatentAttentionConfig {
        query_rank,
        rank: fields.size_or("kv_lora_rank", rank, MAX_HIDDEN)?,
        plain,
        rotated,
        value: width("v_head_dim", value)?,
        apart: fields.flag_or("kv_b_apart", false)?,
        scale,
        epsilon: match is_large || [HY_V4_PART, DOTS3_TEXT].contains(&model_type) {
            true => config.rms_norm_eps,
            false => 1e-6,
        },
        latent_scale: None,
        norms_rotated: false,
        has_sinks: is_hy,
        gate: match model_type {
            _ if is_hy => LatentGate::Values,
            "axk2" => LatentGate::WithQueries,
            _ => LatentGate::None,
        },
        scales_queries: is_large,
        source: KeyValueSource::OWN,
        indexer,
    };
    let config = match model_type {
        DOTS3_TEXT => dots3::with_layers(fields, config, latent)?,
        _ => RmsConfig { latent_attention: Some(latent), ..config },
    };
    Ok(RmsConfig {
        logit_softcap: match is_large {
            true => gemma::softcap(fields, "final_logit_softcapping", 30.0)?,
            false => None,
        },
        choices: indexer::choices(model_type, fields, config.num_hidden_layers)?,
        rope_interleaved: model_type == "deepseek_v2"
            || fields.flag_or("rope_interleave", !["hy_v4", MINICPM3].contains(&model_type))?,
        ..config.with_attention_bias(fields)?
    })
}

/// The rotary embedding of Mistral 4, whose queries grow with their position; of a head of `head`
/// elements a part is rotated.
fn with_growth(fields: &Fields<'_>, config: RmsConfig, head: usize) -> Result<RmsConfig, Error> {
    let Some(object) = rope_object(fields)? else {
        return Err(fields.missing("rope_parameters"));
    };
    let field = "partial_rotary_factor";
    let share = object.number_or(field, config.rotary_dim as f64 / head as f64)?;
    if (head as f64 * share).round() != config.rotary_dim as f64 {
        let expected = format!("of {head} elements {} must be rotated", config.rotary_dim);
        return Err(object.refuse(field, expected));
    }
    let around = RopeContext { head_dim: config.rotary_dim, ..config.rope_context(fields) };
    let (rope, growth) = mistral3::growing_rope(&object, &around)?;
    Ok(RmsConfig { rope, query_growth: Some(growth), ..config })
}

/// What scores are multiplied by for a context that is stretched.
pub(in super::super) fn softmax_stretch(
    fields: &Fields<'_>,
    rope: &RopeConfig,
) -> Result<f64, Error> {
    let Some(object) = rope_object(fields)? else {
        return Ok(1.0);
    };
    let field = "mscale_all_dim";
    let weight = object.number_or(field, 0.0)?;
    match &rope.scaling {
        _ if weight == 0.0 => Ok(1.0),
        RopeScaling::Default => Ok(1.0),
        RopeScaling::Yarn { factor, .. } => Ok(yarn_stretch(*factor, weight).powi(2)),
        _ => {
            let expected = "it is supported with the type \"yarn\" alone".to_owned();
            Err(object.refuse(field, expected))
        }
    }
}
