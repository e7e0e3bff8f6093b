//! What goes wrong with the files beneath a stream: each fault is an error that names the chunk and
//! its file, and the next call works once the fault is gone.

#![cfg(unix)]

mod common;

use common::{byte, check, chunk, file, in_time};
use outsize_stream::{BLOCK, Chunk, Error, Options, Source, Stream};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A stream over one file, nothing of which fits in memory twice.
fn stream(source: Source, chunks: &[Chunk]) -> Stream {
    let order = (0..chunks.len()).collect();
    let options = Options {
        ring_bytes: 8 * BLOCK as u64,
        readers: 2,
        read_bytes: 2 * BLOCK,
        ..Options::default()
    };
    Stream::start(vec![source], chunks.to_vec(), order, options).unwrap()
}

/// Two chunks at the ends of a file of sixteen blocks; both together are more than the ring.
fn two_chunks() -> Vec<Chunk> {
    vec![chunk(0, 6 * BLOCK), chunk(9 * BLOCK, 7 * BLOCK)]
}

/// Writes to a file and sets its time, as a copy that keeps times does.
fn put(path: &Path, from: usize, bytes: &[u8], modified: Option<SystemTime>) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, from as u64).unwrap();
    if let Some(modified) = modified {
        file.set_modified(modified).unwrap();
    }
}

fn modified(path: &Path) -> SystemTime {
    path.metadata().unwrap().modified().unwrap()
}

/// An error of the chunk at this offset, in `data.bin`, and of the kind that `is` knows.
fn expect(result: Result<impl Sized, Error>, name: &str, is: fn(&Error) -> bool) {
    let error = result.err().unwrap_or_else(|| panic!("{name} was read"));
    assert!(is(&error), "{error:?}");
    let text = error.to_string();
    assert!(text.contains(name) && text.contains("data.bin"), "{text}");
}

fn truncated(error: &Error) -> bool {
    matches!(error, Error::Truncated { .. })
}

fn changed(error: &Error) -> bool {
    matches!(error, Error::Changed { .. })
}

#[test]
fn a_file_cut_short_and_put_back() {
    let (_dir, path) = file(16 * BLOCK);
    let chunks = two_chunks();
    let before = modified(&path);
    in_time(move || {
        let stream = stream(Source::open(&path).unwrap(), &chunks);
        check(&stream, &chunks, 0).unwrap();
        check(&stream, &chunks, 1).unwrap();
        // In the middle of a block: what is left of it is read, and is not enough.
        let cut = 10 * BLOCK + 100;
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(cut as u64).unwrap();
        let mut row = [0; 16];
        let at = 12 * BLOCK as u64;
        // What is in memory may still be had; what is not, may not.
        for _ in 0..3 {
            let _ = stream.lease(0);
            if stream.lease(1).is_err() {
                break;
            }
        }
        expect(stream.lease(1), "chunk at 36864", truncated);
        expect(stream.read("a row", 0, at, &mut row), "a row", truncated);
        let rest: Vec<u8> = (cut..16 * BLOCK).map(byte).collect();
        put(&path, cut, &rest, Some(before));
        for id in [1, 0, 1] {
            check(&stream, &chunks, id).unwrap();
        }
        stream.read("a row", 0, at, &mut row).unwrap();
        assert!(row.iter().zip(12 * BLOCK..).all(|(found, at)| *found == byte(at)));
        assert!(stream.is_direct());
    });
}

#[test]
fn a_file_written_over_in_place() {
    let (_dir, path) = file(16 * BLOCK);
    let mut chunks = two_chunks();
    chunks.push(Chunk { keep: true, ..chunk(BLOCK, BLOCK) });
    in_time(move || {
        let stream = stream(Source::open(&path).unwrap(), &chunks);
        check(&stream, &chunks, 2).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        put(&path, 0, &[7; 16 * BLOCK], None);
        let mut row = [0; 16];
        for _ in 0..3 {
            // One of them was in the ring, but not both.
            let results = [0, 1].map(|id| stream.lease(id).map(drop));
            assert!(results.iter().any(Result::is_err));
            for (chunk, result) in chunks.iter().zip(results) {
                if result.is_err() {
                    expect(result, &chunk.name, changed);
                }
            }
            expect(stream.read("a row", 0, 0, &mut row), "a row", changed);
            // What is in memory is what it was.
            check(&stream, &chunks, 2).unwrap();
        }
        // The right bytes again, at another time: nobody can know.
        let whole: Vec<u8> = (0..16 * BLOCK).map(byte).collect();
        put(&path, 0, &whole, None);
        expect(stream.read("a row", 0, 0, &mut row), "a row", changed);
        let stream = self::stream(Source::open(&path).unwrap(), &chunks);
        for id in [0, 1, 2, 0] {
            check(&stream, &chunks, id).unwrap();
        }
    });
}

#[test]
fn a_file_that_grew_or_was_changed_before_the_stream_began() {
    let (_dir, path) = file(16 * BLOCK);
    let chunks = two_chunks();
    in_time(move || {
        let handle = Arc::new(File::open(&path).unwrap());
        let then = handle.metadata().unwrap();
        let before = modified(&path);
        let source = || Source::new(&path, handle.clone()).since(&then);
        check(&stream(source(), &chunks), &chunks, 0).unwrap();
        put(&path, 16 * BLOCK, b"more", Some(before));
        expect(stream(source(), &chunks).lease(0), "chunk at 0", changed);
        File::options().write(true).open(&path).unwrap().set_len(16 * BLOCK as u64).unwrap();
        put(&path, 0, &[], Some(before));
        check(&stream(source(), &chunks), &chunks, 0).unwrap();
        put(&path, 0, &[], Some(before + Duration::from_millis(5)));
        expect(stream(source(), &chunks).lease(0), "chunk at 0", changed);
    });
}

#[test]
fn a_file_replaced_under_its_name_is_the_one_that_was_opened() {
    let (dir, path) = file(16 * BLOCK);
    let chunks = two_chunks();
    in_time(move || {
        let handle = Arc::new(File::open(&path).unwrap());
        let early = stream(Source::new(&path, handle.clone()), &chunks);
        check(&early, &chunks, 0).unwrap();
        let other = dir.path().join("other.bin");
        std::fs::write(&other, [7; 16 * BLOCK]).unwrap();
        std::fs::rename(&other, &path).unwrap();
        let late = stream(Source::new(&path, handle.clone()), &chunks);
        assert!(!late.is_direct(), "the path names another file");
        std::fs::remove_file(&path).unwrap();
        let last = stream(Source::new(&path, handle), &chunks);
        for stream in [&early, &late, &last] {
            for id in [0, 1, 0] {
                check(stream, &chunks, id).unwrap();
            }
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_pipe_under_the_name_is_not_waited_for() {
    let (_dir, path) = file(16 * BLOCK);
    let chunks = two_chunks();
    in_time(move || {
        let handle = Arc::new(File::open(&path).unwrap());
        std::fs::remove_file(&path).unwrap();
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        check(&stream(Source::new(&path, handle), &chunks), &chunks, 1).unwrap();
    });
}

/// The system's own read error, from reading memory that is not mapped; mapped, it is read.
#[test]
#[cfg(target_os = "linux")]
fn a_read_error_of_the_system() {
    // Far from where anything is mapped by itself.
    const AT: usize = 0x2000_0000_0000;
    const LEN: usize = 2 * BLOCK;
    in_time(|| {
        let chunks = [chunk(AT, LEN)];
        let stream = stream(Source::open("/proc/self/mem").unwrap(), &chunks);
        let mut row = [0; 16];
        let (broken, named): (fn(&Error) -> bool, _) = (
            |error| matches!(error, Error::Read { source, .. } if source.raw_os_error() == Some(libc::EIO)),
            ["chunk at", "/proc/self/mem"],
        );
        for _ in 0..2 {
            for error in [
                stream.lease(0).unwrap_err(),
                stream.read("chunk at hand", 0, AT as u64, &mut row).unwrap_err(),
            ] {
                assert!(broken(&error), "{error:?}");
                assert!(named.iter().all(|part| error.to_string().contains(part)), "{error}");
            }
        }
        // SAFETY: a new mapping where there is none (the flag sees to it), which nothing else knows
        // of; it is filled before it is read, and stays until the process ends.
        unsafe {
            let start = libc::mmap(
                AT as *mut libc::c_void,
                LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED_NOREPLACE,
                -1,
                0,
            );
            assert_eq!(start as usize, AT);
            for at in 0..LEN {
                start.cast::<u8>().add(at).write(byte(AT + at));
            }
        }
        check(&stream, &chunks, 0).unwrap();
        stream.read("a row", 0, AT as u64, &mut row).unwrap();
        assert_eq!(row[7], byte(AT + 7));
    });
}

#[test]
fn a_folder_is_no_file() {
    let dir = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("data.bin");
    std::fs::create_dir(&path).unwrap();
    let is: fn(&Error) -> bool = |error| matches!(error, Error::Read { .. });
    in_time(move || {
        let stream = stream(Source::open(&path).unwrap(), &two_chunks());
        for _ in 0..2 {
            expect(stream.lease(1), "chunk at 36864", is);
            expect(stream.read("a row", 0, 0, &mut [0]), "a row", is);
        }
    });
}
