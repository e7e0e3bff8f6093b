//! Memory for activations.

/// From so many bytes on, an allocation is worth asking for large pages.
#[cfg(target_os = "linux")]
const LARGE: usize = 4 << 20;

/// So many zeros. Large allocations are asked for in large pages where the system has them: a page of
/// 4 KiB takes the system longer to provide than it takes a kernel to fill it.
pub(crate) fn zeroed(len: usize) -> Vec<f32> {
    let zeros = vec![0.0f32; len];
    #[cfg(target_os = "linux")]
    if size_of_val(&*zeros) >= LARGE {
        const PAGE: usize = 4096;
        let start = zeros.as_ptr().addr().next_multiple_of(PAGE);
        let bytes = size_of_val(&*zeros) - (start - zeros.as_ptr().addr());
        // SAFETY: the range lies within the allocation and begins with a page; the advice changes no
        // byte of it. Refused, it is slower and not wrong.
        unsafe {
            libc::madvise(
                zeros.as_ptr().with_addr(start).cast_mut().cast(),
                bytes,
                libc::MADV_HUGEPAGE,
            );
        }
    }
    zeros
}
