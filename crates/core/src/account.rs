//! The one account of what a run needs in main memory besides weights and the ring: plans, runs and
//! refusals take from it.

use outsize_kernels::gpu::UPLOAD_BYTES;
use outsize_plan::{Budget, MemoryOverhead, Tier, Tree};

/// What a process like `outsize run` takes by itself, in bytes: code, libraries, stacks of its
/// threads, small allocations and what the allocator keeps of them. A constant, so that a plan is
/// the same from one time to the next. Of a program that is all in the page cache, as it is once it
/// has been copied, 7 MB more are mapped than of one that was read page by page, and 10 of one that
/// was just linked.
pub const PROCESS_BYTES: u64 = (37 << 20) + UNOPTIMISED;

/// What a process grows by at most while a model runs in it, besides what is counted, in bytes.
const PROCESS_SLACK: u64 = (14 << 20) + UNOPTIMISED;

/// What code that was not optimised takes more, and the stacks that it needs, in bytes.
const UNOPTIMISED: u64 = if cfg!(debug_assertions) { 16 << 20 } else { 0 };

/// Parameters whose names and handles are part of that.
const FEW_PARAMETERS: u64 = 2_000;

/// What the header, the plan and the handle of each further one take at most, in bytes.
const PARAMETER_BYTES: u64 = 4 << 10;

/// The least ring that streams at the disk's speed, in bytes: what is read ahead while a tile is in
/// use.
pub const LEAST_RING: u64 = 16 << 20;

/// Tokens that one pass takes at most, of all texts together: beyond, activations cost memory and
/// save little time.
pub const LONGEST_PASS: usize = 512;

/// What a process takes by itself whose resident set is `resident` bytes before anything is opened
/// in it.
pub fn process_bytes(resident: u64) -> u64 {
    resident.saturating_add(PROCESS_SLACK).max(PROCESS_BYTES)
}

/// What a process grows by for a model of very many parameters, in bytes.
pub fn many_parameters_bytes(tree: &Tree) -> u64 {
    (tree.tensors().count() as u64).saturating_sub(FEW_PARAMETERS).saturating_mul(PARAMETER_BYTES)
}

/// What a run takes besides weights and the ring, in bytes: the process, and the activations of one
/// pass. Keys and values are counted by the blocks of a [`Tree`](outsize_plan::Tree), and so are
/// the readers' conversions.
pub fn memory_overhead(process: u64, activations: u64) -> MemoryOverhead {
    MemoryOverhead { process, activations, ..MemoryOverhead::default() }
}

/// What attention composed of a GPU's own operations holds beside the activations that layers
/// report, and what products unpack of a tile, in bytes: four tensors of scores of 8 MiB, and a
/// tile of 4 MiB four times in f32.
const GPU_SCRATCH: u64 = 64 << 20;

/// What a GPU's pools hold for small allocations, in bytes.
const GPU_SMALL_POOL: u64 = 8 << 20;

/// What a GPU takes besides weights, slots and KV cache, in bytes, for passes whose layers report
/// so much. Its pools have pages of the size of the largest allocation, of which half may be
/// unused.
pub fn gpu_overhead(activations: u64) -> u64 {
    (activations.saturating_add(GPU_SCRATCH)).saturating_mul(2).saturating_add(GPU_SMALL_POOL)
}

/// What main memory holds of weights on their way to GPUs, if the budget has any, in bytes: the
/// ring that weights are read to which stay on one, of which the largest is read in parts of
/// `largest` bytes; and for each GPU what copies to it pass through.
pub fn upload_bytes(budget: &Budget, largest: u64) -> u64 {
    let gpus = budget.iter().filter(|(tier, bytes)| matches!(tier, Tier::Gpu(_)) && *bytes > 0);
    match gpus.count() as u64 {
        0 => 0,
        gpus => LEAST_RING.max(largest.saturating_mul(2)) + gpus * UPLOAD_BYTES,
    }
}

/// Tokens of each text in the longest pass over `texts` prompts of `prompt` tokens in a context of
/// `context`, if there is room for it.
pub fn longest_pass(texts: usize, prompt: usize, context: usize) -> usize {
    prompt.clamp(1, LONGEST_PASS.div_ceil(texts.max(1))).min(context.max(1))
}

/// What `place` makes of passes of so many tokens: of the longest up to `tokens` that it can, each
/// further pass over a long prompt reading all that is streamed again.
///
/// # Errors
/// That of passes of one token.
pub fn with_longest_passes<T, E>(
    mut tokens: usize,
    least: usize,
    mut place: impl FnMut(usize) -> Result<T, E>,
) -> Result<T, E> {
    loop {
        match place(tokens) {
            Err(_) if tokens > least => tokens = tokens.div_ceil(2).max(least),
            placed => return placed,
        }
    }
}
