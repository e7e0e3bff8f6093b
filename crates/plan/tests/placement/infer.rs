//! What `infer` and `place` decide.

use crate::common::{block, cpu, tree};
use outsize_plan::{
    Access, Budget, DeviceMap, Error, MemoryOverhead, Options, Residency, Tensor, Tier, Tree,
    infer, place, unit_footprint,
};

const MIB: u64 = 1 << 20;

fn tensor(name: &str, bytes: u64, access: Access) -> Tensor {
    Tensor { access, ..crate::common::tensor(name, bytes) }
}

/// An embedding read by rows, four layers of a 10 MiB tensor and a norm, and a head by tiles.
fn model() -> Tree {
    let mut blocks = vec![block("embed", vec![tensor("embed.w", 40 * MIB, Access::Rows)])];
    for n in 0..4 {
        blocks.push(block(
            &format!("layers.{n}"),
            vec![
                tensor(&format!("layers.{n}.norm"), 1024, Access::Whole),
                tensor(&format!("layers.{n}.w"), 10 * MIB, Access::Whole),
            ],
        ));
    }
    blocks.push(block("head", vec![tensor("head.w", 40 * MIB, Access::Tiles)]));
    tree(blocks)
}

fn resident(map: &DeviceMap) -> Vec<&str> {
    map.blocks()
        .iter()
        .filter(|block| block.tier == Tier::Cpu)
        .map(|block| block.name.as_str())
        .collect()
}

#[test]
fn without_a_budget_everything_stays() {
    let map = infer(&model(), &Budget::default(), &Options::default()).unwrap();
    assert_eq!((map.ring_bytes(), map.streamed_bytes()), (0, 0));
    assert_eq!(resident(&map).len(), 6);
}

#[test]
fn layers_stay_in_order_and_the_rest_goes_to_the_ring() {
    let layer = unit_footprint(10 * MIB);
    let norms = 4 * unit_footprint(1024);
    // One layer beside the ring, and a little more.
    let map = infer(&model(), &cpu(norms + 3 * layer + 5000), &Options::default()).unwrap();
    assert_eq!(resident(&map), ["layers.0"]);
    assert_eq!(map.ring_bytes(), 2 * layer + 4096);
    assert_eq!(map.streamed_bytes(), 70 * MIB);
    assert_eq!(map.residency("layers.3.norm"), Some(Residency::Resident(Tier::Cpu)));
    assert_eq!(map.residency("layers.3.w"), Some(Residency::Streamed));
    assert_eq!(map.residency("layers.4.w"), None);
}

#[test]
fn the_ring_shrinks_with_what_is_streamed() {
    // With all layers resident the ring needs two tiles, less than two layers.
    let tile = unit_footprint(4 * MIB);
    let layers = 4 * unit_footprint(10 * MIB) + 4 * unit_footprint(1024);
    let map = infer(&model(), &cpu(layers + 2 * tile), &Options::default()).unwrap();
    assert_eq!(resident(&map), ["layers.0", "layers.1", "layers.2", "layers.3"]);
    assert_eq!(map.ring_bytes(), 2 * tile);
    let map = infer(&model(), &cpu(layers + 2 * tile - 1), &Options::default()).unwrap();
    assert_eq!(resident(&map), ["layers.0", "layers.1"]);
}

#[test]
fn rows_come_last_and_need_no_ring() {
    let all_but_rows =
        4 * unit_footprint(10 * MIB) + 4 * unit_footprint(1024) + unit_footprint(40 * MIB);
    let map = infer(&model(), &cpu(all_but_rows), &Options::default()).unwrap();
    assert_eq!((map.ring_bytes(), map.streamed_bytes()), (0, 0));
    assert_eq!(map.residency("embed.w"), Some(Residency::Streamed));
    let all = all_but_rows + unit_footprint(40 * MIB);
    let map = infer(&model(), &cpu(all), &Options::default()).unwrap();
    assert_eq!(resident(&map).len(), 6);
    let map = infer(&model(), &cpu(all - 1), &Options::default()).unwrap();
    assert_eq!(map.residency("embed.w"), Some(Residency::Streamed));
}

#[test]
fn tied_tensors_take_memory_once_and_stay_together() {
    let mut tree = model();
    for at in [0, 5] {
        tree.blocks[at].tensors[0].tied = Some("embed".to_string());
    }
    let all = 4 * unit_footprint(10 * MIB) + 4 * unit_footprint(1024) + unit_footprint(40 * MIB);
    let map = infer(&tree, &cpu(all), &Options::default()).unwrap();
    assert_eq!(resident(&map).len(), 6);
    assert_eq!(map.resident_bytes(), 80 * MIB + 4096);
    let least = 2 * unit_footprint(10 * MIB) + 4 * unit_footprint(1024);
    for budget in [all - 1, least] {
        let map = infer(&tree, &cpu(budget), &Options::default()).unwrap();
        assert_eq!(map.residency("embed.w"), map.residency("head.w"));
    }
    let map = infer(&tree, &cpu(least), &Options::default()).unwrap();
    // The embedding's use by rows does not count.
    assert_eq!(map.streamed_bytes(), 80 * MIB);
}

#[test]
fn what_can_only_stay_does() {
    let mut tree = model();
    tree.blocks[4].tensors[1].always_resident = true;
    let error = infer(&tree, &cpu(0), &Options::default()).unwrap_err();
    let Error::TooSmall(shortfall) = error else {
        panic!("{error}");
    };
    assert!(shortfall.resident >= 10 * MIB);
    let map = infer(&tree, &cpu(shortfall.least), &Options::default()).unwrap();
    assert_eq!(resident(&map), ["layers.3"]);
    let map = place(&tree, &Budget::default(), &Options::default(), |_| false).unwrap();
    assert_eq!(map.resident_bytes(), 10 * MIB);
    assert_eq!(map.residency("layers.3.w"), Some(Residency::Resident(Tier::Cpu)));
}

#[test]
fn a_module_can_hold_its_two_largest() {
    let mut tree = model();
    let options = Options { small_tensor: 0, ..Options::default() };
    let (layer, norm) = (unit_footprint(10 * MIB), unit_footprint(1024));
    let least = |tree: &Tree| match infer(tree, &cpu(0), &options) {
        Err(Error::TooSmall(shortfall)) => shortfall.least,
        other => panic!("{other:?}"),
    };
    assert_eq!(least(&tree), 2 * layer + norm);
    tree.blocks[2].tensors[0].bytes = 10 * MIB;
    assert_eq!(least(&tree), 3 * layer);
    // Of another module: these are not held together.
    tree.blocks[2].tensors[0].name = "other.norm".to_string();
    assert_eq!(least(&tree), 2 * layer + norm);
}

#[test]
fn somebody_else_can_choose() {
    let stays = |tensor: &Tensor| tensor.name == "layers.2.w";
    let map = place(&model(), &Budget::default(), &Options::default(), stays).unwrap();
    assert_eq!(map.resident_bytes(), 10 * MIB);
    assert_eq!(map.ring_bytes(), 2 * unit_footprint(10 * MIB) + unit_footprint(1024));
    let least = map.memory_bytes();
    assert!(place(&model(), &cpu(least), &Options::default(), stays).is_ok());
    assert!(matches!(
        place(&model(), &cpu(least - 1), &Options::default(), stays),
        Err(Error::TooSmall(shortfall)) if shortfall.least == least
    ));
}

#[test]
fn needs_and_the_least_ring_count() {
    let options = Options {
        needs: MemoryOverhead { kv_cache: 3 * MIB, ..MemoryOverhead::default() },
        min_ring: 30 * MIB + 1,
        ..Options::default()
    };
    let least = 3 * MIB + 4 * unit_footprint(1024) + 30 * MIB + 4096;
    let map = infer(&model(), &cpu(least), &options).unwrap();
    assert_eq!(map.ring_bytes(), 30 * MIB + 4096);
    let error = infer(&model(), &cpu(least - 1), &options).unwrap_err();
    assert!(error.to_string().contains(&format!("cpu={least} ")), "{error}");
    assert!(error.to_string().contains("shorten the context"), "{error}");
}

#[test]
fn a_reserve_beyond_the_budget_is_refused_with_the_budget_as_given() {
    let options = Options { reserve: 100 * MIB, ..Options::default() };
    let Err(Error::TooSmall(shortfall)) = infer(&model(), &cpu(50 * MIB), &options) else {
        panic!("50 MiB were enough for a reserve of 100");
    };
    assert_eq!(shortfall.budget, 50 * MIB);
    assert!(shortfall.least > 100 * MIB);
    let map = infer(&model(), &cpu(shortfall.least), &options).unwrap();
    assert!(map.memory_bytes() + 100 * MIB <= shortfall.least);
}

#[test]
fn what_readers_need_counts_once() {
    let tree = Tree { staging_bytes: 1000, ..Tree::default() };
    let needs = |readers, tree: &Tree| {
        let options = Options {
            needs: MemoryOverhead { readers, ..MemoryOverhead::default() },
            ..Options::default()
        };
        let map = infer(tree, &Budget::default(), &options).unwrap();
        map.needs().readers
    };
    assert_eq!(needs(0, &tree), 1000);
    assert_eq!(needs(3000, &tree), 3000);
}

#[test]
fn needs_that_exceed_the_budget_alone_are_too_much() {
    let options = Options {
        needs: MemoryOverhead { process: 100, ..MemoryOverhead::default() },
        ..Options::default()
    };
    let empty = Tree::default();
    assert!(infer(&empty, &cpu(100), &options).is_ok());
    let Err(Error::TooSmall(shortfall)) = infer(&empty, &cpu(99), &options) else {
        panic!("99 bytes were enough for 100");
    };
    assert_eq!(shortfall.least, 100);
}

#[test]
fn impossible_trees_are_refused() {
    let plan = |tree: &Tree| infer(tree, &cpu(u64::MAX), &Options::default());
    let mut tree = model();
    tree.blocks[1].name = "embed".to_string();
    assert!(matches!(plan(&tree), Err(Error::Duplicate { what: "block", .. })));
    let mut tree = model();
    tree.blocks[1].tensors[0].name = "embed.w".to_string();
    assert!(matches!(plan(&tree), Err(Error::Duplicate { what: "tensor", .. })));
    for bytes in [u64::MAX, u64::MAX / 2, u64::MAX / 3 + 1] {
        let mut tree = model();
        tree.blocks[2].tensors[0].bytes = bytes;
        assert!(matches!(plan(&tree), Err(Error::TooLarge { .. })), "{bytes}");
    }
    let mut tree = model();
    tree.blocks[2].tensors[0].stored_bytes = u64::MAX;
    assert!(matches!(plan(&tree), Err(Error::TooLarge { .. })));
}
