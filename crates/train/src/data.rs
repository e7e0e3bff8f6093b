//! Which rank reads which items of a data set.
//!
//! [`DataLoaderBuilder`] has the methods of Burn's; what it builds is sharded by
//! [`Accelerator::prepare_data_loader`](crate::Accelerator::prepare_data_loader). A loader that
//! Burn has built hides its data set and its order, so that it can only be sliced, not sharded.
//!
//! All ranks walk through the same order of items. With ranks 0 and 1 and a batch size of 2, rank
//! 0 reads items 0 and 1, 4 and 5, …, and rank 1 reads 2 and 3, 6 and 7, …. Of a last batch with
//! fewer items all ranks get as many, or one more or less; a rank that would get none repeats an
//! item, which counts for nothing.

mod builder;
mod loader;
mod source;
mod stretch;

pub use builder::{BatchLoader, DataLoaderBuilder};
pub(crate) use loader::Sharding;
pub use loader::{LoaderState, ShardedIterator, ShardedLoader};
pub(crate) use stretch::share;
