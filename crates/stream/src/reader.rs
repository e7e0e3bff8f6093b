//! The threads that read.

use crate::buffer::Buffer;
use crate::pool::{Job, Pool};
use crate::{BLOCK, Error, Unit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Reads one piece after the other until the stream is closed.
pub(crate) fn run(pool: &Pool, mut scratch: Scratch) {
    while let Some(job) = pool.next_job() {
        let Job { unit, piece, block } = job;
        // A conversion that panics must not take the reader with it.
        let result = catch_unwind(AssertUnwindSafe(|| {
            read_piece(pool, &pool.units[unit], piece, &block, &mut scratch)
        }))
        .unwrap_or_else(|panic| {
            Err(Error::Reader {
                unit: pool.units[unit].name.clone(),
                reason: reason(panic.as_ref()).into(),
            })
        });
        // Before the unit is ready, or the block would seem to be held.
        drop(block);
        pool.finish(unit, result);
    }
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
    /// Bytes that staging a piece of `piece` bytes takes.
    pub(crate) fn bytes(piece: usize) -> usize {
        piece + 2 * BLOCK
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

fn read_piece(
    pool: &Pool,
    unit: &Unit,
    piece: usize,
    block: &Arc<crate::arena::Block>,
    scratch: &mut Scratch,
) -> Result<usize, Error> {
    let source = &pool.sources[unit.source];
    let read = |offset: u64, target: &mut [u8], need: usize| {
        let count = source
            .read(offset, target, need)
            .map_err(|error| Error::Read {
                unit: unit.name.clone(),
                path: source.path().to_path_buf(),
                source: Arc::new(error),
            })?;
        if count < need {
            return Err(Error::Truncated {
                unit: unit.name.clone(),
                path: source.path().to_path_buf(),
                end: unit.offset + unit.len,
            });
        }
        Ok(count)
    };
    if !unit.is_staged() {
        let first = unit.offset / BLOCK as u64 * BLOCK as u64;
        let from = piece * pool.piece;
        let to = (from + pool.piece).min(block.len());
        let need = (unit.offset + unit.len - first) as usize;
        // SAFETY: each piece is given to one reader, pieces are disjoint parts of the block, and the
        // unit is not ready (so nobody reads it) before its last piece is done.
        let target = unsafe { block.bytes_mut(from..to) };
        return read(first + from as u64, target, need.min(to) - from);
    }
    let Some(scratch) = &scratch.0 else {
        unreachable!("staged units come with scratch memory");
    };
    let from = (piece * pool.piece) as u64;
    let to = (from + pool.piece as u64).min(unit.len);
    let (start, end) = (unit.offset + from, unit.offset + to);
    let first = start / BLOCK as u64 * BLOCK as u64;
    let cover = (end - first).div_ceil(BLOCK as u64) as usize * BLOCK;
    // SAFETY: scratch memory belongs to this reader alone.
    let staging = unsafe { scratch.bytes_mut(0..cover) };
    let count = read(first, staging, (end - first) as usize)?;
    let raw = &staging[(start - first) as usize..(end - first) as usize];
    match &unit.convert {
        Some(convert) => {
            let scale = |bytes: u64| bytes as usize / convert.from * convert.to;
            // SAFETY: as for the direct piece: disjoint, and not yet readable by others.
            let target = unsafe { block.bytes_mut(scale(from)..scale(to)) };
            (convert.run)(raw, target);
        }
        None => {
            // SAFETY: as above.
            unsafe { block.bytes_mut(from as usize..to as usize) }.copy_from_slice(raw);
        }
    }
    Ok(count)
}
