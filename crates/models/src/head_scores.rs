//! How likely tokens are by what a decoder's blocks give.

use burn::tensor::Tensor;
use outsize_core::Streamed;
use outsize_kernels::{TokenScore, head_scores, is_flex};

use crate::decoder::{Decoder, Head, begun};
use crate::head_gradients::{Chosen, Labels, with_head};
use crate::logits::{MOST_TOP_TOKENS, SCORED_AT_ONCE};
use crate::{Batch, Error, KvCache, Logits};

/// What of a pass is scored.
#[derive(Debug, Clone, Copy)]
pub struct Scoring<'a> {
    /// The tokens that are to come.
    pub labels: Labels<'a>,
    /// How many of the likeliest tokens each score has, at most [`MOST_TOP_TOKENS`].
    pub top: usize,
    /// Whether logits of the last position are wanted too.
    pub last: bool,
}

impl Scoring<'_> {
    /// The first column of a pass that anything is wanted of, if anything is.
    ///
    /// # Panics
    /// If there is not a label, or none, for each position.
    pub(crate) fn first(&self, batch: &Batch) -> Option<usize> {
        assert_eq!(self.labels.len(), batch.ids().len(), "a label, or none, for each position");
        let rows = self.labels.chunks(batch.tokens());
        let first = rows.filter_map(|row| row.iter().position(Option::is_some)).min();
        first.or_else(|| self.last.then(|| batch.tokens() - 1))
    }
}

/// How likely tokens are.
#[derive(Debug)]
pub struct Scores {
    /// Of each label, in their order.
    pub tokens: Vec<TokenScore>,
    /// The logits of the last position, `[batch, 1, vocabulary]` f32, if they were wanted.
    pub last: Option<Tensor<3>>,
}

/// Runs a pass as [`Decoder::forward_batch`] does, and gives how likely the tokens are that are to
/// come. Nothing is wanted of columns before the [first](Scoring::first).
///
/// # Errors
/// As there, and a label outside the vocabulary.
pub(crate) fn score_batch(
    model: &dyn Decoder,
    batch: &Batch,
    cache: &mut KvCache,
    scoring: Scoring<'_>,
    first: usize,
) -> Result<Scores, Error> {
    let tokens = batch.tokens();
    let pass = begun(model.head(), model.cache(), batch, cache, Logits::All)?;
    let pass = pass.wanting(tokens - first);
    let hidden = pass.wanted(model.hidden(&pass, cache)?);
    let last = scoring.last.then(|| hidden.clone().narrow(1, hidden.dims()[1] - 1, 1));
    let labels = scoring.labels.chunks_exact(tokens);
    let labels: Vec<_> =
        labels.flat_map(|row| &row[tokens - hidden.dims()[1]..]).copied().collect();
    let tokens = scores_of_hidden(model, hidden, Scoring { labels: &labels, ..scoring })?;
    let scores = Scores { tokens, last: last.map(|hidden| model.logits(hidden)) };
    cache.advance(batch);
    Ok(scores)
}

/// How likely labels are, in their order, by hidden states `[batch, tokens, hidden]` f32 as the
/// head takes them.
fn scores_of_hidden(
    model: &dyn Decoder,
    hidden: Tensor<3>,
    Scoring { labels, top, .. }: Scoring<'_>,
) -> Result<Vec<TokenScore>, Error> {
    if labels.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let top = top.min(MOST_TOP_TOKENS);
    let Chosen { hidden, tokens, .. } = Chosen::new(model, hidden, labels)?;
    if let Some(head) = in_parts(model) {
        let hidden = head.entered(hidden);
        return with_head(model, |head| head_scores(&hidden, &tokens, top, head));
    }
    let (mut scores, vocabulary) = (Vec::new(), model.head().vocab_size());
    for (index, tokens) in tokens.chunks(SCORED_AT_ONCE).enumerate() {
        let rows = hidden.clone().narrow(0, index * SCORED_AT_ONCE, tokens.len());
        let logits: Vec<f32> = model.logits(rows.unsqueeze()).into_data().iter().collect();
        let rows = logits.chunks(vocabulary).zip(tokens);
        scores.extend(rows.map(|(logits, token)| TokenScore::of_logits(logits, *token, top)));
    }
    Ok(scores)
}

/// The weight of a head that is gone through part by part: in main memory, and as it is stored.
fn in_parts(model: &dyn Decoder) -> Option<&Streamed> {
    let (weight, in_out) = match model.head() {
        Head::Own(linear) => (&linear.weight, linear.is_in_out()),
        Head::Tied(table) => (&table.weight, false),
    };
    let weight = Streamed::of(weight)?;
    (!in_out && is_flex(weight.device()) && weight.low_rank().is_none()).then_some(weight)
}
