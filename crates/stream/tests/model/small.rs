//! Small worlds, each made for one hazard, so that few schedules see much of it.

use crate::loading::Seat;
use crate::pool::Pool;
use crate::reader::{self, Scratch};
use crate::resident_arena::ResidentArena;
use crate::source::{Faults, Source};
use crate::{BLOCK, Chunk, Error, Lease, Options, Stream, buffer, check, chunk, explore, sync};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

fn healthy() -> Arc<Faults> {
    sync::wake_spuriously(false);
    sync::refuse_threads(0);
    reader::let_die(0);
    Arc::new(Faults::default())
}

/// Chunks of `blocks` blocks each, one after the other.
fn row_of(chunks: u64, blocks: u64) -> Vec<Chunk> {
    let len = blocks * BLOCK as u64;
    (0..chunks).map(|at| chunk(at * len, len)).collect()
}

fn options(ring: usize, overflow: usize, readers: usize) -> Options {
    Options {
        ring_bytes: (ring * BLOCK) as u64,
        overflow_bytes: (overflow * BLOCK) as u64,
        readers,
        read_bytes: BLOCK,
    }
}

fn start(faults: &Arc<Faults>, chunks: &[Chunk], options: Options) -> Stream {
    let order = (0..chunks.len()).collect();
    Stream::start(vec![Source::new(faults)], chunks.to_vec(), order, options).unwrap()
}

/// Runs `call` in several threads and waits for them.
fn in_threads(count: usize, call: impl Fn(usize) + Send + Sync + 'static) {
    let call = Arc::new(call);
    let threads: Vec<_> = (0..count)
        .map(|at| {
            let call = call.clone();
            shuttle::thread::spawn(move || call(at))
        })
        .collect();
    for thread in threads {
        thread.join().expect("a caller panicked");
    }
}

/// Waits until so many reads were made, which nobody asks for: read-ahead.
fn until_reads(faults: &Faults, count: u32) {
    while faults.reads.load(Ordering::Relaxed) < count {
        shuttle::thread::yield_now();
    }
}

/// Several callers ask for a chunk whose read fails. Each gets an error or the bytes, and nobody
/// stays counted as waiting: afterwards the chunk can be evicted.
#[test]
fn a_failure_shared_by_its_callers() {
    explore(3000, || {
        let faults = healthy();
        faults.next.store(2, Ordering::Relaxed);
        let chunks = row_of(2, 2);
        let stream = start(&faults, &chunks, options(2, 0, 2));
        let shared = (stream.clone(), chunks.clone());
        in_threads(3, move |_| {
            let (stream, chunks) = &shared;
            for _ in 0..2 {
                match stream.lease(0) {
                    Ok(lease) => check(&chunks[0], &lease),
                    Err(error) => assert!(error.to_string().contains("chunk at 0"), "{error}"),
                }
            }
        });
        faults.heal();
        // Both take the whole ring: each must push the other out.
        for id in [1, 0, 1] {
            let lease = (0..3)
                .find_map(|_| stream.lease(id).ok())
                .expect("the chunk before it never leaves");
            check(&chunks[id], &lease);
        }
    });
}

/// A ring for one, an overflow share for the others: nobody is refused, and the share comes back.
#[test]
fn callers_that_starve_are_served() {
    explore(3000, || {
        let faults = healthy();
        let chunks = row_of(3, 1);
        let stream = start(&faults, &chunks, options(1, 2, 1));
        let shared = (stream.clone(), chunks.clone());
        in_threads(3, move |at| {
            let (stream, chunks) = &shared;
            for turn in 0..2 {
                let id = (at + turn) % 3;
                check(&chunks[id], &stream.lease(id).unwrap());
            }
        });
        let held: Vec<_> = (0..3).map(|id| stream.lease(id).unwrap()).collect();
        drop(held);
    });
}

/// More is held than ring and share have: refused with the chunk's name, from whatever thread, and
/// served once a lease came back.
#[test]
fn beyond_the_share_callers_are_refused() {
    explore(2000, || {
        let faults = healthy();
        let chunks = row_of(4, 1);
        let stream = start(&faults, &chunks, options(1, 1, 2));
        let held = [stream.lease(0).unwrap(), stream.lease(1).unwrap()];
        let refused = Arc::new(AtomicU32::new(0));
        let shared = (stream.clone(), refused.clone());
        in_threads(2, move |at| match shared.0.lease(2 + at) {
            Err(Error::Exhausted { chunk, .. }) => {
                assert_eq!(*chunk, format!("chunk at {}", (2 + at) * BLOCK));
                shared.1.fetch_add(1, Ordering::Relaxed);
            }
            other => panic!("{other:?}"),
        });
        assert_eq!(refused.load(Ordering::Relaxed), 2);
        for (id, lease) in held.iter().enumerate() {
            check(&chunks[id], lease);
        }
        // Dropped elsewhere while it is asked for here.
        let dropper = shuttle::thread::spawn(move || drop(held));
        if let Ok(lease) = stream.lease(2) {
            check(&chunks[2], &lease);
        }
        dropper.join().unwrap();
        let both = [stream.lease(2).unwrap(), stream.lease(3).unwrap()];
        check(&chunks[3], &both[1]);
    });
}

/// The chunks do not fit together, and nobody asks: readers go on by themselves when a lease ends,
/// when a pass ends, when a failure gave memory back, and when a caller starves no more.
#[test]
fn readers_do_not_oversleep() {
    explore(3000, || {
        let faults = healthy();
        let chunks = row_of(3, 1);
        let stream = start(&faults, &chunks, options(2, 0, 2));
        let first = stream.lease(0).unwrap();
        let second = stream.lease(1).unwrap();
        // All is held: a caller is refused, or waits for a read and is refused then.
        assert!(matches!(stream.lease(2), Err(Error::Exhausted { .. })));
        assert_eq!(faults.reads.load(Ordering::Relaxed), 2);
        // The pass is given up. What comes next is in memory, then the third.
        stream.abandon_pass();
        assert!(stream.lease(0).is_ok());
        drop(first);
        until_reads(&faults, 3);
        drop(second);
        stream.end_pass();
    });
    explore(2000, || {
        let faults = healthy();
        let chunks = row_of(4, 1);
        let stream = start(&faults, &chunks, options(2, 0, 1));
        until_reads(&faults, 2);
        // The first was skipped: it makes room for the third, while the second is still held.
        let second = stream.lease(1).unwrap();
        until_reads(&faults, 3);
        drop(second);
        until_reads(&faults, 4);
    });
}

/// Where the next pass begins, readers go on at once: after a pass that taught another order, and
/// after one that was given up.
#[test]
fn the_next_pass_is_read_ahead() {
    explore(2000, || {
        let faults = healthy();
        let sources = vec![Source::new(&faults)];
        let stream = Stream::start(sources, row_of(2, 1), vec![], options(1, 0, 2)).unwrap();
        for id in [0, 1] {
            drop(stream.lease(id).unwrap());
        }
        stream.end_pass();
        until_reads(&faults, 3);
        // Whether chunk 1 is read again by the readers or by this caller: it takes the ring.
        drop(stream.lease(0).unwrap());
        until_reads(&faults, 4);
        stream.abandon_pass();
        until_reads(&faults, 5);
    });
}

/// What was served from the share is read ahead like anything else once it was given back.
#[test]
fn what_was_lent_is_read_ahead_again() {
    explore(2000, || {
        let faults = healthy();
        let stream = start(&faults, &row_of(2, 1), options(1, 1, 1));
        let first = stream.lease(0).unwrap();
        let second = stream.lease(1).unwrap();
        assert_eq!(stream.stats().overflows, 1);
        stream.abandon_pass();
        assert!(stream.lease(0).is_ok());
        drop(second);
        drop(first);
        until_reads(&faults, 3);
    });
}

/// Both readers die of their first read, and no thread can be started in their place at first.
#[test]
fn the_last_reader_leaves_nobody_waiting() {
    explore(3000, || {
        let faults = healthy();
        reader::let_die(2);
        let chunks = row_of(3, 3);
        let stream = start(&faults, &chunks, options(6, 3, 2));
        sync::refuse_threads(2);
        let shared = (stream.clone(), chunks.clone());
        in_threads(2, move |at| {
            let (stream, chunks) = &shared;
            for id in [at, 2] {
                match stream.lease(id) {
                    Ok(lease) => check(&chunks[id], &lease),
                    Err(error @ Error::Reader { .. }) => {
                        let name = &*chunks[id].name;
                        assert!(error.to_string().contains(name), "{error}");
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        sync::refuse_threads(0);
        for (id, chunk) in chunks.iter().enumerate() {
            let lease =
                (0..3).find_map(|_| stream.lease(id).ok()).expect("the stream does not recover");
            check(chunk, &lease);
        }
    });
}

/// The only reader dies once, sooner or later: one call fails, and the very next one works.
#[test]
fn a_reader_that_died_is_gone_when_its_caller_hears_of_it() {
    explore(2000, || {
        let faults = healthy();
        reader::let_die(1);
        let chunks = row_of(2, 1);
        let sources = vec![Source::new(&faults)];
        let stream = Stream::start(sources, chunks.clone(), vec![], options(1, 0, 1)).unwrap();
        let mut failures = 0;
        for turn in 0..6 {
            match stream.lease(turn % 2) {
                Ok(lease) => check(&chunks[turn % 2], &lease),
                Err(Error::Reader { .. }) => failures += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(failures, 1);
    });
}

/// The stream ends under its callers.
#[test]
fn closing_wakes_everybody() {
    explore(3000, || {
        let faults = healthy();
        let chunks = row_of(3, 2);
        let order = vec![0, 1, 2];
        let sources = vec![Source::new(&faults)];
        let pool = Arc::new(Pool::new(sources, chunks.clone(), order, &options(2, 2, 2)).unwrap());
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let seat = Seat::take(&pool);
                let scratch = Scratch::new(pool.read_bytes, false).unwrap();
                shuttle::thread::spawn(move || reader::run(seat, scratch))
            })
            .collect();
        let shared = (pool.clone(), chunks);
        let callers = shuttle::thread::spawn(move || {
            in_threads(3, move |at| {
                for turn in 0..2 {
                    let id = (at + turn) % 3;
                    match Lease::of(&shared.0, id) {
                        Ok(lease) => check(&shared.1[id], &lease),
                        Err(Error::Closed { .. } | Error::Exhausted { .. }) => {}
                        // Who asks after the readers left is told that, or that it is closed.
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        });
        pool.close();
        for thread in readers {
            thread.join().unwrap();
        }
        callers.join().unwrap();
    });
}

/// A chunk larger than the ring is served from the share, and the others are read ahead all the
/// same.
#[test]
fn a_chunk_larger_than_the_ring() {
    explore(2000, || {
        let faults = healthy();
        let mut chunks = row_of(2, 1);
        chunks.insert(1, chunk(0, 3 * BLOCK as u64));
        let stream = start(&faults, &chunks, options(2, 3, 2));
        until_reads(&faults, 2);
        let shared = (stream.clone(), chunks.clone());
        in_threads(2, move |at| {
            let id = 1 + at;
            check(&shared.1[id], &shared.0.lease(id).unwrap());
        });
        assert_eq!(stream.stats().overflows, 1);
        check(&chunks[1], &stream.lease(1).unwrap());
    });
}

/// Threads that touch memory ahead and readers that need it meet everywhere: each byte is touched
/// once, and nobody goes on before what it needs was.
#[test]
fn memory_is_touched_once() {
    explore(2000, || {
        healthy();
        let mut chunks = row_of(3, 3);
        chunks.iter_mut().for_each(|chunk| chunk.keep = true);
        let residents = ResidentArena::new(&chunks, &[2, 0, 1]).unwrap();
        let shared = residents.clone();
        in_threads(5, move |at| match at {
            0 | 1 => shared.touch_all(),
            2 => shared.close(),
            _ => {
                let from = (2 * at - 5) * BLOCK;
                shared.prepare(from..from + 3 * BLOCK);
                assert!(buffer::touched() >= 3 * BLOCK);
            }
        });
        residents.prepare(0..9 * BLOCK);
        assert_eq!(buffer::touched(), 9 * BLOCK);
    });
}

/// No memory for what is kept: an error that says so, and another try.
#[test]
fn memory_that_is_refused_once() {
    explore(2000, || {
        let faults = healthy();
        let mut chunks = row_of(2, 3);
        chunks[0].keep = true;
        let start = || {
            let sources = vec![Source::new(&faults)];
            Stream::start(sources, chunks.clone(), vec![0, 1], options(3, 0, 1))
        };
        buffer::refuse(1);
        let error = start().expect_err("memory was refused");
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        let stream = start().unwrap();
        for (id, chunk) in chunks.iter().enumerate() {
            check(chunk, &stream.lease(id).unwrap());
        }
    });
}
