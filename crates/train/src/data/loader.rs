//! A loader that gives a rank its share of each batch.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::data::dataset::DatasetError;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::builder::BatchLoader;
use super::source::BatchSource;
use super::stretch::Layout;
use crate::step_state::{ActiveBatch, SharedStep};
use crate::{Communicator, Error};

/// Batches that a worker makes ahead.
const AHEAD: usize = 2;

/// What a loader takes from its rank.
#[derive(Clone)]
pub(crate) struct Sharding {
    pub communicator: Arc<dyn Communicator>,
    pub device: Device,
    pub split_batches: bool,
    pub even_batches: bool,
    pub seed: Option<u64>,
    pub step: SharedStep,
}

/// Where a loader is: what it gives next is batch `batch` of epoch `epoch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LoaderState {
    /// Epochs begun before.
    pub epoch: u64,
    /// Batches of the epoch that were given, on each rank.
    pub batch: usize,
}

impl LoaderState {
    fn next_epoch(self) -> Self {
        Self { epoch: self.epoch.saturating_add(1), batch: 0 }
    }
}

#[derive(Debug, Default)]
struct Position {
    next: LoaderState,
    /// Whether the next iteration goes on in the middle of an epoch.
    resumes: bool,
}

/// A loader that gives each rank its share of each batch.
pub struct ShardedLoader<O> {
    source: Arc<dyn BatchSource<O>>,
    layout: Layout,
    num_workers: usize,
    dispatches: bool,
    sharding: Sharding,
    id: u64,
    position: Arc<Mutex<Position>>,
}

impl<O: Send + 'static> ShardedLoader<O> {
    pub(crate) fn new(loader: BatchLoader<O>, sharding: Sharding) -> Result<Self, Error> {
        static LOADERS: AtomicU64 = AtomicU64::new(0);
        let BatchLoader { source, batch_size, num_workers, dispatches } = loader;
        let ranks = sharding.communicator.world_size();
        let fault = if batch_size == 0 {
            Some("a loader has a batch size of 0: give it at least one item".to_owned())
        } else if sharding.split_batches && !batch_size.is_multiple_of(ranks) {
            Some(format!(
                "a batch size of {batch_size} cannot be split over {ranks} ranks: choose a multiple, or do not \
                 split batches"
            ))
        } else {
            None
        };
        if let Some(fault) = fault {
            return Err(Error::Setting(fault));
        }
        let batch_size = if sharding.split_batches { batch_size } else { batch_size * ranks };
        Ok(Self {
            source,
            // Rank 0 can only send batches that all ranks wait for.
            layout: Layout { batch_size, ranks, even: sharding.even_batches || dispatches },
            num_workers,
            dispatches,
            sharding,
            id: LOADERS.fetch_add(1, Ordering::Relaxed),
            position: Arc::default(),
        })
    }

    /// The batches of the next epoch, or of the rest of one that was loaded.
    ///
    /// An item is an error if the data set fails, or, with `dispatch_batches`, another rank.
    #[must_use]
    pub fn iter(&self) -> ShardedIterator<O> {
        self.iter_from(0)
    }

    /// As [`iter`](Self::iter), without the first `batches` of each rank; they are not read.
    #[must_use]
    pub fn skip_first_batches(&self, batches: usize) -> ShardedIterator<O> {
        self.iter_from(batches)
    }

    fn iter_from(&self, skipped: usize) -> ShardedIterator<O> {
        let mut position = lock(&self.position);
        if !std::mem::take(&mut position.resumes) && position.next.batch > 0 {
            // The last iteration was left early.
            position.next = position.next.next_epoch();
        }
        position.next.batch = position.next.batch.saturating_add(skipped);
        let start = position.next;
        drop(position);
        let items = self.items();
        let mut iterator = ShardedIterator {
            source: self.source.clone(),
            layout: self.layout,
            sharding: self.sharding.clone(),
            id: self.id,
            position: self.position.clone(),
            at: start,
            items,
            workers: Vec::new(),
            dispatches: self.dispatches,
            knows_items: !self.dispatches,
        };
        if !self.dispatches {
            iterator.workers = iterator.start(self.num_workers);
        }
        iterator
    }

    /// Items of an epoch, of all ranks together.
    ///
    /// With `dispatch_batches`, only rank 0 knows.
    #[must_use]
    pub fn num_items(&self) -> usize {
        self.items().unwrap_or_default()
    }

    fn items(&self) -> Option<usize> {
        let reads = !self.dispatches || self.sharding.communicator.rank() == 0;
        reads.then(|| self.source.items())
    }

    /// Optimizer steps of an epoch without accumulation: batches of the rank that has the most.
    #[must_use]
    pub fn num_batches(&self) -> usize {
        self.layout.batches(self.num_items())
    }

    /// Items of a batch of all ranks together.
    pub(crate) fn items_per_batch(&self) -> usize {
        self.layout.batch_size
    }

    /// Where the loader is, to be saved.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        lock(&self.position).next
    }

    /// Lets the next iteration begin where a saved loader was.
    pub fn load_state(&self, state: LoaderState) {
        *lock(&self.position) = Position { next: state, resumes: true };
    }
}

fn lock(position: &Mutex<Position>) -> MutexGuard<'_, Position> {
    position.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A rank's batches of one epoch, in order.
pub struct ShardedIterator<O> {
    source: Arc<dyn BatchSource<O>>,
    layout: Layout,
    sharding: Sharding,
    id: u64,
    position: Arc<Mutex<Position>>,
    at: LoaderState,
    /// Items of the epoch; not known before the first batch where rank 0 reads for all.
    items: Option<usize>,
    workers: Vec<Receiver<Result<O, DatasetError>>>,
    dispatches: bool,
    knows_items: bool,
}

impl<O: Send + 'static> ShardedIterator<O> {
    /// Starts `count` threads that make batches ahead, in turn.
    fn start(&self, count: usize) -> Vec<Receiver<Result<O, DatasetError>>> {
        let (rank, items) = (self.sharding.communicator.rank(), self.items.unwrap_or_default());
        let start = |worker: usize| {
            let (sender, receiver) = sync_channel(AHEAD - 1);
            let (source, device) = (self.source.clone(), self.sharding.device.clone());
            let (layout, at) = (self.layout, self.at);
            std::thread::spawn(move || {
                let mut next = at.batch.saturating_add(worker);
                while let Some(stretch) = layout.stretch(items, next, rank) {
                    let batch = source.batch(at.epoch, stretch.items, &device);
                    if sender.send(batch).is_err() {
                        break; // the iteration was left
                    }
                    next += count;
                }
            });
            receiver
        };
        (0..count).map(start).collect()
    }

    fn read(&mut self, items: Range<usize>) -> Result<O, DatasetError> {
        let device = &self.sharding.device;
        if self.dispatches {
            return self.source.decode(&self.receive()?, device);
        }
        match self.workers.len() {
            0 => self.source.batch(self.at.epoch, items, device),
            // Workers make batches in turn.
            _ => {
                let batch = self.workers[0].recv().unwrap_or_else(|_| {
                    let fault = "a worker thread panicked while it made a batch";
                    Err(DatasetError::new(Error::Setting(fault.to_owned())))
                });
                self.workers.rotate_left(1);
                batch
            }
        }
    }

    /// This rank's items of the batch, which rank 0 reads for all, or why it could not.
    fn receive(&self) -> Result<Vec<u8>, DatasetError> {
        let communicator = &self.sharding.communicator;
        let LoaderState { epoch, batch } = self.at;
        let total = self.items.unwrap_or_default();
        let of = |rank| {
            let stretch = self.layout.stretch(total, batch, rank).expect("batches are even");
            self.source.encode(epoch, stretch.items)
        };
        let mut parts = Vec::new();
        if communicator.rank() == 0 {
            let read: Result<Vec<_>, _> = (0..self.layout.ranks).map(of).collect();
            parts = match read {
                Ok(parts) => parts.into_iter().map(|part| [part, vec![1]].concat()).collect(),
                Err(fault) => vec![[fault.into_bytes(), vec![0]].concat(); self.layout.ranks],
            };
        }
        let mut own = communicator.scatter(parts, 0).map_err(DatasetError::new)?;
        match own.pop() {
            Some(1) => Ok(own),
            _ => {
                let fault = format!("rank 0 read no batch: {}", String::from_utf8_lossy(&own));
                Err(DatasetError::new(Error::Setting(fault)))
            }
        }
    }

    /// The number of items of the epoch, which rank 0 tells the others where it reads for them.
    fn items(&mut self) -> Result<usize, DatasetError> {
        if !self.knows_items {
            let own = self.items.unwrap_or_default() as u64;
            let known = self.sharding.communicator.broadcast(own.to_le_bytes().to_vec(), 0);
            let known = known.map_err(DatasetError::new)?;
            let known = known.try_into().map(u64::from_le_bytes).unwrap_or_default();
            (self.items, self.knows_items) = (Some(known as usize), true);
        }
        Ok(self.items.unwrap_or_default())
    }
}

impl<O: Send + 'static> Iterator for ShardedIterator<O> {
    type Item = Result<O, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let items = match self.items() {
            Ok(items) => items,
            Err(fault) => {
                self.knows_items = true; // of none
                return Some(Err(fault));
            }
        };
        let batch = self.at.batch;
        let rank = self.sharding.communicator.rank();
        let Some(stretch) = self.layout.stretch(items, batch, rank) else {
            *lock(&self.position) = Position { next: self.at.next_epoch(), resumes: false };
            self.sharding.step.lock().leave(self.id);
            return None;
        };
        let taken = {
            let mut step = self.sharding.step.lock();
            step.enter(ActiveBatch {
                loader: self.id,
                is_last: batch + 1 == self.layout.batches(items),
                items: stretch.own,
                weight: stretch.weight,
            });
            step.batches_taken
        };
        if let Some(seed) = self.sharding.seed {
            self.sharding.device.seed(crate::seed::mix([seed, rank as u64, taken]));
        }
        let result = self.read(stretch.items);
        self.at.batch += 1;
        lock(&self.position).next = self.at;
        Some(result)
    }
}

impl<O> Drop for ShardedIterator<O> {
    fn drop(&mut self) {
        self.sharding.step.lock().leave(self.id);
    }
}
