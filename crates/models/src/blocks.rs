//! A model described without tensors: what there is to place, in order of execution.

use crate::{Access, Architecture, ModelConfig};

/// What a weight is for; decides how it is drawn when random weights are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightKind {
    /// A table with one row per token: normal.
    Embedding,
    /// The matrix of a linear layer, `[out, in]`: normal.
    Linear,
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
        match self.architecture {
            Architecture::Llama => self.llama_blocks(),
        }
    }

    fn llama_blocks(&self) -> Vec<BlockSpec> {
        let table = || vec![self.vocab_size, self.hidden_size];
        let embedding = tensor("model.embed_tokens.weight", table(), WeightKind::Embedding);
        let (head, tied_to) = if self.tie_word_embeddings {
            (vec![], Some(embedding.name.clone()))
        } else {
            (vec![tensor("lm_head.weight", table(), WeightKind::Linear)], None)
        };
        let norm = tensor("model.norm.weight", vec![self.hidden_size], WeightKind::Norm);
        let mut blocks = vec![block("model.embed_tokens", "Embedding", vec![embedding])];
        blocks.extend((0..self.num_hidden_layers).map(|layer| self.llama_layer(layer)));
        blocks.push(block("model.norm", "LlamaRMSNorm", vec![norm]));
        blocks.push(BlockSpec { tied_to, ..block("lm_head", "Linear", head) });
        blocks
    }

    fn llama_layer(&self, layer: usize) -> BlockSpec {
        let (hidden, inner) = (self.hidden_size, self.intermediate_size);
        let (queries, keys) = (self.query_size(), self.key_value_size());
        let name = format!("model.layers.{layer}");
        let linear = |part: &str, shape: [usize; 2]| {
            tensor(&format!("{name}.{part}.weight"), shape.to_vec(), WeightKind::Linear)
        };
        let norm = |part: &str| tensor(&format!("{name}.{part}.weight"), vec![hidden], WeightKind::Norm);
        let tensors = vec![
            norm("input_layernorm"),
            linear("self_attn.q_proj", [queries, hidden]),
            linear("self_attn.k_proj", [keys, hidden]),
            linear("self_attn.v_proj", [keys, hidden]),
            linear("self_attn.o_proj", [hidden, queries]),
            norm("post_attention_layernorm"),
            linear("mlp.gate_proj", [inner, hidden]),
            linear("mlp.up_proj", [inner, hidden]),
            linear("mlp.down_proj", [hidden, inner]),
        ];
        block(&name, "LlamaDecoderLayer", tensors)
    }
}

fn block(name: &str, class: &str, tensors: Vec<TensorSpec>) -> BlockSpec {
    BlockSpec { name: name.to_owned(), class: class.to_owned(), tensors, tied_to: None }
}

fn tensor(name: &str, shape: Vec<usize>, kind: WeightKind) -> TensorSpec {
    let access = match kind {
        WeightKind::Embedding => Access::Rows,
        WeightKind::Linear => Access::Tiles,
        WeightKind::Norm => Access::Whole,
    };
    TensorSpec { name: name.to_owned(), shape, kind, access }
}
