//! The threads that read.

use crate::arena::Block;
use crate::buffer::Buffer;
use crate::loading::{Job, Seat};
use crate::pool::Pool;
use crate::unit::STAGED_PIECE;
use crate::{BLOCK, Chunk, Error};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Reads one piece after the other until the stream is closed.
pub(crate) fn run(seat: Seat, mut scratch: Scratch) {
    while read_one(&seat, &mut scratch) {}
}

/// Waits for a piece and reads it. False when the stream is closed.
pub(crate) fn read_one(seat: &Seat, scratch: &mut Scratch) -> bool {
    let Some(job) = seat.next_job() else {
        return false;
    };
    let pool = &*seat.pool;
    // A conversion that panics must not take the reader with it.
    let result =
        catch_unwind(AssertUnwindSafe(|| read_job(pool, &job, scratch))).unwrap_or_else(|panic| {
            Err(Error::Reader {
                unit: pool.units[job.unit].name.clone(),
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
    /// Bytes that staging takes if pieces are of at most `piece` bytes.
    pub(crate) fn bytes(piece: usize) -> usize {
        piece.min(STAGED_PIECE) + 2 * BLOCK
    }

    /// Scratch memory for pieces of `piece` bytes, or none if no unit needs it.
    pub(crate) fn new(piece: usize, needed: bool) -> Result<Self, Error> {
        Ok(Self(if needed {
            Some(Buffer::new(Self::bytes(piece), "a reader")?)
        } else {
            None
        }))
    }
}

fn read_job(pool: &Pool, job: &Job<'_>, scratch: &mut Scratch) -> Result<usize, Error> {
    let unit = &pool.units[job.unit];
    match (job.block(), &scratch.0) {
        (Some(block), _) if !unit.is_staged() => read_in_place(pool, unit, job.piece, block),
        (Some(block), Some(scratch)) => read_staged(pool, unit, job.piece, block, scratch),
        _ => unreachable!("a job has a block until it ends, and staged units come with scratch"),
    }
}

/// Whole blocks of the file, straight to their place.
fn read_in_place(pool: &Pool, unit: &Chunk, piece: usize, block: &Block) -> Result<usize, Error> {
    let first = unit.offset / BLOCK as u64 * BLOCK as u64;
    let len = unit.piece(pool.piece);
    let from = piece * len;
    let to = (from + len).min(block.len());
    let need = (unit.offset + unit.len - first) as usize;
    block.prepare(from..to);
    // SAFETY: each piece is given to one reader, pieces are disjoint parts of the block, and the
    // unit is not ready (so nobody reads it) before its last piece is done.
    let target = unsafe { block.bytes_mut(from..to) };
    pool.sources[unit.source].read(&unit.name, first + from as u64, target, need.min(to) - from)
}

/// Whole blocks of the file to scratch memory, and from there converted or moved to alignment.
fn read_staged(
    pool: &Pool,
    unit: &Chunk,
    piece: usize,
    block: &Block,
    scratch: &Buffer,
) -> Result<usize, Error> {
    let len = unit.piece(pool.piece) as u64;
    let from = piece as u64 * len;
    let to = (from + len).min(unit.len);
    let (start, end) = (unit.offset + from, unit.offset + to);
    let first = start / BLOCK as u64 * BLOCK as u64;
    let cover = (end - first).div_ceil(BLOCK as u64) as usize * BLOCK;
    // SAFETY: scratch memory belongs to this reader alone.
    let staging = unsafe { scratch.bytes_mut(0..cover) };
    let need = (end - first) as usize;
    let count = pool.sources[unit.source].read(&unit.name, first, staging, need)?;
    let raw = &staging[(start - first) as usize..need];
    match &unit.convert {
        Some(convert) => {
            let scale = |bytes: u64| bytes as usize / convert.from * convert.to;
            block.prepare(scale(from)..scale(to));
            // SAFETY: as for a piece read in place: disjoint, and not yet readable by others.
            let target = unsafe { block.bytes_mut(scale(from)..scale(to)) };
            (convert.run)(raw, target);
        }
        None => {
            block.prepare(from as usize..to as usize);
            // SAFETY: as above.
            unsafe { block.bytes_mut(from as usize..to as usize) }.copy_from_slice(raw);
        }
    }
    Ok(count)
}
