//! The states of linear attention and of convolutions.

use burn::tensor::{DType, Device, Tensor};
use outsize_kernels::StateRows;

use super::layer::{Layer, RecurrentLayer};
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
    /// Takes the state of a layer, to be [kept](Self::keep_state) again, and says which rows of it are those of the texts of a
    /// pass; zeros on `device` where nothing is kept.
    pub(crate) fn take_state(
        &mut self,
        layer: usize,
        positions: &QueryPositions<'_>,
        device: &Device,
    ) -> Result<(RecurrentState, StateRows), Error> {
        let texts = positions.padding.len();
        let begins = positions.padding.iter().map(|padding| padding.checked_sub(positions.start));
        let rows = StateRows { first: self.first_row(), begins: begins.collect() };
        match self.layers.get_mut(layer) {
            Some(Layer::Recurrent(RecurrentLayer { shape, state, keeps })) => match keeps {
                true => Ok((state.take().ok_or(Error::CacheLost { layer })?, rows)),
                false => Ok((RecurrentState::zeros(shape, texts, device), rows)),
            },
            _ => Err(Error::CacheLost { layer }),
        }
    }

    /// Keeps what comes of a state.
    pub(crate) fn keep_state(&mut self, layer: usize, new: RecurrentState) -> Result<(), Error> {
        match self.layers.get_mut(layer) {
            Some(Layer::Recurrent(RecurrentLayer { state, keeps, .. })) => {
                *state = Some(new).filter(|_| *keeps);
                Ok(())
            }
            _ => Err(Error::CacheLost { layer }),
        }
    }
}
