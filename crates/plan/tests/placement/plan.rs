//! What holds for every plan, recomputed here from the tree and the map alone.

use outsize_plan::{
    Access, Block, Budget, DeviceMap, Error, MemoryOverhead, Options, Residency, Routed, Tensor,
    Tier, Tree, infer,
};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

const PAGE: u64 = 4096;

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![Just(Access::Whole), Just(Access::Tiles), Just(Access::Rows)]
}

/// Trees of up to ten blocks of up to four tensors; some share one of three keys.
fn tree() -> impl Strategy<Value = Tree> {
    let tensor = (
        prop_oneof![0u64..100_000, 0u64..40_000_000],
        1u64..4,
        access(),
        prop_oneof![4 => Just(None), 1 => (0..3).prop_map(Some)],
        prop_oneof![2 => Just(0u64), 1 => 1u64..10_000_000],
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.3),
    );
    prop::collection::vec(prop::collection::vec(tensor, 0..4), 0..10).prop_map(|blocks| Tree {
        blocks: blocks
            .into_iter()
            .enumerate()
            .map(|(b, tensors)| Block {
                name: format!("layers.{b}"),
                tensors: tensors
                    .into_iter()
                    .enumerate()
                    .map(|(t, (bytes, ratio, access, tied, row_bytes, always_resident, routed))| {
                        Tensor {
                            name: format!("layers.{b}.{t}"),
                            bytes,
                            stored_bytes: bytes / ratio,
                            row_bytes: row_bytes.min(bytes),
                            access,
                            tied: tied.map(|key: i32| key.to_string()),
                            always_resident,
                            routed: (routed && tied.is_none())
                                .then_some(Routed { per_token: 1, experts: 4 }),
                            ..Tensor::default()
                        }
                    })
                    .collect(),
                ..Block::default()
            })
            .collect(),
        ..Tree::default()
    })
}

fn options() -> impl Strategy<Value = Options> {
    (prop::collection::vec(0u64..20_000_000, 5), 0u64..8_000_000, 0u64..200_000, 0u64..30_000_000)
        .prop_map(|(needs, tile_bytes, small_tensor, min_ring)| Options {
            needs: MemoryOverhead {
                process: needs[0],
                kv_cache: needs[1],
                activations: needs[2],
                readers: needs[3],
                overflow: needs[4],
            },
            tile_bytes,
            small_tensor,
            min_ring,
            ..Options::default()
        })
}

fn cpu(bytes: u64) -> Budget {
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, bytes);
    budget
}

fn tensors(tree: &Tree) -> impl Iterator<Item = &Tensor> {
    tree.blocks.iter().flat_map(|block| &block.tensors)
}

/// What shares memory has the same key.
fn key(tensor: &Tensor) -> String {
    match &tensor.tied {
        Some(key) => format!("tied {key}"),
        None => format!("own {}", tensor.name),
    }
}

fn pages(bytes: u64) -> u64 {
    bytes.div_ceil(PAGE) * PAGE + PAGE
}

fn resident(map: &DeviceMap, tensor: &Tensor) -> bool {
    map.residency(&tensor.name) == Some(Residency::Resident(Tier::Cpu))
}

/// Memory of the resident tensors, from the residencies alone.
fn weights_held(tree: &Tree, map: &DeviceMap) -> u64 {
    let mut held: HashMap<String, u64> = HashMap::new();
    for tensor in tensors(tree).filter(|tensor| resident(map, tensor)) {
        let bytes = held.entry(key(tensor)).or_default();
        *bytes = pages(tensor.bytes).max(*bytes);
    }
    held.values().sum()
}

fn needs(options: &Options) -> u64 {
    let needs = options.needs;
    needs.process + needs.kv_cache + needs.activations + needs.readers + needs.overflow
}

/// The least budget that would do, as the error for no budget at all says.
fn least(tree: &Tree, options: &Options) -> u64 {
    match infer(tree, &cpu(0), options) {
        Err(Error::TooSmall(shortfall)) => shortfall.least,
        Ok(_) => 0,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Weights, ring and needs stay within the budget; each tensor is placed, and tied ones
    /// together.
    #[test]
    fn the_budget_is_kept(tree in tree(), options in options(), more in 0u64..300_000_000) {
        let budget = least(&tree, &options) + more;
        let map = infer(&tree, &cpu(budget), &options).unwrap();
        let held = weights_held(&tree, &map);
        prop_assert!(needs(&options) + held + map.ring_bytes() <= budget);
        prop_assert_eq!(map.memory_bytes(), needs(&options) + held + map.ring_bytes());
        prop_assert_eq!(map.ring_bytes() % PAGE, 0);

        let mut places: HashMap<String, Residency> = HashMap::new();
        for tensor in tensors(&tree) {
            let place = map.residency(&tensor.name);
            prop_assert!(place.is_some(), "{} has no place", tensor.name);
            let first = *places.entry(key(tensor)).or_insert(place.unwrap());
            prop_assert_eq!(Some(first), place, "{} is split", key(tensor));
        }
        prop_assert_eq!(map.blocks().len(), tree.blocks.len());
    }

    /// Small tensors stay; what is only read by rows does so after all that streams; and what stays
    /// does so with any larger budget. A block is on `cpu` if all of it stays.
    #[test]
    fn what_stays_is_nested(
        tree in tree(), options in options(), more in 0u64..300_000_000, yet_more in 0u64..100_000_000,
    ) {
        let budget = least(&tree, &options) + more;
        let map = infer(&tree, &cpu(budget), &options).unwrap();
        let larger = infer(&tree, &cpu(budget + yet_more), &options).unwrap();
        let mut sizes: HashMap<String, u64> = HashMap::new();
        let mut streams: HashSet<String> = HashSet::new();
        let mut only_stay: HashSet<String> = HashSet::new();
        for tensor in tensors(&tree) {
            let bytes = sizes.entry(key(tensor)).or_default();
            *bytes = tensor.bytes.max(*bytes);
            if tensor.access != Access::Rows {
                streams.insert(key(tensor));
            }
            if tensor.always_resident {
                only_stay.insert(key(tensor));
            }
        }
        let (mut rows_stay, mut any_streams) = (false, false);
        for tensor in tensors(&tree) {
            let stays = resident(&map, tensor);
            prop_assert!(!stays || resident(&larger, tensor), "{} left", tensor.name);
            if sizes[&key(tensor)] < options.small_tensor || only_stay.contains(&key(tensor)) {
                prop_assert!(stays, "{} is small or can only stay", tensor.name);
            } else if streams.contains(&key(tensor)) {
                any_streams |= !stays;
            } else {
                rows_stay |= stays;
            }
        }
        prop_assert!(!(rows_stay && any_streams), "rows stay while others stream");
        for (placed, block) in map.blocks().iter().zip(&tree.blocks) {
            let all = block.tensors.iter().all(|tensor| resident(&map, tensor));
            prop_assert_eq!(placed.tier, if all { Tier::Cpu } else { Tier::Disk });
        }
    }

    /// The ring holds two of the largest units that are streamed, or all of them; it is no larger
    /// than of use, and nothing of the budget is left for that.
    #[test]
    fn the_ring_streams_well(tree in tree(), options in options(), more in 0u64..300_000_000) {
        let budget = least(&tree, &options) + more;
        let map = infer(&tree, &cpu(budget), &options).unwrap();
        let (mut largest, mut fewest, mut most) = (0, 0u64, 0u64);
        let mut held: HashMap<&str, Vec<u64>> = HashMap::new();
        for tensor in tensors(&tree).filter(|tensor| !resident(&map, tensor)) {
            let unit = match tensor.access {
                Access::Whole => tensor.bytes,
                Access::Tiles => tensor.bytes.min(options.tile_bytes.max(tensor.row_bytes)),
                Access::Rows => continue,
            };
            largest = pages(unit).max(largest);
            let holder: &mut Vec<u64> = held
                .entry(tensor.name.rsplit_once('.').unwrap().0)
                .or_default();
            holder.push(pages(unit));
            fewest = fewest.saturating_add(pages(tensor.bytes));
            // Rows of more than half a tile leave each tile with one.
            let tiles = 1 + 2 * tensor.bytes.div_ceil(options.tile_bytes.max(1));
            most = most.saturating_add(pages(tensor.bytes) + tiles * 2 * PAGE);
        }
        let ring = map.ring_bytes();
        prop_assert!(ring >= (2 * largest).min(fewest), "{ring} for units of {largest}");
        for mut units in held.into_values().filter(|units| units.len() > 1) {
            units.sort_unstable();
            units.reverse();
            prop_assert!(ring >= (2 * units[0] + units[1]).min(fewest), "{ring} for {units:?}");
        }
        prop_assert!(ring >= options.min_ring.min(fewest));
        prop_assert!(ring <= most);
        prop_assert!(ring == 0 || largest > 0);
        if ring < fewest {
            prop_assert!(budget - map.memory_bytes() < PAGE, "some of the budget is idle");
        }
    }

    /// A larger budget never streams more, and enough of it streams nothing.
    #[test]
    fn more_budget_never_streams_more(tree in tree(), options in options(), steps in prop::collection::vec(0u64..60_000_000, 1..8)) {
        let mut budget = least(&tree, &options);
        let mut before = u64::MAX;
        for step in steps {
            budget += step;
            let streamed = infer(&tree, &cpu(budget), &options).unwrap().streamed_bytes();
            prop_assert!(streamed <= before, "{before} became {streamed} at {budget}");
            before = streamed;
        }
        let all = infer(&tree, &Budget::default(), &options).unwrap();
        prop_assert_eq!((all.streamed_bytes(), all.ring_bytes()), (0, 0));
        prop_assert!(tensors(&tree).all(|tensor| resident(&all, tensor)));
        let same = infer(&tree, &cpu(all.memory_bytes()), &options).unwrap();
        prop_assert!(tensors(&tree).all(|tensor| resident(&same, tensor)));
    }

    /// The budget that an error names is enough, and one byte less is not.
    #[test]
    fn the_least_budget_is_exact(tree in tree(), options in options(), at in any::<prop::sample::Index>()) {
        let least = least(&tree, &options);
        prop_assert!(infer(&tree, &cpu(least), &options).is_ok());
        if least > 0 {
            for less in [least - 1, at.index(least as usize) as u64] {
                let Err(Error::TooSmall(shortfall)) = infer(&tree, &cpu(less), &options) else {
                    panic!("{less} bytes were enough, not {least}");
                };
                prop_assert_eq!(shortfall.least, least);
                prop_assert_eq!(shortfall.budget, less);
                prop_assert_eq!(needs(&options) + shortfall.ring + shortfall.resident, least);
            }
        }
    }

    /// What is streamed is what each use of a streamed tensor reads, single rows excepted.
    #[test]
    fn sums_are_right(tree in tree(), options in options(), more in 0u64..300_000_000) {
        let map = infer(&tree, &cpu(least(&tree, &options) + more), &options).unwrap();
        let streamed: u64 = tensors(&tree)
            .filter(|tensor| !resident(&map, tensor) && tensor.access != Access::Rows)
            .map(|tensor| tensor.stored_bytes)
            .sum();
        prop_assert_eq!(map.streamed_bytes(), streamed);
        let mut sizes: HashMap<String, (u64, bool)> = HashMap::new();
        for tensor in tensors(&tree) {
            let size = sizes.entry(key(tensor)).or_default();
            *size = (tensor.bytes.max(size.0), resident(&map, tensor));
        }
        prop_assert_eq!(map.total_bytes(), sizes.values().map(|size| size.0).sum::<u64>());
        let staying = sizes.values().filter(|size| size.1).map(|size| size.0).sum::<u64>();
        prop_assert_eq!(map.resident_bytes(), staying);
    }

    /// The picture keeps to its width, if that is not too small for anything.
    #[test]
    fn pictures_fit(tree in tree(), options in options(), more in 0u64..300_000_000, width in 45usize..150) {
        let map = infer(&tree, &cpu(least(&tree, &options) + more), &options).unwrap();
        let picture = map.picture(width);
        prop_assert!(picture.chars().count() <= width, "{picture}");
    }

    /// Whatever the sizes and options, there is a plan or an error, never an overflow.
    #[test]
    fn hostile_numbers_are_errors(
        sizes in prop::collection::vec((any::<u64>(), any::<u64>(), access()), 0..6),
        [process, kv_cache, staging_bytes, tile_bytes, small_tensor, min_ring, budget] in any::<[u64; 7]>(),
    ) {
        let tree = Tree {
            staging_bytes,
            blocks: vec![Block {
                name: String::new(),
                tensors: sizes
                    .into_iter()
                    .enumerate()
                    .map(|(at, (bytes, stored_bytes, access))| Tensor {
                        name: at.to_string(),
                        // Of all magnitudes.
                        bytes: bytes >> (stored_bytes % 64),
                        stored_bytes: stored_bytes >> (bytes % 64),
                        row_bytes: stored_bytes.rotate_left(17) >> (bytes % 64),
                        access,
                        ..Tensor::default()
                    })
                    .collect(),
                ..Block::default()
            }],
            ..Tree::default()
        };
        let options = Options {
            needs: MemoryOverhead { process: process >> 2, kv_cache: kv_cache >> 2, ..MemoryOverhead::default() },
            tile_bytes: tile_bytes >> (budget % 64),
            small_tensor,
            min_ring: min_ring >> (process % 64),
            ..Options::default()
        };
        if let Ok(map) = infer(&tree, &cpu(budget), &options) {
            prop_assert!(map.memory_bytes() <= budget);
            map.picture(80);
        }
    }
}
