use super::balance::balance;
use super::fill::{Device, Fill};
use super::modules::Modules;
use crate::module_map::Single;
use crate::module_tree::{Kind, Node};
use crate::{
    Assignment, Budget, ChosenBy, Error, ModuleMap, Options, Strategy, Tier, Tree, format_size,
};

/// Places modules as Accelerate's `infer_auto_device_map` does, for the strategies that are named
/// after its own.
///
/// Devices are filled one after the other, the GPUs by their number, then main memory, and what is
/// left is on disk. A module that does not fit is split into the modules and tensors that it holds,
/// unless its class is one of [`Options::no_split`]; what cannot be split is placed on the next
/// device, and a device that was left is not returned to. On the first GPU and in main memory
/// (without GPUs: in main memory only) the largest layer that is still to be placed has room beside
/// what is placed there, since offloaded layers pass through them. Modules that share memory are
/// placed together. [`Strategy::Balanced`] and [`Strategy::BalancedLow0`] lower the budgets of GPUs
/// first, so that each is given about the same.
///
/// A tier that `budget` does not name is not used, and one of zero bytes neither; `disk=0` is the
/// same as [`Options::must_fit`], and any other bound of the disk does not matter, because weights
/// lie there already. [`Options::reserve`], the needs, and activations on GPUs are taken off the
/// budgets first. A block's KV cache counts with the module of its path; if this is split, with its
/// last part. Without any of these, maps are those of Accelerate, but for its errors:
///
/// - Tensors share memory if they are [tied](crate::Tensor::tied), not because one's path is found
///   in the other's; and all that share memory directly or through others are placed together,
///   whatever modules hold them, and count once.
/// - The buffers of a module that is split have their places, after its other parts.
/// - A share of a balanced model has room for the largest thing that is not split, not for the
///   first block of each class.
/// - GPUs of any numbers and with no budget can be balanced.
/// - Sizes are whole bytes, those of the types that tensors are held in.
/// - The same tree always gives the same map.
///
/// # Errors
/// [`Error::DoesNotFit`] if [`Options::must_fit`] is set and anything would be on disk (main memory
/// is allowed, with GPUs as well); [`Error::NotAssigned`] for [`Strategy::Auto`], which is
/// [`infer`](crate::infer)'s own; [`Error::Duplicate`] and [`Error::TooLarge`] for impossible
/// trees.
pub fn assign(tree: &Tree, budget: &Budget, options: &Options) -> Result<Assignment, Error> {
    let low_zero = match options.strategy {
        Strategy::Auto => {
            return Err(Error::NotAssigned { strategy: options.strategy });
        }
        Strategy::Sequential => None,
        Strategy::Balanced => Some(false),
        Strategy::BalancedLow0 => Some(true),
    };
    let options = &options.adjusted(tree);
    let modules = Modules::new(tree, &options.no_split)?;
    // What is for weights on each device, in the order in which these are filled.
    let usable = budget.iter().filter(|(tier, _)| *tier != Tier::Disk);
    let usable = usable.map(|(tier, bytes)| (tier, bytes.saturating_sub(options.taken_of(tier))));
    let mut budgets: Vec<_> = usable.collect();
    if let Some(low_zero) = low_zero {
        balance(&modules, &mut budgets, !options.no_split.is_empty(), low_zero);
    }
    let filled = Fill::new(&modules, &budgets, options).run();
    let map = ModuleMap::clean(&modules.tree, |id| filled.place(id), Single::Part);
    if options.must_fit || budget.get(Tier::Disk) == Some(0) {
        let nodes = modules.tree.0.iter().enumerate();
        let on_disk = nodes.filter(|(id, _)| filled.place(*id) == Some(Tier::Disk));
        check_fit(&map, on_disk.map(|(_, node)| node))?;
    }
    let tiers = filled.tiers(&modules);
    let offloaded_buffers = modules
        .tensors
        .iter()
        .zip(&tiers)
        .filter(|(_, tier)| !matches!(tier, Tier::Gpu(_)))
        .map(|(id, _)| modules.tree.node(*id))
        .filter(|node| node.kind == Kind::Buffer)
        .map(|node| node.size)
        .sum();
    Ok(Assignment {
        tiers,
        modules: map,
        warnings: warnings(&filled.devices, offloaded_buffers, options),
        chosen_by: ChosenBy::Strategy(options.strategy),
    })
}

/// Checks that nothing is on disk.
pub(crate) fn check_fit<'n>(
    map: &ModuleMap,
    on_disk: impl Iterator<Item = &'n Node<'n>>,
) -> Result<(), Error> {
    let mut entries = map.iter().filter(|(_, tier)| *tier == Tier::Disk);
    match entries.next() {
        None => Ok(()),
        Some((name, _)) => Err(Error::DoesNotFit {
            name: name.to_string(),
            others: entries.count(),
            bytes: on_disk.map(|node| node.size).sum(),
        }),
    }
}

/// Accelerate's warnings.
fn warnings(devices: &[Device], offloaded: u64, options: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    let is_gpu = |device: &&Device| matches!(device.tier, Tier::Gpu(_));
    let mut gpus = devices.iter().filter(is_gpu).peekable();
    if offloaded > 0
        && !options.offload_buffers
        && gpus.peek().is_some()
        && !gpus.any(|gpu| gpu.has_room(offloaded))
    {
        warnings.push(format!(
            "the buffers of offloaded modules take {}, and no GPU has room for them: let buffers be offloaded too, or \
             raise the budget of a GPU",
            format_size(offloaded)
        ));
    }
    for device in devices {
        if let Some(least) = device.least {
            let tier = device.tier;
            warnings.push(format!(
                "nothing is placed on {tier}: what comes first would take {} of it, room for the largest layer included",
                format_size(least)
            ));
        }
    }
    warnings
}
