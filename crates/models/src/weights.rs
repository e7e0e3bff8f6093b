//! What each parameter is for, as the layer that holds it tells.

use std::collections::{HashMap, HashSet};

use outsize_core::{Access, Parameter};

/// What a weight is for; decides how it is drawn when random weights are wanted, and how it is
/// read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightKind {
    /// A table with one row per token or position: normal.
    Embedding,
    /// The matrix of a linear layer or a convolution: normal.
    Linear,
    /// The matrix of a layer that chooses experts, or mixes residual streams: normal, and never in
    /// blocks.
    Router,
    /// The taps of a convolution over tokens: normal, and never in blocks.
    Taps,
    /// What a layer adds, `[out]` or for each place in a block of tokens, or what its attention
    /// sinks score: normal.
    Bias,
    /// The scale of a norm: ones.
    Norm,
    /// Which experts each token goes to, `[vocabulary, per_token]`: whole numbers of 64 bits,
    /// always in memory.
    ExpertTable,
}

/// One parameter of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSpec {
    /// Its name in the checkpoint, which is also its path in the module.
    pub name: String,
    /// Its shape in the checkpoint.
    pub shape: Vec<usize>,
    /// What it is for.
    pub kind: WeightKind,
    /// How its layer reads it.
    pub access: Access,
}

impl WeightSpec {
    /// Values in it.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product()
    }
}

impl From<&Parameter> for WeightSpec {
    fn from(parameter: &Parameter) -> Self {
        let kind = match (parameter.class(), parameter.field()) {
            ("Embedding", _) => WeightKind::Embedding,
            (_, "tid2eid") => WeightKind::ExpertTable,
            (_, "bias" | "sinks" | "e_score_correction_bias" | "expert_bias" | "position_bias")
            | (_, "alpha") => WeightKind::Bias,
            ("Router", _) | (_, "hc_fn") => WeightKind::Router,
            ("CausalConv1d", _) => WeightKind::Taps,
            ("Linear" | "Conv1d" | "Conv2d" | "HeadMatrices", _) => WeightKind::Linear,
            _ => WeightKind::Norm,
        };
        Self {
            name: parameter.path.clone(),
            shape: parameter.shape.clone(),
            kind,
            access: match kind {
                WeightKind::Embedding => Access::Rows,
                WeightKind::Linear if parameter.class() == "HeadMatrices" => Access::Whole,
                WeightKind::Linear | WeightKind::Router => Access::Tiles,
                WeightKind::Bias
                | WeightKind::Norm
                | WeightKind::Taps
                | WeightKind::ExpertTable => Access::Whole,
            },
        }
    }
}

/// What the matrices of gated blocks are called: the gate, and what goes through it.
const GATED: [[&str; 2]; 4] =
    [["gate_proj", "up_proj"], ["w1", "w3"], ["w1", "v1"], ["wi_0", "wi_1"]];

/// The gates, by the names of what goes through them.
pub(crate) fn gates(weights: &[WeightSpec]) -> HashMap<String, String> {
    let names: HashSet<&str> = weights.iter().map(|weight| weight.name.as_str()).collect();
    let gate = |name: &str, [gate, up]: [&str; 2]| {
        let block = name.strip_suffix(".weight")?.strip_suffix(up)?;
        let gate = format!("{block}{gate}.weight");
        (block.ends_with('.') && names.contains(gate.as_str())).then_some(gate)
    };
    let gate_of = |name: &str| GATED.into_iter().find_map(|pair| gate(name, pair));
    names.iter().filter_map(|name| Some((name.to_string(), gate_of(name)?))).collect()
}

/// What the rows of gates are as wide as, at most: 0 if there are none.
pub(crate) fn gated_width(weights: &[WeightSpec]) -> u64 {
    let gated = gates(weights);
    let widths = weights.iter().filter(|weight| gated.contains_key(&weight.name));
    widths.filter_map(|weight| weight.shape.last()).max().map_or(0, |width| *width as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;

    fn config_of(model_type: &str, more: &str) -> ModelConfig {
        ModelConfig::from_json(&format!(
            r#"{{"model_type": "{model_type}", "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 3,
                "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10, "vocab_size": 100{more}}}"#
        ))
        .unwrap()
    }

    #[test]
    fn biases_are_where_the_architecture_has_them() {
        let biases = |config: ModelConfig| -> Vec<_> {
            let weights = config.weights().into_iter();
            let biases = weights.filter(|weight| weight.kind == WeightKind::Bias);
            biases
                .filter_map(|weight| {
                    let part = weight.name.strip_prefix("model.layers.0.")?.to_owned();
                    Some((part, weight.shape, weight.access))
                })
                .collect()
        };
        let bias = |part: &str, len| (format!("{part}.bias"), vec![len], Access::Whole);
        assert_eq!(biases(config_of("llama", "")), []);
        assert_eq!(biases(config_of("mistral", "")), []);
        let qkv = ["q", "k", "v"].map(|part| format!("self_attn.{part}_proj"));
        let qkv = [bias(&qkv[0], 60), bias(&qkv[1], 20), bias(&qkv[2], 20)];
        assert_eq!(biases(config_of("qwen2", "")), qkv);
        let all = config_of("llama", r#", "mlp_bias": true, "attention_bias": true"#);
        let more = [
            bias("self_attn.o_proj", 48),
            bias("mlp.gate_proj", 80),
            bias("mlp.up_proj", 80),
            bias("mlp.down_proj", 48),
        ];
        assert_eq!(biases(all), [&qkv[..], &more].concat());
    }

    #[test]
    fn gates_are_found_by_name() {
        for (config, pairs) in [
            (config_of("llama", ""), vec![("mlp.up_proj", "mlp.gate_proj")]),
            (
                config_of("mixtral", r#", "num_local_experts": 2"#),
                vec![
                    ("block_sparse_moe.experts.0.w3", "block_sparse_moe.experts.0.w1"),
                    ("block_sparse_moe.experts.1.w3", "block_sparse_moe.experts.1.w1"),
                ],
            ),
        ] {
            let found = gates(&config.weights());
            assert_eq!(found.len(), 3 * pairs.len());
            for (up, gate) in pairs {
                let [up, gate] = [up, gate].map(|part| format!("model.layers.1.{part}.weight"));
                assert_eq!(found.get(&up), Some(&gate));
                // The one is asked for right behind the other.
                let order = config.options(&[]).order.unwrap();
                let at = |name| order.iter().position(|other| *other == name).unwrap();
                assert_eq!(at(gate) + 1, at(up));
            }
        }
    }

    #[test]
    fn a_tied_head_names_the_embedding() {
        let tied = config_of("llama", r#", "tie_word_embeddings": true"#);
        let table = "model.embed_tokens.weight".to_owned();
        assert_eq!(tied.tied_head(), Some((table, "lm_head.weight".to_owned())));
        let own = config_of("llama", "");
        assert_eq!(own.tied_head(), None);
        assert_eq!(own.weights().last().unwrap().name, "lm_head.weight");
    }

    #[test]
    fn access_is_that_of_the_layer() {
        let weights = config_of("llama", "").weights();
        for weight in &weights {
            let expected = match (weight.name.contains("embed"), weight.shape.len()) {
                (true, _) => Access::Rows,
                (_, 2) => Access::Tiles,
                _ => Access::Whole,
            };
            assert_eq!(weight.access, expected, "{}", weight.name);
        }
        assert_eq!(weights.len(), 3 * 9 + 3);
    }
}
