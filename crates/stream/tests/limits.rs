//! Readers that die, memory that runs out, and chunks that make no sense: typed errors, and the
//! next call works.

mod common;

use common::{check, chunk, file, in_time, segment, widen_each};
use outsize_stream::{BLOCK, Chunk, Convert, Error, Options, Segment, Source, Stream, footprint};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// A panic whose payload panics in its turn when it is dropped: the reader that caught it dies.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new("dropped"));
    }
}

/// What the next conversions do, one by one: 1 panics, 2 kills its reader.
static FUSE: AtomicU32 = AtomicU32::new(0);

fn widen_or_fail(_offset: u64, from: &[u8], to: &mut [u8]) {
    let fuse = FUSE.load(Ordering::SeqCst);
    if fuse > 0 {
        FUSE.store(fuse / 10, Ordering::SeqCst);
    }
    match fuse % 10 {
        1 => resume_unwind(Box::new("odd number of bytes")),
        2 => resume_unwind(Box::new(Bomb)),
        _ => widen_each(from, to),
    }
}

#[test]
fn a_reader_that_panics_or_dies() {
    let (_dir, path) = file(16 * BLOCK);
    let convert = Convert::new(1, 2, widen_or_fail);
    let chunks: Vec<_> = (0..3)
        .map(|at| {
            let mut chunk = chunk(at * BLOCK, BLOCK);
            chunk.segments[0].convert = Some(convert.clone());
            chunk
        })
        .collect();
    let noise = Arc::new(AtomicU32::new(0));
    let (heard, hook) = (noise.clone(), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name().is_some_and(|name| name.starts_with("outsize")) {
            heard.fetch_add(1, Ordering::SeqCst);
        }
        hook(panic);
    }));
    in_time(move || {
        let options = Options { ring_bytes: 2 * BLOCK as u64, readers: 2, ..Options::default() };
        // Nothing is read ahead: who asks meets the fuse.
        let source = Source::open(&path).unwrap();
        let stream = Stream::start(vec![source], chunks.clone(), vec![], options).unwrap();
        for round in 0..20 {
            let id = round % 3;
            // One panics; one reader dies, the other goes on; both die, one after the other.
            for (fuse, failures) in [(1, 1), (2, 1), (22, 2), (212, 3)] {
                FUSE.store(fuse, Ordering::SeqCst);
                for _ in 0..failures {
                    let error = stream.lease((id + 1) % 3).unwrap_err();
                    assert!(matches!(error, Error::Reader { .. }), "{error:?}");
                    assert!(error.to_string().contains("chunk at"), "{error}");
                }
                check(&stream, &chunks, (id + 1) % 3).unwrap();
                // Out of the ring with it.
                check(&stream, &chunks, id).unwrap();
                // Readers that died are replaced here at the latest.
                stream.abandon_pass();
            }
        }
    });
    let _ = std::panic::take_hook();
    assert_eq!(noise.load(Ordering::SeqCst), 0, "the panic hook was called for a reader");
}

#[test]
fn the_overflow_share_is_for_all_threads_and_comes_back() {
    let (_dir, path) = file(64 * BLOCK);
    let chunks: Vec<_> = (0..32).map(|at| chunk(at * BLOCK, BLOCK)).collect();
    in_time(move || {
        let options = Options {
            ring_bytes: 3 * BLOCK as u64,
            overflow_bytes: 5 * BLOCK as u64,
            ..Options::default()
        };
        let source = Source::open(&path).unwrap();
        let stream =
            Stream::start(vec![source], chunks.clone(), (0..32).collect(), options).unwrap();
        for round in 0..50 {
            let held: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|thread| {
                        let stream = &stream;
                        scope.spawn(move || {
                            (0..4)
                                .map(|turn| stream.lease((thread * 8 + turn + round) % 32))
                                .collect::<Vec<_>>()
                        })
                    })
                    .collect();
                threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
            });
            // All sixteen were held at once: three in the ring, five in the share, and eight
            // refused.
            let served = held.iter().filter(|result| result.is_ok()).count();
            assert_eq!(served, 8, "{held:?}");
            for error in held.iter().filter_map(|result| result.as_ref().err()) {
                assert!(matches!(error, Error::Exhausted { .. }), "{error:?}");
                assert!(error.to_string().contains("chunk at"), "{error}");
            }
        }
    });
}

#[test]
fn impossible_chunks_are_refused() {
    let (_dir, path) = file(BLOCK);
    let convert = |from, to| Some(Convert::new(from, to, |_, _, _| {}));
    let (good, fine) = (chunk(0, 64), segment(0, 64));
    let wrong = [
        Segment { source: 1, ..fine.clone() },
        Segment { len: u64::MAX, ..fine.clone() },
        Segment { offset: u64::MAX, ..fine.clone() },
        Segment { offset: i64::MAX as u64, ..fine.clone() },
        Segment { align: 0, ..fine.clone() },
        Segment { align: 3, ..fine.clone() },
        Segment { align: 2 * BLOCK, ..fine.clone() },
        Segment { convert: convert(0, 1), ..fine.clone() },
        Segment { convert: convert(1, 0), ..fine.clone() },
        Segment { convert: convert(3, 1), len: 64, ..fine.clone() },
        Segment { convert: convert(4, 1), len: 63, ..fine.clone() },
        Segment { convert: convert(BLOCK + 1, 1), len: BLOCK as u64 + 1, ..fine.clone() },
        Segment { convert: convert(1, usize::MAX), ..fine.clone() },
    ];
    let start = |chunks, order| {
        let sources = vec![Source::open(&path).unwrap()];
        Stream::start(sources, chunks, order, Options::default())
    };
    let of = |segments| Chunk { segments, ..good.clone() };
    let two = || fine.clone();
    let wrong = wrong.into_iter().flat_map(|wrong| {
        // Alone, or the second of two.
        [vec![wrong.clone()], vec![two(), wrong]]
    });
    let longest = Segment { len: i64::MAX as u64 / 4, ..fine.clone() };
    for segments in wrong.chain([vec![], vec![longest.clone(), longest]]) {
        let chunk = of(segments);
        let error = start(vec![good.clone(), chunk], vec![0]).unwrap_err();
        assert!(matches!(error, Error::Chunk { .. }), "{error:?}");
        assert!(error.to_string().contains("chunk at 0"), "{error}");
    }
    let error = start(vec![good.clone()], vec![0, 1]).unwrap_err();
    assert!(matches!(error, Error::UnknownChunk { id: 1, count: 1 }), "{error:?}");
    let options = Options {
        ring_bytes: BLOCK as u64,
        overflow_bytes: u64::MAX,
        readers: 0,
        read_bytes: usize::MAX,
    };
    // What is staged goes in reads of a megabyte at most.
    assert_eq!(options.staging_bytes(), (1 << 20) + 2 * BLOCK as u64);
    assert_eq!(footprint(u64::MAX), u64::MAX);
    let sources = vec![Source::open(&path).unwrap()];
    let stream = Stream::start(sources, vec![good.clone()], vec![0], options).unwrap();
    assert_eq!(stream.lease(0).unwrap().as_ref().len(), 64);
    let stream = start(vec![good], vec![0]).unwrap();
    for (source, offset) in [(1, 0), (0, u64::MAX), (0, i64::MAX as u64)] {
        let error = stream.read("a row", source, offset, &mut [0; 2]).unwrap_err();
        assert!(matches!(error, Error::Chunk { .. }), "{error:?}");
    }
    assert!(matches!(stream.lease(1), Err(Error::UnknownChunk { id: 1, count: 1 })));
}
