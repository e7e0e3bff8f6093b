//! Heads of transformers of pictures, as their `config.json` says.

use crate::Error;
use crate::config::{Fields, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN};

/// The number of heads and the width of one, or what is usual: together they are as wide as the
/// residual stream.
pub(super) fn transformer_heads(
    fields: &Fields<'_>,
    [usual, usual_width]: [usize; 2],
) -> Result<[usize; 2], Error> {
    let width = fields.size_or("attention_head_dim", usual_width, MAX_HEAD_DIM)?;
    let heads = fields.size_or("num_attention_heads", usual, MAX_HEADS)?;
    if heads * width > MAX_HIDDEN {
        let expected = format!("all heads together must not be wider than {MAX_HIDDEN}");
        return Err(fields.refuse("num_attention_heads", expected));
    }
    Ok([heads, width])
}
