//! What a pass of the denoiser does with each weight.

use super::Unet2dConditionConfig;
use crate::{PicturePass, WeightUse};

/// See [`Component::weight_use`](crate::Component::weight_use).
pub(super) fn weight_use(
    config: &Unet2dConditionConfig,
    path: &str,
    pass: &PicturePass,
) -> WeightUse {
    if is_of_time(path) {
        // One time for all, until what is added makes them differ.
        let alike = config.addition.is_none() || path.starts_with("time_embedding.");
        return WeightUse::of_rows(if alike { 1 } else { pass.latents.batch as u64 });
    }
    if [".attn2.to_k.", ".attn2.to_v."].iter().any(|part| path.contains(part)) {
        return WeightUse::of_rows(pass.all_tokens());
    }
    let last = config.levels.len() - 1;
    let mut parts = path.split('.');
    let block = (parts.next(), parts.next().and_then(|number| number.parse().ok()));
    let level = match block {
        (Some("down_blocks"), Some(level)) => level,
        (Some("up_blocks"), Some(turn)) => last.saturating_sub(turn),
        (Some("mid_block"), _) => last,
        _ => 0,
    };
    // What resamples makes pictures of the level that follows.
    let made = match path {
        _ if path.contains(".downsamplers.") => level + 1,
        _ if path.contains(".upsamplers.") => level.saturating_sub(1),
        _ => level,
    };
    let rows = pass.latents.halved(made.min(last)).pixels();
    let pixels = rows / (pass.latents.batch as u64).max(1);
    let attended = match path {
        _ if path.contains(".attn1.to_q.") => pixels,
        _ if path.contains(".attn2.to_q.") => pass.tokens as u64,
        _ => 0,
    };
    WeightUse { rows, attended }
}

/// Whether a weight is one of those that make the embedding of a time, or add it to channels.
pub(super) fn is_of_time(path: &str) -> bool {
    path.contains("time_emb") || path.starts_with("add_embedding.")
}
