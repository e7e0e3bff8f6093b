//! The sizes of decoders with LayerNorm.

use crate::architecture::Init;
use crate::config::{self, Fields, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_VOCAB};
use crate::layers::{Activation, LayerNorm};
use crate::{CacheSpec, Error};

/// What LayerNorm adds where no field says it.
const EPSILON: f64 = 1e-5;

/// The sizes of a decoder with LayerNorm, whatever its fields are called.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNormSizes {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward block's inner layer.
    pub inner: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads; divide `hidden`.
    pub heads: usize,
    /// The longest context that the model was trained for, in tokens.
    pub positions: usize,
    /// Token ids run from 0 to this, exclusive.
    pub vocabulary: usize,
    /// Added to the variance in LayerNorm.
    pub epsilon: f64,
    /// The non-linear function of the feed-forward block.
    pub activation: Activation,
    /// Whether the output head is the embedding table.
    pub tied: bool,
}

impl LayerNormSizes {
    /// Reads the fields of those names: of the residual stream's width, layers, heads, and what
    /// LayerNorm adds. `rest` gives, of the first, the inner width, the positions, the non-linear
    /// function, and whether the head is tied.
    pub(super) fn read(
        fields: &Fields<'_>,
        [width, layers, heads]: [&'static str; 3],
        epsilon: Option<&'static str>,
        rest: impl FnOnce(usize) -> Result<(usize, usize, Activation, bool), Error>,
    ) -> Result<Self, Error> {
        let hidden = fields.size(width, MAX_HIDDEN)?;
        let count = fields.size(heads, MAX_HEADS)?;
        if !hidden.is_multiple_of(count) || hidden / count > MAX_HEAD_DIM {
            let expected = format!(
                "the heads must divide {width}, {hidden}, and be at most {MAX_HEAD_DIM} wide"
            );
            return Err(fields.refuse(heads, expected));
        }
        let (inner, positions, activation, tied) = rest(hidden)?;
        Ok(Self {
            hidden,
            inner,
            layers: fields.size(layers, MAX_LAYERS)?,
            heads: count,
            positions,
            vocabulary: fields.size("vocab_size", MAX_VOCAB)?,
            epsilon: match epsilon {
                Some(field) => config::epsilon(fields, field, EPSILON)?,
                None => EPSILON,
            },
            activation,
            tied,
        })
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.hidden / self.heads
    }

    pub(super) fn cache(&self, key_value_heads: usize) -> CacheSpec {
        CacheSpec::uniform(
            self.layers,
            self.heads,
            key_value_heads,
            self.head_dim(),
            self.positions,
        )
    }

    pub(super) fn norm(&self, init: &Init) -> LayerNorm {
        LayerNorm::new(self.hidden, self.epsilon, init)
    }
}
