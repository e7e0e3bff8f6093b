//! All of a model's weights learn from texts, in [`OffloadedStates`](outsize_train::offload).

mod builder;
mod opened;
mod train;
mod tuner;

#[cfg(test)]
mod tests;

pub use builder::FullFinetuneBuilder;
pub use opened::OpenedFullFinetune;
pub use tuner::FullFinetuner;
