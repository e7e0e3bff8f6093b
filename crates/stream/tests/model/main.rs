//! The pool's state machine under every kind of schedule.
//!
//! The sources of the crate itself are compiled here once more, over modules of this folder: `sync`
//! (locks and threads of [shuttle], which decides who runs next), `buffer` (memory that is counted,
//! and refused on demand), `source` (files in memory that fail on demand) and `reader` (the crate's
//! own, which may die). Every schedule is drawn from a fixed seed, and so is what the callers do in
//! it; a failure prints the schedule, for [`shuttle::replay`]. `OUTSIZE_MODEL_SCHEDULES` sets how
//! many schedules each scenario gets.

// What the crate says to its users is not all said here.
#![allow(dead_code, unused_imports)]

#[path = "../../src/arena.rs"]
mod arena;
#[path = "../../src/block.rs"]
mod block;
mod buffer;
#[path = "../../src/chunk.rs"]
mod chunk;
#[path = "../../src/error.rs"]
mod error;
#[path = "../../src/lease.rs"]
mod lease;
#[path = "../../src/loading.rs"]
mod loading;
#[path = "../../src/options.rs"]
mod options;
#[path = "../../src/overflow.rs"]
mod overflow;
#[path = "../../src/pool.rs"]
mod pool;
mod reader;
#[path = "../../src/resident_arena.rs"]
mod resident_arena;
#[path = "../../src/schedule.rs"]
mod schedule;
mod source;
#[path = "../../src/state.rs"]
mod state;
#[path = "../../src/stats.rs"]
mod stats;
#[path = "../../src/stream.rs"]
mod stream;
mod sync;

mod free_for_all;
mod small;

pub use chunk::{Chunk, ChunkId, Convert, Segment};
pub use error::Error;
pub use lease::Lease;
pub use options::Options;
pub use source::Source;
pub use stats::Stats;
pub use stream::Stream;

/// Blocks are small here: what matters is who touches them when.
pub const BLOCK: usize = 16;

/// Two blocks, so that what is kept has several of them.
const LARGE_PAGE: usize = 32;

/// Runs a scenario under `schedules` random schedules and as many that preempt at a few chosen
/// places, which finds other faults (probabilistic concurrency testing).
fn explore(schedules: usize, scenario: impl Fn() + Send + Sync + Clone + 'static) {
    let schedules = match std::env::var("OUTSIZE_MODEL_SCHEDULES") {
        Ok(number) => number.parse().expect("OUTSIZE_MODEL_SCHEDULES: a number"),
        Err(_) => schedules,
    };
    let mut config = shuttle::Config::new();
    config.silence_warnings = true;
    config.stack_size = 64 << 10;
    // A schedule takes some hundred steps; one that goes on and on waits for what never comes.
    config.max_steps = shuttle::MaxSteps::FailAfter(100_000);
    let seed = 0x6f75_7473_697a_6500;
    let scenario = move || {
        buffer::reset();
        scenario();
        assert_eq!(buffer::live(), 0, "memory was not given back");
    };
    let random = shuttle::scheduler::RandomScheduler::new_from_seed(seed, schedules);
    shuttle::Runner::new(random, config.clone()).run(scenario.clone());
    for depth in [2, 4] {
        let pct = shuttle::scheduler::PctScheduler::new_from_seed(seed, depth, schedules / 2);
        shuttle::Runner::new(pct, config.clone()).run(scenario.clone());
    }
}

/// A chunk of whole elements at `offset`.
fn chunk(offset: u64, len: u64) -> Chunk {
    Chunk {
        name: format!("chunk at {offset}").into(),
        segments: vec![Segment { source: 0, offset, len, align: 1, convert: None }],
        keep: false,
        occasional: false,
    }
}

/// Whether a lease holds the bytes of its chunk, looking twice: others run in between.
fn check(chunk: &Chunk, lease: &Lease) {
    for _ in 0..2 {
        for (at, segment) in chunk.segments.iter().enumerate() {
            let part = lease.segment(at);
            let found = part.as_ref().iter().copied();
            let wanted = (segment.offset..segment.offset + segment.len).map(source::byte);
            let right = match segment.convert {
                Some(_) => wanted.flat_map(|byte| [byte, !byte]).eq(found),
                None => wanted.eq(found),
            };
            assert!(right, "{}", chunk.name);
        }
        sync::switch();
    }
}
