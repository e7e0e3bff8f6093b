//! What ranks tell each other: tensors and objects.

use std::sync::atomic::Ordering;

use burn::tensor::kind::{Basic, Numeric};
use burn::tensor::{DType, Tensor, TensorData};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Accelerator;
use crate::Error;
use crate::wire::{self, from_bytes, to_bytes};

/// How [`Accelerator::reduce`] makes one tensor of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// Their sum divided by the number of ranks.
    Mean,
}

impl Accelerator {
    /// The tensors of all ranks, one after the other along their first dimension, which may
    /// differ in length; the others must not.
    ///
    /// # Errors
    ///
    /// Another rank's tensor has another dtype or shape; a rank failed or is late.
    pub fn gather<const D: usize, K: Basic>(
        &self,
        tensor: Tensor<D, K>,
    ) -> Result<Tensor<D, K>, Error> {
        let rows = tensor.dims()[0];
        self.gather_rows(tensor, rows)
    }

    /// As [`gather`](Self::gather), without items that a rank was given only to have a batch like
    /// the others: what metrics are computed from.
    ///
    /// # Errors
    ///
    /// Another rank's tensor has another dtype or shape; a rank failed or is late.
    pub fn gather_for_metrics<const D: usize, K: Basic>(
        &self,
        tensor: Tensor<D, K>,
    ) -> Result<Tensor<D, K>, Error> {
        let rows = if self.repeats_an_item() { 0 } else { tensor.dims()[0] };
        self.gather_rows(tensor, rows)
    }

    fn repeats_an_item(&self) -> bool {
        self.step_state().batch().is_some_and(|batch| batch.items == 0)
    }

    fn gather_rows<const D: usize, K: Basic>(
        &self,
        tensor: Tensor<D, K>,
        rows: usize,
    ) -> Result<Tensor<D, K>, Error> {
        let device = tensor.device();
        let data = tensor.into_data();
        self.agree(|| format!("gather of {}", wire::describe(&data, true)))?;
        let own = wire::encode(&wire::first_rows(data, rows))?;
        let parts = self.communicator().all_gather(own)?;
        let parts = parts.iter().map(|part| wire::decode(part)).collect::<Result<Vec<_>, _>>()?;
        let data = wire::concatenate(parts)?;
        let dtype = data.dtype();
        Ok(Tensor::from_data(data, (&device, dtype)))
    }

    /// The objects of all ranks, in their order.
    ///
    /// # Errors
    ///
    /// The object cannot be written as MessagePack; a rank failed or is late.
    pub fn gather_object<T: Serialize + DeserializeOwned>(
        &self,
        object: &T,
    ) -> Result<Vec<T>, Error> {
        self.agree(|| format!("gather_object of {}", std::any::type_name::<T>()))?;
        self.gather_unchecked(object)
    }

    fn gather_unchecked<T: Serialize + DeserializeOwned>(
        &self,
        object: &T,
    ) -> Result<Vec<T>, Error> {
        let parts = self.communicator().all_gather(to_bytes(object)?)?;
        parts.iter().map(|part| from_bytes(part)).collect()
    }

    /// The objects of all ranks' batches, in the order of ranks, without those of repeated items.
    ///
    /// # Errors
    ///
    /// An object cannot be written as MessagePack; a rank failed or is late.
    pub fn gather_objects_for_metrics<T: Serialize + DeserializeOwned>(
        &self,
        mut objects: Vec<T>,
    ) -> Result<Vec<T>, Error> {
        if self.repeats_an_item() {
            objects.clear();
        }
        Ok(self.gather_object(&objects)?.into_iter().flatten().collect())
    }

    /// The sum or mean of all ranks' tensors, the same bits on every rank.
    ///
    /// # Errors
    ///
    /// Another rank's tensor has another dtype or shape; a rank failed or is late.
    pub fn reduce<const D: usize, K: Numeric>(
        &self,
        tensor: Tensor<D, K>,
        reduction: Reduction,
    ) -> Result<Tensor<D, K>, Error> {
        let (device, dtype) = (tensor.device(), tensor.dtype());
        let data = tensor.into_data();
        self.agree(|| format!("reduce of {}", wire::describe(&data, false)))?;
        let sum = if dtype == DType::F32 {
            let values: &[f32] = data.as_slice().expect("its dtype is f32");
            let fill = &mut |_, bucket: &mut [f32]| bucket.copy_from_slice(values);
            let sums = self.communicator().all_reduce(&[values.len()], fill)?;
            let sums = sums.into_iter().next().expect("one bucket was given");
            Tensor::from_data(TensorData::new(sums, data.shape().clone()), (&device, dtype))
        } else {
            let parts = self.communicator().all_gather(wire::encode(&data)?)?;
            let mut sum: Option<Tensor<D, K>> = None;
            for part in &parts {
                let part = wire::decode(part)?;
                wire::same_shape(&data, &part)?;
                let part = Tensor::from_data(part, (&device, dtype));
                sum = Some(sum.map_or(part.clone(), |sum| sum + part));
            }
            sum.expect("there is at least one rank")
        };
        Ok(match reduction {
            Reduction::Sum => sum,
            Reduction::Mean => sum.div_scalar(self.num_processes() as f64),
        })
    }

    /// Rank `from`'s tensor, on every rank; the others' may have any shape.
    ///
    /// # Errors
    ///
    /// A rank failed or is late.
    pub fn broadcast<const D: usize, K: Basic>(
        &self,
        tensor: Tensor<D, K>,
        from: usize,
    ) -> Result<Tensor<D, K>, Error> {
        let device = tensor.device();
        let data = self.broadcast_data(tensor.into_data(), from)?;
        let dtype = data.dtype();
        Ok(Tensor::from_data(data, (&device, dtype)))
    }

    pub(super) fn broadcast_data(
        &self,
        data: TensorData,
        from: usize,
    ) -> Result<TensorData, Error> {
        self.is_rank(from)?;
        self.agree(|| format!("broadcast from rank {from}"))?;
        let own = if self.process_index() == from { wire::encode(&data)? } else { Vec::new() };
        wire::decode(&self.communicator().broadcast(own, from)?)
    }

    /// Replaces the objects with those of rank `from`.
    ///
    /// # Errors
    ///
    /// The objects cannot be written as MessagePack; a rank failed or is late.
    pub fn broadcast_object_list<T: Serialize + DeserializeOwned>(
        &self,
        objects: &mut Vec<T>,
        from: usize,
    ) -> Result<(), Error> {
        self.is_rank(from)?;
        self.agree(|| format!("broadcast_object_list from rank {from}"))?;
        let is_source = self.process_index() == from;
        let own = if is_source { to_bytes(objects)? } else { Vec::new() };
        *objects = from_bytes(&self.communicator().broadcast(own, from)?)?;
        Ok(())
    }

    fn is_rank(&self, rank: usize) -> Result<(), Error> {
        let ranks = self.num_processes();
        let message = || format!("there is no rank {rank}: this run has {ranks} ranks");
        if rank < ranks { Ok(()) } else { Err(Error::Setting(message())) }
    }

    /// Makes the tensors of all ranks equally long in dimension `dim`: as the longest, filled
    /// with `value` at the end, or at the beginning if `at_start`.
    ///
    /// # Errors
    ///
    /// There is no such dimension; a rank failed or is late.
    pub fn pad_across_processes<const D: usize, K: Numeric>(
        &self,
        tensor: Tensor<D, K>,
        dim: usize,
        value: f64,
        at_start: bool,
    ) -> Result<Tensor<D, K>, Error> {
        if dim >= D {
            return Err(Error::Setting(format!(
                "a tensor of {D} dimensions has no dimension {dim}"
            )));
        }
        let mut shape = tensor.dims();
        let longest = self.gather_object(&shape[dim])?.into_iter().max().unwrap_or(shape[dim]);
        if longest == shape[dim] {
            return Ok(tensor);
        }
        shape[dim] = longest - shape[dim];
        let padding = Tensor::full(shape, value, (&tensor.device(), tensor.dtype()));
        let parts = if at_start { vec![padding, tensor] } else { vec![tensor, padding] };
        Ok(Tensor::cat(parts, dim))
    }

    /// This rank's share of `items`: the first ranks get one more if they cannot be split evenly.
    /// With `pad`, the last item is repeated so that all ranks get as many.
    #[must_use]
    pub fn split_between_processes<T: Clone>(&self, items: &[T], pad: bool) -> Vec<T> {
        let (rank, ranks) = (self.process_index(), self.num_processes());
        let mut own = items[crate::data::share(items.len(), rank, ranks)].to_vec();
        if pad && let Some(last) = items.last() {
            own.resize(items.len().div_ceil(ranks), last.clone());
        }
        own
    }

    /// Tells all ranks something at their next [`check_trigger`](Self::check_trigger), as to stop
    /// early.
    pub fn set_trigger(&self) {
        self.inner.trigger.store(true, Ordering::Relaxed);
    }

    /// Whether any rank called [`set_trigger`](Self::set_trigger) since the last check.
    ///
    /// # Errors
    ///
    /// A rank failed or is late.
    pub fn check_trigger(&self) -> Result<bool, Error> {
        let own = self.inner.trigger.swap(false, Ordering::Relaxed);
        Ok(self.gather_object(&own)?.contains(&true))
    }

    /// In debug mode, refuses a collective that ranks describe differently.
    pub(super) fn agree(&self, call: impl FnOnce() -> String) -> Result<(), Error> {
        if !self.inner.settings.debug || self.num_processes() == 1 {
            return Ok(());
        }
        let calls = self.gather_unchecked(&call())?;
        let agreeing = |call: &String| calls.iter().filter(|other| *other == call).count();
        // With two ranks, or a tie, the lower rank is taken for right.
        let expected = calls.iter().rev().max_by_key(|call| agreeing(call)).expect("ranks exist");
        match calls.iter().position(|call| call != expected) {
            None => Ok(()),
            Some(rank) => Err(Error::RankDiffers {
                rank,
                found: calls[rank].clone(),
                reference: calls.iter().position(|call| call == expected).unwrap_or_default(),
                expected: expected.clone(),
            }),
        }
    }
}
