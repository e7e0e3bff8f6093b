//! What passes between devices: weights, activations, keys and values.

use super::passes::Passes;
use super::{Costs, Placed, seconds};
use crate::{Bandwidth, Gpu, HardwareProfile, Tier};

impl Costs {
    /// Seconds to copy `bytes` of the block's weights to the GPU that computes it.
    pub(crate) fn upload(&self, bytes: f64, gpu: &Gpu) -> f64 {
        gpu.upload.seconds(bytes)
    }

    /// Whether tokens after the prompt pass through the block: not through an encoder's.
    pub(crate) fn decodes(&self, block: usize) -> bool {
        let amounts = &self.blocks[block];
        amounts.computes || amounts.flops_once == 0.0
    }

    /// Seconds to copy a block's activations from where the block before it computes (`before`, in
    /// decode and in prefill, which is moved on to the block), and what it gives to the processors.
    pub(super) fn hops(
        &self,
        block: usize,
        placed: &Placed,
        before: &mut [Tier; 2],
        profile: &HardwareProfile,
    ) -> [f64; 2] {
        let [decode, prefill] = before;
        let gpu = |tier| match tier {
            Tier::Gpu(number) => Some(profile.gpu(number)),
            Tier::Cpu | Tier::Disk => None,
        };
        let hop = |phase: usize, from: Tier, to: Tier| {
            let (leaves, enters) =
                (gpu(from).filter(|_| from != to), gpu(to).filter(|_| from != to));
            // Between two GPUs they pass through main memory.
            leaves.map_or(0.0, |gpu| self.input(block, gpu.download())[phase])
                + enters.map_or(0.0, |gpu| self.input(block, gpu.upload)[phase])
                + gpu(to).map_or(0.0, |gpu| self.output(block, gpu.download())[phase])
        };
        let of_token = hop(0, *decode, placed.decode_on);
        let of_prompt = hop(1, *prefill, placed.prefill_on);
        if self.decodes(block) {
            *decode = placed.decode_on;
        }
        *prefill = placed.prefill_on;
        [of_token, of_prompt]
    }

    /// Seconds for the activations that a block takes, over a link: of a token, and of the prompt.
    pub(crate) fn input(&self, block: usize, over: Bandwidth) -> [f64; 2] {
        self.copies(block, self.blocks[block].input, over)
    }

    /// The same for what it gives to the processors.
    pub(crate) fn output(&self, block: usize, over: Bandwidth) -> [f64; 2] {
        self.copies(block, self.blocks[block].output, over)
    }

    fn copies(&self, block: usize, bytes_per_token: f64, over: Bandwidth) -> [f64; 2] {
        let decodes = self.decodes(block);
        let of =
            |tokens| over.seconds(bytes_per_token * self.blocks[block].tokens(tokens) * self.batch);
        let passes = self.passes(block).iter().filter(|pass| pass.first || decodes);
        let of_prompt =
            passes.map(|pass| pass.count * of(if decodes { pass.tokens } else { self.prompt }));
        [if decodes { of(1.0) } else { 0.0 }, of_prompt.sum()]
    }

    /// Seconds to copy what such a pass adds to the KV cache to the device that decodes.
    pub(crate) fn hand_over(&self, block: usize, pass: &Passes, gpu: &Gpu) -> f64 {
        let bytes = self.blocks[block].cache_per_position * pass.tokens;
        seconds(bytes, gpu.upload.bytes_per_second)
    }
}
