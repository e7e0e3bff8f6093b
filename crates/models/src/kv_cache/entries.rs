//! Entries, each of which is made of a block of tokens.

use std::ops::Range;

use burn::tensor::{DType, Device, Tensor, TensorData};

use super::KvCache;
use super::layer::{AttentionLayer, Part, Seen};
use crate::cache_options::window_and_capacity;
use crate::layers::{QueryPositions, gathered};
use crate::{CacheOptions, EntryCache, Error};

/// One layer's entries, and what the next ones are made of.
#[derive(Debug)]
pub(super) struct EntryLayer {
    shape: EntryCache,
    /// Of the last tokens, `[batch, 1, capacity, inputs]` f32.
    pub inputs: AttentionLayer,
    /// `[batch, 1, capacity, width]`. The column of an entry is that of its last token, over the tokens of a block: of a text these
    /// follow each other, wherever it begins.
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
    /// Of the tokens that they are made of, `[tokens, inputs]` f32: from the first token of the text on if there are none before
    /// the first block.
    pub tokens: Tensor<2>,
}

/// What the tokens of a pass may look at in the entries of a layer.
pub(crate) struct SeenEntries {
    /// All entries, those of the pass too.
    pub seen: Seen,
    /// Of each text, the column of its first entry, and that of its first token.
    texts: Vec<[usize; 2]>,
    /// The first column of the pass.
    start: usize,
    block: usize,
}

impl SeenEntries {
    /// The columns of the entries that a token of the pass sees: of blocks that end with it or before it.
    pub fn columns(&self, row: usize, token: usize) -> Range<usize> {
        let [first, padding] = self.texts[row];
        let tokens = (self.start + token + 1).saturating_sub(padding);
        first..first + tokens / self.block
    }
}

impl KvCache {
    /// Takes what entries of a layer are made of, `[batch, tokens, inputs]` f32, of the columns behind those held, and has `make`
    /// make those `[entries, width]` whose last tokens are among them.
    pub(crate) fn see_entries(
        &mut self,
        layer: usize,
        positions: &QueryPositions<'_>,
        inputs: Tensor<3>,
        mut make: impl FnMut(EntryInputs) -> Tensor<2>,
    ) -> Result<SeenEntries, Error> {
        let (row, position, dtype) = (self.first_row(), self.position, self.options.dtype.dtype());
        let before = self.tokens_before_snapshot(inputs.dims()[1]);
        let lost = || Error::CacheLost { layer };
        let slot = self.layers.get_mut(layer).and_then(|layer| layer.entries.as_deref_mut());
        let slot = slot.ok_or_else(lost)?;
        let inputs = match slot.inputs.device() {
            Some(device) => inputs.to_device(&device),
            None => inputs,
        };
        let inputs = inputs.unsqueeze_dim::<4>(1);
        if let Some(before) = before.filter(|_| slot.inputs.forgets) {
            let taken = slot.inputs.take_snapshot(row, position, before, &inputs, &inputs);
            taken.ok_or_else(lost)?;
        }
        let [batch, _, tokens, _] = inputs.dims();
        let seen = slot.inputs.see(row, position, inputs.clone(), inputs).ok_or_else(lost)?;
        let (start, end) = (positions.start, positions.start + tokens);
        let EntryCache { block, span, width, .. } = slot.shape;
        let keeps = slot.entries.capacity > 0;
        let mut made = Vec::with_capacity(batch);
        for text in 0..batch {
            let padding = positions.padding[text];
            let [first, last] =
                [start, end].map(|column| slot.count(column.saturating_sub(padding)));
            if first == last {
                made.push(None);
                continue;
            }
            let from = (padding + (first + 1) * block).saturating_sub(span).max(padding);
            let columns: Vec<u32> =
                (from..padding + last * block).map(|column| column as u32).collect();
            let tokens = gathered(&seen, [text, 0], |part| &part.keys, &columns);
            let [_, _, count, inputs] = tokens.dims();
            let entries = make(EntryInputs { first, tokens: tokens.reshape([count, inputs]) });
            let entries = entries.cast(dtype).reshape([1, 1, last - first, width]);
            if keeps {
                let at = slot.first(padding) + first;
                let written = slot.entries.write(row + text, at, entries.clone(), entries);
                written.ok_or_else(lost)?;
                made.push(None);
            } else {
                made.push(Some(entries));
            }
        }
        if let Some((inputs, _)) = { seen }.held_back {
            slot.inputs.write(row, position, inputs.clone(), inputs).ok_or_else(lost)?;
        }
        let texts = positions.padding.iter();
        let (part, texts) = match keeps {
            true => {
                let part = slot.entries.part(end.div_ceil(block), row..row + batch);
                let texts = texts.map(|padding| [slot.first(*padding), *padding]);
                (part.ok_or_else(lost)?, texts.collect())
            }
            false => {
                let part = side_by_side(made, width);
                (Part::of(part.clone(), part), texts.map(|padding| [0, *padding]).collect())
            }
        };
        Ok(SeenEntries { seen: Seen::whole(part), texts, start, block })
    }
}

/// Entries of several texts, of which some have fewer, or none.
fn side_by_side(made: Vec<Option<Tensor<4>>>, width: usize) -> Tensor<4> {
    let most = made.iter().flatten().map(|entries| entries.dims()[2]).max().unwrap_or(0);
    let device = made.iter().flatten().map(Tensor::device).next().unwrap_or_default();
    let zeros = |count: usize| {
        let zeros = TensorData::new(vec![0f32; count * width], [1, 1, count, width]);
        Tensor::from_data(zeros, (&device, DType::F32))
    };
    // One that nobody sees, where there would be none.
    let most = most.max(1);
    let rows = made.into_iter().map(|entries| match entries {
        None => zeros(most),
        Some(entries) if entries.dims()[2] == most => entries.cast(DType::F32),
        Some(entries) => {
            let more = zeros(most - entries.dims()[2]);
            Tensor::cat(vec![entries.cast(DType::F32), more], 2)
        }
    });
    Tensor::cat(rows.collect(), 0)
}
