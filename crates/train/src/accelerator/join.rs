//! Ranks that run out of batches before others.

use burn::module::Module;

use super::Accelerator;
use crate::Error;

/// A stretch of training in which ranks may have different numbers of batches.
///
/// While it lives, ranks ask each other before each step who still trains. End it with
/// [`finish`](Self::finish).
#[must_use = "call finish after the loop"]
pub struct JoinUnevenInputs<'a> {
    accelerator: &'a Accelerator,
}

impl Accelerator {
    /// Begins a stretch in which ranks may have different numbers of batches, as with
    /// [`even_batches(false)`](crate::AcceleratorBuilder::even_batches). It is for one model.
    ///
    /// ```
    /// # fn main() -> Result<(), outsize_train::Error> {
    /// # use burn::nn::{Linear, LinearConfig};
    /// # use outsize_train::Accelerator;
    /// # let accelerator = Accelerator::builder().build()?;
    /// # let mut model: Linear = LinearConfig::new(2, 2).init(&accelerator.device());
    /// let uneven = accelerator.join_uneven_inputs();
    /// // for batch in loader.iter() { … }
    /// model = uneven.finish(model)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn join_uneven_inputs(&self) -> JoinUnevenInputs<'_> {
        self.step_state().is_uneven = true;
        JoinUnevenInputs { accelerator: self }
    }

    /// In an uneven stretch, says whether this rank has a step to make, and if so whether it counts
    /// tokens; gives the first rank that has one, and the same of it.
    pub(super) fn joining(&self, own: Option<bool>) -> Result<Option<(usize, bool)>, Error> {
        let is_alone = self.num_processes() == 1;
        if is_alone || !self.step_state().is_uneven || self.step_state().is_local {
            return Ok(None);
        }
        let all = self.gather_object(&own)?.into_iter().enumerate();
        Ok(all.filter_map(|(rank, counts_tokens)| Some((rank, counts_tokens?))).next())
    }
}

impl JoinUnevenInputs<'_> {
    /// Takes part in the steps of the ranks that have more batches, with the gradients that this
    /// rank has left and then with none, and takes the weights of the last. As in PyTorch, the
    /// optimizer does not see these steps.
    ///
    /// # Errors
    ///
    /// A rank failed, calls something else, or is late.
    pub fn finish<M: Module>(self, model: M) -> Result<M, Error> {
        let accelerator = self.accelerator;
        let mut last = None;
        while let Some((rank, counts_tokens)) = accelerator.joining(None)? {
            last = Some(rank);
            accelerator.average_accumulated(&model, counts_tokens)?;
            // That was the end of this rank's step too.
            let mut state = accelerator.step_state();
            (state.sync_gradients, state.micro_batches) = (true, 0);
        }
        // Ranks that end together have the same weights already, and each sees no other train.
        let last = accelerator.gather_object(&last)?.into_iter().flatten().next();
        match last {
            None => Ok(model),
            Some(rank) => {
                accelerator.share_loss_scaler(rank)?;
                accelerator.broadcast_model(model, rank)
            }
        }
    }
}

impl Drop for JoinUnevenInputs<'_> {
    fn drop(&mut self) {
        self.accelerator.step_state().is_uneven = false;
    }
}
