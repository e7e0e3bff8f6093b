//! Ranks that train apart and average their weights now and then.

use burn::module::Module;
use burn::tensor::{DType, TensorData};

use super::Accelerator;
use crate::Error;

/// Local SGD: every rank steps with its own gradients, and weights are averaged every few steps.
///
/// Stich 2018, "Local SGD Converges Fast and Communicates Little".
#[must_use = "gradients are synchronized again when this is dropped"]
pub struct LocalSgd<'a> {
    accelerator: &'a Accelerator,
    interval: usize,
    steps: usize,
}

impl<'a> LocalSgd<'a> {
    /// Begins to train apart; weights are averaged every `interval` optimizer steps.
    pub fn new(accelerator: &'a Accelerator, interval: usize) -> Self {
        accelerator.step_state().is_local = true;
        Self { accelerator, interval: interval.max(1), steps: 0 }
    }

    /// Takes note of a micro-batch, after the optimizer's step; averages weights if it is time.
    ///
    /// # Errors
    ///
    /// A rank failed or is late.
    pub fn step<M: Module>(&mut self, model: M) -> Result<M, Error> {
        if !self.accelerator.sync_gradients() {
            return Ok(model);
        }
        self.steps += 1;
        if self.steps.is_multiple_of(self.interval) { self.average(model) } else { Ok(model) }
    }

    /// Averages weights and ends the stretch. What optimizers keep stays each rank's own.
    ///
    /// # Errors
    ///
    /// A rank failed or is late.
    pub fn finish<M: Module>(self, model: M) -> Result<M, Error> {
        self.accelerator.share_loss_scaler(0)?;
        self.average(model)
    }

    fn average<M: Module>(&self, model: M) -> Result<M, Error> {
        let communicator = self.accelerator.communicator();
        let ranks = communicator.world_size() as f32;
        self.accelerator.replace_weights(model, |data| {
            let (shape, dtype) = (data.shape().clone(), data.dtype());
            if !dtype.is_float() {
                return Ok(data);
            }
            let values = data.convert_dtype(DType::F32);
            let values: &[f32] = values.as_slice().expect("it was converted");
            let fill = &mut |_, bucket: &mut [f32]| bucket.copy_from_slice(values);
            let mut sums = communicator.all_reduce(&[values.len()], fill)?.concat();
            sums.iter_mut().for_each(|sum| *sum /= ranks);
            Ok(TensorData::new(sums, shape).convert_dtype(dtype))
        })
    }
}

impl Drop for LocalSgd<'_> {
    fn drop(&mut self) {
        self.accelerator.step_state().is_local = false;
    }
}
