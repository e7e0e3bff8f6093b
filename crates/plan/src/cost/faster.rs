//! Where a block that is streamed to a GPU is computed faster.

use super::Costs;
use crate::{Gpu, HardwareProfile, Processor, Tree, Workload};

impl Costs {
    /// Whether decode is faster if the block is streamed to the GPU.
    pub(crate) fn decodes_faster_on(&self, block: usize, gpu: &Gpu, cpu: &Processor) -> bool {
        let upload = self.upload(self.weights(block, 1.0), gpu);
        upload.max(self.decode(block, &gpu.processor)) < self.decode(block, cpu)
    }

    /// The same for prefill.
    pub(crate) fn prefills_faster_on(
        &self,
        block: usize,
        gpu: &Gpu,
        cpu: &Processor,
        decodes_on_gpu: bool,
    ) -> bool {
        let (mut there, mut here) = (0.0, 0.0);
        for pass in self.passes(block) {
            let upload = self.upload(self.weights(block, pass.tokens), gpu);
            let hand_over = self.hand_over(block, pass, gpu);
            let (to_gpu, to_cpu) = match decodes_on_gpu {
                true => (0.0, hand_over),
                false => (hand_over, 0.0),
            };
            there += pass.count * (upload + to_gpu).max(self.pass(block, &gpu.processor, pass));
            here += pass.count * to_cpu.max(self.pass(block, cpu, pass));
        }
        there < here
    }
}

/// The fewest tokens of a prompt for which the block with the most weights is predicted to compute
/// faster on a GPU that its weights are copied to than on the host's processors; none if it never
/// is.
pub fn break_even_prompt(
    tree: &Tree,
    profile: &HardwareProfile,
    workload: &Workload,
    gpu: usize,
) -> Option<u64> {
    let gpu = profile.gpu(gpu);
    let faster = |prompt: u64| {
        let costs = Costs::new(tree, &Workload { prompt, ..*workload });
        let blocks = 0..tree.blocks.len();
        let weights = |block: &usize| costs.weights(*block, prompt as f64);
        let most = blocks.max_by(|a, b| weights(a).total_cmp(&weights(b)));
        most.is_some_and(|block| costs.prefills_faster_on(block, &gpu, &profile.cpu, false))
    };
    let above =
        (0..=LONGEST_PROMPT.ilog2()).map(|power| 1 << power).find(|prompt| faster(*prompt))?;
    let (mut slower, mut found) = (above / 2, above);
    while found - slower > 1 {
        let middle = slower + (found - slower) / 2;
        if faster(middle) {
            found = middle;
        } else {
            slower = middle;
        }
    }
    Some(found)
}

/// The longest prompt that [`break_even_prompt`] tries, in tokens.
const LONGEST_PROMPT: u64 = 1 << 17;
