//! MiniMax-M3, its text part: experts as DeepSeek's, and layers whose heads see blocks of tokens
//! that an indexer chooses. MiniMax 2026 (<https://huggingface.co/MiniMaxAI/MiniMax-M3>).

use serde_json::Value;

use super::expert_fields::{EXPERTS, listed_layers, share_scale, swiglu_limit};
use super::gemma3::TEXT_PART;
use super::rms_config::{DEFAULTS, FIELDS, QueryKeyNorms, RmsConfig, RmsDefaults};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    COMMON, Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_INTERMEDIATE, MAX_POSITIONS,
    RopeConfig, check,
};
use crate::layers::{Activation, BlockIndexerConfig, MlpClamp, Shares};

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 200_064),
        ("hidden_size", 6144),
        // Of experts.
        ("intermediate_size", 3072),
        ("num_hidden_layers", 60),
        ("num_attention_heads", 64),
    ],
    key_value_heads: Some(4),
    head_dim: Some(128),
    max_position_embeddings: 524_288,
    rope_theta: 5_000_000.0,
    // Said to be another, and computed otherwise.
    activation: ("", Activation::QuickGelu),
    ..DEFAULTS
};

/// Reads the text part.
pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let text = fields.required_object("text_config")?;
    check(&text, &[TEXT, TEXT_PART, EXPERTS, FIELDS, COMMON])?;
    let config = read_text(&text)?;
    // That of the whole model counts, unless only this one's is set.
    let tied = fields.flag_or("tie_word_embeddings", false)? || config.tie_word_embeddings;
    Ok(RmsConfig { tie_word_embeddings: tied, ..config })
}

fn read_text(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &ABSENT)?;
    let layers = config.num_hidden_layers;
    let names = ["rope_theta", "partial_rotary_factor"];
    let (rope, rotary_dim) = RopeConfig::read_partial(&config.rope_context(fields), names, 1.0)?;
    if fields.size_or("rotary_dim", rotary_dim, MAX_HEAD_DIM)? != rotary_dim {
        let expected = format!("by `partial_rotary_factor` {rotary_dim} elements are rotated");
        return Err(fields.refuse("rotary_dim", expected));
    }
    let mut config =
        config.with_experts(fields, ["num_local_experts", "num_experts"], (128, 4), true)?;
    let size = |field, absent| fields.size_or(field, absent, MAX_INTERMEDIATE);
    let dense = size("dense_intermediate_size", 12_288)?;
    if let Some(experts) = &mut config.experts {
        experts.shared_intermediate_size = Some(size("shared_intermediate_size", 3072)?);
        experts.routing.shares = Shares::Sigmoid;
        experts.routing.scale = share_scale(fields, "routed_scaling_factor", 2.0)?;
        experts.renamed = RENAMED;
    }
    let limit = swiglu_limit(fields, 7.0)?;
    let clamp = Some(MlpClamp::BeforeAndOneMore(limit));
    let sparse_layers = match (fields.get("mlp_layer_types"), fields.get("moe_layer_freq")) {
        (Some(kinds), _) => listed_layers(fields, kinds, layers)?,
        (None, Some(_)) => flags(fields, "moe_layer_freq", layers)?,
        (None, None) => vec![true; layers],
    };
    let (indexer, indexed_layers) = indexer(fields, &config, rotary_dim)?;
    Ok(RmsConfig {
        intermediate_size: dense,
        norm_plus_one: fields.flag_or("rms_norm_add_unit_offset", true)?,
        query_key_norms: Some(QueryKeyNorms::EachHead),
        mlp_clamps: vec![[clamp; 2]; layers],
        block_indexer: indexed_layers.contains(&true).then_some(indexer),
        indexed_layers,
        sparse_layers,
        rope,
        rotary_dim,
        ..config
    })
}

/// The sizes of indexers, and which layers have one.
fn indexer(
    fields: &Fields<'_>,
    config: &RmsConfig,
    rotary_dim: usize,
) -> Result<(BlockIndexerConfig, Vec<bool>), Error> {
    let older = fields.object("sparse_attention_config")?;
    if let Some(older) = &older {
        check(older, &[OLDER])?;
    }
    let size = |[name, older_name]: [&str; 2], absent, max| match &older {
        Some(older) if older.get(older_name).is_some() => older.size(older_name, max),
        _ => fields.size_or(name, absent, max),
    };
    let indexer = BlockIndexerConfig {
        heads: size(["index_n_heads", "sparse_num_index_heads"], 4, MAX_HEADS)?,
        head_dim: size(["index_head_dim", "sparse_index_dim"], 128, MAX_HEAD_DIM)?,
        block: size(["index_block_size", "sparse_block_size"], 128, MAX_POSITIONS)?,
        top_k: size(["index_topk_blocks", "sparse_topk_blocks"], 16, MAX_POSITIONS)?,
        local: size(["index_local_blocks", "sparse_local_block"], 1, MAX_POSITIONS)?,
    };
    let layers = config.num_hidden_layers;
    let indexed = match (fields.get("layer_types"), &older) {
        (Some(_), _) => {
            let kinds = [("full_attention", false), ("minimax_m3_sparse", true)];
            fields.listed("layer_types", layers, &kinds)?
        }
        (None, Some(older)) if older.get("sparse_attention_freq").is_some() => {
            flags(older, "sparse_attention_freq", layers)?
        }
        (None, _) => vec![false; layers],
    };
    if !indexed.contains(&true) {
        return Ok((indexer, indexed));
    }
    if indexer.heads != config.num_key_value_heads {
        let expected = format!("there are {} heads of keys", config.num_key_value_heads);
        return Err(fields.refuse("index_n_heads", expected));
    }
    if !(rotary_dim..=config.head_dim).contains(&indexer.head_dim) {
        let expected = format!("it must be from {rotary_dim} to {}", config.head_dim);
        return Err(fields.refuse("index_head_dim", expected));
    }
    if indexer.local > indexer.top_k {
        let expected = format!("{} blocks are chosen", indexer.top_k);
        return Err(fields.refuse("index_local_blocks", expected));
    }
    Ok((indexer, indexed))
}

/// A list of zeros and ones.
pub(super) fn flags(fields: &Fields<'_>, field: &str, layers: usize) -> Result<Vec<bool>, Error> {
    let flag = |value: &Value| match value.as_u64() {
        Some(0) => Some(false),
        Some(1) => Some(true),
        _ => None,
    };
    let flags = fields.get(field).and_then(Value::as_array);
    let flags = flags.and_then(|flags| flags.iter().map(flag).collect());
    flags.filter(|flags: &Vec<_>| flags.len() == layers).ok_or_else(|| {
        fields.refuse(field, format!("it must be a list of {layers} numbers, 0 or 1"))
    })
}

/// As it is published.
const RENAMED: &[(&str, &str)] = &[
    (r"\.mlp\.gate\.weight$", ".block_sparse_moe.gate.weight"),
    (r"\.mlp\.gate\.e_score_correction_bias$", ".block_sparse_moe.e_score_correction_bias"),
    (r"\.mlp\.shared_experts\.", ".block_sparse_moe.shared_experts."),
    (r"\.mlp\.experts\.(\d+)\.gate_proj\.", ".block_sparse_moe.experts.${1}.w1."),
    (r"\.mlp\.experts\.(\d+)\.up_proj\.", ".block_sparse_moe.experts.${1}.w3."),
    (r"\.mlp\.experts\.(\d+)\.down_proj\.", ".block_sparse_moe.experts.${1}.w2."),
    (r"\.self_attn\.indexer\.([qk])_(proj|norm)\.", ".self_attn.index_${1}_${2}."),
];

pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model."), ("language_model.", "")],
    others: &[
        "vision_tower.",
        "multi_modal_projector.",
        "patch_merge_mlp.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ],
};

/// Of a model that sees images too.
pub(super) const MULTIMODAL: &[KnownField] = &[
    ("auto_map", Harmless),
    ("image_token_id", Harmless),
    ("image_token_index", Harmless),
    ("merged_hidden_size", Harmless),
    ("projector_hidden_size", Harmless),
    ("text_config", Read),
    ("video_token_id", Harmless),
    ("video_token_index", Harmless),
    ("vision_config", Harmless),
];

/// Of the text part.
const TEXT: &[KnownField] = &[
    ("auto_map", Harmless),
    ("dense_intermediate_size", Read),
    // It is the one that `swiglu_alpha` and `swiglu_limit` say, whatever it is called.
    ("hidden_act", Harmless),
    ("index_block_size", Read),
    ("index_head_dim", Read),
    ("index_local_blocks", Read),
    ("index_n_heads", Read),
    ("index_topk_blocks", Read),
    ("mlp_layer_types", Read),
    ("model_type", Harmless),
    ("moe_layer_freq", Read),
    ("partial_rotary_factor", Read),
    // As GGUF files have it.
    ("rms_norm_add_unit_offset", Read),
    ("rotary_dim", Read),
    ("routed_scaling_factor", Read),
    ("scoring_func", Only(&["\"sigmoid\""])),
    ("shared_intermediate_size", Read),
    ("sparse_attention_config", Read),
    ("swiglu_alpha", Only(&["1.702"])),
    ("swiglu_limit", Read),
    ("use_qk_norm", Effect::ON),
    ("use_routing_bias", Effect::ON),
];

/// Of the object that says what indexers are in checkpoints as published.
const OLDER: &[KnownField] = &[
    ("sparse_attention_freq", Read),
    ("sparse_block_size", Read),
    ("sparse_disable_index_value", Harmless),
    ("sparse_index_dim", Read),
    ("sparse_init_block", Effect::ZERO),
    ("sparse_local_block", Read),
    ("sparse_num_index_heads", Read),
    ("sparse_score_type", Only(&["\"max\""])),
    ("sparse_topk_blocks", Read),
    ("use_sparse_attention", Effect::ON),
];
