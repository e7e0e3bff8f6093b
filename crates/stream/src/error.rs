use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// What can go wrong between the disk and a lease.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The file could not be opened again for direct reads.
    #[error("cannot open {path}: {source}", path = path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: Arc<io::Error>,
    },
    /// The operating system refused a read.
    #[error("reading `{chunk}` from {path} failed: {source}", path = path.display())]
    Read {
        /// Name of the chunk, usually a tensor.
        chunk: Arc<str>,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: Arc<io::Error>,
    },
    /// The file ended before the chunk did: it was cut after the checkpoint was opened.
    #[error(
        "{path} ends before `{chunk}` does (wanted bytes up to {end}): the file was cut after it \
         was opened; put it back, or open the checkpoint again",
        path = path.display()
    )]
    Truncated {
        /// Name of the chunk.
        chunk: Arc<str>,
        /// The file.
        path: PathBuf,
        /// Offset in the file where the chunk should end, in bytes.
        end: u64,
    },
    /// The file is not what it was when the checkpoint was opened: another length or time of
    /// change.
    #[error(
        "{path} changed after it was opened, so the bytes of `{chunk}` may not be its own: open the \
         checkpoint again",
        path = path.display()
    )]
    Changed {
        /// Name of the chunk.
        chunk: Arc<str>,
        /// The file.
        path: PathBuf,
    },
    /// More is held at once than the ring and the overflow share can give.
    #[error(
        "no memory left in the ring for `{chunk}`: it takes {need} bytes, {held} are held by \
         leases, the ring has {ring} and the overflow share {overflow}; raise the memory budget \
         or hold fewer weights at once"
    )]
    Exhausted {
        /// Name of the chunk asked for.
        chunk: Arc<str>,
        /// Bytes that it takes.
        need: u64,
        /// Bytes that leases and reads for them hold now.
        held: u64,
        /// Size of the ring in bytes.
        ring: u64,
        /// Size of the overflow share in bytes.
        overflow: u64,
    },
    /// The system gave no memory.
    #[error("the system gave no {bytes} bytes of memory for {purpose}: lower the memory budget")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// What they were for.
        purpose: Arc<str>,
    },
    /// A reader thread failed in an unforeseen way while working on this chunk.
    #[error("a reader thread failed while loading `{chunk}`: {reason}")]
    Reader {
        /// Name of the chunk.
        chunk: Arc<str>,
        /// What it said.
        reason: Arc<str>,
    },
    /// The stream was shut down while the chunk was waited for.
    #[error("the stream was closed while `{chunk}` was waited for")]
    Closed {
        /// Name of the chunk.
        chunk: Arc<str>,
    },
    /// The chunk cannot be streamed: it was registered with impossible figures.
    #[error("`{chunk}` cannot be streamed: {reason}")]
    Chunk {
        /// Name of the chunk.
        chunk: Arc<str>,
        /// What is impossible about it.
        reason: &'static str,
    },
    /// The chunk does not exist.
    #[error("there is no chunk {id}; the stream has {count}")]
    UnknownChunk {
        /// The number asked for.
        id: usize,
        /// How many there are.
        count: usize,
    },
}
