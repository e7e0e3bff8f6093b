//! Going back to a place of a text whose later tokens cannot be forgotten one by one.

use burn::tensor::Tensor;

use super::KvCache;
use super::attention_layer::AttentionLayer;
use crate::Error;

/// Where a snapshot is; its tensors are in the layers.
#[derive(Debug, Default)]
pub(super) struct Snapshot {
    /// The column that the next one is to be taken before.
    wanted: Option<usize>,
    /// The column that the one held was taken before.
    taken: Option<usize>,
}

impl Snapshot {
    /// Whether one was taken behind that position.
    pub fn is_behind(&self, position: usize) -> bool {
        self.taken.is_some_and(|taken| taken > position)
    }
}

impl KvCache {
    /// Has the pass that goes on from `position`, or across it, take a snapshot there, in place of
    /// an earlier one: [`go_back`](Self::go_back) then finds it, whatever comes after. Nothing
    /// happens in a cache that was made [without](crate::CacheOptions::snapshot).
    pub fn snapshot_at(&mut self, position: usize) {
        let can = self.options.snapshot && self.waiting.is_none();
        self.snapshot.wanted = Some(position).filter(|&position| can && position > 0);
    }

    /// Forgets the tokens from `position` on, as [`truncate`](Self::truncate) does; where that
    /// cannot be done, those from the snapshot on, or else all. Gives how many are held then.
    pub fn go_back(&mut self, position: usize) -> usize {
        if self.truncate(position).is_err() {
            match self.snapshot.taken.filter(|&taken| taken <= position) {
                Some(taken) => self.restore_snapshot(taken),
                None => self.clear(),
            }
        }
        self.position
    }

    fn restore_snapshot(&mut self, position: usize) {
        for layer in &mut self.layers {
            for layer in layer.windows_mut() {
                if let Some(snapshot) = &layer.snapshot {
                    let (keys, values) = (**snapshot).clone();
                    (layer.keys, layer.values) = (Some(keys), values);
                }
            }
            if let Some(layer) = &mut layer.recurrent {
                layer.state = layer.snapshot.as_deref().cloned();
            }
        }
        self.continue_from(position);
        self.forget_padding();
    }

    /// Forgets the snapshot.
    pub(super) fn drop_snapshot(&mut self) {
        self.snapshot.taken = None;
        for layer in &mut self.layers {
            layer.windows_mut().for_each(|layer| layer.snapshot = None);
            if let Some(layer) = &mut layer.recurrent {
                layer.snapshot = None;
            }
        }
    }

    /// Of a pass of `tokens` tokens, how many come before the snapshot that it takes, if it takes
    /// one.
    pub(super) fn tokens_before_snapshot(&self, tokens: usize) -> Option<usize> {
        let before = self.snapshot.wanted?.checked_sub(self.position)?;
        Some(before).filter(|&before| before < tokens)
    }

    /// Makes room for the snapshot that a pass takes.
    pub(super) fn begin_snapshot(&mut self, tokens: usize) {
        if self.tokens_before_snapshot(tokens).is_some() {
            self.drop_snapshot();
        }
    }

    /// Counts the snapshot as taken, once all layers have theirs and before the pass's columns are
    /// held.
    pub(super) fn end_snapshot(&mut self, tokens: usize) {
        if self.tokens_before_snapshot(tokens).is_some() {
            self.snapshot.taken = self.snapshot.wanted.take();
        }
    }

    /// Takes the snapshot of a layer of attention that forgets, before a pass's keys and values are
    /// written.
    pub(super) fn snapshot_keys(
        &mut self,
        layer: usize,
        keys: &Tensor<4>,
        values: &Tensor<4>,
    ) -> Result<(), Error> {
        let (row, position, lost) = (self.first_row(), self.position, Error::CacheLost { layer });
        let before = self.tokens_before_snapshot(keys.dims()[2]);
        let slot = self.layers.get_mut(layer).and_then(|layer| layer.attention.as_mut());
        match (before, slot) {
            (Some(before), Some(slot)) if slot.forgets => {
                slot.take_snapshot(row, position, before, keys, values).ok_or(lost)
            }
            _ => Ok(()),
        }
    }
}

impl AttentionLayer {
    /// Keeps what it holds, with the first `before` of some columns from `position` on.
    pub(super) fn take_snapshot(
        &mut self,
        row: usize,
        position: usize,
        before: usize,
        keys: &Tensor<4>,
        values: &Tensor<4>,
    ) -> Option<()> {
        // These share their storage: the first write to either copies it.
        let mut copy = Self {
            keys: Some(self.keys.clone()?),
            values: self.values.clone(),
            snapshot: None,
            ..*self
        };
        if before > 0 {
            let [keys, values] = [keys, values].map(|new| new.clone().narrow(2, 0, before));
            copy.write(row, position, keys, values)?;
        }
        self.snapshot = Some(Box::new((copy.keys?, copy.values)));
        Some(())
    }
}
