//! Memory in large pages, where the system has them.

/// A range of memory of its own.
pub struct Large {
    start: *mut u8,
    /// Bytes.
    len: usize,
}

impl Large {
    /// Filled with the same elements again and again; `len` is in bytes.
    pub fn new<T: Copy>(len: usize, with: &[T]) -> Large {
        /// Bytes of a large page.
        const PAGE: usize = 2 << 20;
        let whole = len + PAGE;
        // SAFETY: a new mapping touches no memory of others.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                whole,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED, "no memory for {whole} bytes");
        let start = start.cast::<u8>();
        let start = start.wrapping_add(start.align_offset(PAGE));
        #[cfg(target_os = "linux")]
        // SAFETY: the range lies within the mapping.
        unsafe {
            libc::madvise(start.cast(), len, libc::MADV_HUGEPAGE)
        };
        let large = Large { start, len };
        // SAFETY: the mapping is at least as long, aligned to a page, and nobody else knows it.
        let elements =
            unsafe { std::slice::from_raw_parts_mut(start.cast::<T>(), len / size_of::<T>()) };
        for chunk in elements.chunks_mut(with.len()) {
            chunk.copy_from_slice(&with[..chunk.len()]);
        }
        large
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        self.elements()
    }

    /// All of it as numbers of some type, such as it was filled with.
    pub fn elements<T: Number>(&self) -> &[T] {
        // SAFETY: `start` begins a mapping of at least `len` bytes, aligned to a page; any bits are
        // a number.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.len / size_of::<T>()) }
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        // SAFETY: the range is this one's own, and nobody borrows it any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// A type of which any bits are a value.
pub trait Number: Copy {}

impl Number for u8 {}
impl Number for f32 {}
impl Number for half::bf16 {}
