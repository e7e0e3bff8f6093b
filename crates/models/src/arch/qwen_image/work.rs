//! What a pass of the transformer does with each weight.

use crate::{PicturePass, WeightUse};

/// See [`Component::weight_use`](crate::Component::weight_use).
pub(super) fn weight_use(path: &str, pass: &PicturePass) -> WeightUse {
    let (image, text) = (pass.latents.pixels(), pass.all_tokens());
    let is_any = |parts: &[&str]| parts.iter().any(|part| path.contains(part));
    let rows = match path {
        _ if is_any(&["time_text_embed.", "_mod.", "norm_out."]) => 1,
        _ if is_any(&["txt_", ".add_", "_add_out."]) => text,
        _ => image,
    };
    let seen = image.saturating_add(text) / (pass.latents.batch as u64).max(1);
    WeightUse { rows, attended: if is_any(&[".to_q.", ".add_q_proj."]) { seen } else { 0 } }
}
