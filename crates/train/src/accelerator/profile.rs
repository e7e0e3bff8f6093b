//! Where a step's time goes.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::PoisonError;
use std::time::Instant;

use serde::Serialize;

use super::Accelerator;
use crate::Error;

/// Timed stretches of one rank.
#[derive(Debug)]
pub(super) struct Profile {
    began: Instant,
    events: Vec<Event>,
}

/// A complete event of the Trace Event Format, which Perfetto and `chrome://tracing` read.
#[derive(Debug, Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    /// Microseconds since the profile began.
    ts: u128,
    dur: u128,
    pid: usize,
    tid: usize,
}

impl Accelerator {
    /// Runs `job` and writes when this rank was in backward, in the reduction of gradients and in
    /// stretches named with [`record`](Self::record) to `FOLDER/profile_RANK.json`, in the Trace
    /// Event Format.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn profile<T>(&self, folder: &Path, job: impl FnOnce() -> T) -> Result<T, Error> {
        *self.profile_events() = Some(Profile { began: Instant::now(), events: Vec::new() });
        let result = job();
        let profile = self.profile_events().take();
        let path = folder.join(format!("profile_{}.json", self.process_index()));
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(folder)?;
            let events = profile.map(|profile| profile.events).unwrap_or_default();
            let temporary = path.with_extension("json.partial");
            let file = BufWriter::new(File::create(&temporary)?);
            serde_json::to_writer(file, &serde_json::json!({ "traceEvents": events }))?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|source| Error::Write { path: path.clone(), source })?;
        Ok(result)
    }

    /// Runs `job` as a named stretch of the profile that is being taken, if any.
    pub fn record<T>(&self, name: &str, job: impl FnOnce() -> T) -> T {
        let started = self.profile_start();
        let result = job();
        self.profile_end(name, started);
        result
    }

    /// Now, if a profile is being taken.
    pub(super) fn profile_start(&self) -> Option<Instant> {
        self.profile_events().as_ref().map(|_| Instant::now())
    }

    pub(super) fn profile_end(&self, name: &str, started: Option<Instant>) {
        if let (Some(started), Some(profile)) = (started, &mut *self.profile_events()) {
            profile.events.push(Event {
                name: name.to_owned(),
                ph: "X",
                ts: started.saturating_duration_since(profile.began).as_micros(),
                dur: started.elapsed().as_micros(),
                pid: self.process_index(),
                tid: 0,
            });
        }
    }

    fn profile_events(&self) -> std::sync::MutexGuard<'_, Option<Profile>> {
        self.inner.profile.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
