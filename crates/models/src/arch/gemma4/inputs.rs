//! What each layer gets of the tokens themselves, beside the residual stream.

use burn::tensor::Tensor;

use crate::layers::{Embedding, Linear, RmsNorm};
use crate::pass::Pass;

/// What makes the inputs of all layers, `[batch, tokens, layers · width]`: a table of its own, read
/// by rows, and a projection of the embedding.
pub(in crate::arch) struct PerLayerInputs<'a> {
    /// `[vocabulary, layers · width]`.
    pub table: &'a Embedding,
    /// `[layers · width, hidden]`.
    pub projection: &'a Linear,
    /// `[width]`.
    pub norm: &'a RmsNorm,
}

impl PerLayerInputs<'_> {
    /// Of the tokens of a pass with such embeddings: `[batch, tokens, layers, width]` f32.
    pub fn of(&self, pass: &Pass<'_>, embedded: Tensor<3>) -> Tensor<4> {
        let [batch, tokens, hidden] = embedded.dims();
        let width = self.norm.width();
        let dims = [batch, tokens, self.table.width() / width, width];
        let projected = self.projection.forward(embedded) * (hidden as f64).powf(-0.5);
        let projected = self.norm.forward(projected.reshape(dims));
        // A token beyond the table has the first row.
        let looked_up = pass.embed_within(self.table).to_device(&projected.device());
        let looked_up = looked_up.reshape(dims) * (width as f64).sqrt();
        (projected + looked_up) * 0.5f64.sqrt()
    }

    /// Values of all layers for one token.
    pub fn values(&self) -> u64 {
        self.table.width() as u64
    }
}
