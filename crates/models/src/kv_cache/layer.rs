//! One layer's storage.

use burn::tensor::Tensor;

use super::attention_layer::AttentionLayer;
use super::entries::EntryLayer;
use crate::RecurrentCache;

/// What one layer keeps; nothing if it looks at what another one keeps, or if its tokens do not
/// know of each other.
#[derive(Debug)]
pub(super) struct Layer {
    pub attention: Option<AttentionLayer>,
    /// Beside attention.
    pub entries: Option<Box<EntryLayer>>,
    pub recurrent: Option<Box<RecurrentLayer>>,
}

impl Layer {
    /// All that it keeps of columns, of which windows may move on.
    pub fn windows(&self) -> impl Iterator<Item = &AttentionLayer> {
        let inputs = self.entries.as_ref().map(|layer| &layer.inputs);
        self.attention.iter().chain(inputs)
    }

    /// The same.
    pub fn windows_mut(&mut self) -> impl Iterator<Item = &mut AttentionLayer> {
        let inputs = self.entries.as_mut().map(|layer| &mut layer.inputs);
        self.attention.iter_mut().chain(inputs)
    }

    /// Whether what it kept is gone, after an error in the middle of a write.
    pub fn is_lost(&self) -> bool {
        self.attention.as_ref().is_some_and(AttentionLayer::is_lost)
            || self.entries.as_ref().is_some_and(|layer| layer.is_lost())
            || self.recurrent.as_ref().is_some_and(|layer| layer.keeps && layer.state.is_none())
    }

    /// Has `change` make something else of all that is kept of the texts,
    /// `[rows, heads, places, width]`; it is told how many of the places are in use where columns
    /// up to `written`, exclusive, have been written.
    pub fn change_rows(
        &mut self,
        written: usize,
        mut change: impl FnMut(Tensor<4>, usize) -> Tensor<4>,
    ) -> Option<()> {
        if let Some(layer) = &mut self.attention {
            layer.change_rows(written, &mut change)?;
        }
        if let Some(layer) = &mut self.entries {
            layer.change_rows(written, &mut change)?;
        }
        match &mut self.recurrent {
            Some(layer) => layer.change_rows(change),
            None => Some(()),
        }
    }
}

/// What linear attention or a convolution keeps of each text; all f32. It is moved out, changed and
/// moved back, as keys and values are.
#[derive(Debug, Clone)]
pub(crate) struct RecurrentState {
    /// `[batch, ..]` of the heads' [state](outsize_kernels::LinearAttentionHeads::state), if there
    /// are such.
    pub matrices: Option<Tensor<4>>,
    /// `[batch, taps - 1, channels]`: the last inputs of the convolution.
    pub inputs: Tensor<3>,
}

/// One layer's state; `None` while being written, or if it keeps nothing.
#[derive(Debug)]
pub(super) struct RecurrentLayer {
    pub shape: RecurrentCache,
    pub state: Option<RecurrentState>,
    pub keeps: bool,
    pub snapshot: Option<Box<RecurrentState>>,
}

impl RecurrentLayer {
    /// As [`Layer::change_rows`]; all places are in use.
    pub fn change_rows(
        &mut self,
        mut change: impl FnMut(Tensor<4>, usize) -> Tensor<4>,
    ) -> Option<()> {
        let RecurrentState { matrices, inputs } = self.state.take()?;
        let [batch, taps, channels] = inputs.dims();
        let matrices = matrices.map(|matrices| {
            let rows = matrices.dims()[2];
            change(matrices, rows)
        });
        let inputs = change(inputs.reshape([batch, 1, taps, channels]), taps);
        self.state =
            Some(RecurrentState { matrices, inputs: inputs.reshape([batch, taps, channels]) });
        Some(())
    }
}
