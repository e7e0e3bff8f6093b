//! A model as the planner sees it, from its configuration alone.

use std::collections::BTreeMap;

use outsize_plan::{Access, Block, BlockCost, Dtype, Tensor, TensorKind, Tree};

use crate::kv_cache::window_and_capacity;
use crate::{BlockSpec, CacheOptions, KvCache, ModelConfig, TensorSpec, WeightDtype, WeightKind};

impl ModelConfig {
    /// What there is to place, in the order in which a pass uses it, as a checkpoint of this configuration's own type holds it:
    /// 32-bit floats if it names none, as in `transformers`. A tied head's table stands where it is used last.
    ///
    /// What the blocks do besides holding weights is for [`add_work`](Self::add_work) to say.
    pub fn tree(&self) -> Tree {
        let dtype = match self.dtype {
            None | Some(WeightDtype::F32) => Dtype::F32,
            Some(WeightDtype::F16) => Dtype::F16,
            Some(WeightDtype::Bf16) => Dtype::Bf16,
        };
        let blocks = self.blocks_by_last_use();
        let classes = self.classes(&blocks);
        let blocks = blocks.into_iter().map(|block| Block {
            name: block.name,
            class: block.class,
            tensors: block
                .tensors
                .into_iter()
                .map(|tensor| described(tensor, dtype))
                .collect(),
            work: BlockCost::default(),
        });
        Tree {
            blocks: blocks.collect(),
            classes,
            staging_bytes: 0,
        }
    }

    /// Says of each block of `tree` that is one of this model's what it does besides holding weights: the keys and values that
    /// it keeps in a cache that is made for `cache`, and its operations.
    pub fn add_work(&self, tree: &mut Tree, cache: &CacheOptions) {
        let layers: BTreeMap<String, usize> = (0..self.num_hidden_layers)
            .map(|layer| (format!("model.layers.{layer}"), layer))
            .collect();
        for block in &mut tree.blocks {
            let products = block
                .tensors
                .iter()
                .filter(|tensor| tensor.shape.len() >= 2 && tensor.access != Access::Rows);
            let values = products
                .map(|tensor| tensor.shape.iter().product::<u64>())
                .fold(0, u64::saturating_add);
            block.work = BlockCost {
                flops_per_token: Some(values.saturating_mul(2)),
                ..BlockCost::default()
            };
            if let Some(&layer) = layers.get(&block.name) {
                let (window, _) = window_and_capacity(self.window(layer), cache);
                block.work.kv_bytes = KvCache::layer_bytes(self, layer, cache);
                block.work.kv_bytes_per_position = KvCache::column_bytes(self, cache);
                block.work.window = (window < usize::MAX).then_some(window as u64);
            }
        }
    }

    /// The blocks that hold tensors, with a tied head's table where it is used last: read by rows at the beginning of a pass
    /// and by tiles at its end, what streams is the latter.
    fn blocks_by_last_use(&self) -> Vec<BlockSpec> {
        let mut blocks = self.blocks();
        let tied: Vec<String> = blocks
            .iter()
            .filter_map(|block| block.tied_to.clone())
            .collect();
        let is_tied = |tensor: &TensorSpec| tied.contains(&tensor.name);
        let (mut last, mut first): (Vec<_>, Vec<_>) = blocks
            .drain(..)
            .filter(|block| !block.tensors.is_empty())
            .partition(|block| block.tensors.iter().any(is_tied));
        for tensor in last.iter_mut().flat_map(|block| &mut block.tensors) {
            tensor.access = Access::Tiles;
        }
        first.append(&mut last);
        first
    }

    /// The class in `transformers` of each module that holds tensors, and of each on the way to one.
    fn classes(&self, blocks: &[BlockSpec]) -> BTreeMap<String, String> {
        let family = self.family();
        let mut classes = BTreeMap::from([
            (String::new(), format!("{family}ForCausalLM")),
            ("model".to_owned(), format!("{family}Model")),
            ("model.layers".to_owned(), "ModuleList".to_owned()),
        ]);
        for block in blocks {
            classes.insert(block.name.clone(), block.class.clone());
            for tensor in &block.tensors {
                let Some((module, _)) = tensor.name.rsplit_once('.') else {
                    continue;
                };
                for part in ["self_attn", "mlp"] {
                    let parent = format!("{}.{part}", block.name);
                    if module.starts_with(&format!("{parent}.")) {
                        let class = match part {
                            "mlp" => "MLP",
                            _ => "Attention",
                        };
                        classes.insert(parent, format!("{family}{class}"));
                    }
                }
                let class = match tensor.kind {
                    WeightKind::Embedding => "Embedding".to_owned(),
                    WeightKind::Linear | WeightKind::Bias => "Linear".to_owned(),
                    WeightKind::Norm => format!("{family}RMSNorm"),
                };
                classes.insert(module.to_owned(), class);
            }
        }
        classes
    }
}

fn described(tensor: TensorSpec, dtype: Dtype) -> Tensor {
    let bytes = dtype.bytes(tensor.elements());
    let rows = tensor.shape.first().map_or(1, |rows| *rows as u64).max(1);
    Tensor {
        name: tensor.name,
        kind: TensorKind::Parameter,
        shape: tensor.shape.iter().map(|n| *n as u64).collect(),
        dtype,
        bytes,
        stored_bytes: bytes,
        row_bytes: bytes / rows,
        access: tensor.access,
        tied: None,
        always_resident: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{KvDtype, WhenFull, presets};

    fn config(name: &str) -> ModelConfig {
        ModelConfig::from_json(presets::config(name).unwrap()).unwrap()
    }

    #[test]
    fn the_work_of_all_blocks_is_the_cache_and_the_products() {
        for name in presets::names() {
            let config = config(name);
            for cache in [
                CacheOptions::new(5000),
                CacheOptions {
                    batch: 3,
                    dtype: KvDtype::Bf16,
                    when_full: WhenFull::Slide,
                    ..CacheOptions::new(700)
                },
            ] {
                let mut tree = config.tree();
                config.add_work(&mut tree, &cache);
                let sum = |of: fn(&BlockCost) -> u64| -> u64 {
                    tree.blocks.iter().map(|block| of(&block.work)).sum()
                };
                assert_eq!(
                    sum(|work| work.kv_bytes),
                    KvCache::bytes(&config, &cache),
                    "{name}"
                );
                assert_eq!(
                    sum(|work| work.kv_bytes_per_position),
                    KvCache::column_bytes(&config, &cache) * config.num_hidden_layers as u64
                );
                // A tied table is a product once; norms and biases are none.
                let table = (config.vocab_size * config.hidden_size) as u64;
                let vectors: u64 = config
                    .blocks()
                    .iter()
                    .flat_map(|block| &block.tensors)
                    .filter(|tensor| tensor.shape.len() == 1)
                    .map(TensorSpec::elements)
                    .sum();
                let embedding = if config.tie_word_embeddings { 0 } else { table };
                assert_eq!(
                    sum(|work| work.flops_per_token.unwrap()),
                    2 * (config.parameters() - vectors - embedding),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn windows_are_those_of_the_layers() {
        let mut config = config("mistral-7b");
        config.windows[3] = None;
        let mut tree = config.tree();
        config.add_work(&mut tree, &CacheOptions::new(10_000));
        let work = |layer: usize| tree.blocks[1 + layer].work;
        assert_eq!(work(2).window, Some(4096));
        assert_eq!(work(2).kv_bytes, 4096 * work(2).kv_bytes_per_position);
        assert_eq!(work(3).window, None);
        assert_eq!(work(3).kv_bytes, 10_000 * work(3).kv_bytes_per_position);
        assert_eq!(work(3).kv_bytes_per_position, 2 * 8 * 128 * 4);
    }

    #[test]
    fn classes_are_those_of_transformers() {
        let tree = config("qwen2-0.5b").tree();
        for (module, class) in [
            ("", "Qwen2ForCausalLM"),
            ("model", "Qwen2Model"),
            ("model.embed_tokens", "Embedding"),
            ("model.layers", "ModuleList"),
            ("model.layers.23", "Qwen2DecoderLayer"),
            ("model.layers.0.self_attn", "Qwen2Attention"),
            ("model.layers.0.self_attn.q_proj", "Linear"),
            ("model.layers.0.mlp", "Qwen2MLP"),
            ("model.layers.0.mlp.down_proj", "Linear"),
            ("model.layers.0.input_layernorm", "Qwen2RMSNorm"),
            ("model.norm", "Qwen2RMSNorm"),
        ] {
            assert_eq!(tree.classes[module], class, "{module}");
        }
        assert_eq!(tree.blocks[5].class, "Qwen2DecoderLayer");
        // The head is the table, and stands at the end.
        assert!(!tree.classes.contains_key("lm_head"));
        let table = tree.blocks.last().unwrap();
        assert_eq!(table.name, "model.embed_tokens");
        assert_eq!(table.tensors[0].access, Access::Tiles);
        assert_eq!(config("llama-7b").tree().classes["lm_head"], "Linear");
    }

    #[test]
    fn without_a_type_it_is_f32() {
        let mut config = config("llama-demo");
        config.dtype = None;
        let tensor = config.tree().blocks.swap_remove(0).tensors.swap_remove(0);
        assert_eq!(tensor.dtype, Dtype::F32);
        let values = (config.vocab_size * config.hidden_size) as u64;
        assert_eq!(
            (tensor.bytes, tensor.stored_bytes),
            (4 * values, 4 * values)
        );
        assert_eq!(tensor.row_bytes, 4 * config.hidden_size as u64);
    }
}
