//! One pass of new tokens over a model.

use std::borrow::Cow;
use std::ops::Range;

use burn::tensor::{Device, Tensor};

use crate::image_features::FIRST_IMAGE_ID;
use crate::layers::{Embedding, QueryPositions, Rope, Rotation};
use crate::pass_images::PassImages;
use crate::{Batch, Error, KvCache, Logits};

/// One pass of new tokens over a model, checked.
#[derive(Debug, Clone)]
pub struct Pass<'a> {
    batch: &'a Batch,
    /// Columns that the cache holds.
    start: usize,
    /// The sequence's length at the end of the passes that were announced.
    length: usize,
    padding: Vec<usize>,
    /// Of each sequence, how many of its tokens are seen; if there is none, all are.
    lengths: &'a [usize],
    /// Positions of each sequence that what makes logits is wanted of: the last ones.
    positions: usize,
    /// Whether the blocks that it is for need not make anything of other positions, beside what
    /// they keep.
    is_narrow: bool,
    /// Whether nothing of it is wanted, but what blocks keep.
    keeps: bool,
    /// Where the text has images, or had them before.
    images: Option<PassImages>,
    /// Columns that see each other.
    groups: Vec<Range<usize>>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(batch: &'a Batch, cache: &KvCache, logits: Logits) -> Self {
        let padding = cache.padding().iter().zip(batch.padding());
        let images = cache.has_images().then(|| PassImages::new(batch, cache));
        Self {
            batch,
            start: cache.position(),
            length: cache.length_after(batch.tokens()),
            padding: padding.map(|(held, more)| held + more).collect(),
            lengths: &[],
            positions: logits.positions(batch.tokens()),
            is_narrow: false,
            keeps: false,
            groups: images.as_ref().map_or_else(Vec::new, |images| images.groups(cache.position())),
            images,
        }
    }

    pub(crate) fn of_prompt(batch: &'a Batch) -> Self {
        let tokens = batch.tokens();
        let padding = batch.padding().to_vec();
        let (lengths, images, groups) = (&[], None, Vec::new());
        Self {
            batch,
            start: 0,
            length: tokens,
            padding,
            lengths,
            positions: tokens,
            is_narrow: false,
            keeps: false,
            images,
            groups,
        }
    }

    /// The same in which of each sequence so many tokens are seen: those behind them see these, and
    /// not each other.
    pub(crate) fn with_lengths(self, lengths: &'a [usize]) -> Self {
        Self { lengths, ..self }
    }

    /// The same for a block of a model whose last one that keeps anything is `last`: of what this
    /// one and those behind it make only what [is wanted](Self::wanted) is needed. None where
    /// nothing is needed of a block.
    pub(crate) fn of_block(&self, index: usize, last: usize) -> Option<Cow<'_, Self>> {
        if self.keeps && index > last {
            return None;
        }
        Some(match index < last || self.adds_behind(index) {
            true => Cow::Borrowed(self),
            false => Cow::Owned(Self { is_narrow: true, ..self.clone() }),
        })
    }

    /// The same of which so many of the last positions are wanted.
    pub(crate) fn wanting(self, positions: usize) -> Self {
        Self { positions, ..self }
    }

    /// The same of which nothing is wanted, but what blocks keep.
    pub(crate) fn keeping(self) -> Self {
        Self { keeps: true, ..self }
    }

    /// Whether nothing is needed of a block, but what it keeps.
    pub fn only_keeps(&self) -> bool {
        self.is_narrow && self.keeps
    }

    /// Whether images add anything behind a block.
    fn adds_behind(&self, block: usize) -> bool {
        self.images.as_ref().is_some_and(|images| images.adds_behind(block))
    }

    /// Tokens of all sequences that are [needed](Self::needed).
    pub fn rows(&self) -> usize {
        self.batch.rows() * self.needed_tokens()
    }

    /// Of each sequence how many tokens are [needed](Self::needed).
    fn needed_tokens(&self) -> usize {
        if self.is_narrow { self.positions } else { self.batch.tokens() }
    }

    /// Of `[batch, tokens, …]` what blocks behind need; does nothing a second time.
    pub fn needed<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        self.query_positions().needed(x)
    }

    /// The tokens, those of one sequence after those of the other; images have some that are in no
    /// vocabulary.
    pub fn ids(&self) -> &[u32] {
        self.batch.ids()
    }

    /// The same of those that are [needed](Self::needed).
    pub fn needed_ids(&self) -> Vec<u32> {
        let (tokens, needed) = (self.batch.tokens(), self.needed_tokens());
        let rows = self.batch.ids().chunks_exact(tokens);
        rows.flat_map(|ids| &ids[tokens - needed..]).copied().collect()
    }

    /// The embeddings of the tokens: `[batch, tokens, hidden]` f32.
    pub fn embed(&self, table: &Embedding) -> Tensor<3> {
        let x = match &self.images {
            None => table.forward(self.batch.ids()),
            // Those of images are replaced: any row will do.
            Some(_) => {
                let ids = self.batch.ids().iter();
                let ids = ids.map(|id| if *id < FIRST_IMAGE_ID { *id } else { 0 });
                table.forward(&ids.collect::<Vec<_>>())
            }
        };
        let hidden = x.dims()[2];
        x.reshape([self.batch.rows(), self.batch.tokens(), hidden])
    }

    /// Tokens' embeddings `[batch, tokens, hidden]` f32 with the features of images in place of
    /// those of their tokens.
    pub fn embed_images(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.images {
            Some(images) => images.embed(x),
            None => x,
        }
    }

    /// The residual stream `[batch, tokens, hidden]` f32 behind a block, with what images add to it
    /// there.
    pub fn add_deepstack(&self, block: usize, x: Tensor<3>) -> Tensor<3> {
        match &self.images {
            Some(images) => images.add_deepstack(block, x),
            None => x,
        }
    }

    /// The same of a table that may end before the vocabulary does: tokens beyond it have the first
    /// row.
    pub fn embed_within(&self, table: &Embedding) -> Tensor<3> {
        let rows = table.weight.lazy_shape()[0];
        let within = |id: &u32| if (*id as usize) < rows { *id } else { 0 };
        let ids: Vec<_> = self.batch.ids().iter().map(within).collect();
        let x = table.forward(&ids);
        let width = x.dims()[2];
        x.reshape([self.batch.rows(), self.batch.tokens(), width])
    }

    /// The embeddings of the tokens' positions, each sequence's counted from its first token:
    /// `[batch, tokens, hidden]` f32. The table has `offset` rows before that of the first
    /// position.
    ///
    /// # Errors
    /// The table has no row for one of them.
    pub fn embed_positions(&self, table: &Embedding, offset: usize) -> Result<Tensor<3>, Error> {
        let columns = self.start..self.start + self.batch.tokens();
        let ids: Vec<u32> = (self.padding.iter())
            .flat_map(|padding| {
                columns.clone().map(|column| (offset + column.saturating_sub(*padding)) as u32)
            })
            .collect();
        let rows = table.weight.lazy_shape()[0];
        if let Some(&last) = ids.iter().max().filter(|&&last| last as usize >= rows) {
            return Err(Error::Context { context: last as usize + 1 - offset, max: rows - offset });
        }
        let x = table.forward(&ids);
        let hidden = x.dims()[2];
        Ok(x.reshape([self.batch.rows(), self.batch.tokens(), hidden]))
    }

    /// The rotations of the tokens' positions.
    pub fn rotation(&self, rope: &Rope, device: &Device) -> Rotation {
        let tokens = self.batch.tokens();
        let images = self.images.as_ref();
        if let Some(rotation) = images
            .and_then(|images| images.rotation(rope, [self.start, tokens, self.length], device))
        {
            return rotation;
        }
        rope.at(self.start, tokens, self.length, &self.padding, device)
    }

    /// Where the tokens are, which decides what they see.
    pub fn query_positions(&self) -> QueryPositions<'_> {
        let (tokens, needed) = (self.batch.tokens(), self.needed_tokens());
        QueryPositions {
            start: self.start,
            padding: &self.padding,
            lengths: self.lengths,
            groups: &self.groups,
            alibi: None,
            only_kept: self.only_keeps(),
            queries: (needed < tokens).then(|| [tokens - needed, needed]),
        }
    }

    /// The positions of `[batch, tokens, hidden]` that logits are wanted of; does nothing a second
    /// time.
    pub fn wanted(&self, x: Tensor<3>) -> Tensor<3> {
        match x.dims()[1] {
            tokens if tokens == self.positions => x,
            tokens => x.narrow(1, tokens - self.positions, self.positions),
        }
    }
}
