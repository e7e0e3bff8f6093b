//! One property over all kinds: where weights live, how they are stored and how they are read never
//! changes a bit of what a module computes.

use crate::common::{bits, options};
use crate::specimen::{DTYPES, Specimen, Stored, dispatched, least};
use crate::{convolution, norm, recurrent, structure, transformer};
use burn::tensor::{DType, Device};
use outsize_core::{FloatType, Options, tree};
use outsize_plan::{Budget, Tier, infer, place};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::cell::RefCell;

#[derive(Debug, Clone)]
struct Case {
    dtype: usize,
    placement: Placement,
    read_bytes: usize,
    readers: usize,
    seeds: [u64; 3],
}

#[derive(Debug, Clone)]
enum Placement {
    /// As the planner decides, for this share of what lies between the least budget and all of it.
    Budget(f64),
    /// Some tensors stay, and the ring has this share of a budget that would hold all.
    Chosen(Vec<bool>, f64),
}

fn case() -> impl Strategy<Value = Case> {
    let placement = prop_oneof![
        (0.0..1.0).prop_map(Placement::Budget),
        (prop::collection::vec(any::<bool>(), 64), 0.0..1.0)
            .prop_map(|(stays, ring)| Placement::Chosen(stays, ring)),
    ];
    (0..DTYPES.len(), placement, 1usize..20_000, 1usize..4, [1u64..5, 1..5, 1..5]).prop_map(
        |(dtype, placement, read_bytes, readers, seeds)| Case {
            dtype,
            placement,
            read_bytes,
            readers,
            seeds,
        },
    )
}

/// Tries `cases` random cases, always the same.
fn property<M: Specimen>(cases: u32) {
    let stored = RefCell::new(Stored::<M>::new());
    let mut runner = TestRunner::new_with_rng(
        Config { cases, failure_persistence: None, ..Config::default() },
        TestRng::from_seed(RngAlgorithm::ChaCha, &[42; 32]),
    );
    runner
        .run(&case(), |case| {
            let mut stored = stored.borrow_mut();
            let checkpoint = stored.checkpoint(DTYPES[case.dtype]);
            let options = Options {
                read_bytes: case.read_bytes,
                readers: case.readers,
                float_type: FloatType::Cast(DType::F32),
                ..options(None)
            };
            let tree = tree(&M::new(&Device::flex()), &checkpoint, &options).unwrap();
            let plan = options.plan();
            let all = infer(&tree, &Budget::default(), &plan).unwrap().memory_bytes();
            let part = |least: u64, share: f64| least + ((all - least) as f64 * share) as u64;
            let map = match &case.placement {
                Placement::Budget(share) => {
                    let mut budget = Budget::default();
                    budget.set(Tier::Cpu, part(least(&tree, &options).min(all), *share));
                    infer(&tree, &budget, &plan).unwrap()
                }
                Placement::Chosen(stays, share) => {
                    let plan = outsize_plan::Options { min_ring: part(0, *share), ..plan };
                    let mut stays = stays.iter().cycle();
                    place(&tree, &Budget::default(), &plan, |_| *stays.next().unwrap()).unwrap()
                }
            };
            let model = dispatched::<M>(&checkpoint, &map, &options);
            for seed in case.seeds {
                let output = model.run(|module| bits(module.pass(seed)));
                let output = output.map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert!(output == stored.expected(seed), "other bits for input {seed}");
            }
            prop_assert_eq!(model.stats().overflows, 0);
            Ok(())
        })
        .unwrap();
}

macro_rules! properties {
    ($($name:ident: $specimen:ty;)*) => {$(
        #[test]
        fn $name() {
            property::<$specimen>(24);
        }
    )*};
}

properties! {
    encoders: transformer::Encoders;
    decoders: transformer::Decoders;
    attentions: transformer::Attentions;
    convolutions: convolution::Plain;
    transposed_convolutions: convolution::Transposed;
    norms: norm::Norms;
    lstms: recurrent::Lstms;
    grus: recurrent::Grus;
    containers: structure::Containers;
    sharing: structure::Sharing;
    oddities: structure::Oddities;
}
