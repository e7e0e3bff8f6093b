//! What a pass of the transformer does with each weight.

use super::Flux2Transformer2dConfig;
use crate::{PicturePass, WeightUse};

/// See [`Component::weight_use`](crate::Component::weight_use).
pub(super) fn weight_use(
    config: &Flux2Transformer2dConfig,
    path: &str,
    pass: &PicturePass,
) -> WeightUse {
    let (image, text) = (pass.latents.pixels(), pass.all_tokens());
    let all = image.saturating_add(text);
    let is_any = |parts: &[&str]| parts.iter().any(|part| path.contains(part));
    let rows = match path {
        _ if is_any(&["time_guidance_embed.", "_modulation", "norm_out."]) => 1,
        _ if path.starts_with("single_transformer_blocks.") => all,
        _ if path.starts_with("context_embedder.")
            || is_any(&[".add_", "_add_out.", ".ff_context."]) =>
        {
            text
        }
        _ => image,
    };
    let seen = all / (pass.latents.batch as u64).max(1);
    let attended = match path {
        _ if is_any(&[".to_q.", ".add_q_proj."]) => seen,
        // Of what it gives some are queries.
        _ if is_any(&[".to_qkv_mlp_proj."]) => {
            let (hidden, inner) = (config.hidden() as u64, config.inner as u64);
            seen.saturating_mul(hidden) / (3 * hidden + 2 * inner)
        }
        _ => 0,
    };
    WeightUse { rows, attended }
}
