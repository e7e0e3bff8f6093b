//! Items of a data set, in the order of an epoch, as batches.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::transform::SelectionDataset;
use burn::data::dataset::{Dataset, DatasetError};
use burn::tensor::Device;

/// What a loader asks of a data set and its batcher.
pub(super) trait BatchSource<O>: Send + Sync {
    /// The number of items.
    fn items(&self) -> usize;

    /// A batch of the items at these positions of an epoch's order.
    fn batch(&self, epoch: u64, items: Range<usize>, device: &Device) -> Result<O, DatasetError>;

    /// The items at these positions of an epoch's order, as bytes for another rank.
    fn encode(&self, epoch: u64, items: Range<usize>) -> Result<Vec<u8>, String>;

    /// A batch of items that another rank has read.
    fn decode(&self, bytes: &[u8], device: &Device) -> Result<O, DatasetError>;
}

/// How items are written for other ranks.
pub(super) struct ItemCodec<I> {
    pub encode: fn(&[I]) -> Result<Vec<u8>, rmp_serde::encode::Error>,
    pub decode: fn(&[u8]) -> Result<Vec<I>, rmp_serde::decode::Error>,
}

/// A data set in shuffled or given order, with its batcher.
pub(super) struct Items<I, O> {
    pub dataset: Arc<dyn Dataset<I>>,
    pub batcher: Arc<dyn Batcher<I, O>>,
    /// The seed of the shuffling, if items are shuffled.
    pub shuffle: Option<u64>,
    pub codec: Option<ItemCodec<I>>,
    /// The shuffled order of the epoch asked for last.
    pub order: Mutex<Option<(u64, Arc<Vec<usize>>)>>,
}

impl<I: Clone + Send + Sync + 'static, O> Items<I, O> {
    fn read(&self, epoch: u64, items: Range<usize>) -> Result<Vec<I>, DatasetError> {
        match self.shuffle {
            None => self.dataset.get_many(items.collect()),
            Some(seed) => self.dataset.get_many(self.order(seed, epoch)[items].to_vec()),
        }
    }

    fn order(&self, seed: u64, epoch: u64) -> Arc<Vec<usize>> {
        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        match &*order {
            Some((known, order)) if *known == epoch => order.clone(),
            _ => {
                let seed = crate::seed::mix([seed, epoch]);
                let dataset = self.dataset.clone();
                let shuffled =
                    SelectionDataset::<Arc<dyn Dataset<I>>, I>::new_shuffled(dataset, seed);
                let shuffled = Arc::new(shuffled.indices);
                *order = Some((epoch, shuffled.clone()));
                shuffled
            }
        }
    }
}

impl<I: Clone + Send + Sync + 'static, O> BatchSource<O> for Items<I, O> {
    fn items(&self) -> usize {
        self.dataset.len()
    }

    fn batch(&self, epoch: u64, items: Range<usize>, device: &Device) -> Result<O, DatasetError> {
        Ok(self.batcher.batch(self.read(epoch, items)?, device))
    }

    fn encode(&self, epoch: u64, items: Range<usize>) -> Result<Vec<u8>, String> {
        let codec = self.codec.as_ref().ok_or("the loader was built without dispatch_batches")?;
        let items = self.read(epoch, items).map_err(|fault| fault.to_string())?;
        (codec.encode)(&items).map_err(|fault| fault.to_string())
    }

    fn decode(&self, bytes: &[u8], device: &Device) -> Result<O, DatasetError> {
        let codec = self.codec.as_ref().expect("only dispatched batches are decoded");
        Ok(self.batcher.batch((codec.decode)(bytes).map_err(DatasetError::new)?, device))
    }
}
