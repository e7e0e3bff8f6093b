use crate::auto;
use crate::groups::Groups;
use crate::placement::{CpuCapacity, Placement, PlanContext, Score, Streaming};
use crate::steps::{ResidencyOrder, StreamedGroups};
use crate::{
    Assignment, Budget, ChosenBy, DeviceMap, Error, MemoryOverhead, Options, Shortfall, Strategy,
    Tensor, Tier, Tree, assign,
};

/// Decides where each tensor of `tree` lives and where each block computes, within the budget.
///
/// [`Strategy::Auto`] picks the fastest predicted placement that fits: the least time per token,
/// then the least for the prompt, then the fewest devices. Each GPU computes a run of consecutive
/// blocks. The other tensors become resident in main memory one by one, as many as fit beside the
/// ring for the rest: twice the largest unit that is streamed, so that one is read while the other
/// is used, and room for any two of one module, such as a weight and its bias. Resident tensors are
/// spread over the blocks if that is never slower, as with layers of equal size; otherwise memory
/// fills in the order of execution. The rest of the budget enlarges the ring, which keeps what it
/// can from one pass to the next. Small tensors and [those that cannot be
/// streamed](crate::Tensor::always_resident) are always resident, and tied tensors stay together. A
/// larger budget is never predicted slower (on GPUs, but for copies of activations around blocks
/// that share weights with others), and without GPUs it never streams more.
///
/// The other strategies are Accelerate's: [`assign`], then [`from_assignment`], with budgets
/// lowered by the rings and page padding that they know nothing of.
///
/// # Errors
/// [`Error::TooSmall`] with the least budget that suffices; [`Error::MustFit`] if something would
/// be on disk that may not; [`Error::Duplicate`] and [`Error::TooLarge`] for impossible trees.
pub fn infer(tree: &Tree, budget: &Budget, options: &Options) -> Result<DeviceMap, Error> {
    if options.strategy != Strategy::Auto {
        return assigned(tree, budget, options);
    }
    let options = &options.adjusted_for_gpus(tree);
    let context = PlanContext::new(tree, budget, options)?;
    let placement = auto::choose(&context)?;
    let chosen_by = ChosenBy::Strategy(Strategy::Auto);
    Ok(DeviceMap::new(&context, &placement, budget, chosen_by))
}

/// How often one of Accelerate's strategies is tried with lower budgets.
const ATTEMPTS: usize = 16;

/// The map of one of Accelerate's strategies.
fn assigned(tree: &Tree, budget: &Budget, options: &Options) -> Result<DeviceMap, Error> {
    let mut given = budget.clone();
    if given.get(Tier::Cpu).is_none() {
        given.set(Tier::Cpu, u64::MAX);
    }
    for _ in 1..ATTEMPTS {
        let assignment = assign(tree, &given, options)?;
        match from_assignment(tree, &assignment, budget, options) {
            Err(Error::TooSmall(Shortfall { tier, budget, least, .. })) if budget > 0 => {
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

/// As [`infer`], but `stays` picks the tensors that are resident in main memory. Tied tensors are
/// resident if one of them is; those that cannot be streamed are in any case. Without a budget the
/// ring has the least size. GPUs are not used.
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
    for (tier, bytes) in budget.iter().filter(|(tier, _)| !matches!(tier, Tier::Gpu(_))) {
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
    Ok(DeviceMap::new(&context, &placement, &without_gpus, ChosenBy::Manual))
}

/// The map with tensors where `assignment` says.
///
/// A block computes on the GPU that holds most of it; the rest of it is copied there in each pass.
/// A block on no GPU computes on the CPU, or is streamed to the last GPU if that fits and is
/// predicted to be faster. Small tensors and those that cannot be streamed are kept in main memory
/// rather than on disk. The rest of main memory is the ring's. A GPU without a budget is not
/// bounded.
///
/// # Errors
/// [`Error::Assignment`] if it is of another tree, [`Error::Tied`] if tied tensors are not
/// together, [`Error::TooSmall`] for a device that cannot hold what it should, and those of
/// [`infer`].
pub fn from_assignment(
    tree: &Tree,
    assignment: &Assignment,
    budget: &Budget,
    options: &Options,
) -> Result<DeviceMap, Error> {
    let options = &options.adjusted_for_gpus(tree);
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
    // Streaming to a GPU is tried for speed.
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
    Ok(DeviceMap::new(&context, &best?, budget, assignment.chosen_by))
}

/// The tier of each group; what is never streamed is in main memory rather than on disk.
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

/// The placement with groups on `tiers`, if it fits; the rest of main memory is the ring's.
fn fixed(
    context: &PlanContext<'_>,
    budget: &Budget,
    tiers: Vec<Tier>,
    streaming: Streaming,
) -> Result<Placement, Error> {
    let groups = &context.groups;
    let order = ResidencyOrder::together(groups);
    let mut streamed = StreamedGroups::new(groups, context.options.min_ring);
    // A caller may let small tensors stream, which no order does.
    let small = (0..tiers.len()).filter(|at| groups.groups[*at].stays);
    let all: Vec<usize> = small.chain(order.groups()).collect();
    for at in all.into_iter().rev().filter(|at| tiers[*at] == Tier::Disk) {
        streamed.add(at);
    }
    let set = streamed.with_ring(0);
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
        return Err(Error::OnDisk { bytes: on_disk, most });
    }
    Ok(context.placement(tiers, &holding, &streamed.with_ring(left), streaming))
}
