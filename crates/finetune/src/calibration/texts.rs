//! Texts that run through a model so that its layers' inputs are seen.

use outsize_models::Batch;

use crate::{Examples, FinetuneError};

/// Sequences of at most `context` tokens, all of one length, of the texts behind one another: in
/// batches of `batch`, and no more than `most` tokens. What remains at the end is left out.
pub(super) fn sequences(
    examples: &Examples,
    context: usize,
    batch: usize,
    most: usize,
) -> Result<Vec<Batch>, FinetuneError> {
    let tokens = examples.examples.iter().flat_map(|example| &example.tokens).copied();
    let tokens: Vec<u32> = tokens.take(most).collect();
    let length = context.min(tokens.len()).max(1);
    let rows: Vec<&[u32]> = tokens.chunks_exact(length).collect();
    let batches = rows.chunks(batch.max(1)).map(|rows| Ok(Batch::left_padded(rows)?));
    batches.collect()
}
