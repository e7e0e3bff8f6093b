//! Random operations of a seeded run, and of one that is resumed. One test: they share their
//! generator with whatever the process does meanwhile.

mod common;
mod state_common;

use burn::tensor::{Distribution, Tensor};
use common::{SampleBatcher, samples};
use outsize_train::{Accelerator, DataLoaderBuilder};
use state_common::{Training, builder};

/// What a rank does: weights and rate at its end, if they are wanted.
type TrainRank<'a> = dyn Fn(&mut Training) -> Option<(Vec<f32>, f64)> + Sync + 'a;

/// Batches of the whole run: 11 an epoch on one rank, 6 on two.
const BATCHES: u64 = 29;

#[test]
fn random_operations_repeat() {
    random_operations_follow_seed_rank_and_step();
    a_resumed_run_gives_the_same_bits();
}

/// Of one seed, rank and step come the same random numbers, and of others come others.
fn random_operations_follow_seed_rank_and_step() {
    let draw = |rank: usize, batches: u64| {
        // Flex has one generator a process: one rank at a time.
        let draws = Accelerator::builder().seed(9).threads(rank + 1, |accelerator| {
            accelerator.on_last_process(|| {
                accelerator.set_batches_taken(batches);
                let loader = DataLoaderBuilder::new(SampleBatcher).build(samples(40));
                let loader = accelerator.prepare_data_loader(loader).unwrap();
                let _batch = loader.iter().next();
                let device = accelerator.device();
                let noise = Tensor::<1>::random([4], Distribution::Default, &device);
                noise.into_data().iter::<f32>().map(f32::to_bits).collect::<Vec<_>>()
            })
        });
        draws.unwrap().pop().unwrap()
    };
    let first = draw(0, 0);
    assert_eq!(first, draw(0, 0));
    assert_ne!(first, draw(0, 1));
    assert_ne!(first, draw(1, 0));

    // So a run with dropout repeats, bit for bit.
    let run = |dropout, seed| {
        let run = common::Run { dropout, ..common::Run::PLAIN };
        common::train(&Accelerator::builder().seed(seed).build().unwrap(), &run).unwrap()
    };
    assert_eq!(run(0.5, 9), run(0.5, 9));
    assert_ne!(run(0.5, 9), run(0.5, 8));
    assert_ne!(run(0.5, 9), run(0.0, 9));
}

/// A run that goes on from a state ends with the same bits as one that never stopped.
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
