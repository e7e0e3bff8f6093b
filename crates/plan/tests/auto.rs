//! What holds for every placement that is chosen by predicted time.

mod support;

use outsize_plan::{
    Assignment, Budget, DeviceMap, Error, Options, Residency, Tensor, Tier, Tree, from_assignment,
    infer, predict, unit_footprint,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{budget, options, tree, uneven};

fn tensors(tree: &Tree) -> impl Iterator<Item = &Tensor> {
    tree.blocks.iter().flat_map(|block| &block.tensors)
}

fn decode(tree: &Tree, map: &DeviceMap, options: &Options) -> f64 {
    predict(tree, map, &options.figures, &options.workload)
        .decode
        .seconds
}

/// What each tier holds of weights, from the residencies alone.
fn weights(tree: &Tree, map: &DeviceMap) -> BTreeMap<Tier, u64> {
    let mut groups: BTreeMap<String, (Tier, u64)> = BTreeMap::new();
    for tensor in tensors(tree) {
        let tier = match map.residency(&tensor.name) {
            Some(Residency::Resident(tier)) => tier,
            Some(Residency::Streamed) => Tier::Disk,
            None => panic!("{} has no place", tensor.name),
        };
        let key = match &tensor.tied {
            Some(key) => format!("tied {key}"),
            None => format!("own {}", tensor.name),
        };
        let group = groups.entry(key.clone()).or_insert((tier, 0));
        assert_eq!(group.0, tier, "{key} is split");
        group.1 = group.1.max(tensor.bytes);
    }
    let mut held = BTreeMap::new();
    for (tier, bytes) in groups.into_values() {
        *held.entry(tier).or_default() += match tier {
            Tier::Disk => bytes,
            _ => unit_footprint(bytes),
        };
    }
    held
}

fn check(tree: &Tree, budget: &Budget, options: &Options, map: &DeviceMap) {
    let held = weights(tree, map);
    for tier in map.tiers() {
        assert_eq!(
            tier.weights,
            held.get(&tier.tier).copied().unwrap_or(0),
            "{tier:?}"
        );
        if let Some(most) = budget.get(tier.tier) {
            let reserve = match tier.tier {
                Tier::Disk => 0,
                _ => options.reserve,
            };
            assert!(tier.sum() + reserve <= most, "{tier:?}");
        }
    }
    let places = map.tiers().iter().map(|tier| tier.tier);
    assert!(
        held.keys()
            .all(|tier| places.clone().any(|place| place == *tier))
    );
    for (block, placed) in tree.blocks.iter().zip(map.blocks()) {
        // Copied to a GPU is what it computes with and does not have.
        let gpu = [placed.decode_on, placed.prefill_on]
            .into_iter()
            .find(|tier| matches!(tier, Tier::Gpu(_)));
        let away = block.tensors.iter().filter(|tensor| {
            tensor.access != outsize_plan::Access::Rows
                && gpu.is_some_and(|gpu| {
                    map.residency(&tensor.name) != Some(Residency::Resident(gpu))
                })
        });
        assert_eq!(
            placed.upload_bytes,
            away.map(|tensor| tensor.bytes).sum::<u64>()
        );
        let ring = map.tiers().iter().find(|tier| Some(tier.tier) == gpu);
        assert!(placed.upload_bytes == 0 || ring.is_some_and(|tier| tier.ring > 0));
    }
    let on_cpu = tree.blocks.iter().zip(map.blocks());
    let on_cpu = on_cpu.filter(|(_, placed)| placed.decode_on == Tier::Cpu);
    let kv: u64 = on_cpu.map(|(block, _)| block.work.kv_bytes).sum();
    assert_eq!(map.needs().kv_cache, options.needs.kv_cache + kv);
}

fn shown(map: &DeviceMap) -> String {
    let json = serde_json::to_value(map).unwrap();
    format!("{}\n{}\n{}", json["tiers"], json["tensors"], json["blocks"])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// No budget is exceeded, every tensor is placed once, ties are not split; the same input gives the same map, and the
    /// map survives being written and read.
    #[test]
    fn maps_are_sound(tree in tree(), options in options(), budget in budget()) {
        match infer(&tree, &budget, &options) {
            Ok(map) => {
                check(&tree, &budget, &options, &map);
                prop_assert_eq!(&infer(&tree, &budget, &options).unwrap(), &map);
                let json = serde_json::to_string(&map).unwrap();
                prop_assert_eq!(&serde_json::from_str::<DeviceMap>(&json).unwrap(), &map);
                let predicted = predict(&tree, &map, &options.figures, &options.workload);
                prop_assert!(predicted.decode.seconds.is_finite());
                prop_assert!(predicted.prefill.seconds.is_finite());
                prop_assert!(predicted.first_pass_seconds >= predicted.prefill.seconds);
            }
            Err(Error::TooSmall(shortfall)) => {
                prop_assert_eq!(shortfall.tier, Tier::Cpu);
                // What it asks for is enough.
                let mut enough = budget.clone();
                enough.set(Tier::Cpu, shortfall.least);
                prop_assert!(infer(&tree, &enough, &options).is_ok(), "{}", shortfall);
            }
            Err(Error::MustFit { lacking, least }) => {
                let mut enough = budget.clone();
                enough.set(Tier::Cpu, least);
                prop_assert_eq!(least - budget.get(Tier::Cpu).unwrap(), lacking);
                prop_assert!(infer(&tree, &enough, &options).is_ok());
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    /// More memory on any device, or one more, never makes it slower.
    #[test]
    fn more_memory_is_never_slower(
        tree in tree(), options in options(), budget in budget(),
        more in prop::collection::vec(prop_oneof![Just(0u64), 0u64..5_000_000, 0u64..200_000_000], 5),
    ) {
        let Ok(map) = infer(&tree, &budget, &options) else { return Ok(()) };
        let mut larger = budget.clone();
        for (tier, more) in (0..3).map(Tier::Gpu).chain([Tier::Cpu, Tier::Disk]).zip(more) {
            match (tier, budget.get(tier)) {
                (_, Some(bytes)) => larger.set(tier, bytes + more),
                (Tier::Gpu(_), None) => larger.set(tier, more),
                _ => {}
            }
        }
        let before = decode(&tree, &map, &options);
        let other = infer(&tree, &larger, &options).unwrap();
        let after = decode(&tree, &other, &options);
        prop_assert!(after <= before * (1.0 + 1e-9), "{before} became {after}: {} and {}", shown(&map), shown(&other));
    }
}
