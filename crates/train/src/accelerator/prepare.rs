//! Making models, optimizers, loaders and schedulers ready for several ranks.

use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::ModuleOptimizer;
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Int, Tensor, TensorData};

use super::Accelerator;
use crate::Error;
use crate::data::{BatchLoader, ShardedIterator, ShardedLoader, Sharding};
use crate::optimizer::AcceleratedOptimizer;
use crate::scheduler::AcceleratedScheduler;

impl Accelerator {
    /// Prepares all that a loop needs; see the methods for one of them.
    ///
    /// # Errors
    ///
    /// Ranks have different models; a rank failed or is late.
    pub fn prepare<M: Module, O: Send + 'static>(
        &self,
        model: M,
        optimizer: ModuleOptimizer,
        loader: BatchLoader<O>,
        scheduler: impl Into<ModuleLrScheduler>,
    ) -> Result<(M, AcceleratedOptimizer, ShardedLoader<O>, AcceleratedScheduler), Error> {
        Ok((
            self.prepare_model(model)?,
            self.prepare_optimizer(optimizer),
            self.prepare_data_loader(loader)?,
            self.prepare_scheduler(scheduler),
        ))
    }

    /// Gives all ranks the weights of rank 0, on [`device`](Self::device).
    ///
    /// # Errors
    ///
    /// Ranks have different models; a rank failed or is late.
    pub fn prepare_model<M: Module>(&self, model: M) -> Result<M, Error> {
        let mut model = model.fork(&self.device());
        // Now, so that lazy weights do not depend on what is seeded later.
        model.visit(&mut Initialize);
        if self.num_processes() > 1 {
            // Clones share running statistics; those of ranks that are threads must not.
            model = model.valid().train();
        }
        self.broadcast_model(model, 0)
    }

    /// Gives all ranks the weights of rank `from`.
    ///
    /// # Errors
    ///
    /// Ranks have different models; a rank failed or is late.
    pub fn broadcast_model<M: Module>(&self, model: M, from: usize) -> Result<M, Error> {
        self.agree(|| format!("broadcast of {}", crate::gradients::describe(&model)))?;
        self.replace_weights(model, |data| self.broadcast_data(data, from))
    }

    /// Passes every parameter's data through `replace`, until it fails.
    pub(super) fn replace_weights<M: Module>(
        &self,
        model: M,
        replace: impl FnMut(TensorData) -> Result<TensorData, Error>,
    ) -> Result<M, Error> {
        if self.num_processes() == 1 {
            return Ok(model);
        }
        let mut mapper = Replace { replace, failure: None };
        let model = model.map(&mut mapper);
        mapper.failure.map_or(Ok(model), Err)
    }

    /// An optimizer that steps when gradients are complete.
    #[must_use]
    pub fn prepare_optimizer(&self, optimizer: ModuleOptimizer) -> AcceleratedOptimizer {
        AcceleratedOptimizer::new(optimizer)
    }

    /// A scheduler that moves with the optimizer.
    #[must_use]
    pub fn prepare_scheduler(
        &self,
        scheduler: impl Into<ModuleLrScheduler>,
    ) -> AcceleratedScheduler {
        let settings = &self.inner.settings;
        let stride = if settings.split_batches { 1 } else { self.num_processes() };
        let with_optimizer = settings.step_scheduler_with_optimizer;
        AcceleratedScheduler::new(scheduler.into(), stride, with_optimizer, self.inner.step.clone())
    }

    /// A loader that gives this rank its share of each batch.
    ///
    /// # Errors
    ///
    /// The batch size cannot be split over the ranks.
    pub fn prepare_data_loader<O: Send + 'static>(
        &self,
        loader: BatchLoader<O>,
    ) -> Result<ShardedLoader<O>, Error> {
        let settings = &self.inner.settings;
        let sharding = Sharding {
            communicator: self.inner.communicator.clone(),
            device: self.device(),
            split_batches: settings.split_batches,
            even_batches: settings.even_batches,
            seed: settings.seed,
            step: self.inner.step.clone(),
        };
        ShardedLoader::new(loader, sharding)
    }

    /// The loader's next epoch without the first `batches` of each rank; they are not read.
    pub fn skip_first_batches<O: Send + 'static>(
        &self,
        loader: &ShardedLoader<O>,
        batches: usize,
    ) -> ShardedIterator<O> {
        loader.skip_first_batches(batches)
    }
}

/// Draws the weights that are still lazy.
struct Initialize;

impl ModuleVisitor for Initialize {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.base());
    }
}

struct Replace<F> {
    replace: F,
    failure: Option<Error>,
}

impl<F: FnMut(TensorData) -> Result<TensorData, Error>> Replace<F> {
    fn replaced<const D: usize, K: Basic>(&mut self, tensor: Tensor<D, K>) -> Tensor<D, K> {
        if self.failure.is_some() {
            return tensor;
        }
        let own = tensor.to_data();
        let options = (&tensor.device(), tensor.dtype());
        let (shape, dtype) = (own.shape().clone(), own.dtype());
        let replaced = (self.replace)(own).and_then(|data| match data.shape() == &shape {
            true => Ok(data),
            false => Err(Error::Wire(format!(
                "a parameter has shape {shape:?} and dtype {dtype:?} on this rank, and shape {:?} on another: \
                 build the same model on all ranks",
                data.shape()
            ))),
        });
        match replaced {
            Ok(data) => Tensor::from_data(data, options),
            Err(failure) => {
                self.failure = Some(failure);
                tensor
            }
        }
    }
}

impl<F: FnMut(TensorData) -> Result<TensorData, Error>> ModuleMapper for Replace<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let requires_grad = tensor.is_require_grad();
        let tensor = self.replaced(tensor).set_require_grad(requires_grad);
        Param::from_mapped_value(id, tensor, mapper)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        param.map(|tensor| self.replaced(tensor))
    }

    fn map_bool<const D: usize>(
        &mut self,
        param: Param<Tensor<D, Bool>>,
    ) -> Param<Tensor<D, Bool>> {
        param.map(|tensor| self.replaced(tensor))
    }
}
