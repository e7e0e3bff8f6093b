//! A loader as Burn's builder would make it, which can be sharded.

use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::source::{BatchSource, ItemCodec, Items};

/// Builds a [`BatchLoader`], with the methods of Burn's builder of the same name.
#[must_use]
pub struct DataLoaderBuilder<I, O> {
    batcher: Arc<dyn Batcher<I, O>>,
    batch_size: usize,
    shuffle: Option<u64>,
    num_workers: usize,
    codec: Option<ItemCodec<I>>,
}

/// Items, how they become batches, and in which order. An
/// [`Accelerator`](crate::Accelerator) makes it iterable.
#[must_use = "a loader is iterated after it was prepared"]
pub struct BatchLoader<O> {
    pub(super) source: Arc<dyn BatchSource<O>>,
    pub(super) batch_size: usize,
    pub(super) num_workers: usize,
    pub(super) dispatches: bool,
}

impl<I: Clone + Send + Sync + 'static, O: Send + 'static> DataLoaderBuilder<I, O> {
    /// Batches of one item, in the data set's order, read when they are asked for.
    pub fn new(batcher: impl Batcher<I, O> + 'static) -> Self {
        Self {
            batcher: Arc::new(batcher),
            batch_size: 1,
            shuffle: None,
            num_workers: 0,
            codec: None,
        }
    }

    /// Items of a rank's batch, or of all ranks' together with
    /// [`split_batches`](crate::AcceleratorBuilder::split_batches).
    pub fn batch_size(mut self, items: usize) -> Self {
        self.batch_size = items;
        self
    }

    /// Shuffles: the same on every rank, and otherwise in each epoch.
    pub fn shuffle(mut self, seed: u64) -> Self {
        self.shuffle = Some(seed);
        self
    }

    /// Threads that read batches and put them on the device ahead of need, two each. Batches
    /// keep their order.
    pub fn num_workers(mut self, threads: usize) -> Self {
        self.num_workers = threads;
        self
    }

    /// Lets rank 0 alone read items and send the others theirs, without workers: the data sets
    /// of the other ranks are not touched.
    pub fn dispatch_batches(mut self) -> Self
    where
        I: Serialize + DeserializeOwned,
    {
        self.codec = Some(ItemCodec {
            encode: |items| rmp_serde::to_vec_named(items),
            decode: |bytes| rmp_serde::from_slice(bytes),
        });
        self
    }

    /// The loader of a data set.
    pub fn build(self, dataset: impl Dataset<I> + 'static) -> BatchLoader<O> {
        let dispatches = self.codec.is_some();
        let source = Items {
            dataset: Arc::new(dataset),
            batcher: self.batcher,
            shuffle: self.shuffle,
            codec: self.codec,
            order: Mutex::default(),
        };
        BatchLoader {
            source: Arc::new(source),
            batch_size: self.batch_size,
            num_workers: self.num_workers,
            dispatches,
        }
    }
}
