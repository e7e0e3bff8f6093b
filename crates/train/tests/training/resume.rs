//! A run that goes on from a state ends with the same bits as one that never stopped.
//!
//! One test: random operations share their generator with whatever the process does meanwhile.

use crate::state_common::{Training, builder};

/// What a rank does: weights and rate at its end, if they are wanted.
type TrainRank<'a> = dyn Fn(&mut Training) -> Option<(Vec<f32>, f64)> + Sync + 'a;

/// Batches of the whole run: 11 an epoch on one rank, 6 on two.
const BATCHES: u64 = 29;

#[test]
fn a_resumed_run_gives_the_same_bits() {
    for adam in [false, true] {
        // Random numbers are those of one thread only.
        for (ranks, noise) in [(1, true), (2, false)] {
            let place = tempfile::tempdir().unwrap();
            let run = |salt: u64, train: &TrainRank<'_>| {
                let results = builder(place.path()).threads(ranks, |accelerator| {
                    let mut training = Training::new(accelerator, adam, salt);
                    training.noise = noise;
                    train(&mut training)
                });
                results.unwrap()
            };
            let whole = run(0, &|training| {
                training.train_to(BATCHES);
                Some(training.outcome())
            });
            // At the start, between two steps, after a step, at the end of an epoch, later on.
            for stop in [0, 2, 3, 6, 11, 12, 16, 23] {
                run(0, &|training| {
                    training.train_to(stop);
                    training.save();
                    None
                });
                // Other weights, which must not matter.
                let resumed = run(9, &|training| {
                    let accelerator = training.accelerator.clone();
                    let loaded = accelerator.resume(training.state()).unwrap().unwrap();
                    assert_eq!(loaded.notes, [""; 0]);
                    assert_eq!(loaded.batches_taken, stop);
                    training.train_to(BATCHES);
                    Some(training.outcome())
                });
                assert!(whole == resumed, "adam {adam}, {ranks} ranks, stopped after {stop}");
            }
        }
    }
}
