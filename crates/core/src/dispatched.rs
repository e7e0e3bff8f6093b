use crate::pass::{Pass, PassKind};
use crate::slots::Slots;
use crate::tape::Tape;
use crate::{Error, LowRank, Streamed};
use outsize_plan::DeviceMap;
use outsize_stream::{ChunkId, Stats, Stream};
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// A module whose weights are where the device map says, reached only through [`Dispatched::run`].
///
/// What it holds are placeholders, so it cannot be saved, moved or trained. Within `run`:
///
/// | call on the module | what happens |
/// |---|---|
/// | `forward`, `clone`, `devices`, `num_params`, `valid`, `{}` and `{:?}` | as ever |
/// | `to_device`, `fork` to the device it is on | nothing, as ever; [`Error::Misuse`] for another one |
/// | `into_record`, `save_file`, visitors that read values | [`Error::Misuse`] |
/// | `map` and all that is made of it: `load_record`, `quantize_weights`, `no_grad`, `freeze`, `apply_lora`, steps of an optimizer | [`Error::Misuse`] |
/// | `train` | [`Error::Misuse`] |
/// | `materialize` | a module with all its weights; [`Error::Stream`] if the ring has no room for them |
///
/// A clone that leaves `run` panics at the first weight that it asks for, with a message that says
/// why.
pub struct Dispatched<M> {
    module: M,
    map: DeviceMap,
    attached: Attached,
}

/// The order in which a pass asks for weights: see [`Dispatched::pass_order`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassOrder(Vec<ChunkId>);

/// What the handles of a dispatched module share.
pub(crate) struct Attached {
    pub(crate) stream: Stream,
    pub(crate) pass: Arc<Pass>,
    pub(crate) tape: Arc<Tape>,
    pub(crate) slots: Arc<[Slots]>,
    /// The handles of matrices, and their shapes as they are stored.
    pub(crate) matrices: Vec<(Streamed, [usize; 2])>,
}

impl<M> Dispatched<M> {
    pub(crate) fn new(module: M, map: DeviceMap, attached: Attached) -> Self {
        Self { module, map, attached }
    }

    /// The same with what is made of the module, such as a trait object.
    pub fn map<N>(self, make: impl FnOnce(M) -> N) -> Dispatched<N> {
        Dispatched { module: make(self.module), map: self.map, attached: self.attached }
    }

    /// Runs one pass: `pass` gets the module and calls it like any other.
    ///
    /// The order in which the pass asks for weights is what the next one is expected to ask for, so
    /// let `pass` be one forward pass rather than a loop of them.
    ///
    /// Calls from several threads take turns. A module may divide its own work among threads; each
    /// of them holds weights, and the ring is made for one that holds no more than two at once: see
    /// [`MemoryOverhead::overflow`](outsize_plan::MemoryOverhead::overflow). A thread that the pass
    /// waits for must not call `run` itself, or they wait for each other.
    ///
    /// # Errors
    /// What went wrong with a weight in the middle of the pass, on whichever thread and whatever
    /// the module made of it; [`Error::Nested`] for a call from within `pass`. The next call works
    /// again. Nothing is printed, unless the module waits for its own threads with
    /// [`std::thread::scope`] or `join().unwrap()`, which print a message of theirs.
    ///
    /// # Panics
    /// With whatever else `pass` panics.
    pub fn run<R>(&self, pass: impl FnOnce(&M) -> R) -> Result<R, Error> {
        self.run_kind(PassKind::default(), pass)
    }

    /// [`run`](Self::run) of a pass of that kind: where a block computes may depend on it. A
    /// [part of a prefill](PassKind::PrefillPart) is expected to ask for what the last one asked
    /// for, another pass for what the last other pass did.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As there.
    pub fn run_kind<R>(&self, kind: PassKind, pass: impl FnOnce(&M) -> R) -> Result<R, Error> {
        self.turn(kind, Stream::end_pass, pass)
    }

    /// Runs a pass that is not repeated, such as that of an encoder before those of its decoder: it
    /// is expected to ask for what comes first in [`Options::order`](crate::Options), and the
    /// passes behind it for the rest.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Panics
    /// As there.
    pub fn run_once<R>(&self, pass: impl FnOnce(&M) -> R) -> Result<R, Error> {
        self.turn(PassKind::Prefill, Stream::end_once, |module| {
            self.attached.stream.begin_once();
            pass(module)
        })
    }

    fn turn<R>(
        &self,
        kind: PassKind,
        complete: fn(&Stream),
        pass: impl FnOnce(&M) -> R,
    ) -> Result<R, Error> {
        let pass = || {
            let mut end = End { stream: &self.attached.stream, complete: None };
            end.stream.begin_pass(kind == PassKind::PrefillPart);
            let result = pass(&self.module);
            end.complete = Some(complete);
            result
        };
        if self.attached.slots.is_empty() {
            return self.attached.pass.run(kind, pass);
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| self.attached.pass.run(kind, pass)));
        match outcome {
            Ok(result) => self.attached.slots.iter().find_map(Slots::refused).map_or(result, Err),
            Err(payload) => {
                // Burn panics where an operation on a GPU fails: the GPU says why.
                let failed = self.attached.slots.iter().find_map(|slots| slots.wait().err());
                failed.map_or_else(|| resume_unwind(payload), Err)
            }
        }
    }

    /// Adds to weights, by path, what an adapter says, from the next pass on; to no other.
    ///
    /// The matrices are kept as they are given, beside the budget: count them in
    /// [`Options::needs`](crate::Options::needs).
    ///
    /// # Errors
    /// [`Error::Adapter`]: a path that is not that of a dispatched matrix, or other shapes. Nothing
    /// is changed then.
    pub fn set_low_rank(&self, parts: &HashMap<String, LowRank>) -> Result<(), Error> {
        let shapes: HashMap<&str, [usize; 2]> = self
            .attached
            .matrices
            .iter()
            .map(|(handle, shape)| (&*handle.inner.path, *shape))
            .collect();
        for (path, low_rank) in parts {
            let Some(shape) = shapes.get(path.as_str()) else {
                let reason = "the module has no matrix of that path in the checkpoint".into();
                return Err(Error::Adapter { path: path.clone(), reason });
            };
            low_rank.check(path, *shape)?;
        }
        for (handle, _) in &self.attached.matrices {
            handle.set_low_rank(parts.get(&*handle.inner.path).cloned());
        }
        Ok(())
    }

    pub(crate) fn tape(&self) -> &Arc<Tape> {
        &self.attached.tape
    }

    /// The order in which the last pass asked for weights.
    pub fn pass_order(&self) -> PassOrder {
        PassOrder(self.attached.stream.order())
    }

    /// Expects the next pass to ask for weights in this order, which is that of the same module
    /// with the same map, dispatched before: what it will need is then read ahead from its first
    /// pass on.
    pub fn expect(&self, order: PassOrder) {
        self.attached.stream.expect(order.0);
    }

    /// Where everything lives.
    pub fn device_map(&self) -> &DeviceMap {
        &self.map
    }

    /// What was read and waited for so far.
    pub fn stats(&self) -> Stats {
        self.attached.stream.stats()
    }

    /// The same, for asking while a pass is running; nothing once this is dropped.
    pub fn watch(&self) -> impl Fn() -> Stats + Send + use<M> {
        self.attached.stream.watch()
    }

    /// Whether the files are read past the page cache.
    pub fn reads_directly(&self) -> bool {
        self.attached.stream.is_direct()
    }
}

/// Ends the pass for the stream, however it ends.
struct End<'a> {
    stream: &'a Stream,
    /// How a pass that was completed ends.
    complete: Option<fn(&Stream)>,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        match self.complete {
            Some(complete) => complete(self.stream),
            None => self.stream.abandon_pass(),
        }
    }
}

impl<M> fmt::Debug for Dispatched<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the module: its own Debug may look at its parameters.
        write!(f, "Dispatched({:?})", self.attached.stream)
    }
}
