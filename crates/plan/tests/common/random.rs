//! Random models and budgets.

use super::Model;
use outsize_plan::{Block, Budget, Strategy as Planning, Tensor, TensorKind, Tier, Tree};
use proptest::prelude::*;

/// Models of up to 24 tensors in up to four levels of modules with few names, so that these meet;
/// some tensors are tied, some take no bytes, some modules are of a class that is not split
/// (`Whole`), and some keep a cache.
pub fn model() -> impl Strategy<Value = Model> {
    let path = prop::collection::vec(prop::sample::select(vec!["a", "b", "c", "10", "0"]), 0..4);
    let tensor = (
        path.clone(),
        prop_oneof![9 => 1u64..200, 1 => Just(0)],
        prop::bool::weighted(0.2),
        prop_oneof![4 => Just(None), 1 => (0usize..3).prop_map(Some)],
    );
    let tensors = prop::collection::vec(tensor, 1..24);
    let classes = prop::collection::vec(path.clone(), 0..4);
    let caches = prop::collection::vec((path, 0u64..200), 0..3);
    (tensors, classes, caches).prop_map(|(tensors, classes, caches)| {
        let mut model = Model::default();
        for (number, (mut path, values, buffer, tied)) in tensors.into_iter().enumerate() {
            // Paths of tensors end in a name of their own; one in eight has the path of a module.
            let leaf = format!("w{number}");
            if number % 8 != 7 || path.is_empty() {
                path.push(&leaf);
            }
            let name = path.join(".");
            if model.tensors.iter().any(|tensor| tensor.name == name) {
                continue;
            }
            model =
                if buffer { model.buffer(&name, values) } else { model.parameter(&name, values) };
            let added = model.tensors.last_mut().expect("one was added");
            added.tied = tied.map(|group| group.to_string());
        }
        for path in classes {
            model = model.class(&path.join("."), "Whole");
        }
        for (path, bytes) in caches {
            let path = path.join(".");
            if model.caches.iter().all(|(other, _)| *other != path) {
                model = model.cache(&path, bytes);
            }
        }
        model
    })
}

/// Budgets of up to four GPUs of any numbers, with main memory and a bounded disk or without.
pub fn budget() -> impl Strategy<Value = Budget> {
    let bytes = prop_oneof![1 => Just(0u64), 8 => 0u64..4000, 1 => Just(u64::MAX)];
    let gpus = prop::collection::btree_map(0usize..6, bytes.clone(), 0..4);
    (gpus, prop::option::of(bytes), prop::bool::weighted(0.2)).prop_map(|(gpus, cpu, disk)| {
        let mut budget = Budget::default();
        for (gpu, bytes) in gpus {
            budget.set(Tier::Gpu(gpu), bytes);
        }
        if let Some(bytes) = cpu {
            budget.set(Tier::Cpu, bytes);
        }
        if disk {
            budget.set(Tier::Disk, 1000);
        }
        budget
    })
}

/// Those of Accelerate.
pub fn strategy() -> impl Strategy<Value = Planning> {
    prop::sample::select(vec![Planning::Sequential, Planning::Balanced, Planning::BalancedLow0])
}

/// Blocks of one tensor each.
pub fn blocks(sizes: &[u64]) -> Tree {
    let blocks = sizes.iter().enumerate().map(|(number, bytes)| Block {
        name: format!("layers.{number}"),
        tensors: vec![Tensor {
            name: format!("layers.{number}.weight"),
            kind: TensorKind::Parameter,
            bytes: *bytes,
            stored_bytes: *bytes,
            shape: vec![*bytes / 2],
            ..Tensor::default()
        }],
        ..Block::default()
    });
    Tree { blocks: blocks.collect(), ..Tree::default() }
}
