//! Step 3.5 Flash, and the text part of Step 3.7 Flash: experts as DeepSeek's, gated attention
//! whose layers with a sliding window have other heads, and MLPs that clamp what they multiply in
//! the last layers. StepFun 2026 (<https://huggingface.co/stepfun-ai/Step-3.7-Flash>).

use serde_json::Value;

use super::expert_fields::{EXPERTS, layers_named, listed_layers, share_scale};
use super::gemma3::{NESTED, TEXT_PART};
use super::rms_config::{
    DEFAULTS, ExpertLayout, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults, field_of,
};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    COMMON, Fields, KnownField, MAX_EXPERTS, MAX_HEADS, MAX_INTERMEDIATE, MAX_LAYERS,
    MAX_POSITIONS, RopeConfig, check, theta,
};
use crate::layers::{AttentionGate, GateFunction, GateProjection, MlpClamp, Shares};

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 128_815),
        ("hidden_size", 4096),
        ("intermediate_size", 11_264),
        ("num_hidden_layers", 45),
        ("num_attention_heads", 64),
    ],
    head_dim: Some(128),
    max_position_embeddings: 128_000,
    rms_norm_eps: 1e-5,
    ..DEFAULTS
};

/// Reads the text part.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[STEP, TEXT_PART, EXPERTS, FIELDS, COMMON])?;
    let config = read_text(&text)?;
    // That of the whole model counts.
    let tied = fields.flag_or("tie_word_embeddings", config.tie_word_embeddings)?;
    Ok(RmsConfig { tie_word_embeddings: tied, ..config })
}

/// Reads that of a model that sees no images.
pub(super) fn read_text(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let field = field_of(fields, ["num_key_value_heads", "num_attention_groups"])?;
    let shared = fields.size_or(field, 8, MAX_HEADS)?;
    let absent = RmsDefaults { key_value_heads: Some(shared), ..ABSENT };
    let config = RmsConfig::read(fields, &absent)?.with_attention_bias(fields)?;
    let layers = config.num_hidden_layers;
    let names = ["n_routed_experts", "moe_num_experts", "num_local_experts", "num_experts"];
    let field = field_of(fields, names)?;
    let count = (field, fields.size_or(field, 288, MAX_EXPERTS)?);
    let field = field_of(fields, ["num_experts_per_tok", "moe_top_k"])?;
    let per_token = (field, fields.size_or(field, 8, MAX_EXPERTS)?);
    let mut config = config.with_experts_of(fields, count, per_token, true)?;
    if let Some(experts) = &mut config.experts {
        let size = |field| fields.size_or(field, 1280, MAX_INTERMEDIATE);
        let shared = size(field_of(fields, ["share_expert_dim", "share_expert_dims"])?)?;
        experts.intermediate_size = size("moe_intermediate_size")?;
        experts.shared_intermediate_size = Some(shared);
        experts.routing.shares = Shares::Sigmoid;
        experts.routing.scale = share_scale(fields, "moe_router_scaling_factor", 1.0)?;
        experts.renamed = RENAMED;
        experts.layout = ExpertLayout::StacksApart;
    }
    let slides = sliding_layers(fields, layers)?;
    let window = match slides.contains(&true) {
        true => Some(fields.size("sliding_window", MAX_POSITIONS)?),
        false => None,
    };
    let clamps = |field| clamps(fields, field, layers);
    let (experts, others) = (clamps("swiglu_limits")?, clamps("swiglu_limits_shared")?);
    let (rope, rotary_dim) = rope_of(fields, &config, &slides, false)?;
    let local = slides.contains(&true).then(|| rope_of(fields, &config, &slides, true));
    let (local, local_dim) = local.transpose()?.unzip();
    Ok(RmsConfig {
        norm_plus_one: fields.flag_or("rms_norm_add_unit_offset", true)?,
        query_key_norms: Some(QueryKeyNorms::EachHead),
        query_pre_attn_scalar: match fields.get("query_pre_attn_scalar") {
            Some(_) => Some(fields.number_within("query_pre_attn_scalar", 1e-6, 1e6)?),
            None => None,
        },
        attention_gate: Some(AttentionGate {
            projection: GateProjection::G,
            function: GateFunction::Sigmoid,
            of_heads: true,
        }),
        layer_heads: Some(layer_heads(fields, &config, &slides)?),
        mlp_clamps: experts.into_iter().zip(others).map(<[_; 2]>::from).collect(),
        sparse_layers: sparse_layers(fields, layers)?,
        windows: slides.iter().map(|slides| window.filter(|_| *slides)).collect(),
        rope,
        rotary_dim,
        local_rope: local,
        local_rotary_dim: local_dim,
        ..config
    })
}

/// What a list has for each layer, but for those behind the last one, which guess more tokens.
fn of_layers<'a>(
    fields: &Fields<'a>,
    field: &str,
    layers: usize,
) -> Result<Option<&'a [Value]>, Error> {
    let Some(value) = fields.get(field) else {
        return Ok(None);
    };
    let more = match fields.get("num_nextn_predict_layers") {
        Some(count) if count.as_u64() == Some(0) => 0,
        _ => fields.size_or("num_nextn_predict_layers", 0, MAX_LAYERS)?,
    };
    let list = value.as_array().filter(|all| all.len() == layers || all.len() == layers + more);
    let expected = || format!("it must be a list of {layers}, one for each layer");
    list.map(|all| Some(&all[..layers])).ok_or_else(|| fields.refuse(field, expected()))
}

/// Which layers have a sliding window.
fn sliding_layers(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let Some(kinds) = of_layers(fields, "layer_types", layers)? else {
        return Ok(vec![false; layers]);
    };
    let slides = |kind: &Value| match kind.as_str() {
        Some("sliding_attention") => Some(true),
        Some("full_attention") => Some(false),
        _ => None,
    };
    kinds.iter().map(slides).collect::<Option<_>>().ok_or_else(|| {
        let expected = "only \"full_attention\" and \"sliding_attention\" are supported";
        fields.refuse("layer_types", expected.to_owned())
    })
}

/// Which layers have experts.
fn sparse_layers(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    if let Some(kinds) = of_layers(fields, "mlp_layer_types", layers)? {
        return listed_layers(fields, &Value::Array(kinds.to_vec()), layers);
    }
    let field = "moe_layers_enum";
    let named = match fields.get(field) {
        None => (3..layers as u64).collect(),
        Some(Value::String(numbers)) => {
            let numbers = numbers.split(',').map(str::trim).filter(|number| !number.is_empty());
            numbers.map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>().ok_or_else(
                || fields.refuse(field, "it must have layers' numbers and commas".to_owned()),
            )?
        }
        Some(_) => layers_named(fields, field)?.unwrap_or_default(),
    };
    Ok((0..layers).map(|layer| named.contains(&(layer as u64))).collect())
}

/// Heads of queries of each layer.
fn layer_heads(
    fields: &Fields<'_>,
    config: &RmsConfig,
    slides: &[bool],
) -> Result<Vec<usize>, Error> {
    let (all, shared) = (config.num_attention_heads, config.num_key_value_heads);
    let heads_in = |owner: &Fields<'_>, field: &str| -> Result<usize, Error> {
        let heads = owner.size_or(field, all, MAX_HEADS)?;
        match heads.is_multiple_of(shared) {
            true => Ok(heads),
            false => Err(owner.refuse(field, format!("{shared} key-value heads must divide it"))),
        }
    };
    if let Some(layers) = fields.object("per_layer_config")? {
        let heads = |layer: usize| match layers.object(&layer.to_string())? {
            Some(layer) => {
                check(&layer, &[&[("num_attention_heads", Read)]])?;
                heads_in(&layer, "num_attention_heads")
            }
            None => Ok(all),
        };
        return (0..slides.len()).map(heads).collect();
    }
    let local = match fields.object("attention_other_setting")? {
        Some(other) if fields.get("num_sliding_attention_heads").is_none() => {
            heads_in(&other, "num_attention_heads")?
        }
        _ => heads_in(fields, "num_sliding_attention_heads")?,
    };
    Ok(slides.iter().map(|slides| if *slides { local } else { all }).collect())
}

/// What gate and up are clamped to in each layer, if they are.
fn clamps(fields: &Fields<'_>, field: &str, layers: usize) -> Result<Vec<Option<MlpClamp>>, Error> {
    let Some(limits) = of_layers(fields, field, layers)? else {
        return Ok(vec![None; layers]);
    };
    let limit = |limit: &Value| match (limit, limit.as_f64()) {
        (Value::Null, _) | (_, Some(0.0)) => Some(None),
        (_, Some(limit)) if limit > 0.0 && limit <= f64::from(f32::MAX) => {
            Some(Some(MlpClamp::Behind(limit)))
        }
        _ => None,
    };
    let limits = limits.iter().map(limit).collect::<Option<_>>();
    limits.ok_or_else(|| fields.refuse(field, "it must have nulls and numbers of 0 on".to_owned()))
}

/// The rotary embedding of layers with a sliding window, or of the others, with how many elements
/// of a head are rotated.
fn rope_of(
    fields: &Fields<'_>,
    config: &RmsConfig,
    slides: &[bool],
    local: bool,
) -> Result<(RopeConfig, usize), Error> {
    let around = config.rope_context(fields);
    let kind = if local { "sliding_attention" } else { "full_attention" };
    if let Some(kinds) = fields.object("rope_parameters")? {
        check(&kinds, &[NESTED])?;
        let object = kinds.object(kind)?;
        return RopeConfig::read_part(object.as_ref(), &around, config.rope.theta, 1.0);
    }
    let first = slides.iter().position(|slides| *slides == local).unwrap_or(0);
    let of_first = |field: &str, min: f64, max: f64| -> Result<Option<f64>, Error> {
        let Some(numbers) = of_layers(fields, field, slides.len())? else {
            return Ok(None);
        };
        let number = numbers[first].as_f64().filter(|number| (min..=max).contains(number));
        let expected = || format!("it must have numbers from {min} to {max}");
        number.map(Some).ok_or_else(|| fields.refuse(field, expected()))
    };
    let base = match fields.get("rope_theta") {
        Some(Value::Array(_)) => of_first("rope_theta", 1.0, 1e30)?.unwrap_or(config.rope.theta),
        _ => theta(fields, "rope_theta", config.rope.theta)?,
    };
    let part = of_first("partial_rotary_factors", 0.0, 1.0)?.unwrap_or(1.0);
    let object = if local { None } else { fields.object("rope_scaling")? };
    RopeConfig::read_part(object.as_ref(), &around, base, part)
}

/// As it is published.
const RENAMED: &[(&str, &str)] = &[
    (r"\.mlp\.gate\.weight$", ".moe.gate.weight"),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".moe.router_bias"),
    (r"\.mlp\.shared_experts\.", ".share_expert."),
];

pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model.")],
    others: &[
        "vision_model.",
        "vit_large_projector.",
        "model.vision_model.",
        "model.multi_modal_projector.",
    ],
};

/// Of a model that sees images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("auto_map", Harmless),
    ("im_end_token", Harmless),
    ("im_patch_token", Harmless),
    ("im_start_token", Harmless),
    ("image_token_id", Harmless),
    ("image_token_len", Harmless),
    ("patch_token_len", Harmless),
    ("projector_bias", Harmless),
    ("text_config", Read),
    ("understand_projector_stride", Harmless),
    ("use_im_start_end", Harmless),
    ("vision_config", Harmless),
    ("vision_select_layer", Harmless),
];

pub(super) const FIELDS_OF_TEXT: &[&[KnownField]] = &[STEP, EXPERTS, FIELDS];

/// Of the text part.
const STEP: &[KnownField] = &[
    ("att_impl_type", Only(&["\"GQA\""])),
    ("attention_bias", Read),
    ("attention_other_setting", Read),
    ("auto_map", Harmless),
    ("gating", Effect::ON),
    ("mlp_layer_types", Read),
    ("moe_intermediate_size", Read),
    ("moe_layers_enum", Read),
    ("moe_num_experts", Read),
    ("moe_router_activation", Only(&["\"sigmoid\""])),
    ("moe_router_scaling_factor", Read),
    ("moe_top_k", Read),
    // Of layers that guess more tokens.
    ("mtp_layer_types", Harmless),
    ("mtp_mlp_layer_types", Harmless),
    ("n_routed_experts", Read),
    ("need_fp32_gate", Harmless),
    ("norm_expert_weight", Effect::ON),
    ("num_attention_groups", Read),
    ("num_nextn_predict_layers", Read),
    ("num_sliding_attention_heads", Read),
    ("partial_rotary_factors", Read),
    ("per_layer_config", Read),
    ("query_pre_attn_scalar", Read),
    // As GGUF files have it.
    ("rms_norm_add_unit_offset", Read),
    ("share_expert_dim", Read),
    ("share_expert_dims", Read),
    ("sink", Effect::OFF),
    ("sliding_window", Read),
    ("swiglu_limits", Read),
    ("swiglu_limits_shared", Read),
    ("use_head_wise_attn_gate", Effect::ON),
    ("use_moe", Effect::ON),
    ("use_moe_router_bias", Effect::ON),
    ("use_qk_norm", Effect::ON),
    ("use_rope_layers", Only(&["[]"])),
    ("yarn_only_types", Only(&["[\"full_attention\"]"])),
    ("zero_centered", Effect::ON),
];
