//! What a pass over a picture computes, weight by weight: what its speed is predicted from.

use outsize_plan::{Access, BlockCost, PassCost, Tree};

use crate::{Component, ComponentConfig, PicturePass, WeightUse};

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
