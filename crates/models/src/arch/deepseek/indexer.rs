//! What `config.json` says of the indexers of sparse attention.

use outsize_kernels::RotaryPairs;
use serde_json::Value;

use super::dots3::DOTS3_TEXT;
use super::hunyuan::{HY_V4_PART, is_hy_v4};
use super::mistral::LARGE;
use crate::Error;
use crate::config::Effect::{self, Read};
use crate::config::{Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS};
use crate::layers::{IndexerConfig, LatentChoice};

/// The sizes of an indexer; of each head `rotated` elements are rotated.
pub(super) fn read(
    model_type: &str,
    fields: &Fields<'_>,
    rotated: usize,
    rms_norm_eps: f64,
) -> Result<IndexerConfig, Error> {
    let (heads, is_glm, is_hy) = match model_type {
        "glm_moe_dsa" | LARGE => (32, true, false),
        "hy_v4" => (16, false, true),
        HY_V4_PART => (32, false, true),
        "axk2" => (16, false, false),
        _ => (64, false, false),
    };
    let head_dim = fields.size_or("index_head_dim", 128, MAX_HEAD_DIM)?;
    if head_dim < rotated {
        let expected = format!("of its elements {rotated} are rotated");
        return Err(fields.refuse("index_head_dim", expected));
    }
    Ok(IndexerConfig {
        heads: fields.size_or("index_n_heads", heads, MAX_HEADS)?,
        head_dim,
        top_k: fields.size_or("index_topk", 2048, MAX_POSITIONS)?,
        pairs: match is_glm || [HY_V4_PART, DOTS3_TEXT].contains(&model_type) {
            true => RotaryPairs::Interleaved,
            false => RotaryPairs::Halves,
        },
        // The last elements are rotated there.
        plain: if is_hy { head_dim - rotated } else { 0 },
        epsilon: if is_hy { rms_norm_eps } else { 1e-6 },
        scales_queries: model_type == LARGE,
    })
}

/// Of each layer, whose indexer chooses the tokens that it sees.
pub(super) fn choices(
    model_type: &str,
    fields: &Fields<'_>,
    layers: usize,
) -> Result<Vec<LatentChoice>, Error> {
    let is_hy = is_hy_v4(model_type);
    if !["glm_moe_dsa", LARGE].contains(&model_type) && !is_hy {
        return Ok(vec![LatentChoice::Own; layers]);
    }
    let pattern = fields.get("index_topk_pattern").filter(|_| !is_hy);
    let (field, own) = match (fields.get("indexer_types"), pattern) {
        (Some(types), _) => ("indexer_types", listed(types)),
        (None, None) if is_hy => {
            let is_own = |layer: usize| layer == 0 || (layer - 1).is_multiple_of(4);
            ("indexer_types", Some((0..layers).map(is_own).collect()))
        }
        (None, Some(pattern)) => ("index_topk_pattern", listed(pattern)),
        (None, None) => {
            let step = fields.size_or("index_topk_freq", 1, MAX_LAYERS)?;
            let offset = fields.size_or("index_skip_topk_offset", 2, MAX_LAYERS)?;
            let is_own = |layer: usize| (layer + 1).saturating_sub(offset).is_multiple_of(step);
            ("index_topk_freq", Some((0..layers).map(is_own).collect()))
        }
    };
    let own = own.filter(|own| own.len() == layers && own.first() == Some(&true));
    let own = own.ok_or_else(|| {
        let expected = format!(
            "it must say of {layers} layers whether their indexer is \"full\" or \"shared\", of the first \"full\""
        );
        fields.refuse(field, expected)
    })?;
    let mut source = 0;
    let choice = |(layer, own): (usize, bool)| match own {
        true => {
            source = layer;
            LatentChoice::Own
        }
        false => LatentChoice::Layer(source),
    };
    Ok(own.into_iter().enumerate().map(choice).collect())
}

/// Which layers have an indexer of their own, of a list or a word with a letter for each.
fn listed(value: &Value) -> Option<Vec<bool>> {
    let is_own = |kind: &str| match kind {
        "full" | "F" => Some(true),
        "shared" | "S" => Some(false),
        _ => None,
    };
    match value {
        Value::String(letters) => letters.split_inclusive(|_: char| true).map(is_own).collect(),
        Value::Array(kinds) => kinds.iter().map(|kind| is_own(kind.as_str()?)).collect(),
        _ => None,
    }
}

/// All layers have an indexer, or see what one chooses: a file must not say otherwise.
pub(super) fn check_layer_types(fields: &Fields<'_>, layers: usize) -> Result<(), Error> {
    let Some(types) = fields.get("layer_types") else {
        return Ok(());
    };
    let is_known = |kind: &Value| kind == "indexed_attention";
    let all = types.as_array();
    match all.is_some_and(|all| all.len() == layers && all.iter().all(is_known)) {
        true => Ok(()),
        false => {
            let expected = format!("it must be a list of {layers} of \"indexed_attention\"");
            Err(fields.refuse("layer_types", expected))
        }
    }
}

pub(super) const INDEXER: &[KnownField] =
    &[("index_head_dim", Read), ("index_n_heads", Read), ("index_topk", Read)];

pub(super) const GLM_INDEXER: &[KnownField] = &[
    ("index_skip_topk_offset", Read),
    ("index_topk_freq", Read),
    ("index_topk_pattern", Read),
    ("indexer_rope_interleave", Effect::ON),
    ("indexer_types", Read),
];
