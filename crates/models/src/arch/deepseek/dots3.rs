//! Attention of dots3-note, its text part: queries and latent vectors are scaled, the rotated part
//! of keys is normed, heads have gates, and layers with a sliding window have sizes of their own.
//! Dots Studio 2026 (<https://huggingface.co/dots-studio/dots3-note-prev>).

use super::super::minimax_m3::flags;
use super::super::rms_config::{RmsConfig, field_of};
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{Harmless, Read};
use crate::config::{
    Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, ROPE,
    RopeConfig, RopeContext, RopeScaling, check, check_no_rope_scaling, theta,
};
use crate::layers::{LatentAttentionConfig, LatentGate};

/// The text part, in a file that sees images and hears too, and alone.
pub(super) const DOTS3: &str = "dots3_note";
pub(super) const DOTS3_TEXT: &str = "dots3_note_text";

const INDEXED: &str = "indexed_attention";
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";

/// What `config.json` says of the layers' kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All tokens, or those that an indexer chooses.
    Long { indexed: bool },
    /// The last ones.
    Sliding,
}

/// The same whose layers with a sliding window have their own sizes, of attention whose `latent`
/// sizes are read as those of DeepSeek.
pub(super) fn with_layers(
    fields: &Fields<'_>,
    config: RmsConfig,
    latent: LatentAttentionConfig,
) -> Result<RmsConfig, Error> {
    let kinds = kinds(fields, config.num_hidden_layers)?;
    let slides = |kind: &Kind| *kind == Kind::Sliding;
    let long = kinds.iter().find(|kind| !slides(kind));
    if kinds.iter().any(|kind| !slides(kind) && Some(kind) != long) {
        let expected = format!("either {FULL:?} or {INDEXED:?} must stand beside {SLIDING:?}");
        return Err(fields.refuse("layer_types", expected));
    }
    let indexed = long != Some(&Kind::Long { indexed: false });
    let latent = LatentAttentionConfig {
        indexer: latent.indexer.filter(|_| indexed),
        ..scaled(latent, config.hidden_size)
    };
    let (local, heads) = local_sizes(fields, &kinds, &config, latent)?;
    let window = field_of(fields, ["sliding_window", "sliding_window_size"])?;
    let window = fields.size_or(window, 512, MAX_POSITIONS)?;
    let name = if indexed { INDEXED } else { FULL };
    let rope = rope_of(fields, &config, name, latent.rotated)?;
    let local_rope = rope_of(fields, &config, SLIDING, local.rotated)?;
    let heads_of = |kind| if slides(kind) { heads } else { config.num_attention_heads };
    Ok(RmsConfig {
        layer_heads: Some(kinds.iter().map(heads_of).collect()),
        windows: kinds.iter().map(|kind| slides(kind).then_some(window)).collect(),
        latent_attention: Some(latent),
        local_latent: Some(local),
        rope,
        local_rope: Some(local_rope),
        local_rotary_dim: Some(local.rotated),
        ..config
    })
}

/// The same sizes with what dots3-note adds to attention: scores take the scale of queries.
fn scaled(latent: LatentAttentionConfig, hidden: usize) -> LatentAttentionConfig {
    let part = |rank: usize| (hidden as f64 / rank as f64).sqrt();
    let queries = latent.query_rank.map_or(1.0, part);
    LatentAttentionConfig {
        scale: queries * (latent.query() as f64).powf(-0.5),
        latent_scale: Some(part(latent.rank)),
        norms_rotated: true,
        gate: LatentGate::Heads,
        ..latent
    }
}

/// Of each layer, what it sees.
fn kinds(fields: &Fields<'_>, layers: usize) -> Result<Vec<Kind>, Error> {
    // Files that were published before call layers with an indexer "full_attention".
    let is_saved = fields.get("per_layer_config").is_some() && fields.get("use_dsa").is_none();
    let renamed = if is_saved { None } else { Some(fields.flag_or("use_dsa", true)?) };
    let long = |indexed| Kind::Long { indexed: renamed.unwrap_or(indexed) };
    if fields.get("layer_types").is_some() {
        let words = [(FULL, long(false)), (INDEXED, long(true)), (SLIDING, Kind::Sliding)];
        return fields.listed("layer_types", layers, &words);
    }
    let slides = fields.flag_or("use_sliding_window", true)?;
    let kind = |layer: usize| match slides && layer > 1 && layer % 4 != 1 {
        true => Kind::Sliding,
        false => long(true),
    };
    Ok((0..layers).map(kind).collect())
}

/// Which layers have experts, where `mlp_layer_types` does not say it: of those from `dense` on.
pub(super) fn sparse_layers(
    fields: &Fields<'_>,
    layers: usize,
    dense: usize,
) -> Result<Vec<bool>, Error> {
    let field = "moe_layer_freq";
    let sparse = match fields.get(field) {
        Some(value) if value.is_array() => flags(fields, field, layers)?,
        _ => {
            let step = fields.size_or(field, 1, MAX_LAYERS)?;
            (0..layers).map(|layer| layer.is_multiple_of(step)).collect()
        }
    };
    Ok(sparse.into_iter().enumerate().map(|(layer, sparse)| sparse && layer >= dense).collect())
}

/// The sizes of attention in layers with a sliding window, and its heads.
fn local_sizes(
    fields: &Fields<'_>,
    kinds: &[Kind],
    config: &RmsConfig,
    latent: LatentAttentionConfig,
) -> Result<(LatentAttentionConfig, usize), Error> {
    let sizes = |said: &LocalFields<'_, '_>| -> Result<_, Error> {
        let heads = said.size("num_attention_heads", 64, MAX_HEADS)?;
        if said.size("num_key_value_heads", 64, MAX_HEADS)? != heads {
            let expected = format!("all {heads} heads have keys of their own");
            return Err(said.refuse("num_key_value_heads", expected));
        }
        let plain = said.size("qk_nope_head_dim", 192, MAX_HEAD_DIM)?;
        let head = said.size("head_dim", 256, MAX_HEAD_DIM)?;
        let rotated =
            said.size("qk_rope_head_dim", head.saturating_sub(plain).max(1), MAX_HEAD_DIM)?;
        if plain + rotated != head || !rotated.is_multiple_of(2) {
            let expected = format!("{plain} and an even number of rotated elements must be it");
            return Err(said.refuse("head_dim", expected));
        }
        let local = LatentAttentionConfig {
            query_rank: Some(said.size("q_lora_rank", 1024, MAX_HIDDEN)?),
            rank: said.size("kv_lora_rank", 1024, MAX_HIDDEN)?,
            plain,
            rotated,
            value: said.size("v_head_dim", 128, MAX_HEAD_DIM)?,
            indexer: None,
            ..latent
        };
        Ok((scaled(local, config.hidden_size), heads))
    };
    let Some(layers) = fields.object("per_layer_config")? else {
        return sizes(&LocalFields { of_layer: None, of_all: fields });
    };
    let is_layer = |name: &str| name.parse().is_ok_and(|layer: usize| layer < kinds.len());
    if let Some((name, _)) = layers.iter().find(|(name, _)| !is_layer(name)) {
        let expected = format!("layers are numbered from 0 to {}", kinds.len() - 1);
        return Err(layers.refuse(name, expected));
    }
    let mut found = None;
    for (layer, kind) in kinds.iter().enumerate() {
        let name = layer.to_string();
        let of_layer = layers.object(&name)?;
        if let Some(of_layer) = &of_layer {
            check(of_layer, &[LOCAL])?;
        }
        match (kind, of_layer) {
            (Kind::Long { .. }, None) => {}
            (Kind::Long { .. }, Some(_)) => {
                let expected = format!("only layers of {SLIDING:?} may have sizes of their own");
                return Err(layers.refuse(&name, expected));
            }
            (Kind::Sliding, of_layer) => {
                let local = sizes(&LocalFields { of_layer, of_all: fields })?;
                if *found.get_or_insert(local) != local {
                    let expected = format!("layers of {SLIDING:?} must have the same sizes");
                    return Err(layers.refuse(&name, expected));
                }
            }
        }
    }
    Ok(found.unwrap_or((latent, config.num_attention_heads)))
}

/// Where the sizes of layers with a sliding window are said.
struct LocalFields<'a, 'f> {
    /// What is other in a layer than in the model, as transformers saves it.
    of_layer: Option<Fields<'f>>,
    /// Fields of the whole model; without the former, those of these layers have `swa_` before
    /// their names.
    of_all: &'a Fields<'f>,
}

impl LocalFields<'_, '_> {
    fn size(&self, field: &str, absent: usize, max: usize) -> Result<usize, Error> {
        match &self.of_layer {
            Some(layer) if layer.get(field).is_some() => layer.size(field, max),
            Some(_) => self.of_all.size(field, max),
            None => self.of_all.size_or(&format!("swa_{field}"), absent, max),
        }
    }

    fn refuse(&self, field: &str, expected: String) -> Error {
        match &self.of_layer {
            Some(layer) => layer.refuse(field, expected),
            None => self.of_all.refuse(&format!("swa_{field}"), expected),
        }
    }
}

/// The rotary embedding of one kind of layers, which rotate `rotated` elements of a head whatever
/// part the file says.
fn rope_of(
    fields: &Fields<'_>,
    config: &RmsConfig,
    kind: &str,
    rotated: usize,
) -> Result<RopeConfig, Error> {
    check_no_rope_scaling(fields)?;
    let (object, field, absent) = match fields.object("rope_parameters")? {
        Some(kinds) if ROPES.iter().any(|(kind, _)| kinds.get(kind).is_some()) => {
            check(&kinds, &[ROPES])?;
            (kinds.object(kind)?, "rope_theta", config.rope.theta)
        }
        None if kind == SLIDING => (None, "swa_rope_theta", 50_000.0),
        object => (object, "rope_theta", config.rope.theta),
    };
    let theta = theta(fields, field, absent)?;
    let around = RopeContext { head_dim: rotated, ..config.rope_context(fields) };
    match object {
        Some(object) => RopeConfig::read_object(&object, &around, theta, &[PART, ROPE]),
        None => Ok(RopeConfig { theta, scaling: RopeScaling::Default }),
    }
}

const ROPES: &[KnownField] = &[(FULL, Read), (INDEXED, Read), (SLIDING, Read)];

/// The widths decide.
const PART: &[KnownField] = &[("partial_rotary_factor", Harmless)];

/// What a layer may have other than the model.
const LOCAL: &[KnownField] = &[
    ("head_dim", Read),
    ("kv_lora_rank", Read),
    ("num_attention_heads", Read),
    ("num_key_value_heads", Read),
    ("q_lora_rank", Read),
    ("qk_nope_head_dim", Read),
    ("qk_rope_head_dim", Read),
    ("v_head_dim", Read),
];

/// What there is beside the fields of DeepSeek.
pub(super) const DOTS3_FIELDS: &[KnownField] = &[
    ("first_k_dense_replace", Read),
    ("moe_layer_freq", Read),
    ("moe_shared_expert_intermediate_size", Read),
    ("per_layer_config", Read),
    ("shared_experts_intermediate_size", Read),
    ("sliding_window", Read),
    ("sliding_window_size", Read),
    ("swa_head_dim", Read),
    ("swa_kv_lora_rank", Read),
    ("swa_num_attention_heads", Read),
    ("swa_num_key_value_heads", Read),
    ("swa_q_lora_rank", Read),
    ("swa_qk_nope_head_dim", Read),
    ("swa_qk_rope_head_dim", Read),
    ("swa_rope_theta", Read),
    ("swa_v_head_dim", Read),
    ("use_dsa", Read),
    ("use_sliding_window", Read),
];

/// Of a model that sees images and hears too.
pub(super) const DOTS3_PARTS: &[KnownField] = &[
    ("audio_config", Harmless),
    ("audio_token_id", Harmless),
    ("image_token_id", Harmless),
    ("text_config", Read),
    ("video_token_id", Harmless),
    ("vision_config", Harmless),
];

pub(super) const NAMES: MultimodalNames = MultimodalNames {
    prefixes: &[("model.language_model.", "model.")],
    others: &[
        "audio_adapter.",
        "audio_encoder.",
        "model.audio_adapter.",
        "model.audio_encoder.",
        "model.audio_tower.",
        // Of layers that guess further tokens.
        "model.mtp.",
        "model.language_model.mtp.",
        "model.vision_encoder.",
        "model.vision_tower.",
        "vision_encoder.",
    ],
};
