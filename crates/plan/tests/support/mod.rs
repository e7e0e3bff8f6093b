//! Random models, machines and budgets.

use outsize_plan::{
    Access, Bandwidth, Block, BlockCost, Budget, Gpu, HardwareProfile, MemoryOverhead, Options,
    Processor, Routed, Tensor, Tier, Tree, Workload,
};
use proptest::prelude::*;
use std::collections::HashMap;

fn access() -> impl Strategy<Value = Access> {
    prop_oneof![1 => Just(Access::Whole), 3 => Just(Access::Tiles), 1 => Just(Access::Rows)]
}

fn tensor() -> impl Strategy<Value = Tensor> {
    (
        prop_oneof![1 => 0u64..100_000, 4 => 0u64..40_000_000],
        1u64..3,
        access(),
        prop_oneof![8 => Just(None), 1 => (0..2).prop_map(Some)],
        prop::bool::weighted(0.03),
    )
        .prop_map(|(bytes, ratio, access, tied, always_resident)| Tensor {
            bytes,
            shape: vec![bytes / 2048, 512],
            stored_bytes: bytes / ratio,
            row_bytes: 2048.min(bytes),
            access,
            tied: tied.map(|key: i32| key.to_string()),
            always_resident,
            routed: (tied.is_none() && bytes % 10 < 3)
                .then_some(Routed { per_token: 2, experts: 7 }),
            ..Tensor::default()
        })
}

fn work() -> impl Strategy<Value = BlockCost> {
    let window = prop_oneof![3 => Just(None), 1 => (1u64..1000).prop_map(Some)];
    (0u64..4_000_000, 0u64..10_000, window).prop_map(|(kv_bytes, kv_bytes_per_position, window)| {
        BlockCost { kv_bytes, kv_bytes_per_position, window, ..BlockCost::default() }
    })
}

/// Names and classes of blocks, which all have the class `Layer`.
fn named(mut blocks: Vec<(Vec<Tensor>, BlockCost)>) -> Tree {
    // What shares memory has one size.
    let mut tied: HashMap<String, Tensor> = HashMap::new();
    for tensor in blocks.iter_mut().flat_map(|(tensors, _)| tensors) {
        if let Some(key) = tensor.tied.clone() {
            let first = tied.entry(key).or_insert_with(|| tensor.clone());
            *tensor = Tensor { access: tensor.access, ..first.clone() };
        }
    }
    let blocks = blocks.into_iter().enumerate().map(|(b, (mut tensors, work))| {
        for (t, tensor) in tensors.iter_mut().enumerate() {
            tensor.name = format!("layers.{b}.{t}");
        }
        Block { name: format!("layers.{b}"), class: "Layer".to_string(), tensors, work }
    });
    let blocks: Vec<_> = blocks.collect();
    let classes = blocks.iter().map(|block| (block.name.clone(), block.class.clone()));
    Tree { classes: classes.collect(), blocks, ..Tree::default() }
}

/// The same with all weights used by all tokens.
pub fn without_routing(mut tree: Tree) -> Tree {
    for tensor in tree.blocks.iter_mut().flat_map(|block| &mut block.tensors) {
        tensor.routed = None;
    }
    tree
}

/// Blocks that are all different.
pub fn uneven(blocks: std::ops::Range<usize>) -> impl Strategy<Value = Tree> {
    let block = (prop::collection::vec(tensor(), 1..4), work());
    prop::collection::vec(block, blocks).prop_map(named)
}

/// Equal blocks between two others, as most models have them.
pub fn even(blocks: std::ops::Range<usize>) -> impl Strategy<Value = Tree> {
    let block = || (prop::collection::vec(tensor(), 1..6), work());
    (block(), block(), block(), blocks).prop_map(|(first, mut layer, last, count)| {
        for tensor in &mut layer.0 {
            tensor.tied = None;
        }
        let mut blocks = vec![first];
        blocks.extend(std::iter::repeat_n(layer, count));
        blocks.push(last);
        named(blocks)
    })
}

pub fn tree() -> impl Strategy<Value = Tree> {
    prop_oneof![uneven(0..9), even(0..12)]
}

/// What a block takes of each token, and what it gives to the processors, in values.
pub type Widths = (u64, u64);

/// Those of the blocks in turn: in some cases activations take no time.
pub fn widths() -> impl Strategy<Value = Vec<Widths>> {
    let given = prop_oneof![3 => Just(0u64), 1 => 0u64..50_000];
    let some = prop::collection::vec((0u64..50_000, given), 1..4);
    prop_oneof![Just(vec![(0, 0)]), Just(vec![(4096, 0)]), some]
}

/// The tree with activations of these widths, which take time to come from one device to another.
pub fn with_hops(mut tree: Tree, widths: &[Widths]) -> Tree {
    for (block, (taken, given)) in tree.blocks.iter_mut().zip(widths.iter().cycle()) {
        (block.work.input_values, block.work.output_values) = (*taken, *given);
    }
    tree
}

fn rate(most: f64) -> impl Strategy<Value = f64> {
    (0.0..6.0f64).prop_map(move |power| most / 2f64.powf(power))
}

fn processor(scale: f64) -> impl Strategy<Value = Processor> {
    (rate(25e9), rate(400e9), rate(10e9), 0.0..1e-3).prop_map(
        move |(bytes, product_flops, cache, block_seconds)| Processor {
            memory_bytes_per_second: bytes * scale,
            product_bytes_per_second: bytes * scale,
            product_flops: product_flops * scale,
            prefill: None,
            cache_bytes_per_second: cache * scale,
            block_seconds,
        },
    )
}

fn link(most: f64) -> impl Strategy<Value = Bandwidth> {
    (rate(most), 0.0..1e-3).prop_map(|(bytes_per_second, latency_seconds)| Bandwidth {
        bytes_per_second,
        latency_seconds,
    })
}

pub fn figures() -> impl Strategy<Value = HardwareProfile> {
    let gpu = (processor(10.0), link(40e9)).prop_map(|(processor, upload)| Gpu {
        processor,
        upload,
        download: None,
    });
    (link(8e9), processor(1.0), prop::collection::vec(gpu, 3)).prop_map(|(disk, cpu, gpus)| {
        HardwareProfile {
            disk,
            cpu,
            gpus: gpus.into_iter().enumerate().collect(),
            ..HardwareProfile::default()
        }
    })
}

pub fn options() -> impl Strategy<Value = Options> {
    (
        prop::collection::vec(0u64..3_000_000, 6),
        prop_oneof![Just(0u64), Just(65_536)],
        0u64..3_000_000,
        figures(),
        (1u64..5, 0u64..2000, 0u64..2000, 1u64..600),
    )
        .prop_map(
            |(needs, small_tensor, min_ring, figures, (batch, prompt, position, chunk))| Options {
                needs: MemoryOverhead {
                    process: needs[0],
                    kv_cache: needs[1],
                    activations: needs[2],
                    readers: needs[3],
                    overflow: 0,
                },
                gpu_activations: needs[4],
                reserve: needs[5] / 4,
                small_tensor,
                min_ring,
                figures,
                workload: Workload { batch, prompt, position, chunk, bf16: false },
                no_split: vec!["Layer".to_string()],
                ..Options::default()
            },
        )
}

/// Up to three GPUs, main memory or not, and sometimes a bounded disk.
pub fn budget() -> impl Strategy<Value = Budget> {
    let size = || prop_oneof![1 => 1_000_000u64..20_000_000, 4 => 1_000_000u64..250_000_000];
    (
        prop::collection::vec(prop::option::weighted(0.6, size()), 3),
        prop::option::weighted(0.9, size()),
        prop::option::weighted(0.1, prop_oneof![Just(0u64), size()]),
    )
        .prop_map(|(gpus, cpu, disk)| {
            let mut budget = Budget::default();
            let gpus = gpus.into_iter().enumerate();
            let gpus = gpus.map(|(number, size)| (Tier::Gpu(number), size));
            for (tier, size) in gpus.chain([(Tier::Cpu, cpu), (Tier::Disk, disk)]) {
                if let Some(size) = size {
                    budget.set(tier, size);
                }
            }
            budget
        })
}
