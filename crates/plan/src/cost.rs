//! The cost model of a block.

use crate::steps::DiskTraffic;
use crate::{
    Block, BlockCost, Gpu, HardwareProfile, PassCost, Processor, Tensor, Tier, Tree, WeightDtype,
    Workload,
};

/// Attention's operations for each byte of keys and values that a prompt's token attends to, if
/// nobody says: as with 32-bit values and two query heads for each key.
const ATTENTION_FLOPS_PER_BYTE: f64 = 1.0;

/// Activations are in f32 on their way between devices.
const ACTIVATION_BYTES: f64 = 4.0;

/// The work of each block in a pass.
pub(crate) struct Costs {
    blocks: Vec<Amounts>,
    batch: f64,
    /// Tokens of each sequence's prompt.
    prompt: f64,
    /// Passes over the prompt.
    passes: Vec<Passes>,
}

/// The work of a block for one token of one sequence.
#[derive(Debug, Clone, Copy, Default)]
struct Amounts {
    /// Bytes of weights that every pass uses.
    weights: f64,
    /// Bytes of weights that only the first pass over a prompt uses: an encoder's.
    weights_once: f64,
    /// Floating point operations of these for all of a sequence's prompt.
    flops_once: f64,
    /// Values that go into these matmuls and come out of them.
    values_once: f64,
    /// Floating point operations of matmuls.
    flops: f64,
    /// Values that go into matmuls and come out of them.
    values: f64,
    /// Whether they multiply in bf16: both the activations and the weights are of that type.
    bf16: bool,
    /// Operations of attention for each position that it sees.
    attention_flops: f64,
    /// Whether only the last token of a pass comes here.
    last_only: bool,
    /// Keys and values of all positions, in bytes.
    kv_bytes: f64,
    /// Keys and values that a generated token attends to, in bytes.
    cache: f64,
    /// Keys and values of a prompt that an encoder read, in bytes.
    cross: f64,
    /// Keys and values of one position, in bytes.
    cache_per_position: f64,
    /// The most positions that it attends to.
    window: f64,
    /// Bytes of activations that it takes for one token.
    input: f64,
    /// Bytes that the processors read of what it gives for one token.
    output: f64,
    /// Whether it computes anything.
    computes: bool,
    /// What it does instead in each pass, if that is always the same.
    pass: Option<PassCost>,
}

/// Equal passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Passes {
    /// How many there are.
    pub(crate) count: f64,
    /// Tokens of each sequence.
    tokens: f64,
    /// Tokens before them, on average.
    before: f64,
    /// Whether the ring is still empty.
    pub(crate) first: bool,
}

/// Seconds for an amount at a rate; zero for nothing, whatever the rate.
pub(crate) fn seconds(amount: f64, rate: f64) -> f64 {
    if amount > 0.0 { amount / rate.max(f64::MIN_POSITIVE) } else { 0.0 }
}

impl Amounts {
    /// How many of a pass's tokens come here.
    fn tokens(&self, all: f64) -> f64 {
        if self.last_only { all.min(1.0) } else { all }
    }

    /// Seconds of matmuls with weights of so many bytes and so many rows, and of what lies between
    /// them.
    fn matmuls(
        &self,
        weights: f64,
        operations: f64,
        values: f64,
        rows: f64,
        on: &Processor,
    ) -> f64 {
        let arithmetic = match on.prefill.filter(|_| rows > 1.0) {
            Some(rates) => {
                let gemm = if self.bf16 { rates.bf16 } else { rates.f32 };
                seconds(weights, gemm.bytes_per_second)
                    + seconds(operations, gemm.flops)
                    + seconds(values, gemm.values_per_second)
            }
            None => seconds(operations, on.product_flops),
        };
        arithmetic.max(seconds(weights, on.product_bytes_per_second))
    }

    /// Seconds of a pass that is always the same.
    fn fixed(&self, pass: &PassCost, on: &Processor) -> f64 {
        let (flops, values) = (pass.flops as f64, pass.values as f64);
        self.matmuls(self.weights, flops, values, f64::INFINITY, on)
            + seconds(pass.attention_flops as f64, attention_rate(on))
            + on.block_seconds.max(0.0)
    }
}

impl Costs {
    pub(crate) fn new(tree: &Tree, workload: &Workload) -> Self {
        Self {
            blocks: tree.blocks.iter().map(|b| amounts(b, workload)).collect(),
            batch: workload.batch as f64,
            prompt: workload.prompt as f64,
            passes: match tree.blocks.iter().any(|block| block.work.flops_once > 0) {
                // An encoder reads the prompt at once, and the decoder begins with one token.
                true => passes(&Workload { prompt: 1, ..*workload }),
                false => passes(workload),
            },
        }
    }

    /// The passes over the prompt: the first, others of the same length, and the remainder.
    pub(crate) fn passes(&self) -> &[Passes] {
        &self.passes
    }

    /// Bytes of weights that the block uses.
    pub(crate) fn weights(&self, block: usize) -> f64 {
        self.blocks[block].weights + self.blocks[block].weights_once
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
        amounts.matmuls(amounts.weights, operations, amounts.values * rows, rows, on)
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
        let memory = seconds(amounts.weights, on.product_bytes_per_second)
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
        let all = self.passes.iter();
        all.map(|pass| pass.count * self.pass(block, on, pass)).sum()
    }

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
    fn hops(
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

    /// Whether decode is faster if the block is streamed to the GPU.
    pub(crate) fn decodes_faster_on(&self, block: usize, gpu: &Gpu, cpu: &Processor) -> bool {
        let upload = self.upload(self.weights(block), gpu);
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
        let upload = self.upload(self.weights(block), gpu);
        let (mut there, mut here) = (0.0, 0.0);
        for pass in &self.passes {
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

/// The fewest tokens of a prompt for which the block with the most weights is predicted to compute faster
/// on a GPU that its weights are copied to than on the host's processors; none if it never is.
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
        let most = blocks.max_by(|a, b| costs.weights(*a).total_cmp(&costs.weights(*b)));
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

/// The devices of a block, and its transfers in each pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) decode_on: Tier,
    pub(crate) prefill_on: Tier,
    /// From disk.
    pub(crate) traffic: DiskTraffic,
    /// To the GPU that it computes on, in bytes.
    pub(crate) upload: u64,
}

impl Placed {
    /// The GPU that it computes on in either phase.
    pub(crate) fn gpu(&self) -> Option<Tier> {
        let both = [self.decode_on, self.prefill_on];
        both.into_iter().find(|tier| matches!(tier, Tier::Gpu(_)))
    }
}

/// How long a block takes in one kind of pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Time {
    pub(crate) seconds: f64,
    pub(crate) compute: f64,
    pub(crate) transfer: f64,
    /// Copies of activations from the device of the block before.
    pub(crate) hop: f64,
}

/// The times of blocks, in their order, in decode and in prefill.
pub(crate) fn times<'a>(
    costs: &'a Costs,
    figures: &'a HardwareProfile,
    blocks: impl Iterator<Item = Placed> + 'a,
) -> impl Iterator<Item = (Time, Time)> + 'a {
    let mut before = [Tier::Cpu; 2];
    blocks.enumerate().map(move |(block, placed)| {
        let (mut decode, mut prefill) = time(costs, figures, block, &placed);
        let hops = costs.hops(block, &placed, &mut before, figures);
        for (time, hop) in [&mut decode, &mut prefill].into_iter().zip(hops) {
            (time.hop, time.seconds) = (hop, time.seconds + hop);
        }
        (decode, prefill)
    })
}

/// The time of a block in decode and in prefill, with activations where it computes.
fn time(costs: &Costs, figures: &HardwareProfile, block: usize, placed: &Placed) -> (Time, Time) {
    let DiskTraffic { streamed, kept } = placed.traffic;
    let from_disk = |bytes: u64| seconds(bytes as f64, figures.disk.bytes_per_second);
    let upload = |tier| match tier {
        Tier::Gpu(number) => costs.upload(placed.upload as f64, &figures.gpu(number)),
        Tier::Cpu | Tier::Disk => 0.0,
    };
    let compute = costs.decode(block, &figures.processor(placed.decode_on));
    let transfer = from_disk(streamed - kept).max(upload(placed.decode_on));
    let decode = Time { seconds: compute.max(transfer), compute, transfer, hop: 0.0 };

    let mut prefill = Time::default();
    let processor = figures.processor(placed.prefill_on);
    let to_gpu = upload(placed.prefill_on);
    for pass in costs.passes() {
        let compute = costs.pass(block, &processor, pass);
        let hand_over = match placed.gpu() {
            Some(Tier::Gpu(number)) if placed.decode_on != placed.prefill_on => {
                costs.hand_over(block, pass, &figures.gpu(number))
            }
            _ => 0.0,
        };
        let read = if pass.first { streamed } else { streamed - kept };
        let transfer = from_disk(read).max(to_gpu + hand_over);
        prefill.compute += pass.count * compute;
        prefill.transfer += pass.count * transfer;
        prefill.seconds += pass.count * compute.max(transfer);
    }
    (decode, prefill)
}

fn amounts(block: &Block, workload: &Workload) -> Amounts {
    let BlockCost { kv_bytes, kv_bytes_per_position, window, .. } = block.work;
    let BlockCost { cross_kv_bytes, flops_once, .. } = block.work;
    let touched = block.tensors.iter().filter(|tensor| tensor.bytes_per_use() > 0);
    // One pass: a model of many tensors is larger than a processor's caches.
    let (mut weights, mut of_shapes, mut values, mut unknown) = (0.0, 0.0, 0.0, false);
    let (mut weights_once, mut values_once, mut bf16) = (0.0, 0.0, workload.bf16);
    for tensor in touched {
        let flops = product_flops(tensor);
        let dims = tensor.shape.iter().map(|n| *n as f64).sum::<f64>();
        let of_matmul = if flops > 0.0 { dims } else { 0.0 };
        bf16 &= flops == 0.0 || tensor.dtype == WeightDtype::Bf16;
        if tensor.once {
            weights_once += tensor.bytes as f64;
            values_once += of_matmul;
            continue;
        }
        weights += tensor.bytes as f64;
        of_shapes += flops;
        values += of_matmul;
        unknown |= tensor.shape.is_empty();
    }
    let flops = block.work.flops_per_token.map_or(of_shapes, |flops| flops as f64);
    let of_attention = kv_bytes_per_position as f64 / workload.batch.max(1) as f64;
    let attention_flops = (block.work.attention_flops)
        .map_or(of_attention * ATTENTION_FLOPS_PER_BYTE, |flops| flops as f64);
    let seen = workload.position.min(window.unwrap_or(u64::MAX));
    Amounts {
        weights,
        weights_once,
        flops_once: flops_once as f64,
        values_once,
        flops,
        values,
        bf16,
        attention_flops,
        last_only: block.work.last_only,
        kv_bytes: kv_bytes as f64,
        cache: kv_bytes_per_position as f64 * seen as f64 + cross_kv_bytes as f64,
        cross: cross_kv_bytes as f64,
        cache_per_position: kv_bytes_per_position as f64,
        window: window.map_or(f64::INFINITY, |window| window as f64),
        input: block.work.input_values as f64 * ACTIVATION_BYTES,
        output: block.work.output_values as f64 * ACTIVATION_BYTES,
        computes: flops > 0.0 || kv_bytes_per_position > 0 || unknown,
        pass: block.work.pass,
    }
}

/// Operations of attention per second in passes of many tokens.
fn attention_rate(on: &Processor) -> f64 {
    on.prefill.map_or(on.product_flops, |rates| rates.attention_flops)
}

/// Two operations for each value of a matrix.
fn product_flops(tensor: &Tensor) -> f64 {
    match tensor.shape.len() {
        0 | 1 => 0.0,
        _ => 2.0 * tensor.shape.iter().map(|n| *n as f64).product::<f64>(),
    }
}

/// The prompt in passes of at most a chunk.
fn passes(workload: &Workload) -> Vec<Passes> {
    let chunk = workload.chunk.clamp(1, workload.prompt.max(1));
    let (whole, rest) = (workload.prompt / chunk, workload.prompt % chunk);
    let (size, whole) = (chunk as f64, whole as f64);
    let mut passes = Vec::with_capacity(3);
    let mut add = |count: f64, tokens: f64, before: f64| {
        if count > 0.0 && tokens > 0.0 {
            let first = passes.is_empty();
            passes.push(Passes { count, tokens, before, first });
        }
    };
    add(whole.min(1.0), size, 0.0);
    add(whole - 1.0, size, size * whole / 2.0);
    add(1.0, rest as f64, size * whole);
    passes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(prompt: u64, chunk: u64) -> Workload {
        Workload { prompt, chunk, ..Workload::default() }
    }

    #[test]
    fn a_prompt_is_cut_in_chunks() {
        let tokens = |prompt, chunk| -> Vec<(f64, f64)> {
            let passes = passes(&workload(prompt, chunk));
            assert_eq!(passes.iter().filter(|pass| pass.first).count(), passes.len().min(1));
            passes.iter().map(|pass| (pass.count, pass.tokens)).collect()
        };
        assert_eq!(tokens(0, 512), []);
        assert_eq!(tokens(1, 0), [(1.0, 1.0)]);
        assert_eq!(tokens(300, 512), [(1.0, 300.0)]);
        assert_eq!(tokens(1300, 512), [(1.0, 512.0), (1.0, 512.0), (1.0, 276.0)]);
        let many = passes(&workload(u64::MAX, 1));
        let sum: f64 = many.iter().map(|pass| pass.count * pass.tokens).sum();
        assert_eq!(sum, u64::MAX as f64);
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
            ..crate::HardwareProfile::default().cpu
        };
        assert_eq!(costs.decode(0, &on), 100_000.0);
        assert_eq!(costs.decode(1, &on), 6_400.0);
    }
}
