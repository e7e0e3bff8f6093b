//! Which rank this is, and who does what.

use super::Accelerator;
use crate::Error;

impl Accelerator {
    /// This rank, below [`num_processes`](Self::num_processes).
    #[must_use]
    pub fn process_index(&self) -> usize {
        self.communicator().rank()
    }

    /// This rank among those of the same machine.
    #[must_use]
    pub fn local_process_index(&self) -> usize {
        self.communicator().local_rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn num_processes(&self) -> usize {
        self.communicator().world_size()
    }

    /// Whether this is rank 0.
    #[must_use]
    pub fn is_main_process(&self) -> bool {
        self.process_index() == 0
    }

    /// Whether this is the first rank of its machine.
    #[must_use]
    pub fn is_local_main_process(&self) -> bool {
        self.local_process_index() == 0
    }

    /// Whether this is the last rank.
    #[must_use]
    pub fn is_last_process(&self) -> bool {
        self.process_index() + 1 == self.num_processes()
    }

    /// Runs `job` on rank 0 alone. No rank waits.
    pub fn on_main_process<T>(&self, job: impl FnOnce() -> T) -> Option<T> {
        self.on_process(0, job)
    }

    /// Runs `job` on the first rank of each machine. No rank waits.
    pub fn on_local_main_process<T>(&self, job: impl FnOnce() -> T) -> Option<T> {
        self.is_local_main_process().then(job)
    }

    /// Runs `job` on the last rank alone. No rank waits.
    pub fn on_last_process<T>(&self, job: impl FnOnce() -> T) -> Option<T> {
        self.is_last_process().then(job)
    }

    /// Runs `job` on rank `index` alone. No rank waits.
    pub fn on_process<T>(&self, index: usize, job: impl FnOnce() -> T) -> Option<T> {
        (self.process_index() == index).then(job)
    }

    /// Runs `job` on rank 0 first, then on the others, as for a download that the others find
    /// done.
    ///
    /// # Errors
    ///
    /// A rank failed or is late.
    pub fn main_process_first<T>(&self, job: impl FnOnce() -> T) -> Result<T, Error> {
        self.first(self.is_main_process(), job)
    }

    /// Runs `job` on the first rank of each machine, then on the others.
    ///
    /// # Errors
    ///
    /// A rank failed or is late.
    pub fn local_main_process_first<T>(&self, job: impl FnOnce() -> T) -> Result<T, Error> {
        self.first(self.is_local_main_process(), job)
    }

    fn first<T>(&self, is_first: bool, job: impl FnOnce() -> T) -> Result<T, Error> {
        if !is_first {
            self.wait_for_everyone()?;
            return Ok(job());
        }
        let result = job();
        self.wait_for_everyone()?;
        Ok(result)
    }

    /// Waits until every rank is here.
    ///
    /// # Errors
    ///
    /// A rank failed, calls something else, or is late.
    pub fn wait_for_everyone(&self) -> Result<(), Error> {
        self.agree(|| "wait_for_everyone".to_owned())?;
        self.communicator().barrier()
    }

    /// Prints a line to standard output, once a machine.
    pub fn print(&self, line: impl std::fmt::Display) {
        self.on_local_main_process(|| println!("{line}"));
    }
}
