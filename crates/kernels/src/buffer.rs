//! Memory for activations, used again.
//!
//! What is large goes back to the system when it is freed (a process that promises a bound must not
//! keep it), and a page that is touched for the first time takes the system longer to provide than
//! it takes a kernel to fill it. So freed buffers are kept here for the next ones of their size, as
//! long as they and those in use are no more than was in use at once before: their peak stays what
//! it is. Other memory, such as the results of Burn's own operations, has its peak at another time,
//! so they are kept only where [`BufferReuse`] says so, and only up to what it says.

use std::mem::MaybeUninit;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::tensor::{AllocationProperty, Bytes, DType, Shape, TensorData};
use burn_std::{AccessError, AccessPolicy, AllocationController};

/// Bytes from which on a buffer is kept when it is freed.
const LARGE: usize = 512 << 10;

/// From so many bytes on, an allocation is worth asking for large pages.
#[cfg(target_os = "linux")]
const HUGE: usize = 4 << 20;

/// f32 of a cache line.
const LINE: usize = 16;

static POOL: Mutex<Pool> =
    Mutex::new(Pool { free: Vec::new(), kept: 0, used: 0, most: 0, asked: 0, limit: 0 });

/// While there is one of these, large buffers of activations are kept for reuse when they are
/// freed.
#[derive(Debug)]
pub struct BufferReuse {
    limit: usize,
}

impl BufferReuse {
    /// Begins to keep buffers, as many as were in use at once.
    pub fn begin() -> Self {
        Self::up_to(usize::MAX)
    }

    /// The same while they, and all buffers in use, come to no more than so many bytes; to the sum
    /// of what is said if there are several at a time.
    pub fn up_to(bytes: usize) -> Self {
        let mut pool = Pool::lock();
        pool.asked += 1;
        pool.limit += bytes as u128;
        Self { limit: bytes }
    }
}

impl Drop for BufferReuse {
    fn drop(&mut self) {
        let mut pool = Pool::lock();
        pool.asked -= 1;
        pool.limit -= self.limit as u128;
        let freed = pool.evict();
        drop(pool);
        drop(freed);
    }
}

/// Buffers that nobody uses, the first freed first; and bytes.
struct Pool {
    free: Vec<Vec<f32>>,
    /// Of buffers that nobody uses.
    kept: usize,
    /// Of buffers in use.
    used: usize,
    /// The most that were in use at once.
    most: usize,
    /// How many have asked for reuse.
    asked: usize,
    /// What buffers in use and kept ones may come to together.
    limit: u128,
}

impl Pool {
    fn lock() -> MutexGuard<'static, Pool> {
        // Nothing panics between two changes that belong together.
        POOL.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a buffer of so many values as used. Gives a free one if there is one, the last that
    /// was freed; and those to free before another is allocated.
    fn admit(&mut self, len: usize) -> (Option<Vec<f32>>, Vec<Vec<f32>>) {
        let bytes = len * size_of::<f32>();
        self.used += bytes;
        self.most = self.most.max(self.used);
        let found = self.free.iter().rposition(|values| values.len() == len);
        let found = found.map(|index| self.free.remove(index));
        if found.is_some() {
            self.kept -= bytes;
        }
        (found, self.evict())
    }

    /// The buffers that are not to be kept any more.
    fn evict(&mut self) -> Vec<Vec<f32>> {
        if self.asked == 0 {
            (self.kept, self.most) = (0, self.used);
            return std::mem::take(&mut self.free);
        }
        let limit = self.limit.min(self.most as u128);
        let mut freed = Vec::new();
        while (self.used + self.kept) as u128 > limit && !self.free.is_empty() {
            let values = self.free.remove(0);
            self.kept -= size_of_val(&*values);
            freed.push(values);
        }
        freed
    }
}

/// Frees all buffers that nobody uses, and forgets how many there were.
pub fn free_buffers() {
    let mut pool = Pool::lock();
    (pool.kept, pool.most) = (0, pool.used);
    let freed = std::mem::take(&mut pool.free);
    drop(pool);
    drop(freed);
}

/// Values of a tensor or for a time. They begin with a cache line.
#[derive(Debug)]
pub(crate) struct Buffer {
    values: Vec<f32>,
    start: usize,
    len: usize,
    /// Whether the pool counts it.
    pooled: bool,
}

/// Room for so many values, which are arbitrary numbers.
pub(crate) fn take(len: usize) -> Buffer {
    let whole = len + LINE;
    let mut pool = Pool::lock();
    let pooled = pool.asked > 0;
    let (found, freed) = if pooled { pool.admit(whole) } else { Default::default() };
    drop(pool);
    drop(freed);
    let values = found.unwrap_or_else(|| fresh(whole));
    // In theory nobody may say where a line begins; the values then begin anywhere, which is slower
    // and not wrong.
    let start = values.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE);
    Buffer { values, start, len, pooled }
}

/// So many zeros.
pub(crate) fn zeroed(len: usize) -> Buffer {
    let mut buffer = take(len);
    buffer.fill(0.0);
    buffer
}

/// A tensor of these values.
pub(crate) fn data(buffer: Buffer, shape: impl Into<Shape>) -> TensorData {
    let bytes = buffer.len * size_of::<f32>();
    // SAFETY: all of the buffer's values are initialized.
    let bytes = unsafe { Bytes::from_controller(Box::new(buffer), bytes) };
    TensorData::from_bytes(bytes, shape, DType::F32)
}

/// Memory with whatever is in it: zeroing it would take one thread as long as all need to fill it.
/// Large allocations are asked for in large pages where the system has them.
fn fresh(len: usize) -> Vec<f32> {
    let mut values = with_capacity(len);
    // SAFETY: the assembly may write to the memory whose address it is given, for all that the
    // compiler knows; so the bytes there, which the system has made some or others, are initialized
    // ones, and any four are an f32. The vector has this capacity.
    unsafe {
        std::arch::asm!("/* {} */", in(reg) values.as_mut_ptr(), options(nostack, preserves_flags));
        values.set_len(len);
    }
    values
}

/// An empty vector with room for so many values, in large pages if it is large and the system has
/// them.
pub(crate) fn with_capacity<X>(len: usize) -> Vec<X> {
    let values: Vec<X> = Vec::with_capacity(len);
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        let bytes = len * size_of::<X>();
        let start = values.as_ptr().addr().next_multiple_of(PAGE);
        if bytes >= HUGE {
            let bytes = bytes - (start - values.as_ptr().addr());
            // SAFETY: the range lies within the allocation and begins with a page; the advice
            // changes no byte of it. Refused, it is slower and not wrong.
            unsafe {
                libc::madvise(
                    values.as_ptr().with_addr(start).cast_mut().cast(),
                    bytes,
                    libc::MADV_HUGEPAGE,
                );
            }
        }
    }
    values
}

impl Buffer {
    /// The values' bits.
    pub(crate) fn words(&mut self) -> &mut [u32] {
        let values: &mut [f32] = self;
        // SAFETY: both have the same size and alignment, and all bits are of either.
        unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), values.len()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if !self.pooled {
            return;
        }
        let bytes = size_of_val(&*self.values);
        let mut pool = Pool::lock();
        pool.used -= bytes;
        if bytes >= LARGE {
            pool.kept += bytes;
            pool.free.push(std::mem::take(&mut self.values));
        }
        // A limit may keep less; and buffers that were in use when all was forgotten may come to
        // more than there were since.
        let freed = pool.evict();
        drop(pool);
        drop(freed);
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.values[self.start..self.start + self.len]
    }
}

impl AllocationController for Buffer {
    fn alloc_align(&self) -> usize {
        align_of::<f32>()
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(
        &mut self,
        _: AccessPolicy,
    ) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        let values: &mut [f32] = self;
        let bytes = size_of_val(values);
        // SAFETY: the values' bytes; who writes to them promises to write initialized ones.
        Ok(unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), bytes) })
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        let values: &[f32] = self;
        // SAFETY: the values' bytes.
        Ok(unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since all share the pool. Sizes are such as no other test of this crate asks for.
    #[test]
    fn buffers_are_used_again_and_no_more_are_kept_than_were_used() {
        let reuse = BufferReuse::begin();
        let len = (3 << 20) + 1;
        let (first, second) = (take(len), take(len));
        let places = [first.values.as_ptr(), second.values.as_ptr()];
        assert!(first.as_ptr().addr().is_multiple_of(64) && first.len() == len);
        drop((first, second));
        let again = take(len);
        assert!(places.contains(&again.values.as_ptr()));
        let larger = take(4 * len);
        let pool = Pool::lock();
        assert!(pool.used + pool.kept <= pool.most);
        drop(pool);
        let tensor = data(larger, [4 * len]);
        assert_eq!(tensor.as_slice::<f32>().map(<[f32]>::len), Ok(4 * len));
        drop((tensor, again));
        assert!(Pool::lock().free.iter().any(|values| values.len() > len));
        drop(reuse);
        assert!(Pool::lock().free.iter().all(|values| values.len() < len));
    }

    #[test]
    fn small_ones_are_not_kept() {
        let small = take(7);
        assert_eq!((small.len(), small.values.len()), (7, 23));
    }
}
