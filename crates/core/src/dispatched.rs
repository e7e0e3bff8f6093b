use crate::Error;
use crate::streamed::Raised;
use outsize_plan::DeviceMap;
use outsize_stream::{Stats, Stream};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

/// A module whose weights are where the device map says, reached only through [`Dispatched::run`].
///
/// It cannot be saved, moved or trained: that would save placeholders or load everything.
pub struct Dispatched<M> {
    module: M,
    map: DeviceMap,
    stream: Stream,
    /// Passes do not interleave: the schedule and the ring are made for one at a time.
    pass: Mutex<()>,
}

impl<M> Dispatched<M> {
    pub(crate) fn new(module: M, map: DeviceMap, stream: Stream) -> Self {
        Self {
            module,
            map,
            stream,
            pass: Mutex::new(()),
        }
    }

    /// Runs one pass: `pass` gets the module and calls it like any other.
    ///
    /// The order in which the pass asks for weights is what the next one is expected to ask for, so
    /// let `pass` be one forward pass rather than a loop of them. Calls from several threads take
    /// turns; a call from within `pass` would wait for itself for ever.
    ///
    /// # Errors
    /// What went wrong with a weight in the middle of the pass. The next call works again.
    ///
    /// # Panics
    /// With whatever else `pass` panics.
    pub fn run<R>(&self, pass: impl FnOnce(&M) -> R) -> Result<R, Error> {
        // A pass that panicked left nothing behind that the next would see.
        let _turn = self.pass.lock().unwrap_or_else(PoisonError::into_inner);
        match catch_unwind(AssertUnwindSafe(|| pass(&self.module))) {
            Ok(result) => {
                self.stream.end_pass();
                Ok(result)
            }
            Err(payload) => {
                self.stream.abandon_pass();
                match payload.downcast::<Raised>() {
                    Ok(raised) => Err(raised.0),
                    Err(payload) => resume_unwind(payload),
                }
            }
        }
    }

    /// Where everything lives.
    pub fn device_map(&self) -> &DeviceMap {
        &self.map
    }

    /// What was read and waited for so far.
    pub fn stats(&self) -> Stats {
        self.stream.stats()
    }

    /// The same, for asking while a pass is running.
    pub fn watch(&self) -> impl Fn() -> Stats + use<M> {
        let stream = self.stream.clone();
        move || stream.stats()
    }

    /// Whether the files are read past the page cache.
    pub fn reads_directly(&self) -> bool {
        self.stream.is_direct()
    }
}

impl<M> fmt::Debug for Dispatched<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the module: its own Debug may look at its parameters.
        write!(f, "Dispatched({:?})", self.stream)
    }
}
