//! The one account of what a run needs in main memory besides weights and the ring: plans, runs and refusals take from it.

use outsize_plan::MemoryOverhead;

/// What a process like `outsize run` takes by itself, in bytes: code, libraries, stacks of its threads, small allocations
/// and what the allocator keeps of them. A constant, so that a plan is the same from one time to the next.
pub const PROCESS_BYTES: u64 = 32 << 20;

/// What a process grows by at most while a model runs in it, besides what is counted, in bytes.
const PROCESS_SLACK: u64 = 16 << 20;

/// The least ring that streams at the disk's speed, in bytes: what is read ahead while a tile is in use.
pub const LEAST_RING: u64 = 16 << 20;

/// Tokens that one pass takes at most: beyond, activations cost memory and save little time.
pub const LONGEST_PASS: usize = 512;

/// What a run is made for, as far as the memory that it needs depends on it. Keys and values are counted by the blocks of a
/// [`Tree`](outsize_plan::Tree), and so are the readers' conversions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunMemory {
    /// The process itself, in bytes: as [`process_bytes`] says.
    pub process: u64,
    /// The tokenizer, in bytes.
    pub tokenizer: u64,
    /// Tokens of the longest prompt that is foreseen.
    pub prompt: usize,
    /// Tokens that a sequence may have.
    pub context: usize,
}

/// What one pass takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PassMemory {
    /// Activations that are alive at once.
    pub activations: u64,
    /// The activations of a product as the processor wants them.
    pub packed: u64,
}

/// What a process takes by itself whose resident set is `resident` bytes before anything is opened in it.
pub fn process_bytes(resident: u64) -> u64 {
    resident.saturating_add(PROCESS_SLACK).max(PROCESS_BYTES)
}

impl RunMemory {
    /// All of it, for passes that take so much.
    pub fn overhead(&self, pass: PassMemory) -> MemoryOverhead {
        MemoryOverhead {
            process: self.process.saturating_add(self.tokenizer),
            activations: pass.activations.saturating_add(pass.packed),
            ..MemoryOverhead::default()
        }
    }

    /// Tokens of the longest pass over the prompt, if there is room for it.
    pub fn longest_pass(&self) -> usize {
        self.prompt.clamp(1, LONGEST_PASS).min(self.context.max(1))
    }

    /// What `place` makes of passes of so many tokens: of the longest that it can, each further pass over a long prompt
    /// reading all that is streamed again.
    ///
    /// # Errors
    /// That of passes of one token.
    pub fn with_longest_passes<T, E>(
        &self,
        mut place: impl FnMut(usize) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut tokens = self.longest_pass();
        loop {
            match place(tokens) {
                Err(_) if tokens > 1 => tokens = tokens.div_ceil(2),
                placed => return placed,
            }
        }
    }
}
