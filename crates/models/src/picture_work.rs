//! What a pass over a picture computes, weight by weight: what its speed is predicted from.

use outsize_plan::{Access, BlockCost, PassCost, Tree};

use crate::{Component, ComponentConfig, PictureSize};

/// A pass of one part of a model of pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PicturePass {
    /// The latents: of a text encoder the number of texts alone counts.
    pub latents: PictureSize,
    /// Tokens of each text.
    pub tokens: usize,
}

/// What a pass does with a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WeightUse {
    /// Rows that it makes: pixels or tokens of all pictures or texts.
    pub rows: u64,
    /// Positions that each of these rows attends to, if they are queries.
    pub attended: u64,
}

impl WeightUse {
    /// Of rows that are no queries.
    pub(crate) fn of_rows(rows: u64) -> Self {
        Self { rows, attended: 0 }
    }
}

impl PicturePass {
    /// Tokens of all texts.
    pub fn all_tokens(&self) -> u64 {
        (self.latents.batch as u64).saturating_mul(self.tokens as u64)
    }
}

impl<C: Component> ComponentConfig<C> {
    /// Says of each block of the part's `tree` what it does in such a pass.
    pub fn add_work(&self, tree: &mut Tree, pass: &PicturePass) {
        for block in &mut tree.blocks {
            let mut cost = PassCost::default();
            for tensor in &block.tensors {
                let [outputs, inputs, ..] = tensor.shape[..] else { continue };
                if tensor.access == Access::Rows {
                    continue;
                }
                let WeightUse { rows, attended } = C::weight_use(&self.config, &tensor.name, pass);
                let add = |sum: &mut u64, factors: &[u64]| {
                    let product = factors.iter().fold(rows, |n, m| n.saturating_mul(*m));
                    *sum = sum.saturating_add(product);
                };
                let weights = tensor.shape.iter().fold(1, |n: u64, m| n.saturating_mul(*m));
                add(&mut cost.flops, &[2, weights]);
                add(&mut cost.values, &[outputs.saturating_add(inputs)]);
                // Scores, and what they weigh.
                add(&mut cost.attention_flops, &[4, attended, outputs]);
            }
            block.work = BlockCost { pass: Some(cost), ..BlockCost::default() };
        }
    }
}
