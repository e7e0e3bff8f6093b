//! Memory of a GPU that weights pass through on their way to a product.

use crate::Error;
use crate::gpu_share::GpuShare;
use burn::tensor::Device;
use outsize_kernels::WeightTensor;
use outsize_kernels::gpu::{Fence, UploadStream, failure};
use std::sync::{Mutex, PoisonError};

/// The fewest slots and the most: one is filled while another is read, and a third waits for
/// neither.
pub(crate) const SLOTS: [u64; 2] = [2, 3];

/// Slots for tiles of about one size, taken in turn.
///
/// Each has a stream, and so memory, of its own: a tile that is uploaded waits for nothing but the
/// products that read the slot's last tile. A slot keeps hold of its tile, so that its memory is
/// not given to another before these are done, whatever became of the tile elsewhere.
pub(crate) struct Slots {
    share: GpuShare,
    slots: Mutex<Vec<Slot>>,
}

struct Slot {
    stream: UploadStream,
    /// Counted from the first, for those who watch.
    number: u64,
    tile: Option<WeightTensor>,
    /// When the last product that reads the tile is done, once nobody else holds it.
    done: Option<Fence>,
}

impl Slots {
    /// As many as `bytes` have room for, of tiles of at most `largest` bytes.
    pub(crate) fn new(share: GpuShare, bytes: u64, largest: u64) -> Self {
        // The pool of a slot may have two pages, as the next tile may be a little larger.
        let count = (bytes / largest.max(1) / 2).clamp(SLOTS[0], SLOTS[1]);
        let slot = |number| Slot { stream: UploadStream::new(), number, tile: None, done: None };
        let slots = Mutex::new((0..count).map(slot).collect());
        Self { share, slots }
    }

    /// Copies a matrix to the next slot, as `copy` does it; gives `copy` back if the tiles of all
    /// slots are still held.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn upload<F: FnOnce(&Device) -> Result<WeightTensor, String>>(
        &self,
        copy: F,
    ) -> Result<Result<WeightTensor, F>, Error> {
        let failed = |reason: String| self.share.failed(&reason);
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter_mut() {
            slot.look(&self.share.device);
        }
        // The one that was filled first is at the front.
        let free = slots.iter().position(|slot| slot.tile.is_none() || slot.done.is_some());
        let Some(free) = free else { return Ok(Err(copy)) };
        let mut slot = slots.remove(free);
        let (gpu, number) = (self.share.tier, slot.number);
        if let Some(done) = slot.done.take() {
            done.wait().map_err(failed)?;
            tracing::trace!(%gpu, slot = number, "products done");
        }
        slot.tile = None;
        let tile = slot.stream.enter(|| {
            tracing::trace!(%gpu, slot = number, "upload begins");
            copy(&self.share.device)
        });
        slot.tile = tile.as_ref().ok().cloned();
        slots.push(slot);
        tile.map(Ok).map_err(failed)
    }

    /// Whether they are a device's.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.share.device == *device
    }

    /// What to say of a device that failed with this reason.
    pub(crate) fn failed(&self, reason: &str) -> Error {
        self.share.failed(reason)
    }

    /// What the device refused, as far as it is known without waiting.
    pub(crate) fn refused(&self) -> Option<Error> {
        failure(&self.share.device).map(|reason| self.failed(&reason))
    }

    /// Waits until all uploads and products are done.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        Fence::new(&self.share.device).wait().map_err(|reason| self.failed(&reason))
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let slots = self.slots.get_mut().unwrap_or_else(PoisonError::into_inner);
        for Slot { stream, tile, .. } in slots.drain(..) {
            drop(tile);
            // No other module enters this stream.
            stream.enter(|| self.share.device.memory_cleanup());
        }
    }
}

impl Slot {
    /// Takes note of it if nobody else holds the tile any more: all products that read it were
    /// given to the device before.
    fn look(&mut self, device: &Device) {
        if let Some(tile) = self.tile.take_if(|_| self.done.is_none()) {
            let (tile, alone) = tile.is_alone();
            self.done = alone.then(|| Fence::new(device));
            self.tile = Some(tile);
        }
    }
}
