//! What GPT-2 and the models whose configuration has the same fields share.

use crate::architecture::Init;
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS,
    MAX_VOCAB,
};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{Activation, LayerNorm};
use crate::{CacheSpec, Error};

/// The sizes of a GPT-2, or of a model whose configuration has the same fields.
#[derive(Debug, Clone, PartialEq)]
pub struct GptSizes {
    /// Width of the residual stream.
    pub n_embd: usize,
    /// Width of the MLP's inner layer.
    pub n_inner: usize,
    /// Decoder layers.
    pub n_layer: usize,
    /// Heads; divide `n_embd`.
    pub n_head: usize,
    /// The longest context, in tokens.
    pub n_positions: usize,
    /// Token ids run from 0 to this, exclusive.
    pub vocab_size: usize,
    /// Added to the variance in LayerNorm.
    pub layer_norm_epsilon: f64,
    /// The non-linear function of the MLP (`activation_function`).
    pub activation: Activation,
}

impl GptSizes {
    /// Reads the fields; `positions` are those of a file that does not say.
    pub(super) fn read(fields: &Fields<'_>, positions: usize) -> Result<Self, Error> {
        // The names of all of `transformers` stand for those of this family.
        let either = |own: &'static str, alias: &'static str| match fields.get(own) {
            Some(_) => own,
            None if fields.get(alias).is_some() => alias,
            None => own,
        };
        let n_embd = fields.size(either("n_embd", "hidden_size"), MAX_HIDDEN)?;
        let field = either("n_head", "num_attention_heads");
        let n_head = fields.size(field, MAX_HEADS)?;
        if !n_embd.is_multiple_of(n_head) || n_embd / n_head > MAX_HEAD_DIM {
            let expected = format!(
                "the heads must divide n_embd, {n_embd}, and be at most {MAX_HEAD_DIM} wide"
            );
            return Err(fields.refuse(field, expected));
        }
        let field = either("n_positions", "max_position_embeddings");
        Ok(Self {
            n_embd,
            n_inner: fields.size_or("n_inner", 4 * n_embd, MAX_INTERMEDIATE)?,
            n_layer: fields.size(either("n_layer", "num_hidden_layers"), MAX_LAYERS)?,
            n_head,
            n_positions: fields.size_or(field, positions, MAX_CONTEXT)?,
            vocab_size: fields.size("vocab_size", MAX_VOCAB)?,
            layer_norm_epsilon: config::epsilon(fields, "layer_norm_epsilon", 1e-5)?,
            activation: config::activation(fields, "activation_function", Activation::GeluTanh)?,
        })
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.n_embd / self.n_head
    }

    pub(super) fn cache(&self) -> CacheSpec {
        CacheSpec::uniform(
            self.n_layer,
            self.n_head,
            self.n_head,
            self.head_dim(),
            self.n_positions,
        )
    }

    pub(super) fn norm(&self, init: &Init) -> LayerNorm {
        LayerNorm::new(self.n_embd, self.layer_norm_epsilon, init)
    }
}

/// Buffers of the mask, which older versions saved.
pub(super) const IGNORED: &[&str] = &[".attn.bias", ".attn.masked_bias"];

/// Modules of `transformers` that hold no tensor, with their classes.
pub(super) const WITHOUT_PARAMETERS: &[(&str, &str)] = &[
    ("transformer.drop", "Dropout"),
    ("transformer.h.*.attn.attn_dropout", "Dropout"),
    ("transformer.h.*.attn.resid_dropout", "Dropout"),
    ("transformer.h.*.mlp.act", "Activation"),
    ("transformer.h.*.mlp.dropout", "Dropout"),
];

/// Fields of GPT-2 and of models whose configuration has the same.
pub(super) const FIELDS: &[KnownField] = &[
    ("activation_function", Read),
    ("gradient_checkpointing", Harmless),
    ("hidden_size", Read),
    ("layer_norm_epsilon", Read),
    ("max_position_embeddings", Read),
    // Of versions whose mask was as long as this; the positions are `n_positions`.
    ("n_ctx", Harmless),
    ("n_embd", Read),
    ("n_head", Read),
    ("n_inner", Read),
    ("n_layer", Read),
    ("n_positions", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("position_embedding_type", Only(&["\"absolute\""])),
    // Scores are f32 in any case.
    ("reorder_and_upcast_attn", Harmless),
    ("summary_activation", Harmless),
    ("summary_first_dropout", Harmless),
    ("summary_proj_to_labels", Harmless),
    ("summary_type", Harmless),
    ("summary_use_proj", Harmless),
];
