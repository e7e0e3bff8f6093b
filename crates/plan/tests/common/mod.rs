//! Models as PyTorch would make them.
#![allow(dead_code)]

pub mod random;

use outsize_plan::{
    Assignment, Block, BlockCost, Budget, Tensor, TensorKind, Tier, Tree, WeightDtype,
};
use std::collections::BTreeMap;

/// A model whose tensors are given one by one.
#[derive(Debug, Clone, Default)]
pub struct Model {
    pub tensors: Vec<Tensor>,
    pub classes: BTreeMap<String, String>,
    pub caches: Vec<(String, u64)>,
}

impl Model {
    pub fn tensor(
        mut self,
        name: &str,
        kind: TensorKind,
        dtype: WeightDtype,
        shape: &[u64],
    ) -> Self {
        let bytes = dtype.bytes(shape.iter().product());
        self.tensors.push(Tensor {
            name: name.to_string(),
            kind,
            shape: shape.to_vec(),
            dtype,
            bytes,
            stored_bytes: bytes,
            ..Tensor::default()
        });
        self
    }

    pub fn parameter(self, name: &str, values: u64) -> Self {
        self.tensor(name, TensorKind::Parameter, WeightDtype::F32, &[values])
    }

    pub fn buffer(self, name: &str, values: u64) -> Self {
        self.tensor(name, TensorKind::Buffer, WeightDtype::F32, &[values])
    }

    pub fn linear(self, path: &str, inputs: u64, outputs: u64) -> Self {
        self.tensor(
            &format!("{path}.weight"),
            TensorKind::Parameter,
            WeightDtype::F32,
            &[outputs, inputs],
        )
        .parameter(&format!("{path}.bias"), outputs)
    }

    pub fn batch_norm(self, path: &str, features: u64) -> Self {
        self.parameter(&format!("{path}.weight"), features)
            .parameter(&format!("{path}.bias"), features)
            .buffer(&format!("{path}.running_mean"), features)
            .buffer(&format!("{path}.running_var"), features)
            .tensor(
                &format!("{path}.num_batches_tracked"),
                TensorKind::Buffer,
                WeightDtype::Int64,
                &[],
            )
    }

    pub fn tie(mut self, names: &[&str]) -> Self {
        for name in names {
            let tensor = self.tensors.iter_mut().find(|tensor| tensor.name == *name);
            tensor.expect("there is no such tensor").tied = Some(names[0].to_string());
        }
        self
    }

    pub fn class(mut self, path: &str, class: &str) -> Self {
        self.classes.insert(path.to_string(), class.to_string());
        self
    }

    pub fn cache(mut self, path: &str, bytes: u64) -> Self {
        self.caches.push((path.to_string(), bytes));
        self
    }

    /// All in one block, and each cache in one of its own.
    pub fn tree(&self) -> Tree {
        let caches = self.caches.iter().map(|(path, bytes)| Block {
            name: path.clone(),
            work: BlockCost { kv_bytes: *bytes, ..BlockCost::default() },
            ..Block::default()
        });
        let tensors = Block { tensors: self.tensors.clone(), ..Block::default() };
        Tree {
            blocks: [tensors].into_iter().chain(caches).collect(),
            classes: self.classes.clone(),
            ..Tree::default()
        }
    }
}

pub fn tensor(name: &str, bytes: u64) -> Tensor {
    Tensor { name: name.to_string(), bytes, stored_bytes: bytes, ..Tensor::default() }
}

pub fn block(name: &str, tensors: Vec<Tensor>) -> Block {
    Block { name: name.to_string(), tensors, ..Block::default() }
}

pub fn tree(blocks: Vec<Block>) -> Tree {
    Tree { blocks, ..Tree::default() }
}

/// A budget of main memory.
pub fn cpu(bytes: u64) -> Budget {
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, bytes);
    budget
}

pub fn budget(text: &str) -> Budget {
    Budget::parse(text).expect("no budget")
}

/// As Accelerate writes a place.
pub fn place(tier: Tier) -> String {
    match tier {
        Tier::Gpu(number) => number.to_string(),
        tier => tier.to_string(),
    }
}

/// The map of an assignment in one line.
pub fn modules(assignment: &Assignment) -> String {
    let entries = assignment.modules.iter().map(|(path, tier)| format!("{path}:{}", place(tier)));
    entries.collect::<Vec<_>>().join(" ")
}
