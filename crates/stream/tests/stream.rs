//! What a caller sees of a stream: right bytes, in bounded memory, whatever the order.

mod common;

use common::{byte, check, chunk, file, in_time, mirror, segment, widen};
use outsize_stream::{BLOCK, Chunk, Error, Options, Source, Stream};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

#[test]
fn passes_read_what_the_ring_does_not_hold() {
    let (_dir, path) = file(40 * BLOCK);
    let chunks: Vec<_> = (0..10).map(|i| chunk(i * 4 * BLOCK, 4 * BLOCK)).collect();
    // Room for four of ten.
    let options = Options {
        ring_bytes: 4 * 4 * BLOCK as u64,
        readers: 2,
        read_bytes: BLOCK,
        ..Options::default()
    };
    let stream = Stream::start(
        vec![Source::open(&path).unwrap()],
        chunks.clone(),
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
            check(&stream, &chunks, id).unwrap();
        }
        stream.end_pass();
    }
    let stats = stream.stats();
    assert_eq!(stats.hits + stats.waits + stats.misses, 50);
    // Five passes over ten chunks; at best the ring keeps three of them from pass to pass, at worst
    // none, and read-ahead may have begun the sixth pass.
    let chunk_bytes = 4 * BLOCK as u64;
    assert!(stats.bytes_read >= (10 + 4 * 6) * chunk_bytes, "{stats:?}");
    assert!(stats.bytes_read <= (50 + 4) * chunk_bytes, "{stats:?}");
    // Each of a block, and each took some time.
    let done = stream.stats();
    assert_eq!(done.reads * BLOCK as u64, done.bytes_read, "{done:?}");
    assert!(done.reading > std::time::Duration::ZERO, "{done:?}");
}

#[test]
fn nothing_is_read_before_it_begins_or_is_asked_for() {
    let (_dir, path) = file(8 * BLOCK);
    let chunks: Vec<_> =
        (0..2).map(|i| Chunk { keep: i == 0, ..chunk(i * 4 * BLOCK, 4 * BLOCK) }).collect();
    let new = || {
        let sources = vec![Source::open(&path).unwrap()];
        let stream = Stream::new(sources, chunks.clone(), vec![0, 1], Options::default()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(stream.stats().reads, 0);
        stream
    };

    let begun = new();
    begun.begin().unwrap();
    begun.begin().unwrap();
    in_time(move || {
        while begun.stats().bytes_read < 8 * BLOCK as u64 {
            std::thread::yield_now();
        }
    });

    let asked = new();
    for id in 0..2 {
        check(&asked, &chunks, id).unwrap();
    }
    drop(new());
}

#[test]
fn resident_chunks_are_read_once_and_beyond_the_ring() {
    let (_dir, path) = file(40 * BLOCK);
    let chunks: Vec<_> =
        (0..10).map(|i| Chunk { keep: true, ..chunk(i * 4 * BLOCK, 4 * BLOCK) }).collect();
    let options = Options { ring_bytes: 0, ..Options::default() };
    let stream = Stream::start(
        vec![Source::open(&path).unwrap()],
        chunks.clone(),
        (0..10).collect(),
        options,
    )
    .unwrap();
    for _ in 0..3 {
        for id in 0..10 {
            check(&stream, &chunks, id).unwrap();
        }
        stream.end_pass();
    }
    assert_eq!(stream.stats().bytes_read, 40 * BLOCK as u64);
}

/// A stream of ten chunks, all occasional, with a ring for so many.
fn occasional(path: &std::path::Path, keep: bool, room: u64) -> (Stream, Vec<Chunk>) {
    let one = |i| Chunk { keep, occasional: true, ..chunk(i * BLOCK, BLOCK) };
    let chunks: Vec<_> = (0..10).map(one).collect();
    let options = Options { ring_bytes: room * BLOCK as u64, readers: 1, ..Options::default() };
    let sources = vec![Source::open(path).unwrap()];
    let stream = Stream::start(sources, chunks.clone(), (0..10).collect(), options).unwrap();
    (stream, chunks)
}

/// Waits until so many chunks were read, these among them.
fn until_read(stream: &Stream, chunks: u64, ids: Vec<usize>) {
    let stream = stream.clone();
    in_time(move || {
        while stream.stats().bytes_read < chunks * BLOCK as u64 || !stream.are_ready(&ids) {
            std::thread::yield_now();
        }
    });
    // Nothing else is.
    std::thread::sleep(std::time::Duration::from_millis(20));
}

#[test]
fn occasional_chunks_are_read_when_they_are_announced() {
    let (_dir, path) = file(10 * BLOCK);
    let (stream, chunks) = occasional(&path, false, 4);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(stream.stats().reads, 0);
    stream.announce(vec![7, 2, 5]);
    until_read(&stream, 3, vec![7, 2, 5]);
    assert_eq!(stream.stats().reads, 3);
    for id in [7, 2, 5] {
        check(&stream, &chunks, id).unwrap();
    }
    let stats = stream.stats();
    assert_eq!((stats.hits, stats.reads), (3, 3), "{stats:?}");
    // What is there is not read again, and no more than there is room for.
    stream.announce(vec![2, 0, 1, 3, 4]);
    until_read(&stream, 6, vec![2]);
    check(&stream, &chunks, 2).unwrap();
    let stats = stream.stats();
    assert_eq!((stats.hits, stats.reads), (4, 7 - u64::from(stats.reads == 6)), "{stats:?}");
}

#[test]
fn the_ring_keeps_what_is_used_most() {
    let (_dir, path) = file(10 * BLOCK);
    let (stream, chunks) = occasional(&path, false, 4);
    // Three in each pass, and of the others one after the other.
    let pass = |number: usize| [1, 4, 8, [0, 2, 3, 5, 6, 7, 9][number % 7]];
    for number in 0..40 {
        stream.announce(pass(number).to_vec());
        for id in pass(number) {
            check(&stream, &chunks, id).unwrap();
        }
        stream.end_pass();
    }
    let stats = stream.stats();
    // At best 3 + 40 reads; those that were used last would be kept at first.
    assert!(stats.reads <= 3 + 40 + 3, "{stats:?}");
}

#[test]
fn occasional_chunks_that_stay_are_read_when_there_is_nothing_else_to_read() {
    let (_dir, path) = file(10 * BLOCK);
    let (stream, chunks) = occasional(&path, true, 0);
    until_read(&stream, 10, (0..10).collect());
    for id in (0..10).chain(0..10) {
        check(&stream, &chunks, id).unwrap();
    }
    let stats = stream.stats();
    assert_eq!((stats.reads, stats.hits), (10, 20), "{stats:?}");
}

#[test]
fn a_chunk_still_in_the_ring_costs_nothing() {
    let (_dir, path) = file(8 * BLOCK);
    let chunks = vec![chunk(0, BLOCK), chunk(BLOCK, BLOCK)];
    let options = Options { ring_bytes: 2 * BLOCK as u64, ..Options::default() };
    let stream =
        Stream::start(vec![Source::open(&path).unwrap()], chunks.clone(), vec![0, 1], options)
            .unwrap();
    for _ in 0..100 {
        check(&stream, &chunks, 0).unwrap();
        check(&stream, &chunks, 1).unwrap();
    }
    assert_eq!(stream.stats().bytes_read, 2 * BLOCK as u64);
}

#[test]
fn holding_too_much_uses_the_overflow_share_then_fails() {
    let (_dir, path) = file(64 * BLOCK);
    let chunks: Vec<_> = (0..8).map(|i| chunk(i * BLOCK, BLOCK)).collect();
    let options = Options {
        ring_bytes: 2 * BLOCK as u64,
        overflow_bytes: BLOCK as u64,
        ..Options::default()
    };
    in_time(move || {
        let stream = Stream::start(
            vec![Source::open(&path).unwrap()],
            chunks.clone(),
            (0..8).collect(),
            options,
        )
        .unwrap();
        let held: Vec<_> = (0..3).map(|id| stream.lease(id).unwrap()).collect();
        assert_eq!(stream.stats().overflows, 1);
        let error = stream.lease(3).unwrap_err();
        assert!(matches!(error, Error::Exhausted { need: 4096, .. }), "{error}");
        assert!(error.to_string().contains("chunk at 12288"), "{error}");
        drop(held);
        for id in 0..8 {
            check(&stream, &chunks, id).unwrap();
        }
    });
}

#[test]
fn reads_rows() {
    let (_dir, path) = file(3 * BLOCK + 77);
    let stream =
        Stream::start(vec![Source::open(&path).unwrap()], vec![], vec![], Options::default())
            .unwrap();
    for (offset, len) in [(0, 1), (4095, 2), (5, 3 * BLOCK), (3 * BLOCK + 70, 7)] {
        let mut row = vec![0; len];
        stream.read("a row", 0, offset as u64, &mut row).unwrap();
        assert!(row.iter().enumerate().all(|(at, b)| *b == byte(offset + at)));
    }
    let mut row = [0; 8];
    let error = stream.read("a row", 0, 3 * BLOCK as u64 + 70, &mut row).unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(48),
        ..ProptestConfig::default()
    })]

    /// Any chunks (misaligned, converted, kept, empty, of several segments), any ring that holds
    /// the largest, any orders of access from several threads: the bytes are right, nothing waits
    /// for ever.
    #[test]
    fn any_order_from_any_thread(
        shapes in prop::collection::vec(
            (prop::collection::vec((0usize..60_000, 0usize..20_000, 0u8..8), 1..4), any::<bool>()),
            1..24,
        ),
        passes in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 0..40), 1..5),
        threads in 1usize..4,
        room in 0u64..100_000,
        read_bytes in 1usize..20_000,
        readers in 1usize..5,
    ) {
        let (_dir, path) = file(80_000);
        let segment = |(offset, len, kind): (usize, usize, u8)| {
            // Elements to convert, of which some are blocks that do not divide a page.
            let block = [1, 1, 18, 210][usize::from(kind % 4)];
            let mut segment = segment(offset, len / block * block);
            match kind {
                0 => segment.align = 8,
                1..4 => segment.convert = Some(widen(block)),
                4..6 if segment.len > 0 => segment.convert = Some(mirror(&segment, block)),
                _ => {}
            }
            segment
        };
        let chunks: Vec<_> = shapes.into_iter().map(|(segments, keep)| Chunk {
            segments: segments.into_iter().map(segment).collect(),
            keep,
            ..chunk(0, 0)
        }).collect();
        let largest = chunks.iter().map(Chunk::block_len).max().unwrap() as u64;
        let options = Options {
            // Every thread may hold one chunk.
            ring_bytes: largest + room,
            overflow_bytes: largest * threads as u64,
            readers,
            read_bytes,
        };
        in_time(move || {
            let order = (0..chunks.len()).collect();
            let stream = Stream::start(vec![Source::open(&path).unwrap()], chunks.clone(), order, options).unwrap();
            for pass in passes {
                std::thread::scope(|scope| {
                    for turn in 0..threads {
                        let (stream, chunks, pass) = (&stream, &chunks, &pass);
                        scope.spawn(move || {
                            for index in pass.iter().skip(turn) {
                                check(stream, chunks, index.index(chunks.len())).unwrap();
                            }
                        });
                    }
                });
                stream.end_pass();
            }
        });
    }
}
