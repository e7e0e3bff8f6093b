//! What the fields and tensors of vision encoders have in common.

use outsize_checkpoint::TensorInfo;

use crate::config::Effect::{Only, Read};
use crate::config::{Fields, KnownField, MAX_HEADS, MAX_HIDDEN, check, theta};
use crate::{Error, PicturePass, WeightUse};

/// The most pixels of a patch's side, and patches of a token's.
pub(super) const MAX_PATCH: usize = 1 << 8;

/// The names of the token that stands for an image, new ones first.
pub(super) const IMAGE_TOKEN: [&str; 2] = ["image_token_id", "image_token_index"];

/// What the names of an encoder's tensors begin with, behind "model." or not.
const ENCODERS: [&str; 2] = ["vision_tower.", "vision_model."];

/// The same of those that make features of its states.
const PROJECTORS: [&str; 3] = ["multi_modal_projector.", "embed_vision.", "connector."];

/// The fields of the object `vision_config`, of which those of these tables are known.
pub(super) fn vision_fields<'a>(
    fields: &Fields<'a>,
    tables: &[&[KnownField]],
) -> Result<Fields<'a>, Error> {
    let vision = fields.required_object("vision_config")?;
    check(&vision, tables)?;
    Ok(vision)
}

/// Heads of attention, `default` if absent: together as wide as `hidden_size`, and each a multiple
/// of `unit`.
pub(super) fn vision_heads(
    vision: &Fields<'_>,
    field: &str,
    default: usize,
    [hidden_size, unit]: [usize; 2],
) -> Result<usize, Error> {
    let heads = vision.size_or(field, default, MAX_HEADS)?;
    if hidden_size.is_multiple_of(unit * heads) {
        return Ok(heads);
    }
    let expected = match unit {
        1 => format!("the heads must be as wide as hidden_size together, {hidden_size}"),
        _ => format!(
            "each head must be a multiple of {unit} wide, and all together hidden_size, {hidden_size}"
        ),
    };
    Err(vision.refuse(field, expected))
}

/// The width of the features, `default` if absent, which must be that of the language model.
pub(super) fn features_width(
    vision: &Fields<'_>,
    field: &str,
    default: usize,
    text: &Fields<'_>,
) -> Result<usize, Error> {
    let width = vision.size_or(field, default, MAX_HIDDEN)?;
    let of_text = text.size("hidden_size", MAX_HIDDEN)?;
    if width == of_text {
        return Ok(width);
    }
    let expected = format!("it must be the hidden_size of the text part, {of_text}");
    Err(vision.refuse(field, expected))
}

/// The base of the rotary frequencies, `default` if absent, of an object of whose fields those of
/// `known` are known.
pub(super) fn vision_theta(
    vision: &Fields<'_>,
    known: &[KnownField],
    default: f64,
) -> Result<f64, Error> {
    let Some(rope) = vision.object("rope_parameters")? else { return Ok(default) };
    check(&rope, &[known])?;
    theta(&rope, "rope_theta", default)
}

/// The fields of that object where rows and columns have frequencies of their own.
pub(super) const AXIAL_ROPE: &[KnownField] =
    &[("rope_theta", Read), ("rope_type", Only(&["\"axial\""]))];

/// Whether the encoder's tensors are behind "model.".
pub(super) fn is_within_model(tensors: &[TensorInfo]) -> bool {
    let mut within = tensors.iter().filter_map(|tensor| tensor.name.strip_prefix("model."));
    within.any(|name| ENCODERS.iter().any(|part| name.starts_with(part)))
}

/// As [`Component::is_unused`](crate::Component::is_unused).
pub(super) fn is_no_vision(tensor: &str) -> bool {
    let name = tensor.strip_prefix("model.").unwrap_or(tensor);
    !ENCODERS.iter().chain(&PROJECTORS).any(|part| name.starts_with(part))
}

/// As [`Component::weight_use`](crate::Component::weight_use), for tokens of so many patches.
pub(super) fn vision_weight_use(path: &str, pass: &PicturePass, merged: usize) -> WeightUse {
    let patches = pass.latents.pixels();
    if PROJECTORS.iter().any(|part| path.starts_with(part)) {
        return WeightUse::of_rows(patches / merged as u64);
    }
    let attended = if path.contains(".q_proj.") { patches } else { 0 };
    WeightUse { rows: patches, attended }
}
