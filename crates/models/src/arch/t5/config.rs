//! What a T5's `config.json` says.

use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{
    self, Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS,
    MAX_VOCAB,
};
use crate::layers::{Activation, DistanceBuckets};
use crate::{AttentionCache, CacheSpec, Error, MAX_CONTEXT};

/// The most that `relative_attention_max_distance` and `relative_attention_num_buckets` may be.
const MAX_DISTANCE: usize = 1 << 16;

/// The configuration of a T5.
#[derive(Debug, Clone, PartialEq)]
pub struct T5Config {
    /// Width of the residual stream (`d_model`).
    pub d_model: usize,
    /// Width of one head (`d_kv`).
    pub d_kv: usize,
    /// Width of the MLP's inner layer (`d_ff`).
    pub d_ff: usize,
    /// Layers of the encoder.
    pub num_layers: usize,
    /// Layers of the decoder.
    pub num_decoder_layers: usize,
    /// Heads of queries, keys and values.
    pub num_heads: usize,
    /// Token ids run from 0 to this, exclusive.
    pub vocab_size: usize,
    /// Added to the mean square in RMSNorm.
    pub layer_norm_epsilon: f64,
    /// The non-linear function of the MLP.
    pub activation: Activation,
    /// Whether the MLP is gated, as since version 1.1.
    pub is_gated: bool,
    /// Buckets of distances between query and key.
    pub relative_attention_num_buckets: usize,
    /// The distance from which on all are in the last bucket.
    pub relative_attention_max_distance: usize,
    /// Whether the output head is the embedding table.
    pub tied: bool,
    /// Whether the decoder's output is divided by the root of its width before the head.
    pub scale_decoder_outputs: bool,
    /// What the decoder begins with.
    pub decoder_start_token_id: u32,
}

impl T5Config {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Self, Error> {
        // The names of all of `transformers` stand for those of this family.
        let either = |own: &'static str, alias: &'static str| match fields.get(own) {
            None if fields.get(alias).is_some() => alias,
            _ => own,
        };
        let (function, is_gated) = feed_forward(fields)?;
        let num_layers =
            fields.size_or(either("num_layers", "num_hidden_layers"), 6, MAX_LAYERS)?;
        let vocab_size = fields.size_or("vocab_size", 32_128, MAX_VOCAB)?;
        let buckets = fields.size_or("relative_attention_num_buckets", 32, MAX_DISTANCE)?;
        if buckets < 4 {
            let expected =
                "it must be at least 4, so that each side has short distances and long ones";
            return Err(fields.refuse("relative_attention_num_buckets", expected.to_owned()));
        }
        let distance = fields.size_or("relative_attention_max_distance", 128, MAX_DISTANCE)?;
        if distance <= buckets / 2 {
            let expected = format!(
                "it must be more than half of relative_attention_num_buckets, {buckets}: shorter distances have a bucket each"
            );
            return Err(fields.refuse("relative_attention_max_distance", expected));
        }
        // A file that does not tie never scaled; newer ones tie in any case, and say whether they
        // scale.
        let ties = fields.flag_or("tie_word_embeddings", true)?;
        let scales = fields.flag_or("scale_decoder_outputs", ties)?;
        Ok(Self {
            d_model: fields.size_or(either("d_model", "hidden_size"), 512, MAX_HIDDEN)?,
            d_kv: fields.size_or(either("d_kv", "head_dim"), 64, MAX_HEAD_DIM)?,
            d_ff: fields.size_or("d_ff", 2048, MAX_INTERMEDIATE)?,
            num_layers,
            num_decoder_layers: fields.size_or("num_decoder_layers", num_layers, MAX_LAYERS)?,
            num_heads: fields.size_or(either("num_heads", "num_attention_heads"), 8, MAX_HEADS)?,
            vocab_size,
            layer_norm_epsilon: config::epsilon(fields, "layer_norm_epsilon", 1e-6)?,
            activation: function,
            is_gated,
            relative_attention_num_buckets: buckets,
            relative_attention_max_distance: distance,
            tied: ties && scales,
            scale_decoder_outputs: scales,
            decoder_start_token_id: start(fields, vocab_size)?,
        })
    }

    pub(super) fn buckets(&self, bidirectional: bool) -> DistanceBuckets {
        DistanceBuckets {
            buckets: self.relative_attention_num_buckets,
            max_distance: self.relative_attention_max_distance,
            bidirectional,
        }
    }

    pub(super) fn cache(&self) -> CacheSpec {
        let layer = AttentionCache {
            heads: self.num_heads,
            key_value_heads: self.num_heads,
            head_dim: self.d_kv,
            window: None,
            is_chunked: false,
            keys_are_values: false,
            chosen: None,
            entries: None,
        };
        // Positions are distances, of which the longest are all alike: there is no end to them.
        let layers = self.num_decoder_layers;
        CacheSpec {
            cross: vec![layer; layers],
            ..CacheSpec::uniform(layers, self.num_heads, self.num_heads, self.d_kv, MAX_CONTEXT)
        }
    }
}

/// The non-linear function of the MLP, and whether it is gated.
fn feed_forward(fields: &Fields<'_>) -> Result<(Activation, bool), Error> {
    let field = "feed_forward_proj";
    let (name, gated) = match fields.text(field)? {
        None => ("relu", false),
        // What has this name is the approximation.
        Some("gated-gelu") => ("gelu_new", true),
        Some(name) => match name.strip_prefix("gated-") {
            Some(name) => (name, true),
            None => (name, false),
        },
    };
    let Some(activation) = Activation::named(name) else {
        let names: Vec<_> = Activation::names().collect();
        let expected =
            format!("only these are supported, each also behind \"gated-\": {}", names.join(", "));
        return Err(fields.refuse(field, expected));
    };
    // What newer files have besides, which is what counts.
    let activation = config::activation(fields, "dense_act_fn", activation)?;
    Ok((activation, fields.flag_or("is_gated_act", gated)?))
}

/// What the decoder begins with: padding, unless it is said.
fn start(fields: &Fields<'_>, vocab_size: usize) -> Result<u32, Error> {
    let own = "decoder_start_token_id";
    let field = if fields.get(own).is_some() { own } else { "pad_token_id" };
    let Some(value) = fields.get(field) else {
        return Ok(0);
    };
    let id = value.as_u64().filter(|id| *id < vocab_size as u64);
    id.map(|id| id as u32).ok_or_else(|| {
        fields.refuse(field, format!("it must be a token id below vocab_size, {vocab_size}"))
    })
}

pub(super) const FIELDS: &[KnownField] = &[
    ("classifier_dropout", Harmless),
    ("d_ff", Read),
    ("d_kv", Read),
    ("d_model", Read),
    ("decoder_start_token_id", Read),
    ("dense_act_fn", Read),
    ("dropout_rate", Harmless),
    ("feed_forward_proj", Read),
    ("gradient_checkpointing", Harmless),
    ("head_dim", Read),
    ("hidden_size", Read),
    ("initializer_factor", Harmless),
    ("is_encoder_decoder", Only(&["true"])),
    ("is_decoder", Only(&["false"])),
    ("is_gated_act", Read),
    ("layer_norm_epsilon", Read),
    // Of the tokenizer: positions are distances here, and have no end.
    ("n_positions", Harmless),
    ("num_attention_heads", Read),
    ("num_decoder_layers", Read),
    ("num_heads", Read),
    ("num_hidden_layers", Read),
    ("num_layers", Read),
    ("output_past", Harmless),
    ("pad_token_id", Read),
    ("position_embedding_type", Only(&[])),
    ("relative_attention_max_distance", Read),
    ("relative_attention_num_buckets", Read),
    ("scale_decoder_outputs", Read),
];
