//! Images as a language model takes them: features in place of tokens' embeddings.

use std::sync::Arc;

use burn::tensor::Tensor;

/// Token ids from this one on stand for tokens of images that a [`KvCache`](crate::KvCache)
/// [holds](crate::KvCache::add_image). Vocabularies are far smaller.
pub const FIRST_IMAGE_ID: u32 = 1 << 31;

/// What a vision encoder makes of one image.
#[derive(Debug, Clone)]
pub struct ImageFeatures {
    /// `[tokens, hidden]` f32: what stands in place of the tokens' embeddings.
    pub embeddings: Tensor<2>,
    /// `[tokens, hidden]` f32 each: what is added to the residual stream behind the first blocks,
    /// one for each.
    pub deepstack: Vec<Tensor<2>>,
    /// How the tokens' positions are counted. None if it is as those of a text.
    pub positions: Option<GridPositions>,
    /// Whether its tokens see each other, later ones too: all of them are then run in one pass.
    pub sees_itself: bool,
}

impl ImageFeatures {
    /// Tokens that it takes in a text.
    pub fn tokens(&self) -> usize {
        self.embeddings.dims()[0]
    }
}

/// Positions of an image's tokens in rows and columns: rotary embeddings of several axes (M-RoPE,
/// Wang et al. 2024, arXiv:2409.12191). The text behind it goes on as if it had as many tokens as
/// the longer side.
#[derive(Debug, Clone)]
pub struct GridPositions {
    /// Rows of tokens.
    pub rows: usize,
    /// Tokens of a row.
    pub columns: usize,
    /// Which position each rotated pair of dimensions follows; those behind the last follow time.
    pub axes: Arc<[RotaryAxis]>,
}

/// What a pair of dimensions is rotated by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RotaryAxis {
    /// The position of the image, or that of a token of a text.
    Time,
    /// That and the row of the image.
    Row,
    /// That and the column of the image.
    Column,
}

impl GridPositions {
    /// The axes of so many pairs of dimensions.
    pub(crate) fn axes_of(&self, pairs: usize) -> Vec<RotaryAxis> {
        let time = std::iter::repeat(RotaryAxis::Time);
        self.axes.iter().copied().chain(time).take(pairs).collect()
    }

    /// By how many positions a text behind the image is nearer to what is before it than its tokens
    /// are many.
    pub(crate) fn saved(&self) -> usize {
        self.rows * self.columns - self.rows.max(self.columns)
    }

    /// The position of a token of an image that begins at `start`, on an axis.
    pub(crate) fn position(&self, start: usize, token: usize, axis: RotaryAxis) -> usize {
        start
            + match axis {
                RotaryAxis::Time => 0,
                RotaryAxis::Row => token / self.columns,
                RotaryAxis::Column => token % self.columns,
            }
    }
}
