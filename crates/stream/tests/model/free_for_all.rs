//! Everything at once: any chunks, any memory, several callers and readers, and any fault.

use crate::reader;
use crate::source::{Faults, Source};
use crate::{
    BLOCK, Chunk, Convert, Error, Lease, Options, Stream, buffer, check, chunk, explore, sync,
};
use shuttle::rand::{Rng, thread_rng};
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

#[test]
fn without_faults() {
    explore(4000, || scenario(false));
}

#[test]
fn with_faults() {
    explore(6000, || scenario(true));
}

thread_local! {
    /// How many in a hundred conversions panic.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Writes each byte and its complement, or panics.
fn widen(_offset: u64, from: &[u8], to: &mut [u8]) {
    let percent = PANICS.get();
    if percent > 0 && thread_rng().gen_ratio(percent, 100) {
        resume_unwind(Box::new("a conversion gone wrong"));
    }
    for (from, to) in from.iter().zip(to.chunks_exact_mut(2)) {
        to.copy_from_slice(&[*from, !*from]);
    }
}

fn some_chunks() -> Vec<Chunk> {
    let mut rng = thread_rng();
    let block = BLOCK as u64;
    (0..rng.gen_range(1..=4))
        .map(|_| {
            let mut chunk = if rng.gen_bool(0.5) {
                chunk(rng.gen_range(0..4) * block, rng.gen_range(1..=3) * block)
            } else {
                chunk(rng.gen_range(0..64), rng.gen_range(0..40))
            };
            match rng.gen_range(0..5) {
                0 => chunk.segments[0].align = 8,
                1 => {
                    // Of blocks that do not divide a page, some of them.
                    let from = rng.gen_range(1..=3);
                    chunk.segments[0].len -= chunk.segments[0].len % from as u64;
                    chunk.segments[0].convert = Some(Convert::new(from, 2 * from, widen));
                }
                2 => chunk.keep = rng.gen_bool(0.5),
                _ => {}
            }
            chunk.occasional = rng.gen_ratio(1, 3);
            if rng.gen_ratio(1, 3) {
                // As scales lie elsewhere than what they scale.
                let more = crate::chunk(rng.gen_range(0..64), rng.gen_range(0..40));
                chunk.segments.extend(more.segments);
            }
            chunk
        })
        .collect()
}

fn scenario(faulty: bool) {
    let mut rng = thread_rng();
    let mut chunks = some_chunks();
    let order: Vec<usize> = (0..chunks.len()).collect();
    let largest = chunks.iter().map(Chunk::block_len).max().unwrap_or(0);
    let (callers, hold) = (rng.gen_range(1..=3), rng.gen_range(1..=2));
    // Whether memory is there for all that the callers hold at once.
    let foreseen = rng.gen_bool(0.5);
    let ring = largest * rng.gen_range(0..=2) + BLOCK * rng.gen_range(1..3);
    let overflow =
        if foreseen { largest.max(BLOCK) * callers * hold } else { BLOCK * rng.gen_range(0..6) };
    // To see in the end that all memory came back: a chunk that takes the whole ring, and one that
    // takes the whole overflow share.
    let (whole, spare) = (chunks.len(), chunks.len() + 1);
    chunks.push(chunk(0, ring as u64));
    chunks.push(chunk(0, overflow as u64));

    let faults = Arc::new(Faults::default());
    sync::wake_spuriously(rng.gen_bool(0.3));
    sync::refuse_threads(0);
    reader::let_die(0);
    PANICS.set(0);
    if faulty {
        let percent = if rng.gen_bool(0.1) { 100 } else { rng.gen_range(0..30) };
        faults.percent.store(percent, Ordering::Relaxed);
        PANICS.set(rng.gen_range(0..30));
        reader::let_die(rng.gen_range(0..4));
        sync::refuse_threads(rng.gen_range(0..3));
    }
    let options = Options {
        ring_bytes: ring as u64,
        overflow_bytes: overflow as u64,
        readers: rng.gen_range(1..=3),
        read_bytes: BLOCK * rng.gen_range(1..=2),
    };
    let start = || {
        let sources = vec![Source::new(&faults)];
        Stream::start(sources, chunks.clone(), order.clone(), options)
    };
    let stream = start().unwrap_or_else(|error| {
        assert!(faulty && matches!(error, Error::OutOfMemory { .. }), "{error}");
        sync::refuse_threads(0);
        start().expect("nothing is refused any more")
    });
    if faulty {
        buffer::refuse(rng.gen_range(0..2));
    }
    let world =
        Arc::new(World { stream, chunks, faulty, foreseen, hold, droppers: Mutex::default() });
    let threads: Vec<_> = (0..callers)
        .map(|_| {
            let world = world.clone();
            shuttle::thread::spawn(move || world.call())
        })
        .collect();
    for thread in threads {
        thread.join().expect("a caller panicked");
    }
    for thread in std::mem::take(&mut *world.droppers.lock().unwrap()) {
        thread.join().expect("a lease panicked");
    }
    faults.heal();
    PANICS.set(0);
    sync::refuse_threads(0);
    reader::let_die(0);
    buffer::refuse(0);
    world.works_again(whole, options);
    world.gave_all_back(whole, spare, options);
}

struct World {
    stream: Stream,
    chunks: Vec<Chunk>,
    faulty: bool,
    foreseen: bool,
    /// How many leases a caller holds at most.
    hold: usize,
    droppers: Mutex<Vec<sync::JoinHandle>>,
}

impl World {
    /// What one caller does.
    fn call(&self) {
        let mut rng = thread_rng();
        let mut held: VecDeque<(usize, Lease)> = VecDeque::new();
        for _ in 0..rng.gen_range(1..=4) {
            match rng.gen_range(0..10) {
                0 => self.stream.end_pass(),
                1 => self.stream.abandon_pass(),
                5 => {
                    let any = (0..rng.gen_range(0..5)).map(|_| rng.gen_range(0..self.chunks.len()));
                    self.stream.announce(any.collect());
                }
                2 => self.row(),
                3 if !self.foreseen => {
                    // Leases may end anywhere; then they are held longer than the caller knows.
                    if let Some((_, lease)) = held.pop_front() {
                        let dropper = shuttle::thread::spawn(move || drop(lease));
                        self.droppers.lock().unwrap().push(dropper);
                    }
                }
                4 => held.clear(),
                _ => {
                    if held.len() == self.hold {
                        held.pop_front();
                    }
                    let id = rng.gen_range(0..self.chunks.len() - 2);
                    match self.stream.lease(id) {
                        Ok(lease) => {
                            check(&self.chunks[id], &lease);
                            held.push_back((
                                id,
                                if rng.gen_bool(0.2) { lease.clone() } else { lease },
                            ));
                        }
                        Err(error) => self.judge(&self.chunks[id], &error),
                    }
                }
            }
            for (id, lease) in &held {
                check(&self.chunks[*id], lease);
            }
        }
    }

    fn row(&self) {
        let mut row = [0; 21];
        match self.stream.read("a row", 0, 5, &mut row) {
            Ok(()) => assert!((5..).map(crate::source::byte).zip(row).all(|(a, b)| a == b)),
            Err(error) => {
                assert!(self.faulty, "{error}");
                assert!(error.to_string().contains("a row"), "{error}");
            }
        }
    }

    /// Whether this error is one that may come here: nothing fails without a reason, and each error
    /// names the chunk.
    fn judge(&self, chunk: &Chunk, error: &Error) {
        assert!(error.to_string().contains(&*chunk.name), "{error}");
        match error {
            Error::Exhausted { need, held, ring, overflow, .. } => {
                assert!(!self.foreseen, "{error}");
                assert!(held <= &(ring + overflow), "{error}");
                assert!(held + need > *overflow && (need > ring || *held > 0), "{error}");
            }
            Error::Read { .. }
            | Error::Truncated { .. }
            | Error::Changed { .. }
            | Error::Reader { .. }
            | Error::OutOfMemory { .. } => assert!(self.faulty, "{error}"),
            _ => panic!("{error}"),
        }
    }

    /// Nothing fails any more, but a read that was under way may still bring its error, and a
    /// reader its death.
    fn insist(&self, id: usize) -> Result<Lease, Error> {
        let mut result = self.stream.lease(id);
        for _ in 0..if self.faulty { 8 } else { 0 } {
            match result {
                Ok(_) | Err(Error::Exhausted { .. }) => break,
                Err(_) => result = self.stream.lease(id),
            }
        }
        result
    }

    /// Nothing holds memory any more: every chunk that can be had is had.
    fn works_again(&self, whole: usize, options: Options) {
        for (id, chunk) in self.chunks[..whole].iter().enumerate() {
            let need = chunk.block_len() as u64;
            let fits = chunk.keep || need <= options.ring_bytes || need <= options.overflow_bytes;
            match self.insist(id) {
                Ok(lease) => check(chunk, &lease),
                Err(Error::Exhausted { .. }) if !fits => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// The whole ring and the whole overflow share can be had at once, and no more.
    fn gave_all_back(&self, whole: usize, spare: usize, options: Options) {
        let overflows = self.stream.stats().overflows;
        let all = self.insist(whole).expect("the ring is not whole");
        check(&self.chunks[whole], &all);
        assert_eq!(self.stream.stats().overflows, overflows);
        if options.overflow_bytes > 0 {
            let rest = self.insist(spare).expect("the overflow share is not whole");
            check(&self.chunks[spare], &rest);
            assert!(self.stream.stats().overflows > overflows);
        }
        let more = (0..whole).find(|id| !self.chunks[*id].keep && self.chunks[*id].block_len() > 0);
        if let Some(id) = more
            && options.overflow_bytes == 0
        {
            let error = self.stream.lease(id).expect_err("memory from nowhere");
            assert!(matches!(error, Error::Exhausted { .. }), "{error}");
        }
    }
}
