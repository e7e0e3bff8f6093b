//! Threads that share one short piece of work at a time.
//!
//! A token's pass is a hundred and more matmuls of a tenth of a millisecond. Waking a thread for
//! each of them takes as long as a part of the matmul, so these threads do not sleep at once when
//! a piece of work is done: they look for the next one for [`AWAKE`]. The thread that calls works
//! too, from the first moment on, and waits for nobody who has not begun; a helper that comes late
//! finds less to do.
//!
//! As many threads work as the current rayon pool has, so that what limits that limits this.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// For how long a helper looks for more work before it sleeps.
const AWAKE: Duration = Duration::from_micros(100);

/// How long a wait stays on the processor before it lets other threads run.
const POLITE: Duration = Duration::from_micros(10);

/// Stack of a helper, in bytes: the loops of a matmul need little, but where nothing is optimised
/// each of their values has a place of its own.
const STACK: usize = if cfg!(debug_assertions) { 8 << 20 } else { 256 << 10 };

/// The helpers of this process.
static POOL: ThreadPool = ThreadPool {
    helpers: Mutex::new(Vec::new()),
    work: AtomicPtr::new(std::ptr::null_mut()),
    offers: AtomicUsize::new(0),
    inside: AtomicUsize::new(0),
    asleep: AtomicUsize::new(0),
};

struct ThreadPool {
    /// All helpers; locked by the thread whose work they share.
    helpers: Mutex<Vec<Thread>>,
    /// What is to be done; null if nothing is.
    work: AtomicPtr<Work>,
    /// How many pieces of work there have been.
    offers: AtomicUsize,
    /// Helpers that may look at `work`. It is not taken from under them.
    inside: AtomicUsize,
    /// Helpers that sleep or are about to.
    asleep: AtomicUsize,
}

/// A piece of work, on the stack of the thread that wants it done.
struct Work {
    /// Calls the closure behind `body`.
    run: unsafe fn(*const ()),
    /// The closure, which other threads may call.
    body: *const (),
    /// How many more helpers are wanted.
    seats: AtomicUsize,
    /// What a helper's panic said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Calls `body` on this thread and, meanwhile, on helpers, up to `threads` in all; returns when all
/// calls have. `body` takes its part of the work from what the calls share, until nothing is left:
/// one call, this thread's, is certain, the others come if they can.
///
/// If the helpers are busy for another thread, this one works alone.
///
/// # Panics
///
/// If a call of `body` does.
pub(crate) fn share<F: Fn() + Sync>(threads: usize, body: F) {
    /// # Safety
    ///
    /// `body` points to an `F` that lives and that threads may share.
    unsafe fn run<F: Fn()>(body: *const ()) {
        // SAFETY: the caller's promise.
        unsafe { (*body.cast::<F>())() }
    }
    if threads <= 1 {
        return body();
    }
    let mut helpers = match POOL.helpers.try_lock() {
        Ok(helpers) => helpers,
        Err(TryLockError::Poisoned(helpers)) => helpers.into_inner(),
        Err(TryLockError::WouldBlock) => return body(),
    };
    hire(&mut helpers, threads - 1);
    let mut work = Work {
        run: run::<F>,
        body: (&raw const body).cast(),
        seats: AtomicUsize::new(threads - 1),
        panic: Mutex::new(None),
    };
    {
        // Takes the work back, and waits for who is at it, also if `body` panics here. Declared
        // before the work is offered.
        let _end = End;
        POOL.work.store(&raw mut work, Ordering::SeqCst);
        POOL.offers.fetch_add(1, Ordering::SeqCst);
        // Either this sees a helper that goes to sleep, or that helper sees the offer: both orders
        // are sequentially consistent.
        if POOL.asleep.load(Ordering::SeqCst) > 0 {
            helpers.iter().take(threads - 1).for_each(Thread::unpark);
        }
        body();
    }
    let panic = work.panic.get_mut().unwrap_or_else(PoisonError::into_inner);
    if let Some(payload) = panic.take() {
        drop(helpers);
        resume_unwind(payload);
    }
}

/// Starts helpers until there are so many. If the system gives none, there are fewer.
fn hire(helpers: &mut Vec<Thread>, wanted: usize) {
    while helpers.len() < wanted {
        let helper = std::thread::Builder::new()
            .name(format!("outsize-helper-{}", helpers.len()))
            .stack_size(STACK)
            .spawn(help);
        match helper {
            Ok(helper) => helpers.push(helper.thread().clone()),
            Err(_) => return,
        }
    }
}

/// Ends a piece of work.
struct End;

impl Drop for End {
    fn drop(&mut self) {
        POOL.work.store(std::ptr::null_mut(), Ordering::SeqCst);
        // Either a helper that comes now sees that there is nothing, or this sees that it is
        // inside.
        let mut wait = Wait::new();
        while POOL.inside.load(Ordering::SeqCst) > 0 {
            wait.a_little();
        }
    }
}

/// The life of a helper.
fn help() {
    let mut seen = 0;
    loop {
        seen = next_offer(seen);
        POOL.inside.fetch_add(1, Ordering::SeqCst);
        let work = POOL.work.load(Ordering::SeqCst);
        if !work.is_null() {
            // SAFETY: the thread that offered this work keeps it, and what it points to, until it
            // has set `work` to null and then seen nobody inside; this helper was inside before it
            // read `work`.
            unsafe { (*work).take_part() };
        }
        POOL.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until there has been another offer than those seen; gives their number.
fn next_offer(seen: usize) -> usize {
    let mut wait = Wait::new();
    loop {
        let offers = POOL.offers.load(Ordering::SeqCst);
        if offers != seen {
            return offers;
        }
        if wait.a_little() < AWAKE {
            continue;
        }
        POOL.asleep.fetch_add(1, Ordering::SeqCst);
        while POOL.offers.load(Ordering::SeqCst) == seen {
            std::thread::park();
        }
        POOL.asleep.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Work {
    /// Does a part of it, if another helper is wanted.
    ///
    /// # Safety
    ///
    /// The closure behind `body` lives as long as this runs.
    unsafe fn take_part(&self) {
        let seat = self
            .seats
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |seats| seats.checked_sub(1));
        if seat.is_err() {
            return;
        }
        // SAFETY: the caller's promise; `share` asks that the closure may be called by several
        // threads.
        let result = catch_unwind(AssertUnwindSafe(|| unsafe { (self.run)(self.body) }));
        if let Err(payload) = result {
            *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
        }
    }
}

/// Waiting without sleep.
struct Wait {
    since: Option<Instant>,
    turns: u32,
}

impl Wait {
    fn new() -> Wait {
        Wait { since: None, turns: 0 }
    }

    /// Lets a moment pass; says how long it has been.
    fn a_little(&mut self) -> Duration {
        std::hint::spin_loop();
        self.turns = self.turns.wrapping_add(1);
        // The clock costs as much as several turns.
        if !self.turns.is_multiple_of(32) {
            return Duration::ZERO;
        }
        let elapsed = self.since.get_or_insert_with(Instant::now).elapsed();
        if elapsed > POLITE {
            std::thread::yield_now();
        }
        elapsed
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// Adds up numbers that calls claim one by one.
    fn sum(threads: usize, end: u64) -> u64 {
        let (next, sum) = (AtomicU64::new(0), AtomicU64::new(0));
        share(threads, || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= end {
                    break;
                }
                sum.fetch_add(number, Ordering::Relaxed);
            }
        });
        sum.into_inner()
    }

    #[test]
    fn all_is_done_once_by_any_number_of_threads() {
        for round in 0..2000 {
            let (threads, end) = (round % 9, round as u64 % 70);
            assert_eq!(sum(threads, end), end * end.saturating_sub(1) / 2);
        }
    }

    #[test]
    fn several_callers_at_once_each_get_their_own() {
        std::thread::scope(|scope| {
            for caller in 1..6u64 {
                scope.spawn(move || {
                    for _ in 0..500 {
                        assert_eq!(sum(3, 100 * caller), 50 * caller * (100 * caller - 1));
                    }
                });
            }
        });
    }

    #[test]
    fn work_within_work_is_done_too() {
        let total = AtomicU64::new(0);
        share(1, || {
            share(3, || {
                total.fetch_add(sum(3, 10), Ordering::Relaxed);
            })
        });
        let total = total.into_inner();
        assert!(total > 0 && total.is_multiple_of(45), "{total}");
    }

    #[test]
    fn helpers_that_slept_come_again() {
        // Alone, a call would wait for ever for the other.
        for _ in 0..20 {
            std::thread::sleep(3 * AWAKE);
            let calls = AtomicUsize::new(0);
            let began = Instant::now();
            share(2, || {
                calls.fetch_add(1, Ordering::SeqCst);
                // Other tests may have the helpers: then this one works alone.
                while calls.load(Ordering::SeqCst) < 2 && began.elapsed() < Duration::from_secs(1) {
                    std::thread::yield_now();
                }
            });
            if calls.into_inner() == 2 {
                return;
            }
        }
        panic!("no helper came in twenty seconds");
    }

    #[test]
    fn a_panic_reaches_the_caller_and_work_goes_on() {
        for _ in 0..50 {
            let result = catch_unwind(|| {
                let calls = AtomicUsize::new(0);
                share(4, || {
                    assert!(calls.fetch_add(1, Ordering::SeqCst) > 100, "expected by this test")
                });
            });
            assert!(result.is_err());
            assert_eq!(sum(4, 100), 4950);
        }
    }
}
