use super::modules::Modules;
use crate::Tier;
use crate::module_tree::{Kind, ROOT};

/// Lowers the budgets of GPUs so that each is given about the same share of the model; with
/// `low_zero`, the first one only what has no room on the others. GPUs without a budget are left
/// out, and the last one keeps all of its.
///
/// A share has room for one more layer: Accelerate's function of this purpose takes the first block
/// of each class that is not split for the largest one, and leaves out what is larger than blocks,
/// such as an embedding.
pub(super) fn balance(
    modules: &Modules<'_>,
    budgets: &mut [(Tier, u64)],
    no_split: bool,
    low_zero: bool,
) {
    let mut gpus: Vec<&mut u64> = budgets
        .iter_mut()
        .filter(|(tier, bytes)| matches!(tier, Tier::Gpu(_)) && *bytes > 0)
        .map(|(_, bytes)| bytes)
        .collect();
    let total = modules.tree.node(ROOT).size;
    let shares = match gpus.len() {
        0 | 1 => return,
        count if low_zero => count - 1,
        count => count,
    };
    let layer = mean_leaf(modules).max(if no_split { largest_layer(modules) } else { 0 });
    let share = total / shares as u64;
    let share = share.saturating_add(layer.saturating_add(layer / 4));
    let last = gpus.len() - 1;
    for bytes in &mut gpus[usize::from(low_zero)..last] {
        **bytes = share.min(**bytes);
    }
    if low_zero {
        let others = gpus[1..].iter().fold(0u64, |sum, bytes| sum.saturating_add(**bytes));
        *gpus[0] = total.saturating_sub(others).min(*gpus[0]);
    }
}

/// The size of the largest thing that is not split.
fn largest_layer(modules: &Modules<'_>) -> u64 {
    let layers = modules.layers.iter().map(|layer| modules.tree.node(*layer).size);
    layers.max().unwrap_or(0)
}

/// The mean size of the modules that hold no modules with tensors of their own.
fn mean_leaf(modules: &Modules<'_>) -> u64 {
    let tree = &modules.tree;
    let holds = |id, module: bool| {
        let mut children = tree.children(id).map(|child| tree.node(child));
        children.any(|child| child.counted && (child.kind == Kind::Module) == module)
    };
    let (mut count, mut sum) = (0u64, 0u64);
    for id in ROOT + 1..tree.0.len() {
        if holds(id, false) && !holds(id, true) {
            count += 1;
            sum += tree.node(id).size;
        }
    }
    sum / count.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{block, tensor};
    use crate::{Budget, Tree};
    use std::collections::BTreeMap;

    fn tree(sizes: &[(&str, u64)]) -> Tree {
        let tensors = sizes.iter().map(|(name, bytes)| tensor(name, *bytes));
        crate::fixtures::tree(vec![block("", tensors.collect())])
    }

    fn balanced(tree: &Tree, budget: &str, no_split: &[&str], low_zero: bool) -> String {
        let no_split: Vec<String> = no_split.iter().map(ToString::to_string).collect();
        let modules = Modules::new(tree, &no_split).unwrap();
        let mut budgets: Vec<_> = Budget::parse(budget).unwrap().iter().collect();
        balance(&modules, &mut budgets, !no_split.is_empty(), low_zero);
        let budgets = budgets.iter().map(|(tier, bytes)| format!("{tier}={bytes}"));
        budgets.collect::<Vec<_>>().join(",")
    }

    /// The model of Accelerate's tests.
    fn small() -> Tree {
        tree(&[
            ("linear1.weight", 48),
            ("linear1.bias", 16),
            ("batchnorm.weight", 72),
            ("linear2.weight", 80),
            ("linear2.bias", 20),
        ])
    }

    #[test]
    fn budgets_are_those_of_accelerate() {
        for (budget, expected) in [
            ("gpu0=200,gpu1=200", "gpu0=200,gpu1=200"),
            ("gpu0=300,gpu1=300", "gpu0=215,gpu1=300"),
            ("gpu0=300,gpu1=500", "gpu0=215,gpu1=500"),
            ("gpu0=300,cpu=1000", "gpu0=300,cpu=1000"),
            ("gpu0=0,gpu1=300,gpu2=300", "gpu0=0,gpu1=215,gpu2=300"),
            ("cpu=1000", "cpu=1000"),
        ] {
            assert_eq!(balanced(&small(), budget, &[], false), expected);
        }
    }

    #[test]
    fn any_gpu_can_be_the_first_one() {
        // The others take 236 and 97 for one more layer: nothing is left for the first.
        for (budget, expected) in [
            ("gpu0=300,gpu1=300", "gpu0=0,gpu1=300"),
            ("gpu2=300,gpu5=300", "gpu2=0,gpu5=300"),
            ("gpu0=300,gpu1=0,gpu2=300", "gpu0=0,gpu1=0,gpu2=300"),
            ("gpu0=0,gpu3=300,gpu4=100,gpu7=100", "gpu0=0,gpu3=36,gpu4=100,gpu7=100"),
            // One alone is not spared.
            ("gpu3=300", "gpu3=300"),
        ] {
            assert_eq!(balanced(&small(), budget, &[], true), expected);
        }
    }

    #[test]
    fn a_share_has_room_for_the_largest_thing_that_is_not_split() {
        let mut blocks = tree(&[
            ("embed.weight", 1000),
            ("layers.0.mlp.weight", 100),
            ("layers.1.mlp.a.weight", 400),
            ("layers.1.mlp.b.weight", 400),
            ("layers.2.mlp.weight", 100),
        ]);
        blocks.classes =
            BTreeMap::from_iter((0..3).map(|n| (format!("layers.{n}"), "Layer".to_string())));
        // Half of 2000, and five quarters of the embedding; the first layer is of no interest.
        assert_eq!(
            balanced(&blocks, "gpu0=5000,gpu1=5000", &["Layer"], false),
            "gpu0=2250,gpu1=5000"
        );
        blocks.blocks[0].tensors.remove(0);
        assert_eq!(
            balanced(&blocks, "gpu0=5000,gpu1=5000", &["Layer"], false),
            "gpu0=1500,gpu1=5000"
        );
    }
}
