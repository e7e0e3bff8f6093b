//! What it takes for activations to come to a run of blocks on a GPU, and to leave it.

use crate::Tier;
use crate::placement::{GpuCapacity, PlanContext};

/// An end of a run of blocks.
#[derive(Debug, Clone, Copy)]
pub(super) enum Side {
    /// Its first block, where activations come to the GPU.
    First,
    /// Its last block, behind which they leave it.
    Last,
}

/// The ends of runs on one GPU.
pub(super) struct Crossings<'a> {
    pub(super) context: &'a PlanContext<'a>,
    pub(super) gpu: &'a GpuCapacity,
    /// Where each block computes that is in no run, in decode and in prefill.
    pub(super) executors: &'a [(Tier, Tier)],
    /// Whether all of its runs begin with the first block.
    pub(super) from_first: bool,
}

/// Seconds for activations to cross an end of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Crossing {
    pub(super) token: f64,
    pub(super) prompt: f64,
    /// Whether there may be none: what is beyond the end shares weights with a block that may be
    /// in the run.
    pub(super) uncertain: bool,
}

impl Crossings<'_> {
    /// Where a run begins or ends with `block`; what is beyond it is in a run of another GPU, or in
    /// none.
    pub(super) fn of(&self, block: usize, side: Side, beyond_is_run: bool) -> Crossing {
        let costs = &self.context.costs;
        let decodes = |block: &usize| costs.decodes(*block);
        let stays =
            |next: usize| !beyond_is_run && self.executors[next].0 == Tier::Gpu(self.gpu.number);
        let anchors = &self.context.groups.anchors;
        if !decodes(&block) {
            return Crossing::default();
        }
        let [token, prompt] = match side {
            // Tokens come from the processors.
            Side::First if (0..block).rev().find(decodes).is_some_and(stays) => [0.0; 2],
            Side::First => costs.input(block, self.gpu.hardware.upload),
            // What the model gives is counted with its last block.
            Side::Last => match (block + 1..self.executors.len()).find(decodes) {
                Some(next) if stays(next) || (anchors[next] != next && self.from_first) => [0.0; 2],
                Some(next) => {
                    let [token, prompt] = costs.input(next, self.gpu.hardware.download());
                    return Crossing { token, prompt, uncertain: anchors[next] != next };
                }
                None => [0.0; 2],
            },
        };
        Crossing { token, prompt, uncertain: false }
    }
}
