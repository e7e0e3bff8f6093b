//! The crate's reader threads, of which some die.

#[path = "../../src/reader.rs"]
mod real;

use crate::loading::Seat;
use shuttle::rand::{Rng, thread_rng};
use std::cell::Cell;

pub(crate) use real::Scratch;

thread_local! {
    /// All of a schedule's threads share the thread that runs it.
    static DEATHS: Cell<u32> = const { Cell::new(0) };
}

/// The next `count` threads to start die sooner or later.
pub(crate) fn let_die(count: u32) {
    DEATHS.set(count);
}

pub(crate) fn run(seat: Seat, mut scratch: Scratch) {
    let deaths = DEATHS.get();
    if deaths == 0 {
        return real::run(seat, scratch);
    }
    DEATHS.set(deaths - 1);
    for _ in 0..thread_rng().gen_range(0..4) {
        if !real::read_one(&seat, &mut scratch) {
            return;
        }
    }
    // As when a panic takes the thread: the read is given up, and the seat with it.
    drop(seat.next_job());
}
