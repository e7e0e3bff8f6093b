//! Bytes from disk into a fixed pool of memory, ahead of need.
