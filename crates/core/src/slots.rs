//! Memory of a GPU that weights pass through on their way to a product.

use crate::Error;
use burn::tensor::{Bytes, DType, Device};
use outsize_kernels::WeightTensor;
use outsize_kernels::gpu::{Fence, UploadStream};
use outsize_plan::Tier;
use std::sync::{Mutex, PoisonError};

/// The fewest slots and the most: one is filled while another is read, and a third waits for neither.
pub(crate) const SLOTS: [u64; 2] = [2, 3];

/// Slots for tiles of about one size, taken in turn.
///
/// Each has a stream, and so memory, of its own: a tile that is uploaded waits for nothing but the
/// products that read the slot's last tile. A slot keeps hold of its tile, so that its memory is not
/// given to another before these are done, whatever became of the tile elsewhere.
pub(crate) struct Slots {
    tier: Tier,
    device: Device,
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
    /// As many as `bytes` have room for.
    pub(crate) fn new(tier: Tier, device: &Device, bytes: u64, tile: u64) -> Self {
        // The pool of a slot may have two pages, as the next tile may be a little larger.
        let count = (bytes / tile.max(1) / 2).clamp(SLOTS[0], SLOTS[1]);
        let slot = |number| Slot { stream: UploadStream::new(), number, tile: None, done: None };
        let slots = Mutex::new((0..count).map(slot).collect());
        Self { tier, device: device.clone(), slots }
    }

    /// Copies a matrix to the next slot.
    ///
    /// # Errors
    /// What the device says; or that tiles of all slots are still held.
    pub(crate) fn upload(
        &self,
        bytes: Bytes,
        dtype: DType,
        shape: [usize; 2],
    ) -> Result<WeightTensor, Error> {
        let failed = |reason| Error::Gpu { tier: self.tier, reason };
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in slots.iter_mut() {
            slot.look(&self.device);
        }
        // The one that was filled first is at the front.
        let free = slots.iter().position(|slot| slot.tile.is_none() || slot.done.is_some());
        let Some(free) = free else {
            return Err(failed(
                "weights of more tiles are held at once than there are slots".into(),
            ));
        };
        let mut slot = slots.remove(free);
        let (gpu, number) = (self.tier, slot.number);
        if let Some(done) = slot.done.take() {
            done.wait().map_err(failed)?;
            tracing::trace!(%gpu, slot = number, "products done");
        }
        slot.tile = None;
        tracing::trace!(%gpu, slot = number, bytes = bytes.len(), "upload begins");
        let tile = slot.stream.enter(|| WeightTensor::upload(bytes, dtype, shape, &self.device));
        slot.tile = tile.as_ref().ok().cloned();
        slots.push(slot);
        tile.map_err(failed)
    }

    /// The device's tier.
    pub(crate) fn tier(&self) -> Tier {
        self.tier
    }

    /// Whether they are a device's.
    pub(crate) fn is_of(&self, device: &Device) -> bool {
        self.device == *device
    }

    /// Waits until all uploads and products are done.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn wait(&self) -> Result<(), Error> {
        let waited = Fence::new(&self.device).wait();
        waited.map_err(|reason| Error::Gpu { tier: self.tier, reason })
    }
}

impl Slot {
    /// Takes note of it if nobody else holds the tile any more: all products that read it were given to
    /// the device before.
    fn look(&mut self, device: &Device) {
        if let Some(tile) = self.tile.take_if(|_| self.done.is_none()) {
            let (tile, alone) = tile.is_alone();
            self.done = alone.then(|| Fence::new(device));
            self.tile = Some(tile);
        }
    }
}
