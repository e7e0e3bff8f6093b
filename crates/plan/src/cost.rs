//! The cost model of a block.

mod amounts;
mod faster;
mod passes;
mod times;
mod transfers;

use crate::{Processor, Tree, Workload};
use amounts::{Amounts, amounts, attention_rate};
use passes::{Passes, passes};

pub use faster::break_even_prompt;
pub(crate) use times::{Placed, Time, times};

/// The work of each block in a pass.
pub(crate) struct Costs {
    blocks: Vec<Amounts>,
    batch: f64,
    /// Tokens of each sequence's prompt.
    prompt: f64,
    /// Passes over the prompt.
    passes: Vec<Passes>,
    /// The last of them, for blocks to which no other comes.
    last: Option<Passes>,
}

/// Seconds for an amount at a rate; zero for nothing, whatever the rate.
pub(crate) fn seconds(amount: f64, rate: f64) -> f64 {
    if amount > 0.0 { amount / rate.max(f64::MIN_POSITIVE) } else { 0.0 }
}

impl Costs {
    pub(crate) fn new(tree: &Tree, workload: &Workload) -> Self {
        let passes = match tree.blocks.iter().any(|block| block.work.flops_once > 0) {
            // An encoder reads the prompt at once, and the decoder begins with one token.
            true => passes(&Workload { prompt: 1, ..*workload }),
            false => passes(workload),
        };
        Self {
            blocks: tree.blocks.iter().map(|b| amounts(b, workload)).collect(),
            batch: workload.batch as f64,
            prompt: workload.prompt as f64,
            last: passes.last().map(|pass| Passes { count: 1.0, first: true, ..*pass }),
            passes,
        }
    }

    /// The passes over the prompt that come to a block: the first, others of the same length, and
    /// the remainder; or the last one alone.
    pub(crate) fn passes(&self, block: usize) -> &[Passes] {
        if self.blocks[block].last_only { self.last.as_slice() } else { &self.passes }
    }

    /// Bytes of weights that the block uses in a pass of so many tokens of each sequence.
    pub(crate) fn weights(&self, block: usize, tokens: f64) -> f64 {
        let amounts = &self.blocks[block];
        amounts.weights.used(self.share(block, tokens)) + amounts.weights_once
    }

    /// The share of its experts that it uses in such a pass, if it has any.
    pub(crate) fn share(&self, block: usize, tokens: f64) -> f64 {
        let amounts = &self.blocks[block];
        amounts.share(amounts.tokens(tokens) * self.batch)
    }

    /// Whether the block multiplies nothing: a norm by itself.
    pub(crate) fn is_light(&self, block: usize) -> bool {
        let amounts = &self.blocks[block];
        amounts.flops == 0.0 && amounts.flops_once == 0.0 && amounts.pass.is_none()
    }

    /// Seconds for one token of each sequence.
    pub(crate) fn decode(&self, block: usize, on: &Processor) -> f64 {
        let amounts = &self.blocks[block];
        if let Some(pass) = &amounts.pass {
            return amounts.fixed(pass, on);
        }
        if !amounts.computes {
            return 0.0;
        }
        self.products(block, 1.0, on)
            + seconds(amounts.cache, on.cache_bytes_per_second)
            + on.block_seconds.max(0.0)
    }

    /// Seconds of matmuls for so many tokens of each sequence.
    fn products(&self, block: usize, tokens: f64, on: &Processor) -> f64 {
        let amounts = &self.blocks[block];
        let rows = amounts.tokens(tokens) * self.batch;
        let operations = amounts.flops * rows;
        let weights = amounts.weights.used(amounts.share(rows));
        amounts.matmuls(weights, operations, amounts.values * rows, rows, on)
    }

    /// Seconds of what only the first pass over a prompt does, as an encoder.
    fn once(&self, block: usize, on: &Processor) -> f64 {
        let amounts = &self.blocks[block];
        let rows = self.prompt * self.batch;
        let operations = amounts.flops_once * self.batch;
        let values = amounts.values_once * rows;
        amounts.matmuls(amounts.weights_once, operations, values, rows, on)
    }

    /// Seconds of attention in a pass over the prompt.
    fn attention(&self, block: usize, pass: &Passes, on: &Processor) -> f64 {
        let amounts = &self.blocks[block];
        let rows = amounts.tokens(pass.tokens) * self.batch;
        let seen = (pass.before + pass.tokens / 2.0).min(amounts.window);
        let operations = amounts.attention_flops * rows * seen;
        seconds(seen * amounts.cache_per_position, on.cache_bytes_per_second)
            .max(seconds(operations, attention_rate(on)))
    }

    /// Seconds of memory reads, and of arithmetic, for `tokens` tokens of each sequence.
    pub(crate) fn limits(&self, block: usize, tokens: u64, on: &Processor) -> (f64, f64) {
        let amounts = &self.blocks[block];
        let weights = amounts.weights.used(self.share(block, tokens as f64));
        let memory = seconds(weights, on.product_bytes_per_second)
            + seconds(amounts.kv_bytes, on.cache_bytes_per_second);
        let operations = match &amounts.pass {
            Some(pass) => pass.flops as f64 + pass.attention_flops as f64,
            None => amounts.flops * self.batch * amounts.tokens(tokens as f64),
        };
        (memory, seconds(operations, on.product_flops))
    }

    /// Seconds for one of these passes over the prompt.
    pub(crate) fn pass(&self, block: usize, on: &Processor, pass: &Passes) -> f64 {
        let amounts = &self.blocks[block];
        if let Some(pass) = &amounts.pass {
            return amounts.fixed(pass, on);
        }
        let once = if pass.first { self.once(block, on) } else { 0.0 };
        if !amounts.computes {
            return once + if once > 0.0 { on.block_seconds.max(0.0) } else { 0.0 };
        }
        let cross = seconds(amounts.cross, on.cache_bytes_per_second);
        once + self.products(block, pass.tokens, on)
            + self.attention(block, pass, on)
            + cross
            + on.block_seconds.max(0.0)
    }

    /// Seconds to compute the whole prompt, without transfers.
    pub(crate) fn prefill(&self, block: usize, on: &Processor) -> f64 {
        let all = self.passes(block).iter();
        all.map(|pass| pass.count * self.pass(block, on, pass)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, BlockCost, HardwareProfile, PassCost, Tensor, WeightDtype};

    fn workload(prompt: u64, chunk: u64) -> Workload {
        Workload { prompt, chunk, ..Workload::default() }
    }

    #[test]
    fn rates_that_are_none_give_no_nonsense() {
        assert_eq!(seconds(0.0, 0.0), 0.0);
        assert_eq!(seconds(10.0, 5.0), 2.0);
        assert!(seconds(1.0, 0.0) > 1e300);
        assert!(seconds(1.0, f64::NAN) > 1e300);
    }

    #[test]
    fn rates_of_bf16_are_for_weights_in_bf16() {
        let seconds = |dtype, bf16| {
            let matrix = Tensor { shape: vec![64, 64], bytes: 8192, dtype, ..Tensor::default() };
            let block = Block { tensors: vec![matrix], ..Block::default() };
            let tree = Tree { blocks: vec![block], ..Tree::default() };
            let workload = Workload { prompt: 100, chunk: 100, bf16, ..Workload::default() };
            Costs::new(&tree, &workload).prefill(0, &HardwareProfile::default().cpu)
        };
        let [half, brain] = [WeightDtype::F16, WeightDtype::Bf16];
        assert!(seconds(brain, true) < seconds(brain, false));
        assert_eq!(seconds(half, true), seconds(half, false));
    }

    #[test]
    fn a_pass_of_one_size_does_not_depend_on_the_workload() {
        let matrix = Tensor { shape: vec![64, 64], bytes: 16_384, ..Tensor::default() };
        let pass = PassCost { flops: 2_000_000, values: 1000, attention_flops: 300_000 };
        let work = BlockCost { pass: Some(pass), ..BlockCost::default() };
        let block = Block { tensors: vec![matrix], work, ..Block::default() };
        let tree = Tree { blocks: vec![block], ..Tree::default() };
        let on = HardwareProfile::default().cpu;
        let rates = on.prefill.unwrap();
        let expected = 16_384.0 / rates.f32.bytes_per_second
            + 2e6 / rates.f32.flops
            + 1000.0 / rates.f32.values_per_second
            + 3e5 / rates.attention_flops
            + on.block_seconds;
        for tokens in [1, 700] {
            let costs = Costs::new(&tree, &workload(tokens, tokens));
            assert_eq!(costs.prefill(0, &on), expected);
            assert_eq!(costs.decode(0, &on), expected);
        }
    }

    #[test]
    fn what_only_the_end_of_a_prompt_comes_to_is_in_one_pass() {
        let matrix = Tensor { shape: vec![64, 64], bytes: 16_384, ..Tensor::default() };
        let block = |last_only| Block {
            tensors: vec![matrix.clone()],
            work: BlockCost { last_only, ..BlockCost::default() },
            ..Block::default()
        };
        let tree = Tree { blocks: vec![block(false), block(true)], ..Tree::default() };
        let on = HardwareProfile::default().cpu;
        let seconds = |prompt| {
            let costs = Costs::new(&tree, &workload(prompt, 512));
            [0, 1].map(|block| costs.prefill(block, &on))
        };
        let [[short, end], [long, end_of_long]] = [seconds(512), seconds(1300)];
        assert!(long > 2.0 * short);
        assert_eq!(end, end_of_long);
        assert_eq!(end, Costs::new(&tree, &workload(1, 1)).decode(1, &on));
    }

    #[test]
    fn a_window_bounds_what_attention_looks_at() {
        let block = |window| Block {
            work: BlockCost { kv_bytes_per_position: 100, window, ..BlockCost::default() },
            ..Block::default()
        };
        let tree = Tree { blocks: vec![block(None), block(Some(64))], ..Tree::default() };
        let costs = Costs::new(&tree, &Workload { position: 1000, ..Workload::default() });
        let on = Processor {
            cache_bytes_per_second: 1.0,
            block_seconds: 0.0,
            ..HardwareProfile::default().cpu
        };
        assert_eq!(costs.decode(0, &on), 100_000.0);
        assert_eq!(costs.decode(1, &on), 6_400.0);
    }
}
