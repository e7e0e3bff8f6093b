//! Trees for tests.

use crate::{Block, Budget, Tensor, Tier, Tree};

pub(crate) fn tensor(name: &str, bytes: u64) -> Tensor {
    Tensor { name: name.to_string(), bytes, stored_bytes: bytes, ..Tensor::default() }
}

pub(crate) fn block(name: &str, tensors: Vec<Tensor>) -> Block {
    Block { name: name.to_string(), tensors, ..Block::default() }
}

pub(crate) fn tree(blocks: Vec<Block>) -> Tree {
    Tree { blocks, ..Tree::default() }
}

/// A budget of main memory.
pub(crate) fn cpu(bytes: u64) -> Budget {
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, bytes);
    budget
}
