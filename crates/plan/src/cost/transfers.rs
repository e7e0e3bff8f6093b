//! What passes between devices: weights, activations, keys and values.

use super::passes::Passes;
use super::{Costs, Placed, seconds};
use crate::{Gpu, HardwareProfile, Tier};

impl Costs {
    /// Seconds to copy `bytes` of the block's weights to the GPU that computes it.
    pub(crate) fn upload(&self, bytes: f64, gpu: &Gpu) -> f64 {
        gpu.upload.seconds(bytes)
    }

    /// Seconds to copy a block's activations of so many tokens of each sequence from where the block
    /// before it computes, and what it gives to the processors. Between two GPUs they pass through main
    /// memory.
    fn hop(
        &self,
        block: usize,
        tokens: f64,
        from: Tier,
        to: Tier,
        profile: &HardwareProfile,
    ) -> f64 {
        let amounts = &self.blocks[block];
        let rows = amounts.tokens(tokens) * self.batch;
        let down = |tier, bytes| match tier {
            Tier::Gpu(number) => profile.gpu(number).download().seconds(bytes),
            Tier::Cpu | Tier::Disk => 0.0,
        };
        let moved = if from == to { 0.0 } else { amounts.input * rows };
        let up = match to {
            Tier::Gpu(number) => profile.gpu(number).upload.seconds(moved),
            Tier::Cpu | Tier::Disk => 0.0,
        };
        down(from, moved) + up + down(to, amounts.output * rows)
    }

    /// Whether tokens after the prompt pass through the block: not through an encoder's.
    fn decodes(&self, block: usize) -> bool {
        let amounts = &self.blocks[block];
        amounts.computes || amounts.flops_once == 0.0
    }

    /// Seconds of a block's [`hop`](Self::hop) in decode and in prefill, behind blocks that compute on
    /// `before` in each; that is moved on to the block.
    pub(super) fn hops(
        &self,
        block: usize,
        placed: &Placed,
        before: &mut [Tier; 2],
        profile: &HardwareProfile,
    ) -> [f64; 2] {
        let [decode, prefill] = before;
        let of_token = match self.decodes(block) {
            true => self.hop(block, 1.0, *decode, placed.decode_on, profile),
            false => 0.0,
        };
        let pass = |pass: &Passes| {
            let tokens = match pass.first && !self.decodes(block) {
                true => self.prompt,
                false => pass.tokens,
            };
            pass.count * self.hop(block, tokens, *prefill, placed.prefill_on, profile)
        };
        let of_prompt =
            self.passes.iter().filter(|pass| pass.first || self.decodes(block)).map(pass).sum();
        if self.decodes(block) {
            *decode = placed.decode_on;
        }
        *prefill = placed.prefill_on;
        [of_token, of_prompt]
    }

    /// Seconds for the activations that the block takes to come to a GPU, and back from it: each of a token and of the prompt.
    pub(crate) fn round_trip(&self, block: usize, gpu: &Gpu) -> [[f64; 2]; 2] {
        [gpu.upload, gpu.download()].map(|link| {
            let of = |tokens| link.seconds(self.blocks[block].input * tokens * self.batch);
            [of(1.0), self.passes.iter().map(|pass| pass.count * of(pass.tokens)).sum()]
        })
    }

    /// Seconds to copy what such a pass adds to the KV cache to the device that decodes.
    pub(crate) fn hand_over(&self, block: usize, pass: &Passes, gpu: &Gpu) -> f64 {
        let bytes = self.blocks[block].cache_per_position * pass.tokens;
        seconds(bytes, gpu.upload.bytes_per_second)
    }
}
