//! Fields that models with experts have in common.

use serde_json::Value;

use super::rms_config::{ExpertsConfig, field_of};
use crate::Error;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_EXPERTS, MAX_INTERMEDIATE, MAX_LAYERS};
use crate::layers::ExpertGroups;

/// Of models with experts.
pub(super) const EXPERTS: &[KnownField] = &[
    ("num_experts", Read),
    ("num_experts_per_tok", Read),
    ("num_local_experts", Read),
    // Of training.
    ("output_router_logits", Harmless),
    ("router_aux_loss_coef", Harmless),
    ("router_jitter_noise", Harmless),
    ("hidden_act", Read),
    ("mlp_bias", Effect::OFF),
];

/// The numbers of layers that a field lists, if it is there.
pub(super) fn layers_named(fields: &Fields<'_>, field: &str) -> Result<Option<Vec<u64>>, Error> {
    let Some(value) = fields.get(field) else {
        return Ok(None);
    };
    let numbers: Option<Vec<_>> =
        value.as_array().and_then(|all| all.iter().map(Value::as_u64).collect());
    let expected = || "it must be a list of layers' numbers".to_owned();
    numbers.map(Some).ok_or_else(|| fields.refuse(field, expected()))
}

/// Which layers have experts: every so many, but for those named.
pub(super) fn sparse_layers(fields: &Fields<'_>, layers: usize) -> Result<Vec<bool>, Error> {
    let step = fields.size_or("decoder_sparse_step", 1, MAX_LAYERS)?;
    let named = layers_named(fields, "mlp_only_layers")?.unwrap_or_default();
    let is_sparse =
        |layer: usize| (layer + 1).is_multiple_of(step) && !named.contains(&(layer as u64));
    Ok((0..layers).map(is_sparse).collect())
}

/// Which layers have experts, of a list of all.
pub(super) fn listed_layers(
    fields: &Fields<'_>,
    kinds: &Value,
    layers: usize,
) -> Result<Vec<bool>, Error> {
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

/// How many layers, the first ones, have no experts, as a field says.
pub(super) fn dense_layers(
    fields: &Fields<'_>,
    field: &str,
    absent: usize,
) -> Result<usize, Error> {
    match fields.get(field) {
        Some(value) if value.as_u64() == Some(0) => Ok(0),
        _ => fields.size_or(field, absent, MAX_LAYERS),
    }
}

/// The groups that experts are chosen by, unless one group is all.
pub(super) fn expert_groups(
    fields: &Fields<'_>,
    is_v2: bool,
    experts: &ExpertsConfig,
    absent: (usize, usize),
) -> Result<Option<ExpertGroups>, Error> {
    let groups = field_of(fields, ["n_group", "num_expert_group"])?;
    let (count, per_token) = match (is_v2, fields.text("topk_method")?) {
        (true, None | Some("greedy")) => return Ok(None),
        (true, Some("group_limited_greedy")) => {
            (fields.size("n_group", MAX_EXPERTS)?, fields.size("topk_group", MAX_EXPERTS)?)
        }
        (false, None | Some("noaux_tc")) => (
            fields.size_or(groups, absent.0, MAX_EXPERTS)?,
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
        return Err(fields.refuse(groups, expected));
    }
    if per_token > count || per_token * size < experts.routing.per_token {
        let expected = format!(
            "of {count} groups of {size} experts it must be enough for {} experts",
            experts.routing.per_token
        );
        return Err(fields.refuse("topk_group", expected));
    }
    let groups = ExpertGroups { count, per_token, best, others: f32::NEG_INFINITY };
    Ok((per_token < count).then_some(groups))
}

/// The most that shares are multiplied by.
const MAX_SCALE: f64 = 1e6;

/// What the shares of experts are multiplied by, as a field says.
pub(super) fn share_scale(fields: &Fields<'_>, field: &str, absent: f64) -> Result<f64, Error> {
    fields.number_within_or(field, absent, 0.0, MAX_SCALE)
}

/// What gate and up are clamped to.
pub(super) fn swiglu_limit(fields: &Fields<'_>, absent: f64) -> Result<f64, Error> {
    let field = "swiglu_limit";
    let limit = fields.number_or(field, absent)?;
    match limit > 0.0 && limit <= f64::from(f32::MAX) {
        true => Ok(limit),
        false => Err(fields.refuse(field, "it must be above 0".to_owned())),
    }
}

/// Width of the shared experts together, unless null says that there are none.
pub(super) fn shared_width(
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
