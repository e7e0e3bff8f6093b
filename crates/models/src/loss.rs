//! What a language model learns from: the next token of each position.

use burn::tensor::{DType, Int, Tensor, TensorData};
use outsize_kernels::cross_entropy;

use crate::Batch;

/// The mean cross-entropy, in f32, of the logits `[batch, tokens, vocabulary]` of a batch, and of
/// the tokens that come next there: what `transformers` gives as the loss of a batch that is its
/// own `labels`. The last position of a sequence, and padding, count for nothing.
///
/// # Panics
/// If the logits are not those of the batch.
pub fn next_token_loss(logits: Tensor<3>, batch: &Batch) -> Tensor<1> {
    /// A target that does not count.
    const NONE: i64 = -1;
    let [rows, tokens, vocabulary] = logits.dims();
    assert_eq!([rows, tokens], [batch.rows(), batch.tokens()], "logits of another batch");
    let next = |(ids, &padding): (&[u32], &usize)| {
        let next = ids.iter().skip(1).map(|&id| i64::from(id)).chain([NONE]);
        let next = next.enumerate();
        next.map(move |(at, id)| if at < padding { NONE } else { id }).collect::<Vec<_>>()
    };
    let targets = batch.ids().chunks_exact(tokens).zip(batch.padding()).flat_map(next).collect();
    let targets = TensorData::new(targets, [rows * tokens]);
    let targets = Tensor::<1, Int>::from_data(targets, (&logits.device(), DType::I64));
    cross_entropy(logits.reshape([rows * tokens, vocabulary]), targets)
}
