//! Files whose bytes tell their place, and what is checked of them.

// Each of the test programs uses a part of it.
#![allow(dead_code)]

use outsize_stream::{Chunk, ChunkId, Convert, Error, Segment, Stream};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// A file of `len` bytes in which every byte is a function of its offset.
pub fn file(len: usize) -> (TempDir, PathBuf) {
    // Beside the sources rather than in the system's temporary folder, which may be a file system
    // without direct reads.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("data.bin");
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    File::create(&path).unwrap().write_all(&bytes).unwrap();
    (dir, path)
}

pub fn byte(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 7) as u8
}

pub fn chunk(offset: usize, len: usize) -> Chunk {
    Chunk {
        name: format!("chunk at {offset}").into(),
        segments: vec![segment(offset, len)],
        keep: false,
        occasional: false,
    }
}

pub fn segment(offset: usize, len: usize) -> Segment {
    Segment { source: 0, offset: offset as u64, len: len as u64, align: 1, convert: None }
}

pub fn check(stream: &Stream, chunks: &[Chunk], id: ChunkId) -> Result<(), Error> {
    let lease = stream.lease(id)?;
    let chunk = &chunks[id];
    let mut sum = 0;
    for (at, segment) in chunk.segments.iter().enumerate() {
        let part = lease.segment(at);
        let bytes = part.as_ref();
        sum += bytes.len() as u64;
        check_segment(&chunk.name, segment, bytes);
    }
    assert_eq!(sum, chunk.len_in_memory());
    assert!(lease.segment(chunk.segments.len()).as_ref().is_empty());
    Ok(())
}

fn check_segment(name: &str, segment: &Segment, bytes: &[u8]) {
    match &segment.convert {
        None => {
            assert!((bytes.as_ptr() as usize).is_multiple_of(segment.align));
            assert_eq!(bytes.len() as u64, segment.len);
            for (at, found) in bytes.iter().enumerate() {
                assert_eq!(*found, byte(segment.offset as usize + at), "{name} + {at}");
            }
        }
        Some(convert) if convert.is_scattered() => {
            assert_eq!(bytes.len() as u64, segment.len + 3);
            for (at, found) in bytes[3..].iter().rev().enumerate() {
                assert_eq!(*found, byte(segment.offset as usize + at));
            }
        }
        Some(_) => {
            assert_eq!(bytes.len() as u64, 2 * segment.len);
            for (at, found) in bytes.chunks_exact(2).enumerate() {
                let raw = byte(segment.offset as usize + at);
                assert_eq!(found, [raw, !raw]);
            }
        }
    }
}

/// A conversion of blocks of so many bytes, each byte to itself and its complement; it is told
/// where it reads.
pub fn widen(from: usize) -> Convert {
    Convert::new(from, 2 * from, |offset, from, to| {
        assert_eq!(from.first().copied(), from.first().map(|_| byte(offset as usize)));
        widen_each(from, to);
    })
}

/// A conversion of a segment that ends with its first byte, and begins with three of others.
pub fn mirror(segment: &Segment, from: usize) -> Convert {
    let start = segment.offset;
    Convert::scattered(from, segment.len + 3, move |offset, from, to| {
        assert_eq!(from.first().copied(), from.first().map(|_| byte(offset as usize)));
        for (byte, to) in from.iter().zip(to.iter_mut().rev().skip((offset - start) as usize)) {
            *to = *byte;
        }
    })
}

pub fn widen_each(from: &[u8], to: &mut [u8]) {
    for (from, to) in from.iter().zip(to.chunks_exact_mut(2)) {
        to.copy_from_slice(&[*from, !*from]);
    }
}

/// Runs `body` on a thread of its own and fails if it has not ended in two minutes.
pub fn in_time(body: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    match wait.recv_timeout(Duration::from_secs(120)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("deadlock: nothing ended in two minutes"),
        _ => thread.join().unwrap(),
    }
}
