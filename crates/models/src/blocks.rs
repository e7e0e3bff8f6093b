//! A model described without tensors: what there is to place, in order of execution.

use crate::{Access, Architecture, ModelConfig};

/// What a weight is for; decides how it is drawn when random weights are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightKind {
    /// A table with one row per token: normal.
    Embedding,
    /// The matrix of a linear layer, `[out, in]`: normal.
    Linear,
    /// What a linear layer adds, `[out]`: normal.
    Bias,
    /// The scale of a norm: ones.
    Norm,
}

/// One tensor of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Its name in the checkpoint, which is also its parameter's path in the module.
    pub name: String,
    /// Its shape in the checkpoint.
    pub shape: Vec<usize>,
    /// What it is for.
    pub kind: WeightKind,
    /// How its layer reads it.
    pub access: Access,
}

impl TensorSpec {
    /// Values in it.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

/// A part of the model that must not be split between devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockSpec {
    /// Its path: `model.embed_tokens`, `model.layers.0`, …, `model.norm`, `lm_head`.
    pub name: String,
    /// Its class in `transformers`, such as `LlamaDecoderLayer`.
    pub class: String,
    /// Its own tensors, in order of use.
    pub tensors: Vec<TensorSpec>,
    /// The tensor of an earlier block that it uses as well, by tiles: a tied head's embedding table.
    pub tied_to: Option<String>,
}

impl ModelConfig {
    /// The model's blocks in order of execution.
    pub fn blocks(&self) -> Vec<BlockSpec> {
        let table = || vec![self.vocab_size, self.hidden_size];
        let embedding = tensor("model.embed_tokens.weight", table(), WeightKind::Embedding);
        let (head, tied_to) = if self.tie_word_embeddings {
            (vec![], Some(embedding.name.clone()))
        } else {
            (
                vec![tensor("lm_head.weight", table(), WeightKind::Linear)],
                None,
            )
        };
        let norm = tensor(
            "model.norm.weight",
            vec![self.hidden_size],
            WeightKind::Norm,
        );
        let mut blocks = vec![block("model.embed_tokens", "Embedding", vec![embedding])];
        blocks.extend((0..self.num_hidden_layers).map(|layer| self.layer(layer)));
        blocks.push(block("model.norm", &self.class("RMSNorm"), vec![norm]));
        blocks.push(BlockSpec {
            tied_to,
            ..block("lm_head", "Linear", head)
        });
        blocks
    }

    fn layer(&self, layer: usize) -> BlockSpec {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (queries, keys) = (self.query_size(), self.key_value_size());
        let (inputs, output) = (self.attention_in_bias, self.attention_out_bias);
        let name = format!("model.layers.{layer}");
        let linear = |part: &str, shape: [usize; 2], bias: bool| {
            let name = format!("{name}.{part}");
            let weight = tensor(
                &format!("{name}.weight"),
                shape.to_vec(),
                WeightKind::Linear,
            );
            let bias =
                bias.then(|| tensor(&format!("{name}.bias"), vec![shape[0]], WeightKind::Bias));
            std::iter::once(weight).chain(bias)
        };
        let norm = |part: &str| {
            std::iter::once(tensor(
                &format!("{name}.{part}.weight"),
                vec![hidden],
                WeightKind::Norm,
            ))
        };
        let tensors = norm("input_layernorm")
            .chain(linear("self_attn.q_proj", [queries, hidden], inputs))
            .chain(linear("self_attn.k_proj", [keys, hidden], inputs))
            .chain(linear("self_attn.v_proj", [keys, hidden], inputs))
            .chain(linear("self_attn.o_proj", [hidden, queries], output))
            .chain(norm("post_attention_layernorm"))
            .chain(linear("mlp.gate_proj", [inner, hidden], self.mlp_bias))
            .chain(linear("mlp.up_proj", [inner, hidden], self.mlp_bias))
            .chain(linear("mlp.down_proj", [hidden, inner], self.mlp_bias));
        block(&name, &self.class("DecoderLayer"), tensors.collect())
    }

    /// A class's name in `transformers`.
    fn class(&self, part: &str) -> String {
        format!("{}{part}", self.family())
    }

    /// What the names of the architecture's classes in `transformers` begin with.
    pub(crate) fn family(&self) -> &'static str {
        match self.architecture {
            Architecture::Llama => "Llama",
            Architecture::Mistral => "Mistral",
            Architecture::Qwen2 => "Qwen2",
        }
    }
}

fn block(name: &str, class: &str, tensors: Vec<TensorSpec>) -> BlockSpec {
    BlockSpec {
        name: name.to_owned(),
        class: class.to_owned(),
        tensors,
        tied_to: None,
    }
}

fn tensor(name: &str, shape: Vec<usize>, kind: WeightKind) -> TensorSpec {
    let access = match kind {
        WeightKind::Embedding => Access::Rows,
        WeightKind::Linear => Access::Tiles,
        WeightKind::Bias | WeightKind::Norm => Access::Whole,
    };
    TensorSpec {
        name: name.to_owned(),
        shape,
        kind,
        access,
    }
}

#[cfg(test)]
mod tests {
    use burn::module::{Module, ModuleVisitor, Param};
    use burn::tensor::{Device, Tensor};

    use super::*;

    /// Paths and shapes of a module's parameters, in order.
    #[derive(Default)]
    struct Parameters {
        path: Vec<String>,
        found: Vec<(String, Vec<usize>)>,
    }

    impl ModuleVisitor for Parameters {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            assert!(!param.is_initialized());
            self.found
                .push((self.path.join("."), param.lazy_shape().to_vec()));
        }
    }

    fn config(tied: bool) -> ModelConfig {
        config_of("llama", tied, "")
    }

    /// With more fields, each behind a comma.
    fn config_of(model_type: &str, tied: bool, more: &str) -> ModelConfig {
        ModelConfig::from_json(&format!(
            r#"{{"model_type": "{model_type}", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
                "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 100,
                "tie_word_embeddings": {tied}{more}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn the_description_is_the_module() {
        for config in [
            config(false),
            config(true),
            config_of("llama", false, r#", "attention_bias": true"#),
            config_of(
                "llama",
                true,
                r#", "mlp_bias": true, "attention_bias": true"#,
            ),
            config_of("mistral", false, ""),
            config_of("qwen2", true, ""),
        ] {
            let mut parameters = Parameters::default();
            config.init(&Device::default()).visit(&mut parameters);
            let blocks = config.blocks();
            let described: Vec<_> = blocks
                .iter()
                .flat_map(|block| &block.tensors)
                .map(|t| (t.name.clone(), t.shape.clone()))
                .collect();
            assert_eq!(described, parameters.found, "names, shapes and order");
            let values: usize = described
                .iter()
                .map(|(_, s)| s.iter().product::<usize>())
                .sum();
            assert_eq!(config.parameters(), values as u64);
            for block in &blocks {
                assert!(
                    block
                        .tensors
                        .iter()
                        .all(|tensor| tensor.name.starts_with(&format!("{}.", block.name)))
                );
            }
        }
    }

    #[test]
    fn biases_are_where_the_architecture_has_them() {
        let biases = |config: ModelConfig| -> Vec<_> {
            let layer = config.blocks().swap_remove(1);
            let biases = layer
                .tensors
                .into_iter()
                .filter(|t| t.kind == WeightKind::Bias);
            biases
                .map(|t| (t.name.replace("model.layers.0.", ""), t.shape, t.access))
                .collect()
        };
        let bias = |part: &str, len| (format!("{part}.bias"), vec![len], Access::Whole);
        assert_eq!(biases(config(false)), []);
        assert_eq!(biases(config_of("mistral", false, "")), []);
        let qkv = ["q", "k", "v"].map(|part| format!("self_attn.{part}_proj"));
        let qkv = [bias(&qkv[0], 60), bias(&qkv[1], 20), bias(&qkv[2], 20)];
        assert_eq!(biases(config_of("qwen2", false, "")), qkv);
        let all = config_of(
            "llama",
            false,
            r#", "mlp_bias": true, "attention_bias": true"#,
        );
        let more = [
            bias("self_attn.o_proj", 48),
            bias("mlp.gate_proj", 80),
            bias("mlp.up_proj", 80),
            bias("mlp.down_proj", 48),
        ];
        assert_eq!(biases(all), [&qkv[..], &more].concat());
    }

    #[test]
    fn a_tied_head_names_the_embedding() {
        let tied = config(true).blocks().pop().unwrap();
        assert_eq!((tied.name.as_str(), tied.tensors.len()), ("lm_head", 0));
        assert_eq!(tied.tied_to.as_deref(), Some("model.embed_tokens.weight"));
        let own = config(false).blocks().pop().unwrap();
        assert_eq!((own.tensors.len(), own.tied_to), (1, None));
    }

    #[test]
    fn names_classes_and_access() {
        let blocks = config(false).blocks();
        let names: Vec<_> = blocks.iter().map(|block| block.name.as_str()).collect();
        let layers = ["model.layers.0", "model.layers.1", "model.layers.2"];
        assert_eq!(
            names,
            [
                &["model.embed_tokens"],
                &layers[..],
                &["model.norm", "lm_head"]
            ]
            .concat()
        );
        assert_eq!(blocks[1].class, "LlamaDecoderLayer");
        let qwen2 = config_of("qwen2", false, "").blocks();
        assert_eq!(
            (qwen2[1].class.as_str(), qwen2[4].class.as_str()),
            ("Qwen2DecoderLayer", "Qwen2RMSNorm")
        );
        assert_eq!(blocks[0].tensors[0].access, Access::Rows);
        assert_eq!(blocks[5].tensors[0].access, Access::Tiles);
        for tensor in &blocks[1].tensors {
            let expected = if tensor.shape.len() == 1 {
                Access::Whole
            } else {
                Access::Tiles
            };
            assert_eq!(tensor.access, expected, "{}", tensor.name);
        }
    }
}
