//! How long planning takes with the number of tensors: 128 blocks of experts on 8 GPUs, main memory
//! and the disk.
//!
//! ```text
//! cargo bench -p outsize-plan --bench scale
//! cargo bench -p outsize-plan --bench scale -- assign    # Accelerate's strategies only
//! ```
//!
//! The tensors are those of a mixture of experts: each block has attention, two norms, a router,
//! and experts of three matrices. Each GPU and main memory have a tenth of the model's bytes, so
//! that something is left for the disk.

use divan::Bencher;
use outsize_plan::{
    Access, Block, Budget, Options, Strategy, Tensor, Tier, Tree, WeightDtype, assign, infer,
};
use std::collections::BTreeMap;

/// Blocks of a model.
const BLOCKS: u64 = 128;
/// Tensors of a model, about.
const TENSORS: [u64; 3] = [2_000, 20_000, 200_000];
/// GPUs.
const GPUS: u64 = 8;

fn main() {
    divan::main();
}

/// A matrix in bf16.
fn matrix(name: String, rows: u64, columns: u64) -> Tensor {
    let bytes = WeightDtype::Bf16.bytes(rows * columns);
    Tensor {
        name,
        shape: vec![rows, columns],
        dtype: WeightDtype::Bf16,
        bytes,
        stored_bytes: bytes,
        row_bytes: WeightDtype::Bf16.bytes(columns),
        access: Access::Tiles,
        ..Tensor::default()
    }
}

/// A model of about so many tensors.
fn model(tensors: u64) -> Tree {
    let experts = (tensors / BLOCKS).saturating_sub(7) / 3;
    let mut classes = BTreeMap::new();
    let mut blocks = vec![Block {
        name: "model.embed_tokens".to_string(),
        class: "Embedding".to_string(),
        tensors: vec![matrix("model.embed_tokens.weight".to_string(), 32_000, 512)],
        ..Block::default()
    }];
    for layer in 0..BLOCKS {
        let path = format!("model.layers.{layer}");
        let mut held = Vec::new();
        let mut hold = |module: &str, rows, columns| {
            let module = format!("{path}.{module}");
            held.push(matrix(format!("{module}.weight"), rows, columns));
            classes.insert(module, "Linear".to_string());
        };
        for projection in ["q_proj", "k_proj", "v_proj", "o_proj"] {
            hold(&format!("self_attn.{projection}"), 512, 512);
        }
        hold("mlp.gate", experts, 512);
        for expert in 0..experts {
            for projection in ["gate_proj", "up_proj", "down_proj"] {
                hold(&format!("mlp.experts.{expert}.{projection}"), 256, 512);
            }
        }
        hold("input_layernorm", 1, 512);
        hold("post_attention_layernorm", 1, 512);
        classes.insert(path.clone(), "DecoderLayer".to_string());
        blocks.push(Block {
            name: path,
            class: "DecoderLayer".to_string(),
            tensors: held,
            ..Block::default()
        });
    }
    blocks.push(Block {
        name: "lm_head".to_string(),
        class: "Linear".to_string(),
        tensors: vec![matrix("lm_head.weight".to_string(), 32_000, 512)],
        ..Block::default()
    });
    Tree { blocks, classes, ..Tree::default() }
}

/// A tenth of the model for each device.
fn budget(tree: &Tree) -> Budget {
    let tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
    let tenth = tensors.map(|tensor| tensor.bytes).sum::<u64>() / 10;
    let mut budget = Budget::default();
    for gpu in 0..GPUS {
        budget.set(Tier::Gpu(gpu as usize), tenth);
    }
    budget.set(Tier::Cpu, tenth);
    budget
}

/// Times `assign`.
fn strategy(bencher: Bencher<'_, '_>, tensors: u64, strategy: Strategy, no_split: &[&str]) {
    let tree = model(tensors);
    let budget = budget(&tree);
    let options = Options {
        strategy,
        no_split: no_split.iter().map(ToString::to_string).collect(),
        ..Options::default()
    };
    bencher.bench(|| assign(&tree, &budget, &options));
}

#[divan::bench(args = TENSORS)]
fn assign_sequential(bencher: Bencher<'_, '_>, tensors: u64) {
    strategy(bencher, tensors, Strategy::Sequential, &["DecoderLayer"]);
}

#[divan::bench(args = TENSORS)]
fn assign_sequential_splitting_everything(bencher: Bencher<'_, '_>, tensors: u64) {
    strategy(bencher, tensors, Strategy::Sequential, &[]);
}

#[divan::bench(args = TENSORS)]
fn assign_balanced(bencher: Bencher<'_, '_>, tensors: u64) {
    strategy(bencher, tensors, Strategy::Balanced, &["DecoderLayer"]);
}

#[divan::bench(args = TENSORS)]
fn assign_balanced_low_0(bencher: Bencher<'_, '_>, tensors: u64) {
    strategy(bencher, tensors, Strategy::BalancedLow0, &["DecoderLayer"]);
}

#[divan::bench(args = TENSORS)]
fn infer_auto(bencher: Bencher<'_, '_>, tensors: u64) {
    let tree = model(tensors);
    let budget = budget(&tree);
    bencher.bench(|| infer(&tree, &budget, &Options::default()));
}

/// Without GPUs: main memory for a tenth of the model, the rest is streamed from disk.
#[divan::bench(args = TENSORS)]
fn infer_auto_without_gpus(bencher: Bencher<'_, '_>, tensors: u64) {
    let tree = model(tensors);
    let mut tight = Budget::default();
    if let Some(bytes) = budget(&tree).get(Tier::Cpu) {
        tight.set(Tier::Cpu, bytes);
    }
    bencher.bench(|| infer(&tree, &tight, &Options::default()));
}
