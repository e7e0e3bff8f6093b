use crate::auto;
use crate::groups::Groups;
use crate::placement::{CpuCapacity, Placement, PlanContext, Score, Streaming};
use crate::steps::{Departed, ResidencyOrder};
use crate::{
    Assignment, Budget, ChosenBy, DeviceMap, Error, MemoryOverhead, Options, Shortfall, Strategy,
    Tensor, Tier, Tree, assign,
};

/// Decides where each tensor of `tree` lives and where each block computes, so that weights, rings,
/// KV cache and needs stay within the budget.
///
/// With [`Strategy::Auto`] it is the placement with the least predicted time for each token, of
/// those that fit; of equals the one with the least for the prompt, then the one with the fewest
/// devices. With several GPUs, each computes blocks that follow one another. What is on no GPU
/// stays in main memory tensor by tensor, as much as fits beside the ring that the others need:
/// twice the largest unit that is streamed, so that one is read while the other is used, and room
/// for any two that one module holds, such as a weight and its bias. Which tensors stay is spread
/// over the blocks where that is never slower, as with layers of equal size; memory is filled in
/// the order of execution otherwise. What is left of the budget enlarges the ring, which keeps what
/// it can from one pass to the next. Small tensors always stay, and so do those that [can only
/// stay](crate::Tensor::always_resident). Tensors that share their memory stay together. A larger
/// budget is never predicted slower, and without GPUs it never streams more.
///
/// The other strategies are Accelerate's, see [`assign`], and what they decide is carried out as
/// [`from_assignment`] says. Rings and whole pages, of which they know nothing, are taken off the
/// budgets that they are given.
///
/// # Errors
/// [`Error::TooSmall`] with the least budget that would do; [`Error::MustFit`] if something would
/// be on disk that may not; [`Error::Duplicate`] and [`Error::TooLarge`] for impossible trees.
pub fn infer(tree: &Tree, budget: &Budget, options: &Options) -> Result<DeviceMap, Error> {
    if options.strategy != Strategy::Auto {
        return assigned(tree, budget, options);
    }
    let options = &options.adjusted(tree);
    let context = PlanContext::new(tree, budget, options)?;
    let placement = auto::choose(&context)?;
    let chosen_by = ChosenBy::Strategy(Strategy::Auto);
    Ok(DeviceMap::new(&context, &placement, budget, chosen_by))
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

/// As [`infer`], but `stays` says which tensors stay in main memory. Tensors that share their
/// memory stay if one of them does; those that can only stay do so whatever it says. Without a
/// budget the ring has the size that the streamed ones need. GPUs are not used.
///
/// # Errors
/// As [`infer`].
pub fn place(
    tree: &Tree,
    budget: &Budget,
    options: &Options,
    mut stays: impl FnMut(&Tensor) -> bool,
) -> Result<DeviceMap, Error> {
    let options = &options.adjusted(tree);
    let mut without_gpus = Budget::default();
    for (tier, bytes) in budget
        .iter()
        .filter(|(tier, _)| !matches!(tier, Tier::Gpu(_)))
    {
        without_gpus.set(tier, bytes);
    }
    let context = PlanContext::new(tree, &without_gpus, options)?;
    let mut tiers = vec![Tier::Disk; context.groups.groups.len()];
    for (tensor, at) in tree.tensors().zip(&context.groups.of_tensor) {
        if stays(tensor) || context.groups.groups[*at].only_stays {
            tiers[*at] = Tier::Cpu;
        }
    }
    let placement = fixed(&context, &without_gpus, tiers, Streaming::None)?;
    Ok(DeviceMap::new(
        &context,
        &placement,
        &without_gpus,
        ChosenBy::Manual,
    ))
}

/// The map in which tensors live where `assignment` says, as one of Accelerate's strategies or a
/// person chose.
///
/// A block of which anything is on a GPU computes there: on the one that holds most of it, to which
/// the rest is copied in each pass. What is on no GPU computes on the CPU, or is streamed to the
/// last of the GPUs if that is predicted to be faster and there is room. Small tensors and those
/// that can only stay are kept in main memory rather than on disk. What is left of main memory is
/// the ring's. A GPU without a budget is not bounded.
///
/// # Errors
/// [`Error::Assignment`] if it is none of this tree, [`Error::Tied`] if tensors that share their
/// memory are not together, [`Error::TooSmall`] for a device that cannot hold what it should, and
/// the rest as for [`infer`].
pub fn from_assignment(
    tree: &Tree,
    assignment: &Assignment,
    budget: &Budget,
    options: &Options,
) -> Result<DeviceMap, Error> {
    let options = &options.adjusted(tree);
    let mut context = PlanContext::new(tree, budget, options)?;
    for tier in &assignment.tiers {
        if let Tier::Gpu(number) = *tier {
            // Without a budget it is not bounded; with one that is too small, nothing fits.
            let most = budget.get(*tier).map_or(u64::MAX, |_| 0);
            context.capacities.add_gpu(number, most, &options.figures);
        }
    }
    let context = context;
    let tiers = tiers_of_groups(tree, &context.groups, assignment)?;
    // Whether it fits is decided without streaming to a GPU; that is tried for speed.
    let mut best = fixed(&context, budget, tiers.clone(), Streaming::None);
    if let Some(last) = context.capacities.gpus.len().checked_sub(1) {
        for streaming in [Streaming::Prefill(last), Streaming::Both(last)] {
            let other = fixed(&context, budget, tiers.clone(), streaming);
            let score = |placement: &Placement| -> Score { context.score(&placement.blocks) };
            best = match (best, other) {
                (Ok(best), Ok(other)) if score(&other).beats(&score(&best)) => Ok(other),
                (Err(_), Ok(other)) => Ok(other),
                (best, _) => best,
            };
        }
    }
    Ok(DeviceMap::new(
        &context,
        &best?,
        budget,
        assignment.chosen_by,
    ))
}

/// Where each group lives by an assignment; what is never streamed, in main memory rather than on
/// disk.
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

/// The placement with groups where `tiers` says, if it fits; what is left of main memory is the
/// ring's.
fn fixed(
    context: &PlanContext<'_>,
    budget: &Budget,
    tiers: Vec<Tier>,
    streaming: Streaming,
) -> Result<Placement, Error> {
    let groups = &context.groups;
    let order = ResidencyOrder::together(groups);
    let mut streamed = Departed::new(groups, context.options.min_ring);
    // Whoever chose may let small tensors stream, which no order does.
    let small = (0..tiers.len()).filter(|at| groups.groups[*at].stays);
    let all: Vec<usize> = small.chain(order.groups()).collect();
    for at in all.into_iter().rev().filter(|at| tiers[*at] == Tier::Disk) {
        streamed.add(at);
    }
    let set = streamed.set_with(0);
    let holding = context.gpus_of_blocks(&tiers);
    let placement = context.placement(tiers.clone(), &holding, &set, streaming);
    let map = DeviceMap::new(context, &placement, budget, ChosenBy::Manual);
    let mut left = 0;
    for held in map.tiers() {
        // What may be held, and what is.
        let (most, taken) = match (held.tier, context.capacities.cpu, budget.get(held.tier)) {
            (Tier::Disk, ..) | (Tier::Cpu, CpuCapacity::Unbounded, _) => continue,
            (Tier::Cpu, CpuCapacity::Unused, _) => {
                let passing = held.ring.saturating_add(held.kv_cache);
                (0, held.weights.saturating_add(passing))
            }
            (_, _, None) => continue,
            (.., Some(most)) => (most, held.sum().saturating_add(context.options.reserve)),
        };
        if taken > most {
            return Err(Error::TooSmall(Shortfall {
                tier: held.tier,
                budget: most,
                least: taken,
                needs: match held.tier {
                    Tier::Cpu => *map.needs(),
                    _ => MemoryOverhead {
                        kv_cache: held.kv_cache,
                        activations: held.activations,
                        ..MemoryOverhead::default()
                    },
                },
                ring: held.ring,
                resident: held.weights,
                reserve: context.options.reserve,
            }));
        }
        if held.tier == Tier::Cpu {
            left = most - taken;
        }
    }
    let on_disk = map.tiers().last().map_or(0, |disk| disk.weights);
    if let Some(most) = context.capacities.disk.filter(|most| on_disk > *most) {
        return Err(Error::OnDisk {
            bytes: on_disk,
            most,
        });
    }
    Ok(context.placement(tiers, &holding, &streamed.set_with(left), streaming))
}
