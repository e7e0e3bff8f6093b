//! The states of linear attention and of convolutions.

use burn::tensor::{DType, Device, Tensor};
use outsize_kernels::StateRows;

use super::layer::RecurrentLayer;
use super::{KvCache, RecurrentState};
use crate::layers::QueryPositions;
use crate::{Error, RecurrentCache};

impl RecurrentState {
    /// Of so many texts.
    pub(super) fn zeros(shape: &RecurrentCache, texts: usize, device: &Device) -> Self {
        let matrices = shape.heads.map(|heads| {
            let [blocks, rows, columns] = heads.state();
            [texts, blocks, rows, columns]
        });
        let inputs = [texts, shape.taps - 1, shape.channels];
        device.memory_persistent_allocations((), |()| Self {
            matrices: matrices.map(|shape| Tensor::zeros(shape, (device, DType::F32))),
            inputs: Tensor::zeros(inputs, (device, DType::F32)),
        })
    }
}

impl KvCache {
    /// Has the state of a layer go on with what is made of a pass's tokens, `[batch, tokens, ..]`
    /// each: `step` takes them and the state with the rows of it that are those of the pass's
    /// texts, and gives `[batch, tokens, ..]` and the state behind them. It is called twice if a
    /// snapshot is taken in between. The state is on a device of its own, or on that of `inputs` if
    /// none is kept. A layer may have its inputs go on first, and its matrices in a second call.
    pub(crate) fn with_state<const N: usize, const D: usize>(
        &mut self,
        layer: usize,
        positions: &QueryPositions<'_>,
        inputs: [Tensor<3>; N],
        mut step: impl FnMut([Tensor<3>; N], RecurrentState, StateRows) -> (Tensor<D>, RecurrentState),
    ) -> Result<Tensor<D>, Error> {
        let (tokens, device) = (inputs[0].dims()[1], inputs[0].device());
        let before = self.tokens_before_snapshot(tokens);
        let start = positions.start;
        let parts = match before {
            Some(before @ 1..) => {
                let after = inputs.clone().map(|x| x.narrow(1, before, tokens - before));
                vec![(start, inputs.map(|x| x.narrow(1, 0, before))), (start + before, after)]
            }
            _ => vec![(start, inputs)],
        };
        let mut outputs = Vec::with_capacity(parts.len());
        for (from, inputs) in parts {
            let (state, rows) = self.take_state(layer, from, positions.padding, &device)?;
            if before.is_some_and(|before| from == start + before)
                && let Some(layer) = self.recurrent_mut(layer)
            {
                // The step finds it shared, and writes to a copy. If the inputs went on before the
                // matrices do, they are there already: an earlier pass's snapshot is not.
                let inputs = layer.snapshot.take().map(|taken| taken.inputs);
                let taken = state.clone();
                let inputs = inputs.unwrap_or_else(|| taken.inputs.clone());
                layer.snapshot = Some(Box::new(RecurrentState { inputs, ..taken }));
            }
            // Nothing can fail before the state is kept again.
            let (output, state) = step(inputs, state, rows);
            self.keep_state(layer, state)?;
            outputs.push(output);
        }
        Ok(match outputs.pop() {
            Some(output) if outputs.is_empty() => output,
            last => Tensor::cat(outputs.into_iter().chain(last).collect(), 1),
        })
    }

    /// Takes the state of a layer, to be [kept](Self::keep_state) again, and says which rows of it
    /// are those of the texts of a pass from column `start` on; zeros on `device` where nothing is
    /// kept.
    fn take_state(
        &mut self,
        layer: usize,
        start: usize,
        padding: &[usize],
        device: &Device,
    ) -> Result<(RecurrentState, StateRows), Error> {
        let texts = padding.len();
        let begins = padding.iter().map(|padding| padding.checked_sub(start));
        let rows = StateRows { first: self.first_row(), begins: begins.collect() };
        match self.recurrent_mut(layer) {
            Some(RecurrentLayer { shape, state, keeps, .. }) => match keeps {
                true => Ok((state.take().ok_or(Error::CacheLost { layer })?, rows)),
                false => Ok((RecurrentState::zeros(shape, texts, device), rows)),
            },
            None => Err(Error::CacheLost { layer }),
        }
    }

    fn recurrent_mut(&mut self, layer: usize) -> Option<&mut RecurrentLayer> {
        self.layers.get_mut(layer)?.recurrent.as_deref_mut()
    }

    /// Keeps what comes of a state.
    fn keep_state(&mut self, layer: usize, new: RecurrentState) -> Result<(), Error> {
        let RecurrentLayer { state, keeps, .. } =
            self.recurrent_mut(layer).ok_or(Error::CacheLost { layer })?;
        *state = Some(new).filter(|_| *keeps);
        Ok(())
    }
}
