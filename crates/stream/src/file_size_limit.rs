//! What happens at a limit on the size of files.

/// Makes a write beyond the user's limit on the size of files (`ulimit -f`) an error.
///
/// By default the system ends the process instead, which leaves unfinished files behind. To be
/// called once, early, by a program rather than a library.
pub fn fail_at_file_size_limit() {
    #[cfg(unix)]
    // SAFETY: ignoring a signal runs no code of ours, and nothing else in the process handles this
    // one.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}
