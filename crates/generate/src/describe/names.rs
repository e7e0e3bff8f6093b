//! A model as the planner sees it, from the names of its tensors alone.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use outsize_checkpoint::TensorInfo;
use outsize_core::planned_dtype;
use outsize_plan::{Access, Block, Tensor, TensorKind, Tree};

/// Ends of the names of tensors that are not learned.
const BUFFERS: [&str; 7] = [
    "inv_freq",
    "masked_bias",
    "num_batches_tracked",
    "position_ids",
    "relative_position_index",
    "running_mean",
    "running_var",
];

/// The blocks of a checkpoint of any architecture, as its names have them: the outermost numbered
/// module (`model.layers.3`, `transformer.h.3`, `encoder.block.3`) is a block, and so is each
/// module outside of those that holds tensors.
///
/// In which order a pass uses them no name says. Taken is the usual one: embeddings, stacks of an
/// encoder or a tower for images or sound, other stacks, norms and the like, heads; the blocks of a
/// stack by their numbers.
pub(super) fn tree(tensors: &[TensorInfo]) -> Tree {
    let mut sorted: Vec<&TensorInfo> = tensors.iter().collect();
    sorted.sort_by(|one, other| natural(&one.name, &other.name));
    let mut places: HashMap<_, u32> = HashMap::new();
    for tensor in tensors {
        *places.entry(place(tensor)).or_default() += 1;
    }
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut blocks: Vec<(Rank, Block)> = Vec::new();
    for tensor in sorted {
        let (name, numbered) = block_of(&tensor.name);
        let at = *known.entry(name).or_insert_with(|| {
            let block = Block { name: name.to_owned(), ..Block::default() };
            blocks.push((Rank::of(name, numbered), block));
            blocks.len() - 1
        });
        let place = place(tensor);
        let shared = tensor.len > 0 && places[&place] > 1;
        let tied = shared.then(|| format!("{place:?}"));
        blocks[at].1.tensors.push(Tensor { tied, ..described(tensor) });
    }
    // Stable: within a rank they stay in the order of their names.
    blocks.sort_by_key(|(rank, _)| *rank);
    Tree {
        blocks: blocks.into_iter().map(|(_, block)| block).collect(),
        classes: BTreeMap::new(),
        staging_bytes: 0,
    }
}

/// Where a tensor's bytes lie: tensors at the same place are tied.
fn place(tensor: &TensorInfo) -> (usize, u64, u64) {
    (tensor.file, tensor.offset, tensor.len)
}

fn described(tensor: &TensorInfo) -> Tensor {
    let dtype = planned_dtype(tensor.dtype);
    let rows = tensor.shape.first().map_or(1, |rows| *rows as u64).max(1);
    let field = tensor.name.rsplit('.').next().unwrap_or_default();
    Tensor {
        name: tensor.name.clone(),
        kind: match BUFFERS.contains(&field) {
            true => TensorKind::Buffer,
            false => TensorKind::Parameter,
        },
        shape: tensor.shape.iter().map(|n| *n as u64).collect(),
        dtype,
        bytes: tensor.len,
        stored_bytes: tensor.len,
        row_bytes: tensor.len / rows,
        access: Access::Whole,
        tied: None,
        always_resident: false,
        once: false,
        routed: None,
    }
}

/// The path of the block that a tensor belongs to, and whether it is a numbered one.
fn block_of(tensor: &str) -> (&str, bool) {
    let holder = tensor.rsplit_once('.').map_or("", |(holder, _)| holder);
    let mut end = 0;
    for part in holder.split('.') {
        end += part.len();
        if is_number(part) {
            return (&tensor[..end], true);
        }
        end += 1;
    }
    (holder, false)
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())
}

/// Where in a pass a block is used, as far as its name tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Embedding,
    Encoder,
    Stack,
    Other,
    Head,
}

impl Rank {
    fn of(name: &str, numbered: bool) -> Self {
        let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
        let own = name.rsplit('.').next().unwrap_or_default();
        let is = |words: &[&str]| words.iter().any(|word| own.contains(word));
        if numbered {
            match has(&["encoder", "vision", "visual", "audio", "image"]) {
                true => Self::Encoder,
                false => Self::Stack,
            }
        } else if is(&["head", "classifier", "score", "output", "embed_out"]) {
            Self::Head
        } else if is(&["embed", "wte", "wpe", "tokens", "shared"]) || has(&["embeddings."]) {
            Self::Embedding
        } else {
            Self::Other
        }
    }
}

/// Compares paths part by part, numbers by their value.
fn natural(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one.split('.'), other.split('.'));
    loop {
        let order = match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (left, right) if left == right => continue,
            (Some(left), Some(right)) if is_number(left) && is_number(right) => {
                let digits = |part: &str| part.trim_start_matches('0').len();
                let by_value = digits(left).cmp(&digits(right)).then_with(|| {
                    let value = |part| str::trim_start_matches(part, '0');
                    value(left).cmp(value(right))
                });
                // `07` and `7` are different names.
                by_value.then_with(|| left.cmp(right))
            }
            // Numbers come before words: otherwise 2 < 10 < 1a < 2.
            (Some(left), Some(right)) => {
                is_number(right).cmp(&is_number(left)).then_with(|| left.cmp(right))
            }
            (left, right) => left.cmp(&right),
        };
        if order != Ordering::Equal {
            return order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outsize_checkpoint::Dtype;
    use proptest::prelude::*;

    fn info(name: &str) -> TensorInfo {
        TensorInfo {
            name: name.to_owned(),
            dtype: Dtype::BF16,
            shape: vec![3, 5],
            file: 0,
            offset: 0,
            len: 30,
        }
    }

    fn blocks(names: &[&str]) -> Vec<String> {
        let tensors: Vec<_> = names.iter().map(|name| info(name)).collect();
        tree(&tensors).blocks.into_iter().map(|block| block.name).collect()
    }

    #[test]
    fn the_outermost_number_makes_a_block() {
        for (tensor, block) in [
            ("model.layers.12.mlp.experts.3.w1.weight", "model.layers.12"),
            ("transformer.h.3.attn.c_attn.bias", "transformer.h.3"),
            ("bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.0"),
            ("0.weight", "0"),
            ("model.embed_tokens.weight", "model.embed_tokens"),
            ("weight", ""),
            ("list.7", "list"),
            ("", ""),
            ("..7.x", "..7"),
            ("a.٣.b", "a.٣"),
        ] {
            assert_eq!(block_of(tensor).0, block, "{tensor}");
        }
    }

    #[test]
    fn blocks_come_in_the_order_of_use() {
        let shuffled = [
            "lm_head.weight",
            "model.layers.10.w",
            "model.layers.2.w",
            "model.norm.weight",
            "model.layers.9.w",
            "model.embed_tokens.weight",
        ];
        assert_eq!(
            blocks(&shuffled),
            [
                "model.embed_tokens",
                "model.layers.2",
                "model.layers.9",
                "model.layers.10",
                "model.norm",
                "lm_head"
            ]
        );
        let t5 = [
            "decoder.block.0.layer.0.w",
            "decoder.final_layer_norm.weight",
            "encoder.block.0.layer.0.w",
            "shared.weight",
            "encoder.block.1.layer.0.w",
        ];
        assert_eq!(
            blocks(&t5),
            [
                "shared",
                "encoder.block.0",
                "encoder.block.1",
                "decoder.block.0",
                "decoder.final_layer_norm"
            ]
        );
        let neox = ["embed_out.weight", "gpt_neox.embed_in.weight", "gpt_neox.layers.0.w"];
        assert_eq!(blocks(&neox), ["gpt_neox.embed_in", "gpt_neox.layers.0", "embed_out"]);
    }

    #[test]
    fn sizes_are_those_of_the_headers() {
        let tree = tree(&[info("bn.running_mean"), info("bn.weight")]);
        let [mean, weight] = &tree.blocks[0].tensors[..] else {
            panic!("{tree:?}");
        };
        assert_eq!(mean.kind, TensorKind::Buffer);
        assert_eq!(weight.kind, TensorKind::Parameter);
        assert_eq!((weight.bytes, weight.stored_bytes, weight.row_bytes), (30, 30, 10));
        assert_eq!(weight.shape, [3, 5]);
    }

    proptest! {
        #[test]
        fn every_tensor_is_in_one_block_and_the_order_of_the_names_does_not_matter(
            names in proptest::collection::btree_set("[a-c0-2.]{0,8}", 0..40),
            seed in any::<u64>(),
        ) {
            let tensors: Vec<_> = names.iter().map(|name| info(name)).collect();
            let tree_of = tree(&tensors);
            let mut found: Vec<_> = tree_of
                .blocks
                .iter()
                .flat_map(|block| &block.tensors)
                .map(|tensor| tensor.name.clone())
                .collect();
            found.sort();
            prop_assert!(found.iter().eq(names.iter()));
            let mut shuffled = tensors.clone();
            let len = shuffled.len().max(1);
            for at in 0..shuffled.len() {
                shuffled.swap(at, (seed.rotate_left(at as u32) % len as u64) as usize);
            }
            prop_assert_eq!(tree(&shuffled), tree_of);
        }

        #[test]
        fn the_order_of_names_is_an_order(
            names in proptest::collection::vec("[a-b0-2.]{0,6}", 3),
        ) {
            let [a, b, c] = &names[..] else { unreachable!() };
            prop_assert_eq!(natural(a, b), natural(b, a).reverse());
            prop_assert_eq!(natural(a, b) == Ordering::Equal, a == b);
            if natural(a, b) != Ordering::Greater && natural(b, c) != Ordering::Greater {
                prop_assert_ne!(natural(a, c), Ordering::Greater);
            }
        }
    }
}
