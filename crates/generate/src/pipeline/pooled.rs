//! Hidden states of texts, of each made one vector.

use outsize_models::Batch;

use super::{Pipeline, PipelineError, values};
use crate::embedding::{EmbeddingText, Pool, Pooling};
use crate::error::Error;

impl Pipeline {
    /// The pooled hidden states of texts that run side by side, in passes no longer than the
    /// workload counts. What the KV cache held before is forgotten.
    ///
    /// # Errors
    /// A model whose prompts an encoder reads, texts that are longer than the context or more than
    /// the cache is for, and what the model or a read said.
    pub(crate) fn pool(
        &mut self,
        texts: &[&EmbeddingText],
        pooling: Pooling,
    ) -> Result<Vec<Vec<f32>>, PipelineError> {
        if self.has_encoder() {
            return Err(Error::ReadPrompt.into());
        }
        self.clear();
        let rows: Vec<_> = texts.iter().map(|text| &text.ids[..]).collect();
        let batch = Batch::left_padded(&rows)?;
        let pooled = self.without_drafts(rows[0], |pipeline| {
            let pools = texts.iter().map(|text| Pool::new(pooling, text.from)).collect();
            pipeline.pooled_passes(&batch, pools)
        });
        self.clear();
        pooled
    }

    fn pooled_passes(
        &mut self,
        batch: &Batch,
        mut pools: Vec<Pool>,
    ) -> Result<Vec<Vec<f32>>, PipelineError> {
        let (tokens, longest) = (batch.tokens(), self.longest_pass_of(batch.rows()));
        self.cache.expect(tokens);
        let _reuse = self.buffer_reuse();
        for start in (0..tokens).step_by(longest) {
            let pass = batch.columns(start..tokens.min(start + longest));
            let hidden = values(self.model.hidden_batch(&pass, &mut self.cache)??)?;
            self.count(&pass);
            let width = hidden.len() / pass.ids().len();
            let rows = hidden.chunks_exact(width * pass.tokens());
            for ((pool, states), padding) in pools.iter_mut().zip(rows).zip(batch.padding()) {
                for (column, state) in states.chunks_exact(width).enumerate() {
                    if let Some(token) = (start + column).checked_sub(*padding) {
                        pool.add(token, state);
                    }
                }
            }
        }
        Ok(pools.into_iter().map(Pool::vector).collect())
    }
}
