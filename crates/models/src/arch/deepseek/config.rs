//! `config.json` of DeepSeek and of the models with its experts.

use serde_json::Value;

use super::super::exaone4;
use super::super::expert_fields::EXPERTS;
use super::super::llama::first_window;
use super::super::rms_config::{
    DEFAULTS, ExpertsConfig, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults, field_of,
};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    DEFAULT_WINDOW, Fields, KnownField, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HIDDEN, MAX_INTERMEDIATE,
    MAX_LAYERS, RopeConfig, RopeScaling, layer_windows, rope_object, sliding_window, yarn_stretch,
};
use crate::layers::{ExpertGroups, LatentAttentionConfig, Routing, Shares};

/// What `transformers` takes where a field is absent.
struct Absent {
    sizes: RmsDefaults<'static>,
    experts: usize,
    per_token: Option<usize>,
    shared: usize,
    moe_intermediate_size: usize,
    /// Layers without experts, the first ones.
    dense: usize,
    scale: f64,
    normalized: bool,
    groups: (usize, usize),
}

impl Absent {
    fn of(model_type: &str) -> Self {
        let v3 = Self {
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
        };
        match model_type {
            "deepseek_v2" => Self {
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
            "dots1" => Self {
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
            "glm4_moe" => Self {
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
            "exaone_moe" => Self {
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
            "solar_open" => Self {
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
            "glm4_moe_lite" => Self {
                sizes: RmsDefaults {
                    max_position_embeddings: 202_752,
                    rms_norm_eps: 1e-5,
                    ..DEFAULTS
                },
                experts: 64,
                per_token: Some(4),
                moe_intermediate_size: 1536,
                dense: 1,
                scale: 1.8,
                groups: (1, 1),
                ..v3
            },
            _ => v3,
        }
    }
}

/// The fields of that type.
pub(super) fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
    match model_type {
        "deepseek_v2" => &[V2, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS],
        "dots1" => &[DOTS1, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS],
        "glm4_moe" => &[GLM, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS],
        "exaone_moe" => &[EXAONE, exaone4::WINDOWS, V3, DENSE_FIRST, SHARED, EXPERTS, FIELDS],
        "solar_open" => &[SOLAR, V3, SHARED, EXPERTS, FIELDS],
        "glm4_moe_lite" => &[GLM_LITE, V3, LATENT, SHARED, EXPERTS, FIELDS],
        _ => &[V3, ROPE, DENSE_FIRST, LATENT, SHARED, EXPERTS, FIELDS],
    }
}

/// Reads the configuration of a model of that type.
pub(super) fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let absent = Absent::of(model_type);
    let config = match model_type {
        "dots1" => with_attention_of_dots1(fields, &absent.sizes)?,
        "glm4_moe" => with_attention(fields, &absent.sizes)?,
        "exaone_moe" => {
            if fields.flag_or("attention_bias", false)? {
                let expected = "only false is supported".to_owned();
                return Err(fields.refuse("attention_bias", expected));
            }
            exaone4::with_attention(fields, &absent.sizes)?
        }
        "solar_open" => with_attention_of_solar(fields, &absent.sizes)?,
        _ => with_latent_attention(model_type, fields, &absent.sizes)?,
    };
    if model_type == "dots1" {
        for field in ["n_routed_experts", "n_shared_experts"] {
            fields.size(field, MAX_EXPERTS)?;
        }
    } else if model_type != "exaone_moe" {
        // All layers see everything, whatever else a file may ask for.
        layer_windows(fields, None, config.windows.clone())?;
    }
    if absent.per_token.is_none() && fields.get("num_experts_per_tok").is_none() {
        return Err(fields.missing("num_experts_per_tok"));
    }
    let names = ["n_routed_experts", "num_experts", "num_local_experts"];
    let defaults = (absent.experts, absent.per_token.unwrap_or(1));
    let normalized = fields.flag_or("norm_topk_prob", absent.normalized)?;
    let mut config = config.with_experts(fields, names, defaults, normalized)?;
    let layers = config.num_hidden_layers;
    let dense = dense_layers(fields, absent.dense)?;
    config.sparse_layers = match fields.get("mlp_layer_types") {
        Some(kinds) if matches!(model_type, "glm4_moe_lite" | "exaone_moe") => {
            listed_layers(fields, kinds, layers)?
        }
        _ => (0..layers).map(|layer| layer >= dense).collect(),
    };
    let inner =
        fields.size_or("moe_intermediate_size", absent.moe_intermediate_size, MAX_INTERMEDIATE)?;
    let field = match model_type {
        "exaone_moe" => field_of(fields, ["num_shared_experts", "n_shared_experts"])?,
        _ => "n_shared_experts",
    };
    let shared = shared_width(fields, field, absent.shared, inner)?;
    let scale = fields.number_or("routed_scaling_factor", absent.scale)?;
    if !(0.0..=MAX_SCALE).contains(&scale) {
        let expected = format!("it must be from 0 to {MAX_SCALE}");
        return Err(fields.refuse("routed_scaling_factor", expected));
    }
    if let Some(experts) = &mut config.experts {
        let is_v2 = model_type == "deepseek_v2";
        *experts = ExpertsConfig {
            intermediate_size: inner,
            shared_intermediate_size: shared,
            routing: Routing {
                shares: if is_v2 { Shares::Softmax } else { Shares::Sigmoid },
                scale,
                groups: groups(fields, is_v2, experts, absent.groups)?,
                ..experts.routing
            },
            ..*experts
        };
    }
    Ok(config)
}

/// The most that shares are multiplied by.
const MAX_SCALE: f64 = 1e6;

/// Width of the shared experts together, unless null says that there are none.
fn shared_width(
    fields: &Fields<'_>,
    field: &str,
    absent: usize,
    inner: usize,
) -> Result<Option<usize>, Error> {
    if fields.has(field) && fields.get(field).is_none() {
        return Ok(None);
    }
    let width = fields.size_or(field, absent, MAX_EXPERTS)?.saturating_mul(inner);
    match width <= MAX_INTERMEDIATE {
        true => Ok(Some(width)),
        false => {
            let expected = format!("together they may be {MAX_INTERMEDIATE} wide");
            Err(fields.refuse(field, expected))
        }
    }
}

/// How many layers, the first ones, have no experts.
fn dense_layers(fields: &Fields<'_>, absent: usize) -> Result<usize, Error> {
    let field = "first_k_dense_replace";
    match fields.get(field) {
        Some(value) if value.as_u64() == Some(0) => Ok(0),
        _ => fields.size_or(field, absent, MAX_LAYERS),
    }
}

/// Which layers have experts, of a list of all.
fn listed_layers(fields: &Fields<'_>, kinds: &Value, layers: usize) -> Result<Vec<bool>, Error> {
    let is_sparse = |kind: &Value| match kind.as_str() {
        Some("sparse") => Some(true),
        Some("dense") => Some(false),
        _ => None,
    };
    let kinds = kinds.as_array().and_then(|kinds| kinds.iter().map(is_sparse).collect());
    kinds.filter(|kinds: &Vec<_>| kinds.len() == layers).ok_or_else(|| {
        let expected = format!("it must be a list of {layers} of \"dense\" and \"sparse\"");
        fields.refuse("mlp_layer_types", expected)
    })
}

/// The groups that experts are chosen by, unless one group is all.
pub(in crate::arch) fn groups(
    fields: &Fields<'_>,
    is_v2: bool,
    experts: &ExpertsConfig,
    absent: (usize, usize),
) -> Result<Option<ExpertGroups>, Error> {
    let (count, per_token) = match (is_v2, fields.text("topk_method")?) {
        (true, None | Some("greedy")) => return Ok(None),
        (true, Some("group_limited_greedy")) => {
            (fields.size("n_group", MAX_EXPERTS)?, fields.size("topk_group", MAX_EXPERTS)?)
        }
        (false, None | Some("noaux_tc")) => (
            fields.size_or("n_group", absent.0, MAX_EXPERTS)?,
            fields.size_or("topk_group", absent.1, MAX_EXPERTS)?,
        ),
        (true, _) => {
            let expected = "only \"greedy\" and \"group_limited_greedy\" are supported".to_owned();
            return Err(fields.refuse("topk_method", expected));
        }
        (false, _) => {
            let expected = "only \"noaux_tc\" is supported".to_owned();
            return Err(fields.refuse("topk_method", expected));
        }
    };
    // What a group is worth: its best expert, or the best two together.
    let best = if is_v2 { 1 } else { 2 };
    let size = experts.count / count;
    if !experts.count.is_multiple_of(count) || (size < best && per_token < count) {
        let expected = format!(
            "the {} experts must be in groups of equally many, {best} at least",
            experts.count
        );
        return Err(fields.refuse("n_group", expected));
    }
    if per_token > count || per_token * size < experts.routing.per_token {
        let expected = format!(
            "of {count} groups of {size} experts it must be enough for {} experts",
            experts.routing.per_token
        );
        return Err(fields.refuse("topk_group", expected));
    }
    let groups = ExpertGroups { count, per_token, best };
    Ok((per_token < count).then_some(groups))
}

/// Attention as Llama's, of whose heads a part is rotated.
fn with_attention(fields: &Fields<'_>, absent: &RmsDefaults<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, absent)?;
    let names = ["rope_theta", "partial_rotary_factor"];
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(fields), names, 0.5)?;
    let normed = fields.flag_or("use_qk_norm", false)?;
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

/// Attention over a compressed cache.
fn with_latent_attention(
    model_type: &str,
    fields: &Fields<'_>,
    absent: &RmsDefaults<'_>,
) -> Result<RmsConfig, Error> {
    let is_lite = model_type == "glm4_moe_lite";
    let width = |field, absent| fields.size_or(field, absent, MAX_HEAD_DIM);
    let rotated = width("qk_rope_head_dim", 64)?;
    if rotated % 2 != 0 {
        return Err(fields.refuse("qk_rope_head_dim", "it must be even".to_owned()));
    }
    let plain = width("qk_nope_head_dim", if is_lite { 192 } else { 128 })?;
    let config = RmsConfig::read(fields, &RmsDefaults { head_dim: Some(rotated), ..*absent })?;
    if config.num_key_value_heads != config.num_attention_heads {
        let expected = "all heads have keys of their own".to_owned();
        return Err(fields.refuse("num_key_value_heads", expected));
    }
    if config.head_dim != rotated {
        let expected = format!("it must be qk_rope_head_dim, {rotated}");
        return Err(fields.refuse("head_dim", expected));
    }
    let config = config.with_rope(fields)?;
    let field = "q_lora_rank";
    let query_rank = match fields.has(field) && fields.get(field).is_none() {
        true => None,
        false => Some(fields.size_or(field, if is_lite { 768 } else { 1536 }, MAX_HIDDEN)?),
    };
    let scale = ((plain + rotated) as f64).powf(-0.5) * softmax_stretch(fields, &config.rope)?;
    let latent = LatentAttentionConfig {
        query_rank,
        rank: fields.size_or("kv_lora_rank", 512, MAX_HIDDEN)?,
        plain,
        rotated,
        value: width("v_head_dim", if is_lite { 256 } else { 128 })?,
        apart: fields.flag_or("kv_b_apart", false)?,
        scale,
    };
    Ok(RmsConfig {
        latent_attention: Some(latent),
        rope_interleaved: model_type == "deepseek_v2" || fields.flag_or("rope_interleave", true)?,
        ..config.with_attention_bias(fields)?
    })
}

/// What scores are multiplied by for a context that is stretched.
fn softmax_stretch(fields: &Fields<'_>, rope: &RopeConfig) -> Result<f64, Error> {
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

/// Of shared experts, and of groups.
const SHARED: &[KnownField] = &[
    ("attention_bias", Read),
    ("moe_intermediate_size", Read),
    ("moe_layer_freq", Effect::ONE),
    ("n_group", Read),
    ("n_routed_experts", Read),
    ("n_shared_experts", Read),
    ("norm_topk_prob", Read),
    ("routed_scaling_factor", Read),
    ("topk_group", Read),
    ("topk_method", Read),
    // Of training, of more machines, or of layers that guess more tokens.
    ("auto_map", Harmless),
    ("aux_loss_alpha", Harmless),
    ("ep_size", Harmless),
    ("num_mtp_layers", Harmless),
    ("num_nextn_predict_layers", Harmless),
    ("seq_aux", Harmless),
];

/// Of attention over a compressed cache.
const LATENT: &[KnownField] = &[
    // As GGUF files have it.
    ("kv_b_apart", Read),
    ("kv_lora_rank", Read),
    ("q_lora_rank", Read),
    // Both parts together.
    ("qk_head_dim", Harmless),
    ("qk_nope_head_dim", Read),
    ("qk_rope_head_dim", Read),
    ("v_head_dim", Read),
];

const DENSE_FIRST: &[KnownField] = &[("first_k_dense_replace", Read)];

const ROPE: &[KnownField] = &[("rope_interleave", Read)];

const V2: &[KnownField] =
    &[("norm_topk_prob", Effect::OFF), ("scoring_func", Only(&["\"softmax\""]))];

const V3: &[KnownField] = &[("scoring_func", Only(&["\"sigmoid\""]))];

const DOTS1: &[KnownField] = &[
    ("max_window_layers", Read),
    ("sliding_window", Read),
    // Of the first versions; the window alone counts.
    ("use_sliding_window", Harmless),
];

const GLM: &[KnownField] = &[("partial_rotary_factor", Read), ("use_qk_norm", Read)];

const EXAONE: &[KnownField] = &[("mlp_layer_types", Read), ("num_shared_experts", Read)];

/// All layers have experts, whatever it says.
const SOLAR: &[KnownField] = &[("first_k_dense_replace", Harmless)];

const GLM_LITE: &[KnownField] =
    &[("first_k_dense_replace", Effect::ONE), ("mlp_layer_types", Read), ("rope_interleave", Read)];
