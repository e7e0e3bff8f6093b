//! The threads that read.

use crate::block::Block;
use crate::buffer::Buffer;
use crate::chunk::{Read, scratch_bytes};
use crate::loading::{Job, Seat};
use crate::pool::Pool;
use crate::{BLOCK, Error};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;

/// Makes one read after the other until the stream is closed.
pub(crate) fn run(seat: Seat, mut scratch: Scratch) {
    while read_one(&seat, &mut scratch) {}
}

/// Waits for something to read and reads it. False when the stream is closed.
pub(crate) fn read_one(seat: &Seat, scratch: &mut Scratch) -> bool {
    let Some(job) = seat.next_job() else {
        return false;
    };
    let pool = &*seat.pool;
    // A conversion that panics must not take the reader with it.
    let result =
        catch_unwind(AssertUnwindSafe(|| make(pool, &job, scratch))).unwrap_or_else(|panic| {
            Err(Error::Reader {
                chunk: pool.chunks[job.chunk].name.clone(),
                reason: reason(panic.as_ref()).into(),
            })
        });
    job.finish(result);
    true
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "unknown panic".to_string())
}

/// A reader's own memory for what is converted or moved to alignment on its way.
pub(crate) struct Scratch(Option<Buffer>);

impl Scratch {
    /// Scratch memory for reads of `read_bytes`, or none if no chunk needs it.
    pub(crate) fn new(read_bytes: usize, needed: bool) -> Result<Self, Error> {
        Ok(Self(if needed {
            Some(Buffer::new(scratch_bytes(read_bytes), "a reader")?)
        } else {
            None
        }))
    }
}

fn make(pool: &Pool, job: &Job<'_>, scratch: &mut Scratch) -> Result<usize, Error> {
    let chunk = &pool.chunks[job.chunk];
    match (chunk.read(job.read, pool.read_bytes), job.block(), &scratch.0) {
        (Some(read), Some(block), _) if !read.segment.is_staged() => {
            read_in_place(pool, &chunk.name, read, block)
        }
        (Some(read), Some(block), Some(scratch)) => {
            read_staged(pool, &chunk.name, read, block, scratch)
        }
        _ => unreachable!("a job has a block until it ends, and staged segments come with scratch"),
    }
}

/// Whole blocks of the file, straight to their place.
fn read_in_place(pool: &Pool, name: &str, read: Read, block: &Block) -> Result<usize, Error> {
    let Read { segment, range, base } = read;
    let first = segment.offset / BLOCK as u64 * BLOCK as u64;
    let need = (segment.offset + segment.len - first) as usize;
    let place = base + range.start..base + range.end;
    block.prepare(place.clone());
    // SAFETY: each read is given to one reader, reads fill disjoint parts of the block, and the
    // chunk is not ready (so nobody looks at it) before its last read is done.
    let target = unsafe { block.bytes_mut(place) };
    let need = need.min(range.end) - range.start;
    pool.sources[segment.source].read(name, first + range.start as u64, target, need)
}

/// Whole blocks of the file to scratch memory, and from there converted or moved to alignment.
fn read_staged(
    pool: &Pool,
    name: &str,
    read: Read,
    block: &Block,
    scratch: &Buffer,
) -> Result<usize, Error> {
    let Read { segment, range, base } = read;
    let start = segment.offset + range.start as u64;
    let end = segment.offset + range.end as u64;
    let first = start / BLOCK as u64 * BLOCK as u64;
    let need = (end - first) as usize;
    // SAFETY: scratch memory belongs to this reader alone.
    let staging = unsafe { scratch.bytes_mut(0..need.next_multiple_of(BLOCK)) };
    let count = pool.sources[segment.source].read(name, first, staging, need)?;
    let raw = &staging[(start - first) as usize..need];
    if let Some(convert) = &segment.convert
        && let Some(whole) = &convert.whole
    {
        let place = base..base + segment.len_in_memory() as usize;
        block.prepare(place.clone());
        // Others of this segment wait; a panic of one of them left nothing that matters.
        let alone = whole.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: all reads of this segment come here, one at a time; others fill other parts of
        // the block; and it is not yet readable by others.
        convert.run(start, raw, unsafe { block.bytes_mut(place) });
        drop(alone);
        return Ok(count);
    }
    let place = |bytes: usize| match &segment.convert {
        Some(convert) => base + bytes / convert.from * convert.to,
        None => base + bytes,
    };
    let place = place(range.start)..place(range.end);
    block.prepare(place.clone());
    // SAFETY: as for a read in place: disjoint, and not yet readable by others.
    let target = unsafe { block.bytes_mut(place) };
    match &segment.convert {
        Some(convert) => convert.run(start, raw, target),
        None => target.copy_from_slice(raw),
    }
    Ok(count)
}
