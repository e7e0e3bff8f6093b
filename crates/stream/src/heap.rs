//! The system allocator's habit of keeping what was freed.

/// Above this size an allocation is a mapping of its own, which goes back to the system when freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const OWN_MAPPING: libc::c_int = 256 << 10;

/// Asks the C library's allocator to give freed memory back at once.
///
/// Left alone, glibc learns from large allocations: once a tensor of 20 MB was freed, it serves
/// such sizes from the heap, keeps up to twice as much of what is freed, and does so for each
/// thread. In a process that promises a bound on its resident set this must not be. To be called
/// once, early, by a program rather than a library; it has no effect where the allocator is
/// another.
pub fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: mallopt sets parameters of the allocator under its own lock; any value is allowed,
    // and a refused one changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_TRIM_THRESHOLD, OWN_MAPPING);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}
