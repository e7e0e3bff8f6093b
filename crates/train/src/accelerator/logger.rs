//! Log lines that know their rank.

use std::fmt::Display;

use tracing::Level;

use super::Accelerator;
use crate::Error;

/// Logs through [`tracing`], on the main rank alone unless told otherwise; every event has the
/// fields `rank` and `logger`.
#[derive(Clone)]
pub struct RankLogger {
    accelerator: Accelerator,
    name: String,
    everywhere: bool,
}

impl Accelerator {
    /// A logger for the main rank.
    #[must_use]
    pub fn get_logger(&self, name: impl Into<String>) -> RankLogger {
        RankLogger { accelerator: self.clone(), name: name.into(), everywhere: false }
    }
}

impl RankLogger {
    /// The same logger, for all ranks.
    #[must_use]
    pub fn on_all_processes(mut self) -> Self {
        self.everywhere = true;
        self
    }

    /// Logs what a user should know.
    pub fn info(&self, message: impl Display) {
        self.log(Level::INFO, message);
    }

    /// Logs what may be wrong.
    pub fn warning(&self, message: impl Display) {
        self.log(Level::WARN, message);
    }

    /// Logs what is wrong.
    pub fn error(&self, message: impl Display) {
        self.log(Level::ERROR, message);
    }

    /// Logs what a developer may look for.
    pub fn debug(&self, message: impl Display) {
        self.log(Level::DEBUG, message);
    }

    /// Logs on all ranks, one after the other.
    ///
    /// # Errors
    ///
    /// A rank failed or is late.
    pub fn in_order(&self, level: Level, message: impl Display) -> Result<(), Error> {
        for rank in 0..self.accelerator.num_processes() {
            self.accelerator.on_process(rank, || self.emit(level, &message));
            self.accelerator.wait_for_everyone()?;
        }
        Ok(())
    }

    fn log(&self, level: Level, message: impl Display) {
        if self.everywhere || self.accelerator.is_main_process() {
            self.emit(level, &message);
        }
    }

    fn emit(&self, level: Level, message: &impl Display) {
        let (rank, logger) = (self.accelerator.process_index(), &*self.name);
        // The level of an event is part of its static description.
        match level {
            Level::ERROR => tracing::error!(rank, logger, "{message}"),
            Level::WARN => tracing::warn!(rank, logger, "{message}"),
            Level::INFO => tracing::info!(rank, logger, "{message}"),
            Level::DEBUG => tracing::debug!(rank, logger, "{message}"),
            Level::TRACE => tracing::trace!(rank, logger, "{message}"),
        }
    }
}
