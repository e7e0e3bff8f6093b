use crate::auto;
use crate::groups::{Groups, Streamed};
use crate::placement::{CpuRoom, Placement, Scene, Score, Streaming};
use crate::steps::{Fit, Order};
use crate::tree::PAGE;
use crate::{
    Assignment, Budget, DeviceMap, Error, Needs, Options, Shortfall, Strategy, Tensor, Tier, Tree,
    assign,
};

/// Decides where each tensor of `tree` lives and where each block computes, so that weights, rings, KV cache and needs stay
/// within the budget.
///
/// With [`Strategy::Auto`] it is the placement with the least predicted time for each token, of those that fit; of equals the one
/// with the least for the prompt, then the one with the fewest devices. With several GPUs, each computes blocks that follow one
/// another. What is on no GPU stays in main memory tensor by tensor, as much as fits beside the ring that the others
/// need: twice the largest unit that is streamed, so that one is read while the other is used, and room for any two that
/// one module holds, such as a weight and its bias. Which tensors stay is spread over the blocks where that is never slower, as
/// with layers of equal size; memory is filled in the order of execution otherwise. What is left of the budget enlarges
/// the ring, which keeps what it can from one pass to the next. Small tensors always stay, and so do those that
/// [can only stay](crate::Tensor::always_resident). Tensors that share their memory stay together. A larger budget is never
/// predicted slower, and without GPUs it never streams more.
///
/// The other strategies are Accelerate's, see [`assign`], and what they decide is carried out as
/// [`from_assignment`] says. Rings and whole pages, of which they know nothing, are taken off the budgets that they are
/// given.
///
/// # Errors
/// [`Error::TooSmall`] with the least budget that would do; [`Error::MustFit`] if something would be on disk that may not;
/// [`Error::Duplicate`] and [`Error::TooLarge`] for impossible trees.
pub fn infer(tree: &Tree, budget: &Budget, options: &Options) -> Result<DeviceMap, Error> {
    if options.strategy != Strategy::Auto {
        return assigned(tree, budget, options);
    }
    let options = &tree.adjust(options);
    let scene = Scene::new(tree, budget, options)?;
    let placement = auto::choose(&scene)?;
    Ok(DeviceMap::new(&scene, &placement, budget, Strategy::Auto))
}

/// How often a strategy of Accelerate's is asked again with less.
const ATTEMPTS: usize = 16;

/// The map of a strategy of Accelerate's.
fn assigned(tree: &Tree, budget: &Budget, options: &Options) -> Result<DeviceMap, Error> {
    let mut given = budget.clone();
    if given.get(Tier::Cpu).is_none() {
        given.set(Tier::Cpu, u64::MAX);
    }
    for _ in 1..ATTEMPTS {
        let assignment = assign(tree, &given, options)?;
        match from_assignment(tree, &assignment, budget, options) {
            Err(Error::TooSmall(Shortfall {
                tier,
                budget,
                least,
                ..
            })) if budget > 0 => {
                let Some(now) = given.get(tier).filter(|now| *now > 0) else {
                    break;
                };
                given.set(tier, now.saturating_sub(least - budget));
            }
            outcome => return outcome,
        }
    }
    from_assignment(tree, &assign(tree, &given, options)?, budget, options)
}

/// As [`infer`], but `stays` says which tensors stay in main memory. Tensors that share their memory stay if
/// one of them does; those that can only stay do so whatever it says. Without a budget the ring has the size
/// that the streamed ones need. GPUs are not used.
///
/// # Errors
/// As [`infer`].
pub fn place(
    tree: &Tree,
    budget: &Budget,
    options: &Options,
    mut stays: impl FnMut(&Tensor) -> bool,
) -> Result<DeviceMap, Error> {
    let options = &tree.adjust(options);
    let mut without_gpus = Budget::default();
    for (tier, bytes) in budget
        .iter()
        .filter(|(tier, _)| !matches!(tier, Tier::Gpu(_)))
    {
        without_gpus.set(tier, bytes);
    }
    let scene = Scene::new(tree, &without_gpus, options)?;
    let mut tiers = vec![Tier::Disk; scene.groups.groups.len()];
    for (tensor, at) in tree.tensors().zip(&scene.groups.of_tensor) {
        if stays(tensor) || scene.groups.groups[*at].only_stays {
            tiers[*at] = Tier::Cpu;
        }
    }
    let placement = fixed(&scene, &without_gpus, tiers, Streaming::None)?;
    Ok(DeviceMap::new(
        &scene,
        &placement,
        &without_gpus,
        Strategy::Auto,
    ))
}

/// The map in which tensors live where `assignment` says, as one of Accelerate's strategies or a person chose.
///
/// A block of which anything is on a GPU computes there: on the one that holds most of it, to which the rest is copied in
/// each pass. What is on no GPU computes on the CPU, or is streamed to the last of the GPUs if that is predicted to be
/// faster and there is room. Small tensors and those that can only stay are kept in main memory rather than on disk.
/// What is left of main memory is the ring's. A GPU without a budget is not bounded.
///
/// # Errors
/// [`Error::Assignment`] if it is none of this tree, [`Error::Tied`] if tensors that share their memory are not together,
/// [`Error::TooSmall`] for a device that cannot hold what it should, and the rest as for [`infer`].
pub fn from_assignment(
    tree: &Tree,
    assignment: &Assignment,
    budget: &Budget,
    options: &Options,
) -> Result<DeviceMap, Error> {
    let strategy = options.strategy;
    let options = &tree.adjust(options);
    let mut scene = Scene::new(tree, budget, options)?;
    for tier in &assignment.tiers {
        if let (Tier::Gpu(number), None) = (*tier, budget.get(*tier)) {
            scene.rooms.add_unbounded(number, &options.figures);
        }
    }
    let scene = scene;
    let tiers = tiers_of_groups(tree, &scene.groups, assignment)?;
    // Whether it fits is decided without streaming to a GPU; that is tried for speed.
    let mut best = fixed(&scene, budget, tiers.clone(), Streaming::None);
    if let Some(last) = scene.rooms.gpus.len().checked_sub(1) {
        for streaming in [Streaming::Prefill(last), Streaming::Both(last)] {
            let other = fixed(&scene, budget, tiers.clone(), streaming);
            let score = |placement: &Placement| -> Score { scene.score(&placement.blocks) };
            best = match (best, other) {
                (Ok(best), Ok(other)) if score(&other).beats(&score(&best)) => Ok(other),
                (Err(_), Ok(other)) => Ok(other),
                (best, _) => best,
            };
        }
    }
    Ok(DeviceMap::new(&scene, &best?, budget, strategy))
}

/// Where each group lives by an assignment; what is never streamed, in main memory rather than on disk.
fn tiers_of_groups(
    tree: &Tree,
    groups: &Groups,
    assignment: &Assignment,
) -> Result<Vec<Tier>, Error> {
    let (expected, found) = (groups.of_tensor.len(), assignment.tiers.len());
    if expected != found {
        return Err(Error::Assignment { expected, found });
    }
    let mut chosen: Vec<Option<(Tier, &Tensor)>> = vec![None; groups.groups.len()];
    let tensors = tree.tensors().zip(&groups.of_tensor);
    for ((tensor, at), tier) in tensors.zip(&assignment.tiers) {
        let (first_tier, first) = *chosen[*at].get_or_insert((*tier, tensor));
        if first_tier != *tier {
            return Err(Error::Tied {
                name: first.name.clone(),
                tier: first_tier,
                other: tensor.name.clone(),
                other_tier: *tier,
            });
        }
    }
    let chosen = chosen.into_iter().zip(&groups.groups);
    Ok(chosen
        .map(|(chosen, group)| match chosen {
            Some((Tier::Disk, _)) | None if group.stays => Tier::Cpu,
            Some((tier, _)) => tier,
            None => Tier::Disk,
        })
        .collect())
}

/// The placement with groups where `tiers` says, if it fits; what is left of main memory is the ring's.
fn fixed(
    scene: &Scene<'_>,
    budget: &Budget,
    tiers: Vec<Tier>,
    streaming: Streaming,
) -> Result<Placement, Error> {
    let groups = &scene.groups;
    let order = Order::together(groups);
    let mut rest = Streamed::new(groups, scene.options.min_ring);
    // Whoever chose may let small tensors stream, which no order does.
    let small = (0..tiers.len()).filter(|at| groups.groups[*at].stays);
    let streamed: Vec<usize> = small
        .chain(order.groups())
        .filter(|at| tiers[*at] == Tier::Disk)
        .collect();
    for at in &streamed {
        rest.add(&groups.groups[*at]);
    }
    let fit = Fit::new(groups, streamed.clone(), rest.ring(), &rest);
    let holding = scene.gpus_of_blocks(&tiers);
    let placement = scene.placement(tiers.clone(), &holding, &fit, streaming);
    let map = DeviceMap::new(scene, &placement, budget, Strategy::Auto);
    let on_gpus = tiers.iter().filter(|tier| matches!(tier, Tier::Gpu(_)));
    if let Some(tier) = on_gpus
        .copied()
        .find(|tier| map.tiers().iter().all(|held| held.tier != *tier))
    {
        let all = tiers
            .iter()
            .zip(&groups.groups)
            .filter(|(on, _)| **on == tier);
        let resident = all.map(|(_, group)| group.bytes).sum::<u64>();
        return Err(Error::TooSmall(Shortfall {
            tier,
            budget: budget.get(tier).unwrap_or(0),
            least: resident
                .saturating_add(scene.options.gpu_activations)
                .saturating_add(scene.options.reserve),
            needs: Needs {
                activations: scene.options.gpu_activations,
                ..Needs::default()
            },
            ring: 0,
            resident,
            reserve: scene.options.reserve,
        }));
    }
    let reserve = scene.options.reserve;
    let mut left = 0;
    for held in map.tiers() {
        let cpu = held.tier == Tier::Cpu;
        let room = match (held.tier, scene.rooms.cpu) {
            (Tier::Disk, _) => continue,
            (Tier::Cpu, CpuRoom::Unbounded) => continue,
            (Tier::Cpu, CpuRoom::Unused) => 0,
            (tier, _) => match budget.get(tier) {
                Some(bytes) => bytes,
                None => continue,
            },
        };
        let taken = match (held.tier, scene.rooms.cpu) {
            (Tier::Cpu, CpuRoom::Unused) => held
                .weights
                .saturating_add(held.ring)
                .saturating_add(held.kv_cache),
            _ => held.sum().saturating_add(reserve),
        };
        if taken > room {
            return Err(Error::TooSmall(Shortfall {
                tier: held.tier,
                budget: room,
                least: taken,
                needs: match cpu {
                    true => *map.needs(),
                    false => Needs {
                        kv_cache: held.kv_cache,
                        activations: held.activations,
                        ..Needs::default()
                    },
                },
                ring: held.ring,
                resident: held.weights,
                reserve,
            }));
        }
        if cpu {
            left = room - taken;
        }
    }
    let on_disk = map.tiers().last().map_or(0, |disk| disk.weights);
    if let Some(most) = scene.rooms.disk.filter(|most| on_disk > *most) {
        return Err(Error::OnDisk {
            bytes: on_disk,
            most,
        });
    }
    let ring = (fit.ring.saturating_add(left)) / PAGE * PAGE;
    let fit = Fit::new(groups, streamed, ring, &rest);
    Ok(scene.placement(tiers, &holding, &fit, streaming))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, Block, Residency, unit_footprint};

    const MIB: u64 = 1 << 20;

    fn tensor(name: &str, bytes: u64, access: Access) -> Tensor {
        Tensor {
            name: name.to_string(),
            bytes,
            stored_bytes: bytes,
            access,
            ..Tensor::default()
        }
    }

    fn block(name: &str, tensors: Vec<Tensor>) -> Block {
        Block {
            name: name.to_string(),
            tensors,
            ..Block::default()
        }
    }

    /// An embedding read by rows, four layers of a 10 MiB tensor and a norm, and a head by tiles.
    fn model() -> Tree {
        let mut blocks = vec![block(
            "embed",
            vec![tensor("embed.w", 40 * MIB, Access::Rows)],
        )];
        for n in 0..4 {
            blocks.push(block(
                &format!("layers.{n}"),
                vec![
                    tensor(&format!("layers.{n}.norm"), 1024, Access::Whole),
                    tensor(&format!("layers.{n}.w"), 10 * MIB, Access::Whole),
                ],
            ));
        }
        blocks.push(block(
            "head",
            vec![tensor("head.w", 40 * MIB, Access::Tiles)],
        ));
        Tree {
            blocks,
            ..Tree::default()
        }
    }

    fn cpu(bytes: u64) -> Budget {
        let mut budget = Budget::default();
        budget.set(Tier::Cpu, bytes);
        budget
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
        let map = infer(
            &model(),
            &cpu(norms + 3 * layer + 5000),
            &Options::default(),
        )
        .unwrap();
        assert_eq!(resident(&map), ["layers.0"]);
        assert_eq!(map.ring_bytes(), 2 * layer + 4096);
        assert_eq!(map.streamed_bytes(), 70 * MIB);
        assert_eq!(
            map.residency("layers.3.norm"),
            Some(Residency::Resident(Tier::Cpu))
        );
        assert_eq!(map.residency("layers.3.w"), Some(Residency::Streamed));
        assert_eq!(map.residency("layers.4.w"), None);
    }

    #[test]
    fn the_ring_shrinks_with_what_is_streamed() {
        // With all layers resident the ring needs two tiles, less than two layers.
        let tile = unit_footprint(4 * MIB);
        let layers = 4 * unit_footprint(10 * MIB) + 4 * unit_footprint(1024);
        let map = infer(&model(), &cpu(layers + 2 * tile), &Options::default()).unwrap();
        assert_eq!(
            resident(&map),
            ["layers.0", "layers.1", "layers.2", "layers.3"]
        );
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
        let all =
            4 * unit_footprint(10 * MIB) + 4 * unit_footprint(1024) + unit_footprint(40 * MIB);
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
        assert_eq!(
            map.residency("layers.3.w"),
            Some(Residency::Resident(Tier::Cpu))
        );
    }

    #[test]
    fn a_module_can_hold_its_two_largest() {
        let mut tree = model();
        let options = Options {
            small_tensor: 0,
            ..Options::default()
        };
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
        assert_eq!(
            map.ring_bytes(),
            2 * unit_footprint(10 * MIB) + unit_footprint(1024)
        );
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
            needs: Needs {
                kv_cache: 3 * MIB,
                ..Needs::default()
            },
            min_ring: 30 * MIB + 1,
            ..Options::default()
        };
        let least = 3 * MIB + 4 * unit_footprint(1024) + 30 * MIB + 4096;
        let map = infer(&model(), &cpu(least), &options).unwrap();
        assert_eq!(map.ring_bytes(), 30 * MIB + 4096);
        let error = infer(&model(), &cpu(least - 1), &options).unwrap_err();
        assert!(
            error.to_string().contains(&format!("cpu={least} ")),
            "{error}"
        );
        assert!(error.to_string().contains("--context"), "{error}");
    }

    #[test]
    fn a_reserve_beyond_the_budget_is_refused_with_the_budget_as_given() {
        let options = Options {
            reserve: 100 * MIB,
            ..Options::default()
        };
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
        let tree = Tree {
            staging_bytes: 1000,
            ..Tree::default()
        };
        let needs = |readers, tree: &Tree| {
            let options = Options {
                needs: Needs {
                    readers,
                    ..Needs::default()
                },
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
            needs: Needs {
                process: 100,
                ..Needs::default()
            },
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
        assert!(matches!(
            plan(&tree),
            Err(Error::Duplicate { what: "block", .. })
        ));
        let mut tree = model();
        tree.blocks[1].tensors[0].name = "embed.w".to_string();
        assert!(matches!(
            plan(&tree),
            Err(Error::Duplicate { what: "tensor", .. })
        ));
        for bytes in [u64::MAX, u64::MAX / 2, u64::MAX / 3 + 1] {
            let mut tree = model();
            tree.blocks[2].tensors[0].bytes = bytes;
            assert!(
                matches!(plan(&tree), Err(Error::TooLarge { .. })),
                "{bytes}"
            );
        }
        let mut tree = model();
        tree.blocks[2].tensors[0].stored_bytes = u64::MAX;
        assert!(matches!(plan(&tree), Err(Error::TooLarge { .. })));
    }
}
