//! Bytes from disk into a fixed pool of memory, ahead of need.
//!
//! A [`Stream`] knows a list of [`Chunk`]s (one or a few byte ranges of files each) and the order
//! in which they are likely to be asked for. Reader threads fill a ring of fixed size with the
//! chunks that come next; [`Stream::lease`] hands one out, waiting for it if it must. A [`Lease`]
//! is RAII: when the last clone is dropped, its memory returns to the ring and the next read
//! starts.
//!
//! ```text
//!   chunks + order ──> schedule ──> reader threads ──> ring (fixed bytes) ──> Lease
//!                        ▲                              ▲                      │
//!                        └── what was asked for         └── memory comes back ─┘
//! ```
//!
//! * The ring is the bound: nothing that does not *stay* (see [`Chunk::keep`]) is ever held outside
//!   of it, but for the declared overflow share that serves a caller who holds more than foreseen.
//! * What a pass may leave out (one expert of many) is *occasional*: no schedule has it. It is read
//!   when it is announced ([`Stream::announce`]), before anything else, and leaves the ring the
//!   sooner the less it was used.
//! * The schedule is learned. The first pass follows the order of registration, later ones the
//!   order last seen. A wrong guess costs one read on demand, never a wrong byte.
//! * What leaves the ring is what will be needed last (Belady's rule). On a cyclic scan this keeps
//!   a fixed part in memory and streams the rest through what remains, which is the best possible.
//! * Nothing waits for ever, and nothing that is wrong is handed out: a read that fails, a file
//!   that is cut or written over, a reader that dies, or more leases than memory is a typed error
//!   ([`Error`]) that names the chunk, and the next call works once the cause is gone.
//! * Reads bypass the page cache where the file system allows it ([`Source`]), so that a memory
//!   limit which counts the page cache holds as well.

mod arena;
mod block;
mod buffer;
mod chunk;
mod error;
mod file_size_limit;
mod heap;
mod lease;
mod loading;
mod options;
mod overflow;
mod pool;
mod reader;
mod resident_arena;
mod schedule;
mod source;
mod state;
mod stats;
mod stream;
mod sync;

pub use chunk::{Chunk, ChunkId, Convert, Segment};
pub use error::Error;
pub use file_size_limit::fail_at_file_size_limit;
pub use heap::return_freed_memory;
pub use lease::Lease;
pub use options::Options;
pub use source::Source;
pub use stats::Stats;
pub use stream::{MEMORY_THREADS, Stream};

/// Granularity of direct reads, in bytes: offset, length and memory are multiples of it.
pub const BLOCK: usize = 4096;

/// Size of a large page of memory, in bytes: on x86-64 and most others. Elsewhere it only decides
/// how much is touched at once.
const LARGE_PAGE: usize = 2 << 20;

/// The bytes of memory that a segment of `len` bytes takes when read directly from an arbitrary
/// offset: whole blocks, and one more because the range need not begin on a block.
pub fn footprint(len: u64) -> u64 {
    len.div_ceil(BLOCK as u64).saturating_add(1).saturating_mul(BLOCK as u64)
}
