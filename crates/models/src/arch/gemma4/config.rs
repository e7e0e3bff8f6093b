//! The configuration of Gemma 4's text part.

use serde_json::Value;

use crate::arch::gemma3::TEXT_PART;
use crate::arch::rms_config::{DEFAULTS, ExpertsConfig, FIELDS, RmsConfig, RmsDefaults};
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    COMMON, Fields, KnownField, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE,
    MAX_LAYERS, MAX_VOCAB, ROPE, RopeConfig, RopeScaling, check, layer_windows, sliding_window,
};
use crate::layers::{Activation, KeyValueSource, Rope, SharedAttentionConfig};
use crate::{AttentionCache, CacheLayer, CacheSpec, Error};

/// The configuration of a Gemma 4's text part.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemma4Config {
    /// What other decoders have too. Heads are those of layers with a sliding window.
    pub text: RmsConfig,
    /// What layers have otherwise.
    pub layers: Vec<Gemma4Layer>,
    /// The inputs that each layer has of its own, if they have any.
    pub per_layer: Option<PerLayerConfig>,
}

/// What a layer has otherwise than others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gemma4Layer {
    /// Key and value heads; divides the query heads.
    pub key_value_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Whose keys and values it looks at.
    pub source: KeyValueSource,
}

/// The inputs that layers have of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayerConfig {
    /// Tokens that the table has rows for.
    pub vocab_size: usize,
    /// Values of one layer.
    pub width: usize,
}

impl PerLayerConfig {
    /// Reads the fields of a model of so many layers.
    pub(in crate::arch) fn read(fields: &Fields<'_>, layers: usize) -> Result<Self, Error> {
        let field = "hidden_size_per_layer_input";
        let width = fields.size_or(field, 256, MAX_HIDDEN)?;
        if width.saturating_mul(layers) > MAX_HIDDEN {
            let expected = format!("those of all layers may be {MAX_HIDDEN} values together");
            return Err(fields.refuse(field, expected));
        }
        let vocab_size = fields.size_or("vocab_size_per_layer_input", 262_144, MAX_VOCAB)?;
        Ok(Self { vocab_size, width })
    }
}

impl Gemma4Config {
    /// Rotary embeddings of layers that see everything, and of those with a sliding window.
    pub(in crate::arch) fn ropes(&self) -> [Rope; 2] {
        let width = |is_local: bool| {
            let mut windows = self.text.windows.iter().zip(&self.layers);
            let layer = windows.find(|(window, _)| window.is_some() == is_local);
            layer.map_or(self.text.head_dim, |(_, layer)| layer.head_dim)
        };
        let local = self.text.local_rope.as_ref().unwrap_or(&self.text.rope);
        [Rope::new(&self.text.rope, width(false)), Rope::new(local, width(true))]
    }

    /// Attention of the layer of that number.
    pub(in crate::arch) fn attention(&self, index: usize) -> SharedAttentionConfig {
        let (text, own) = (&self.text, &self.layers[index]);
        SharedAttentionConfig {
            hidden: text.hidden_size,
            heads: text.num_attention_heads,
            key_value_heads: own.key_value_heads,
            head_dim: own.head_dim,
            bias: text.attention_in_bias,
            epsilon: text.rms_norm_eps,
            source: own.source,
        }
    }

    pub(in crate::arch) fn cache(&self) -> CacheSpec {
        let layers = self.layers.iter().zip(&self.text.windows).map(|(layer, window)| {
            let attention = AttentionCache {
                heads: self.text.num_attention_heads,
                key_value_heads: layer.key_value_heads,
                head_dim: layer.head_dim,
                window: *window,
                is_chunked: false,
                keys_are_values: false,
                chosen: None,
                entries: None,
            };
            match layer.source {
                KeyValueSource::Own { .. } => CacheLayer::Attention(attention),
                KeyValueSource::Layer(_) => CacheLayer::Shared(attention),
            }
        });
        CacheSpec { layers: layers.collect(), ..self.text.cache() }
    }

    /// Whether a tensor is of keys and values that a layer has not: published checkpoints have
    /// them.
    pub(in crate::arch) fn is_unused(&self, name: &str) -> bool {
        const UNUSED: [&str; 4] = ["k_proj.", "v_proj.", "k_norm.", "v_norm."];
        let part = || {
            let (number, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
            let layer = self.layers.get(number.parse::<usize>().ok()?)?;
            let rest = rest.strip_prefix("self_attn.")?;
            let is_shared = matches!(layer.source, KeyValueSource::Layer(_));
            Some(is_shared && UNUSED.iter().any(|unused| rest.starts_with(unused)))
        };
        part() == Some(true)
    }
}

/// The type of a model that sees and hears without encoders, and that of its text part.
pub(in crate::arch) const UNIFIED: &str = "gemma4_unified";
const UNIFIED_TEXT: &str = "gemma4_unified_text";

/// The fields of that type.
pub(super) fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
    match model_type {
        "gemma4" | UNIFIED => &[MULTIMODAL],
        UNIFIED_TEXT => &[UNIFIED_FIELDS, TEXT, FIELDS],
        _ => &[INPUTS_AND_EXPERTS, TEXT, FIELDS],
    }
}

pub(super) fn read(model_type: &str, fields: &Fields<'_>) -> Result<Gemma4Config, Error> {
    let (text_type, own): (_, [&[_]; 2]) = match model_type {
        "gemma4" => ("gemma4_text", [TEXT_TYPE, INPUTS_AND_EXPERTS]),
        UNIFIED => (UNIFIED_TEXT, [UNIFIED_TYPE, UNIFIED_FIELDS]),
        _ => return read_text(model_type, fields),
    };
    let text = fields.required_object("text_config")?;
    check(&text, &[own[0], own[1], TEXT_PART, TEXT, FIELDS, COMMON])?;
    let mut config = read_text(text_type, &text)?;
    // That of the whole model counts.
    config.text.tie_word_embeddings = fields.flag_or("tie_word_embeddings", true)?;
    Ok(config)
}

fn read_text(model_type: &str, fields: &Fields<'_>) -> Result<Gemma4Config, Error> {
    let is_unified = model_type == UNIFIED_TEXT;
    let (max_position_embeddings, window) = match is_unified {
        true => (262_144, 1024),
        false => (ABSENT.max_position_embeddings, 512),
    };
    let absent = RmsDefaults { max_position_embeddings, ..ABSENT };
    let config = RmsConfig::read(fields, &absent)?.with_attention_bias(fields)?;
    let layers = config.num_hidden_layers;
    let window = sliding_window(fields, window)?;
    if window.is_none() {
        return Err(fields.refuse("sliding_window", format!("a {model_type} needs one")));
    }
    let by_rule = (1..=layers).map(|layer| window.filter(|_| layer % 6 != 0)).collect();
    let mut windows = layer_windows(fields, window, by_rule)?;
    // As in transformers, whatever is said.
    if let Some(last) = windows.last_mut() {
        *last = None;
    }
    if fields.get("rope_scaling").is_some() {
        let expected = format!("a {model_type} has `rope_parameters`");
        return Err(fields.refuse("rope_scaling", expected));
    }
    let sources = sources(fields, &windows)?;
    let doubled = fields.flag_or("use_double_wide_mlp", false)?;
    let of_full = OfLayers::read(fields, &config, &windows)?;
    let layer = |index: usize| {
        let (key_value_heads, head_dim) = of_full.layer(index, &config);
        let is_wide = doubled && matches!(sources[index], KeyValueSource::Layer(_));
        Gemma4Layer {
            key_value_heads,
            head_dim,
            intermediate_size: config.intermediate_size * if is_wide { 2 } else { 1 },
            source: sources[index],
        }
    };
    let layers: Vec<_> = (0..layers).map(layer).collect();
    check_layers(fields, &config, &windows, &layers)?;
    let width = |is_full: bool| {
        let found = windows.iter().zip(&layers).find(|(window, _)| window.is_none() == is_full);
        found.map_or(config.head_dim, |(_, layer)| layer.head_dim)
    };
    let (rope, local) = (
        rope(fields, &config, "full_attention", (1e6, Some(0.25)), width(true))?,
        rope(fields, &config, "sliding_attention", (1e4, None), width(false))?,
    );
    let per_layer = match fields.get("hidden_size_per_layer_input").and_then(Value::as_u64) {
        _ if is_unified => None,
        Some(0) => None,
        _ => Some(PerLayerConfig::read(fields, layers.len())?),
    };
    let softcap = "final_logit_softcapping";
    let logit_softcap = match fields.get(softcap) {
        Some(_) => Some(fields.number_within(softcap, 1e-6, 1e6)?),
        None => None,
    };
    let mut text = RmsConfig { rope, local_rope: Some(local), windows, logit_softcap, ..config };
    if !is_unified {
        text.experts = experts(fields, &text)?;
    }
    Ok(Gemma4Config { text, layers, per_layer })
}

/// The experts beside the MLP, if they are in use.
fn experts(fields: &Fields<'_>, text: &RmsConfig) -> Result<Option<ExpertsConfig>, Error> {
    let is_used = fields.flag_or("enable_moe_block", false)?;
    let size = |field, max| match fields.get(field).is_some() || is_used {
        true => fields.size(field, max),
        // Nothing asks for it.
        false => Ok(1),
    };
    let count = ("num_experts", size("num_experts", MAX_EXPERTS)?);
    let per_token = ("top_k_experts", size("top_k_experts", MAX_EXPERTS)?);
    let intermediate_size = size("moe_intermediate_size", MAX_INTERMEDIATE)?;
    if !is_used {
        return Ok(None);
    }
    let config = text.clone().with_experts_of(fields, count, per_token, true)?;
    Ok(config.experts.map(|experts| ExpertsConfig { intermediate_size, ..experts }))
}

/// Heads of layers that see everything, where they are others.
struct OfLayers {
    of: Vec<(Option<usize>, Option<usize>)>,
}

impl OfLayers {
    /// Reads what files have of each layer by itself, or of all that see everything.
    fn read(
        fields: &Fields<'_>,
        config: &RmsConfig,
        windows: &[Option<usize>],
    ) -> Result<Self, Error> {
        let number = |fields: &Fields<'_>, field, max| match fields.get(field) {
            Some(_) => fields.size(field, max).map(Some),
            None => Ok(None),
        };
        let values_are_keys = fields.flag_or("attention_k_eq_v", false)?;
        let width = fields.size_or("global_head_dim", 512, MAX_HEAD_DIM)?;
        let heads = number(fields, "num_global_key_value_heads", MAX_HEADS)?;
        let mut of: Vec<_> = (windows.iter())
            .map(|window| match window {
                Some(_) => (None, None),
                None => (heads.filter(|_| values_are_keys), Some(width)),
            })
            .collect();
        if fields.has("per_layer_config") {
            of = vec![(None, None); windows.len()];
        }
        if let Some(by_layer) = fields.object("per_layer_config")? {
            for (name, _) in by_layer.iter() {
                let index = name.parse::<usize>().ok().filter(|&at| at < config.num_hidden_layers);
                let expected = || format!("it must have the numbers of layers, not {name:?}");
                let index = index.ok_or_else(|| fields.refuse("per_layer_config", expected()))?;
                if let Some(own) = by_layer.object(name)? {
                    let mut names = own.iter().map(|(name, _)| name);
                    if let Some(other) = names.find(|name| !OF_LAYER.contains(name)) {
                        let expected = format!("a layer may have {} alone", OF_LAYER.join(" and "));
                        return Err(own.refuse(other, expected));
                    }
                    of[index] = (
                        number(&own, "num_key_value_heads", MAX_HEADS)?,
                        number(&own, "head_dim", MAX_HEAD_DIM)?,
                    );
                }
            }
        }
        Ok(Self { of })
    }

    /// Heads of keys and values of a layer, and how wide they are.
    fn layer(&self, index: usize, config: &RmsConfig) -> (usize, usize) {
        let (heads, width) = self.of[index];
        (heads.unwrap_or(config.num_key_value_heads), width.unwrap_or(config.head_dim))
    }
}

/// Whose keys and values each layer looks at: the last ones those of the last layer before them
/// that sees as much.
fn sources(fields: &Fields<'_>, windows: &[Option<usize>]) -> Result<Vec<KeyValueSource>, Error> {
    let values_are_keys = fields.flag_or("attention_k_eq_v", false)?;
    let field = "num_kv_shared_layers";
    let shared = match fields.get(field).and_then(Value::as_u64) {
        Some(0) => 0,
        _ if fields.get(field).is_none() => 0,
        _ => fields.size(field, MAX_LAYERS)?,
    };
    key_value_sources(fields, field, windows, shared, values_are_keys)
}

/// The same for so many layers at the end.
pub(in crate::arch) fn key_value_sources(
    fields: &Fields<'_>,
    field: &str,
    windows: &[Option<usize>],
    shared: usize,
    values_are_keys: bool,
) -> Result<Vec<KeyValueSource>, Error> {
    let layers = windows.len();
    let first = layers.saturating_sub(shared);
    // Of those that see everything, then of the others.
    let of_kind = |is_local: bool| move |window: &Option<usize>| window.is_some() == is_local;
    let last = [false, true].map(|is_local| windows[..first].iter().rposition(of_kind(is_local)));
    let needed = [false, true].map(|is_local| windows[first..].iter().any(of_kind(is_local)));
    let mut sources = Vec::with_capacity(layers);
    for (index, window) in windows.iter().enumerate() {
        let kind = usize::from(window.is_some());
        sources.push(match index < first {
            true => KeyValueSource::Own {
                values_apart: !(values_are_keys && window.is_none()),
                is_shared: needed[kind] && last[kind] == Some(index),
            },
            false => KeyValueSource::Layer(last[kind].ok_or_else(|| {
                let expected = format!(
                    "layer {index} needs one before the last {shared} that sees as much as it does"
                );
                fields.refuse(field, expected)
            })?),
        });
    }
    Ok(sources)
}

/// Refuses layers whose heads do not fit each other.
fn check_layers(
    fields: &Fields<'_>,
    config: &RmsConfig,
    windows: &[Option<usize>],
    layers: &[Gemma4Layer],
) -> Result<(), Error> {
    let by_layer = fields.has("per_layer_config");
    let field = |own: &'static str| if by_layer { "per_layer_config" } else { own };
    for (index, layer) in layers.iter().enumerate() {
        let heads = config.num_attention_heads;
        if !heads.is_multiple_of(layer.key_value_heads) {
            let expected = format!(
                "the {} key-value heads of layer {index} must divide num_attention_heads, {heads}",
                layer.key_value_heads
            );
            return Err(fields.refuse(field("num_global_key_value_heads"), expected));
        }
        let like = windows.iter().position(|window| window.is_some() == windows[index].is_some());
        let like = &layers[like.unwrap_or(index)];
        if !layer.head_dim.is_multiple_of(2) || layer.head_dim != like.head_dim {
            let expected = format!(
                "the width of a head of layer {index}, {}, must be even, and that of all that see as much",
                layer.head_dim
            );
            return Err(fields.refuse(field("global_head_dim"), expected));
        }
        if let KeyValueSource::Layer(source) = layer.source
            && layers[source].key_value_heads != layer.key_value_heads
        {
            let expected = format!("layer {index} must have the heads of layer {source}");
            return Err(fields.refuse(field("num_global_key_value_heads"), expected));
        }
    }
    Ok(())
}

/// The rotary embedding of one kind of layers, whose heads are so wide. Absent, base and part are
/// those.
pub(in crate::arch) fn rope(
    fields: &Fields<'_>,
    config: &RmsConfig,
    kind: &'static str,
    (theta, part): (f64, Option<f64>),
    head_dim: usize,
) -> Result<RopeConfig, Error> {
    let absent = RopeConfig {
        theta,
        scaling: match part {
            Some(part) => RopeScaling::Proportional { factor: 1.0, pairs: pairs(head_dim, part) },
            None => RopeScaling::Default,
        },
    };
    let Some(both) = fields.object("rope_parameters")? else {
        return Ok(absent);
    };
    check(&both, &[KINDS])?;
    let object = both.object(kind)?.ok_or_else(|| both.missing(kind))?;
    if object.text("rope_type")? != Some("proportional") {
        let around = crate::config::RopeContext { head_dim, ..config.rope_context(fields) };
        return RopeConfig::read_object(&object, &around, 10_000.0, &[ROPE]);
    }
    check(&object, &[PROPORTIONAL, ROPE])?;
    let part = object.number_within_or("partial_rotary_factor", 1.0, 0.0, 1.0)?;
    let factor = object.number_within_or("factor", 1.0, 1e-6, 1e6)?;
    Ok(RopeConfig {
        theta: crate::config::theta(&object, "rope_theta", 10_000.0)?,
        scaling: RopeScaling::Proportional { factor, pairs: pairs(head_dim, part) },
    })
}

/// Pairs of a head that are rotated, of a part of it.
fn pairs(head_dim: usize, part: f64) -> usize {
    (part * head_dim as f64 / 2.0) as usize
}

/// Those of `Gemma4TextConfig`.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("num_attention_heads", 8),
        ("num_hidden_layers", 30),
        ("vocab_size", 262_144),
    ],
    key_value_heads: Some(4),
    head_dim: Some(256),
    max_position_embeddings: 131_072,
    activation: ("hidden_activation", Activation::GeluTanh),
    tie_word_embeddings: true,
    ..DEFAULTS
};

const TEXT: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_k_eq_v", Read),
    ("final_logit_softcapping", Read),
    ("global_head_dim", Read),
    ("hidden_activation", Read),
    ("num_global_key_value_heads", Read),
    ("num_kv_shared_layers", Read),
    ("per_layer_config", Read),
    ("sliding_window", Read),
    // Of images; or of all tokens, which is another model.
    ("use_bidirectional_attention", Only(&["\"vision\""])),
    ("use_double_wide_mlp", Read),
];

/// Of what some models have beside all that.
const INPUTS_AND_EXPERTS: &[KnownField] = &[
    ("enable_moe_block", Read),
    ("hidden_size_per_layer_input", Read),
    ("moe_intermediate_size", Read),
    ("num_experts", Read),
    ("top_k_experts", Read),
    ("vocab_size_per_layer_input", Read),
];

/// The same of a model without encoders, which has neither.
const UNIFIED_FIELDS: &[KnownField] = &[
    ("enable_moe_block", Effect::OFF),
    ("hidden_size_per_layer_input", Effect::ZERO),
    ("moe_intermediate_size", Harmless),
    ("num_experts", Harmless),
    ("top_k_experts", Harmless),
    ("vocab_size_per_layer_input", Harmless),
];

/// What a layer may have otherwise.
const OF_LAYER: [&str; 2] = ["head_dim", "num_key_value_heads"];

/// Of `rope_parameters`, whose objects are those of kinds of layers.
const KINDS: &[KnownField] = &[("full_attention", Read), ("sliding_attention", Read)];

const PROPORTIONAL: &[KnownField] = &[("factor", Read), ("partial_rotary_factor", Read)];

const TEXT_TYPE: &[KnownField] =
    &[("model_type", Effect::Only(&["\"gemma4_text\""])), ("tie_word_embeddings", Harmless)];

const UNIFIED_TYPE: &[KnownField] = &[
    ("model_type", Effect::Only(&["\"gemma4_unified_text\""])),
    ("tie_word_embeddings", Harmless),
];

/// Of a model that sees and hears too.
pub(in crate::arch) const MULTIMODAL: &[KnownField] = &[
    ("audio_config", Harmless),
    ("audio_token_id", Harmless),
    ("boa_token_id", Harmless),
    ("boi_token_id", Harmless),
    ("eoa_token_id", Harmless),
    ("eoa_token_index", Harmless),
    ("eoi_token_id", Harmless),
    ("image_token_id", Harmless),
    ("text_config", Read),
    ("video_token_id", Harmless),
    ("vision_config", Harmless),
    ("vision_soft_tokens_per_image", Harmless),
];
