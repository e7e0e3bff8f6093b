//! A decoder as a list of blocks with a residual stream between them.

use burn::tensor::Tensor;

use crate::layers::Rotation;
use crate::pass::Pass;
use crate::{Error, KvCache};

/// What a block takes and gives.
#[derive(Debug, Clone)]
pub struct Residual {
    /// The residual stream, `[batch, tokens, hidden]` f32.
    pub stream: Tensor<3>,
    /// What is still to be added to it, of the same shape, so that each addition can be made
    /// together with the norm behind it.
    pub pending: Option<Tensor<3>>,
}

/// What a pass begins with.
#[derive(Debug)]
pub struct BlockInputs {
    /// What the first block takes.
    pub residual: Residual,
    /// The rotations of the tokens' positions, for all blocks.
    pub rotations: Vec<Rotation>,
}

/// A decoder whose blocks depend on each other by the residual stream alone.
pub trait Blocks {
    /// How many there are.
    fn count(&self) -> usize;

    /// The tokens' embeddings and rotations.
    ///
    /// # Errors
    /// As [`Decoder::hidden`](crate::Decoder::hidden).
    fn inputs(&self, pass: &Pass<'_>) -> Result<BlockInputs, Error>;

    /// Runs one block. It gives what is [needed](Pass::needed).
    ///
    /// # Errors
    /// As [`Decoder::hidden`](crate::Decoder::hidden).
    fn block(
        &self,
        index: usize,
        residual: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
    ) -> Result<Residual, Error>;

    /// The last block that keeps anything of the tokens: behind it only what [is
    /// wanted](Pass::wanted) is needed.
    fn last_that_keeps(&self) -> usize {
        self.count().saturating_sub(1)
    }

    /// What the head takes of what the last block gives, of the positions that [are
    /// wanted](Pass::wanted).
    fn normed(&self, residual: Residual, pass: &Pass<'_>) -> Tensor<3>;

    /// Runs all blocks, as [`Decoder::hidden`](crate::Decoder::hidden).
    ///
    /// # Errors
    /// As there.
    fn through(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        let BlockInputs { mut residual, rotations } = self.inputs(pass)?;
        let last = self.last_that_keeps();
        for index in 0..self.count() {
            let Some(of_block) = pass.of_block(index, last) else {
                return Ok(residual.stream);
            };
            residual = self.block(index, residual, &rotations, &of_block, cache)?;
            residual.stream = pass.add_deepstack(index, residual.stream);
        }
        Ok(self.normed(residual, pass))
    }
}

impl Residual {
    /// A stream to which nothing is still to be added.
    pub fn new(stream: Tensor<3>) -> Self {
        Self { stream, pending: None }
    }

    /// The stream with what is still to be added to it.
    pub(crate) fn summed(self) -> Tensor<3> {
        match self.pending {
            Some(more) => self.stream + more,
            None => self.stream,
        }
    }

    /// The positions that [are wanted](Pass::wanted).
    pub fn wanted(self, pass: &Pass<'_>) -> Self {
        let pending = self.pending.map(|more| pass.wanted(more));
        Self { stream: pass.wanted(self.stream), pending }
    }
}
