//! What a pass of the transformer does with each weight.

use crate::{PicturePass, WeightUse};

/// See [`Component::weight_use`](crate::Component::weight_use).
pub(super) fn weight_use(path: &str, pass: &PicturePass) -> WeightUse {
    let batch = pass.latents.batch as u64;
    let (image, text) = (pass.latents.pixels(), pass.all_tokens());
    let is_any = |parts: &[&str]| parts.iter().any(|part| path.contains(part));
    let rows = match path {
        _ if is_any(&["time_text_embed.text_embedder."]) => batch,
        _ if path.starts_with("time_text_embed.") => 1,
        _ if is_any(&[".linear."]) => batch,
        _ if path.starts_with("context_embedder.")
            || is_any(&[".add_", "_add_out.", ".ff_context."]) =>
        {
            text
        }
        _ => image,
    };
    let seen = match path {
        _ if is_any(&[".attn.to_q.", ".add_q_proj."]) => image.saturating_add(text),
        _ if is_any(&[".attn2.to_q."]) => image,
        _ => 0,
    };
    WeightUse { rows, attended: seen / batch.max(1) }
}
