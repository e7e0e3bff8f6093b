//! What a pass of the transformer does with each weight.

use super::sequences::filled;
use crate::{PicturePass, PictureSize, WeightUse};

/// See [`Component::weight_use`](crate::Component::weight_use).
pub(super) fn weight_use(path: &str, pass: &PicturePass) -> WeightUse {
    let batch = pass.latents.batch as u64;
    let image = filled(PictureSize { batch: 1, ..pass.latents }.pixels());
    let text = filled(pass.tokens as u64);
    let is_any = |parts: &[&str]| parts.iter().any(|part| path.contains(part));
    let (rows, seen) = match path {
        _ if is_any(&["adaLN_modulation.", "t_embedder."]) => (1, 0),
        _ if path.ends_with("_pad_token") => (0, 0),
        _ if is_any(&["all_x_embedder.", "all_final_layer."]) => (pass.latents.pixels(), 0),
        _ if is_any(&["cap_embedder."]) => (pass.all_tokens(), 0),
        _ if is_any(&["noise_refiner."]) => (batch.saturating_mul(image), image),
        _ if is_any(&["context_refiner."]) => (batch.saturating_mul(text), text),
        _ => (batch.saturating_mul(image.saturating_add(text)), image.saturating_add(text)),
    };
    WeightUse { rows, attended: if is_any(&[".to_q."]) { seen } else { 0 } }
}
