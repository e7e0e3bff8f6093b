//! What a caller sees of a stream: right bytes, in bounded memory, whatever the order.

use outsize_stream::{BLOCK, Convert, Error, Options, Source, Stream, Unit, UnitId, footprint};
use proptest::prelude::*;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;

/// A file of `len` bytes in which every byte is a function of its offset.
fn file(len: usize) -> (TempDir, PathBuf) {
    // Beside the sources rather than in the system's temporary folder, which may be a file system
    // without direct reads.
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("data.bin");
    let bytes: Vec<u8> = (0..len).map(byte).collect();
    File::create(&path).unwrap().write_all(&bytes).unwrap();
    (dir, path)
}

fn byte(at: usize) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 7) as u8
}

fn unit(offset: usize, len: usize) -> Unit {
    Unit {
        name: format!("unit at {offset}").into(),
        source: 0,
        offset: offset as u64,
        len: len as u64,
        align: 1,
        convert: None,
        keep: false,
    }
}

fn check(stream: &Stream, units: &[Unit], id: UnitId) -> Result<(), Error> {
    let lease = stream.lease(id)?;
    let bytes: &[u8] = lease.as_ref();
    let unit = &units[id];
    assert_eq!(bytes.len() as u64, unit.len_in_memory());
    match &unit.convert {
        None => {
            assert!((bytes.as_ptr() as usize).is_multiple_of(unit.align));
            for (at, found) in bytes.iter().enumerate() {
                assert_eq!(
                    *found,
                    byte(unit.offset as usize + at),
                    "{} + {at}",
                    unit.name
                );
            }
        }
        Some(_) => {
            for (at, found) in bytes.chunks_exact(2).enumerate() {
                let raw = byte(unit.offset as usize + at);
                assert_eq!(found, [raw, !raw]);
            }
        }
    }
    Ok(())
}

fn widen(from: &[u8], to: &mut [u8]) {
    for (from, to) in from.iter().zip(to.chunks_exact_mut(2)) {
        to.copy_from_slice(&[*from, !*from]);
    }
}

/// Runs `body` on a thread of its own and fails if it has not ended in two minutes.
fn in_time(body: impl FnOnce() + Send + 'static) {
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

#[test]
fn passes_read_what_the_ring_does_not_hold() {
    let (_dir, path) = file(40 * BLOCK);
    let units: Vec<_> = (0..10).map(|i| unit(i * 4 * BLOCK, 4 * BLOCK)).collect();
    // Room for four of ten.
    let options = Options {
        ring_bytes: 4 * 4 * BLOCK as u64,
        readers: 2,
        piece_bytes: BLOCK,
        ..Options::default()
    };
    let stream = Stream::start(
        vec![Source::open(&path).unwrap()],
        units.clone(),
        (0..10).collect(),
        options,
    )
    .unwrap();
    assert!(
        stream.is_direct(),
        "no direct reads here: this test cannot see the page cache avoided"
    );
    for _ in 0..5 {
        for id in 0..10 {
            check(&stream, &units, id).unwrap();
        }
        stream.end_pass();
    }
    let stats = stream.stats();
    assert_eq!(stats.hits + stats.waits + stats.misses, 50);
    // Five passes over ten units; at best the ring keeps three of them from pass to pass, at worst
    // none, and read-ahead may have begun the sixth pass.
    let unit_bytes = 4 * BLOCK as u64;
    assert!(stats.bytes_read >= (10 + 4 * 6) * unit_bytes, "{stats:?}");
    assert!(stats.bytes_read <= (50 + 4) * unit_bytes, "{stats:?}");
}

#[test]
fn kept_units_are_read_once_and_beyond_the_ring() {
    let (_dir, path) = file(40 * BLOCK);
    let units: Vec<_> = (0..10)
        .map(|i| Unit {
            keep: true,
            ..unit(i * 4 * BLOCK, 4 * BLOCK)
        })
        .collect();
    let options = Options {
        ring_bytes: 0,
        ..Options::default()
    };
    let stream = Stream::start(
        vec![Source::open(&path).unwrap()],
        units.clone(),
        (0..10).collect(),
        options,
    )
    .unwrap();
    for _ in 0..3 {
        for id in 0..10 {
            check(&stream, &units, id).unwrap();
        }
        stream.end_pass();
    }
    assert_eq!(stream.stats().bytes_read, 40 * BLOCK as u64);
}

#[test]
fn a_unit_still_in_the_ring_costs_nothing() {
    let (_dir, path) = file(8 * BLOCK);
    let units = vec![unit(0, BLOCK), unit(BLOCK, BLOCK)];
    let options = Options {
        ring_bytes: 2 * BLOCK as u64,
        ..Options::default()
    };
    let stream = Stream::start(
        vec![Source::open(&path).unwrap()],
        units.clone(),
        vec![0, 1],
        options,
    )
    .unwrap();
    for _ in 0..100 {
        check(&stream, &units, 0).unwrap();
        check(&stream, &units, 1).unwrap();
    }
    assert_eq!(stream.stats().bytes_read, 2 * BLOCK as u64);
}

#[test]
fn holding_too_much_uses_the_overflow_share_then_fails() {
    let (_dir, path) = file(64 * BLOCK);
    let units: Vec<_> = (0..8).map(|i| unit(i * BLOCK, BLOCK)).collect();
    let options = Options {
        ring_bytes: 2 * BLOCK as u64,
        overflow_bytes: BLOCK as u64,
        ..Options::default()
    };
    in_time(move || {
        let stream = Stream::start(
            vec![Source::open(&path).unwrap()],
            units.clone(),
            (0..8).collect(),
            options,
        )
        .unwrap();
        let held: Vec<_> = (0..3).map(|id| stream.lease(id).unwrap()).collect();
        assert_eq!(stream.stats().overflows, 1);
        let error = stream.lease(3).unwrap_err();
        assert!(
            matches!(error, Error::Exhausted { need: 4096, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("unit at 12288"), "{error}");
        drop(held);
        for id in 0..8 {
            check(&stream, &units, id).unwrap();
        }
    });
}

#[test]
fn a_file_cut_short_is_an_error_and_the_next_call_works() {
    let (_dir, path) = file(16 * BLOCK);
    let source = Source::open(&path).unwrap();
    let units = vec![unit(0, BLOCK), unit(8 * BLOCK, 8 * BLOCK)];
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(10 * BLOCK as u64)
        .unwrap();
    in_time(move || {
        let stream =
            Stream::start(vec![source], units.clone(), vec![0, 1], Options::default()).unwrap();
        check(&stream, &units, 0).unwrap();
        let error = stream.lease(1).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "{error}");
        assert!(error.to_string().contains("data.bin"), "{error}");
        check(&stream, &units, 0).unwrap();
        let whole: Vec<u8> = (0..16 * BLOCK).map(byte).collect();
        std::fs::write(&path, whole).unwrap();
        check(&stream, &units, 1).unwrap();
    });
}

#[test]
fn a_conversion_that_panics_is_an_error() {
    fn fails(_: &[u8], _: &mut [u8]) {
        // Without the hook's message, as a conversion gone wrong would be in a library.
        std::panic::resume_unwind(Box::new("odd number of bytes"));
    }
    let (_dir, path) = file(BLOCK);
    let mut bad = unit(0, 64);
    bad.convert = Some(Convert {
        from: 1,
        to: 1,
        run: fails,
    });
    in_time(move || {
        let stream = Stream::start(
            vec![Source::open(&path).unwrap()],
            vec![bad],
            vec![0],
            Options::default(),
        )
        .unwrap();
        for _ in 0..2 {
            let error = stream.lease(0).unwrap_err();
            assert!(error.to_string().contains("odd number"), "{error}");
        }
    });
}

#[test]
fn reads_rows() {
    let (_dir, path) = file(3 * BLOCK + 77);
    let stream = Stream::start(
        vec![Source::open(&path).unwrap()],
        vec![],
        vec![],
        Options::default(),
    )
    .unwrap();
    for (offset, len) in [(0, 1), (4095, 2), (5, 3 * BLOCK), (3 * BLOCK + 70, 7)] {
        let mut row = vec![0; len];
        stream.read("a row", 0, offset as u64, &mut row).unwrap();
        assert!(
            row.iter()
                .enumerate()
                .all(|(at, b)| *b == byte(offset + at))
        );
    }
    let mut row = [0; 8];
    let error = stream
        .read("a row", 0, 3 * BLOCK as u64 + 70, &mut row)
        .unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any units (misaligned, converted, kept, empty), any ring that holds the largest, any orders of
    /// access from several threads: the bytes are right, nothing waits for ever.
    #[test]
    fn any_order_from_any_thread(
        shapes in prop::collection::vec((0usize..60_000, 0usize..20_000, 0u8..4, any::<bool>()), 1..24),
        passes in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..40), 1..5),
        threads in 1usize..4,
        room in 0u64..100_000,
        piece_bytes in 1usize..20_000,
        readers in 1usize..5,
    ) {
        let (_dir, path) = file(80_000);
        let units: Vec<_> = shapes.iter().map(|(offset, len, kind, keep)| {
            let mut unit = unit(*offset, *len);
            unit.keep = *keep;
            match kind {
                0 => unit.align = 8,
                1 => unit.convert = Some(Convert { from: 1, to: 2, run: widen }),
                _ => {}
            }
            unit
        }).collect();
        let largest = units.iter().map(|unit| footprint(unit.len_in_memory())).max().unwrap();
        let options = Options {
            // Every thread may hold one unit.
            ring_bytes: largest + room,
            overflow_bytes: largest * threads as u64,
            readers,
            piece_bytes,
        };
        in_time(move || {
            let order = (0..units.len()).collect();
            let stream = Stream::start(vec![Source::open(&path).unwrap()], units.clone(), order, options).unwrap();
            for pass in passes {
                std::thread::scope(|scope| {
                    for turn in 0..threads {
                        let (stream, units, pass) = (&stream, &units, &pass);
                        scope.spawn(move || {
                            for index in pass.iter().skip(turn) {
                                check(stream, units, index.index(units.len())).unwrap();
                            }
                        });
                    }
                });
                stream.end_pass();
            }
        });
    }
}
