//! Real files, real threads, and faults while they work: the bytes are right, errors name their
//! chunk, and nothing stands still.
//!
//! `OUTSIZE_STRESS_SECONDS` sets how long it runs (two seconds by default), `OUTSIZE_STRESS_SEED`
//! where it begins: each round is drawn from a seed of its own, counted from there, and a failure
//! tells it.

#![cfg(unix)]

mod common;

use common::{byte, chunk, file, widen_each};
use outsize_stream::{BLOCK, Chunk, Convert, Error, Lease, Options, Source, Stream};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

/// Counts whatever moves.
static PROGRESS: AtomicU64 = AtomicU64::new(0);
/// The seed of the round that runs.
static SEED: AtomicU64 = AtomicU64::new(0);
/// How many in a thousand conversions panic, and how many kill their reader.
static PANICS: AtomicU32 = AtomicU32::new(0);
static DEATHS: AtomicU32 = AtomicU32::new(0);
/// Where the conversions' own dice stand.
static DICE: AtomicU64 = AtomicU64::new(0);

/// Seeded dice (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{variable}: a number")),
        Err(_) => default,
    }
}

#[test]
fn nothing_stands_still_and_no_byte_is_wrong() {
    let time = Duration::from_secs(number("OUTSIZE_STRESS_SECONDS", 2));
    let first = number("OUTSIZE_STRESS_SEED", 1);
    std::thread::spawn(watch);
    let began = Instant::now();
    let mut rounds = 0;
    while rounds == 0 || began.elapsed() < time {
        let seed = first + rounds;
        SEED.store(seed, Ordering::SeqCst);
        if let Err(panic) = catch_unwind(|| round(seed)) {
            eprintln!("failed with OUTSIZE_STRESS_SEED={seed}");
            resume_unwind(panic);
        }
        rounds += 1;
    }
    println!("{rounds} rounds from seed {first}");
}

/// Ends the process when nothing moved for half a minute.
fn watch() {
    let (mut last, mut since) = (0, Instant::now());
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = PROGRESS.load(Ordering::SeqCst);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > Duration::from_secs(30) {
            let seed = SEED.load(Ordering::SeqCst);
            eprintln!("nothing moves: deadlock with OUTSIZE_STRESS_SEED={seed}");
            std::process::exit(101);
        }
    }
}

/// A panic whose payload panics in its turn when it is dropped: the reader that caught it dies.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        resume_unwind(Box::new("dropped"));
    }
}

fn widen_or_fail(_offset: u64, from: &[u8], to: &mut [u8]) {
    let dice = Rng(DICE.fetch_add(1, Ordering::SeqCst)).below(1000) as u32;
    let (panics, deaths) = (PANICS.load(Ordering::SeqCst), DEATHS.load(Ordering::SeqCst));
    if dice < panics {
        resume_unwind(Box::new("a conversion gone wrong"));
    }
    if dice < panics + deaths {
        resume_unwind(Box::new(Bomb));
    }
    widen_each(from, to);
}

/// What may go wrong in a round.
#[derive(Clone, Copy)]
struct Faults {
    /// Files are cut and put back.
    cuts: bool,
    /// Conversions panic or kill their reader.
    panics: bool,
    /// More may be held than there is memory for.
    crowded: bool,
}

struct Round {
    stream: Stream,
    chunks: Vec<Chunk>,
    faults: Faults,
    /// How many leases a caller holds at most.
    hold: usize,
}

/// The file that is never there.
const FOLDER: usize = 2;

fn round(seed: u64) {
    let mut rng = Rng(seed);
    let faults = Faults { cuts: rng.chance(50), panics: rng.chance(50), crowded: rng.chance(50) };
    let len = 1 + rng.below(600_000);
    let files = [file(len), file(len)];
    let folder = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let chunks = some_chunks(&mut rng, len);
    let largest = chunks.iter().map(|chunk| chunk.block_len() as u64).max().unwrap();
    let (callers, hold) = (1 + rng.below(4), 1 + rng.below(3));
    let options = Options {
        ring_bytes: rng.below(4) as u64 * largest + rng.below(100_000) as u64,
        overflow_bytes: if faults.crowded {
            rng.below(3) as u64 * largest
        } else {
            // What a caller passes on is held until it is dropped there.
            largest * (callers * (hold + 1)) as u64
        },
        readers: 1 + rng.below(6),
        read_bytes: 1 + rng.below(100_000),
    };
    DICE.store(rng.next(), Ordering::SeqCst);
    if faults.panics {
        PANICS.store(rng.below(60) as u32, Ordering::SeqCst);
        DEATHS.store(rng.below(60) as u32, Ordering::SeqCst);
    }
    let order = (0..chunks.len()).filter(|_| rng.chance(90)).collect();
    let sources = vec![
        Source::open(&files[0].1).unwrap(),
        Source::open(&files[1].1).unwrap(),
        Source::open(folder.path()).unwrap(),
    ];
    let round = Round {
        stream: Stream::start(sources, chunks.clone(), order, options).unwrap(),
        chunks,
        faults,
        hold,
    };
    let over = AtomicBool::new(false);
    let seeds: Vec<u64> = (0..=callers).map(|_| rng.next()).collect();
    std::thread::scope(|scope| {
        if faults.cuts {
            scope.spawn(|| cut_and_put_back(Rng(seeds[callers]), &files[0].1, len, &over));
        }
        let threads: Vec<_> =
            seeds[..callers].iter().map(|seed| scope.spawn(|| round.call(Rng(*seed)))).collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, Ordering::SeqCst);
        for result in results {
            result.unwrap_or_else(|panic| resume_unwind(panic));
        }
    });
    PANICS.store(0, Ordering::SeqCst);
    DEATHS.store(0, Ordering::SeqCst);
    round.works_again(options);
}

fn some_chunks(rng: &mut Rng, len: usize) -> Vec<Chunk> {
    (0..1 + rng.below(40))
        .map(|_| {
            let offset = rng.below(len);
            let most = (len - offset).min(1 << (4 + rng.below(14)));
            let mut chunk = chunk(offset, rng.below(most + 1));
            let segment = &mut chunk.segments[0];
            segment.source = rng.below(2);
            match rng.below(6) {
                0 => segment.align = 1 << rng.below(7),
                1 | 2 => segment.convert = Some(Convert::new(1, 2, widen_or_fail)),
                3 => {
                    segment.offset -= segment.offset % BLOCK as u64;
                }
                _ => {}
            }
            chunk.keep = rng.chance(15);
            chunk.occasional = rng.chance(30);
            if rng.chance(3) {
                segment.source = FOLDER;
                segment.len += 1;
            }
            chunk.name = format!("chunk {offset} of file {}", segment.source).into();
            if rng.chance(20) {
                let mut more = segment.clone();
                more.offset = rng.below(len / 2) as u64;
                more.len = more.len.min(rng.below(1000) as u64);
                chunk.segments.push(more);
            }
            chunk
        })
        .collect()
}

/// Cuts the file and puts back what was cut off, and the file's time, again and again.
fn cut_and_put_back(mut rng: Rng, path: &Path, len: usize, over: &AtomicBool) {
    let file = File::options().write(true).open(path).unwrap();
    let modified: SystemTime = file.metadata().unwrap().modified().unwrap();
    let other: PathBuf = path.with_extension("other");
    while !over.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_micros(rng.below(3000) as u64));
        let cut = rng.below(len);
        file.set_len(cut as u64).unwrap();
        std::thread::sleep(Duration::from_micros(rng.below(2000) as u64));
        let rest: Vec<u8> = (cut..len).map(byte).collect();
        file.write_all_at(&rest, cut as u64).unwrap();
        file.set_modified(modified).unwrap();
        if rng.chance(20) {
            // Another file under the name is not the one that was opened.
            std::fs::write(&other, b"another").unwrap();
            let _ = std::fs::rename(&other, path);
        }
    }
}

impl Round {
    fn call(&self, mut rng: Rng) {
        std::thread::scope(|scope| {
            let (pass_on, passed_on) = mpsc::sync_channel::<Lease>(0);
            scope.spawn(move || passed_on.into_iter().for_each(drop));
            let mut held: VecDeque<(usize, Lease)> = VecDeque::new();
            for _ in 0..20 + rng.below(60) {
                PROGRESS.fetch_add(1, Ordering::SeqCst);
                match rng.below(20) {
                    0 => self.stream.end_pass(),
                    1 => self.stream.abandon_pass(),
                    6 => {
                        let any = (0..rng.below(8)).map(|_| rng.below(self.chunks.len()));
                        self.stream.announce(any.collect());
                    }
                    2 | 3 => self.row(&mut rng),
                    4 => held.clear(),
                    5 => {
                        if let Some((_, lease)) = held.pop_front() {
                            pass_on.send(lease).unwrap();
                        }
                    }
                    _ => {
                        if held.len() == self.hold {
                            held.pop_front();
                        }
                        let id = rng.below(self.chunks.len());
                        match self.stream.lease(id) {
                            Ok(lease) => held.push_back((id, lease)),
                            Err(error) => self.judge(&self.chunks[id].name, id, &error),
                        }
                    }
                }
                for (id, lease) in &held {
                    right(&self.chunks[*id], lease);
                }
            }
        });
    }

    fn row(&self, rng: &mut Rng) {
        let id = rng.below(self.chunks.len());
        let chunk = &self.chunks[id];
        let mut row = vec![0; rng.below(chunk.segments[0].len as usize + 1)];
        match self.stream.read(
            "a row",
            chunk.segments[0].source,
            chunk.segments[0].offset,
            &mut row,
        ) {
            Ok(()) => assert!(
                (chunk.segments[0].offset as usize..).map(byte).zip(row).all(|(a, b)| a == b)
            ),
            Err(error) => self.judge("a row", id, &error),
        }
    }

    /// Whether this error has a reason in this round, and names the chunk.
    fn judge(&self, name: &str, id: usize, error: &Error) {
        assert!(error.to_string().contains(name), "{error}");
        let chunk = &self.chunks[id];
        let expected = match error {
            Error::Truncated { .. } | Error::Changed { .. } => {
                self.faults.cuts && chunk.segments[0].source == 0
            }
            Error::Read { .. } => chunk.segments[0].source == FOLDER,
            Error::Reader { .. } => self.faults.panics,
            Error::Exhausted { .. } => self.faults.crowded,
            _ => false,
        };
        assert!(expected, "{error:?}");
    }

    /// The files are whole and nobody holds anything: what can be had is had. A read that was under
    /// way may still bring its error, and so may a reader that died of it.
    fn works_again(&self, options: Options) {
        for (id, chunk) in self.chunks.iter().enumerate() {
            PROGRESS.fetch_add(1, Ordering::SeqCst);
            let need = chunk.block_len() as u64;
            let fits = chunk.keep || need <= options.ring_bytes.max(options.overflow_bytes);
            let tries = (0..options.readers + 2).map(|_| self.stream.lease(id));
            match tries.reduce(|last, next| if last.is_ok() { last } else { next }) {
                Some(Ok(lease)) => right(chunk, &lease),
                Some(Err(Error::Read { .. })) if chunk.segments[0].source == FOLDER => {}
                Some(Err(Error::Exhausted { .. })) if !fits => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Whether a lease holds the bytes of its chunk.
fn right(chunk: &Chunk, lease: &Lease) {
    for (at, segment) in chunk.segments.iter().enumerate() {
        let part = lease.segment(at);
        let found = part.as_ref();
        assert!(
            (found.as_ptr() as usize).is_multiple_of(segment.align) || segment.convert.is_some()
        );
        let start = segment.offset as usize;
        let wanted = (start..start + segment.len as usize).map(byte);
        let right = match segment.convert {
            None => wanted.eq(found.iter().copied()),
            Some(_) => wanted.flat_map(|byte| [byte, !byte]).eq(found.iter().copied()),
        };
        assert!(right, "wrong bytes in {}", chunk.name);
    }
}
