//! Entries, each of which is made of a block of tokens.

use std::ops::Range;

use burn::tensor::{DType, Device, Tensor};

use super::attention_layer::{AttentionLayer, Seen};
use crate::cache_options::window_and_capacity;
use crate::{CacheOptions, EntryCache};

/// One layer's entries, and what the next ones are made of.
#[derive(Debug)]
pub(super) struct EntryLayer {
    pub shape: EntryCache,
    /// Of the last tokens, `[batch, 1, capacity, inputs]` f32.
    pub inputs: AttentionLayer,
    /// `[batch, 1, capacity, width]`. The column of an entry is that of its last token, over the
    /// tokens of a block: of a text these follow each other, wherever it begins.
    pub entries: AttentionLayer,
}

impl EntryLayer {
    pub fn new(shape: &EntryCache, options: &CacheOptions, device: &Device) -> Self {
        let window = window_and_capacity(Some(shape.span), options);
        let storage = |(window, capacity), width, dtype, forgets| {
            let zeros =
                |()| Tensor::zeros([options.sequences(), 1, capacity, width], (device, dtype));
            let keys = Some(device.memory_persistent_allocations((), zeros));
            AttentionLayer { keys, forgets, ..AttentionLayer::shared(window, capacity) }
        };
        let entries = (usize::MAX, shape.capacity(options));
        Self {
            inputs: storage(window, shape.inputs, DType::F32, shape.forgets(options)),
            entries: storage(entries, shape.width, options.dtype.dtype(), false),
            shape: *shape,
        }
    }

    /// One that keeps nothing.
    pub fn without_storage(shape: &EntryCache) -> Self {
        let (inputs, entries) = (shape.span, usize::MAX);
        let [inputs, entries] = [inputs, entries].map(|window| AttentionLayer::shared(window, 0));
        Self { shape: *shape, inputs, entries }
    }

    pub fn is_lost(&self) -> bool {
        self.inputs.is_lost() || self.entries.is_lost()
    }

    /// As [`Layer::change_rows`](super::layer::Layer::change_rows).
    pub fn change_rows(
        &mut self,
        written: usize,
        mut change: impl FnMut(Tensor<4>, usize) -> Tensor<4>,
    ) -> Option<()> {
        self.inputs.change_rows(written, &mut change)?;
        self.entries.change_rows(written.div_ceil(self.shape.block), change)
    }

    /// The column of the first entry of a text that begins in a column.
    pub fn first(&self, padding: usize) -> usize {
        padding.div_ceil(self.shape.block)
    }

    /// Entries of so many tokens.
    pub fn count(&self, tokens: usize) -> usize {
        tokens / self.shape.block
    }
}

/// What some consecutive entries of a text are made of.
pub(crate) struct EntryInputs {
    /// The number of the first one in its text.
    pub first: usize,
    /// Of the tokens that they are made of, `[tokens, inputs]` f32: from the first token of the
    /// text on if there are none before the first block.
    pub tokens: Tensor<2>,
}

/// What the tokens of a pass may look at in the entries of a layer.
pub(crate) struct SeenEntries {
    /// All entries, those of the pass too.
    pub seen: Seen,
    /// Of each text, the column of its first entry, and that of its first token.
    pub(super) texts: Vec<[usize; 2]>,
    /// The first column of the pass.
    pub(super) start: usize,
    pub(super) block: usize,
}

impl SeenEntries {
    /// The columns of the entries that a token of the pass sees: of blocks that end with it or
    /// before it.
    pub fn columns(&self, row: usize, token: usize) -> Range<usize> {
        let [first, padding] = self.texts[row];
        let tokens = (self.start + token + 1).saturating_sub(padding);
        first..first + tokens / self.block
    }
}
