//! How entries are made of the tokens of a pass.

use burn::tensor::{DType, Tensor, TensorData};

use super::KvCache;
use super::attention_layer::{Part, Seen};
use super::entries::{EntryInputs, SeenEntries};
use crate::layers::{QueryPositions, gathered};
use crate::{EntryCache, Error};

impl KvCache {
    /// Takes what entries of a layer are made of, `[batch, tokens, inputs]` f32, of the columns
    /// behind those held, and has `make` make those `[entries, width]` whose last tokens are among
    /// them.
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
        if let Some((inputs, _)) = seen.into_held_back() {
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
