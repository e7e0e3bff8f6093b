//! What holds for every map of Accelerate's strategies, recomputed here from the model and the map
//! alone.

use crate::common::{Model, random};
use outsize_plan::{Assignment, Budget, MemoryOverhead, Options, Tier, assign};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

fn options() -> impl Strategy<Value = Options> {
    (
        random::strategy(),
        any::<[bool; 3]>(),
        prop_oneof![2 => Just([0u64; 3]), 1 => [0u64..300, 0u64..300, 0u64..300]],
    )
        .prop_map(|(strategy, [split, fallback, buffers], [kv, gpu, reserve])| Options {
            strategy,
            no_split: if split { Vec::new() } else { vec!["Whole".to_string()] },
            fallback_allocation: fallback,
            offload_buffers: buffers,
            needs: MemoryOverhead { kv_cache: kv, ..MemoryOverhead::default() },
            gpu_activations: gpu,
            reserve,
            ..Options::default()
        })
}

/// The place of a tensor in a map by prefixes: that of the longest.
fn look_up(map: &HashMap<&str, Tier>, name: &str) -> Option<Tier> {
    let ends = name.match_indices('.').map(|(end, _)| end);
    let paths = [0].into_iter().chain(ends).chain([name.len()]);
    paths.filter_map(|end| map.get(&name[..end])).next_back().copied()
}

fn check(
    model: &Model,
    on: &Budget,
    options: &Options,
    made: &Assignment,
) -> Result<(), TestCaseError> {
    // Every tensor is placed once.
    prop_assert_eq!(made.tiers.len(), model.tensors.len());
    let map: HashMap<&str, Tier> = made.modules.iter().collect();
    prop_assert_eq!(map.len(), made.modules.iter().len(), "a path comes twice");
    let mut held: BTreeMap<Tier, u64> = BTreeMap::new();
    let mut groups: HashMap<&str, (Tier, u64)> = HashMap::new();
    for (tensor, tier) in model.tensors.iter().zip(&made.tiers) {
        prop_assert_eq!(look_up(&map, &tensor.name), Some(*tier), "{}", &tensor.name);
        match &tensor.tied {
            None => *held.entry(*tier).or_default() += tensor.bytes,
            Some(key) => {
                let (first, bytes) = groups.entry(key).or_insert((*tier, 0));
                prop_assert_eq!(first, tier, "{} is split", key);
                *bytes = tensor.bytes.max(*bytes);
            }
        }
    }
    for (tier, bytes) in groups.into_values() {
        *held.entry(tier).or_default() += bytes;
    }
    // No budget is exceeded, and what has none is not used.
    for (tier, bytes) in held {
        let needs = match tier {
            Tier::Gpu(_) => options.gpu_activations,
            Tier::Cpu => options.needs.sum(),
            Tier::Disk => continue,
        };
        let budget = on.get(tier);
        prop_assert!(budget.is_some_and(|budget| budget > 0), "{tier} has no budget");
        prop_assert!(
            budget.is_some_and(|budget| bytes + needs + options.reserve <= budget),
            "{tier} holds {bytes}"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn maps_keep_budgets_and_ties(model in random::model(), on in random::budget(), options in options()) {
        let tree = model.tree();
        let made = assign(&tree, &on, &options).unwrap();
        check(&model, &on, &options, &made)?;
        prop_assert_eq!(&assign(&tree, &on, &options).unwrap(), &made, "the same gives another map");
        // Where nothing may be on disk, it is the same map or none.
        let must_fit = Options { must_fit: true, ..options };
        let fits = made.tiers.iter().all(|tier| *tier != Tier::Disk);
        match assign(&tree, &on, &must_fit) {
            Ok(same) => prop_assert!(fits && same == made),
            Err(error) => prop_assert!(!fits, "{error}"),
        }
    }

    /// With room for everything on the first device, everything is there.
    #[test]
    fn one_large_device_holds_all(model in random::model(), strategy in random::strategy(), cpu: bool) {
        let mut on = Budget::default();
        let tier = if cpu { Tier::Cpu } else { Tier::Gpu(3) };
        on.set(tier, 1 << 40);
        let options = Options { strategy, ..Options::default() };
        let made = assign(&model.tree(), &on, &options).unwrap();
        prop_assert!(made.tiers.iter().all(|own| *own == tier));
        prop_assert_eq!(made.warnings.len(), 0);
    }
}
