//! Fields and names that Mistral Large 4 has beside those of DeepSeek.

use super::super::expert_fields::layers_named;
use super::super::gemma3::NAMES;
use super::super::rms_config::RmsConfig;
use super::super::smollm3::rotated_layers;
use crate::Error;
use crate::architecture::MultimodalNames;
use crate::config::Effect::{self, Only, Read};
use crate::config::{Fields, KnownField, RopeConfig, RopeScaling, rope_object};
use crate::layers::KeyValueSource;

/// Its text part.
pub(super) const LARGE: &str = "mistral_large4_text";

/// What says whose keys and values layers look at.
const SOURCES: &str = "kv_source_layers";

/// The same with its rotary embedding, which not all layers take, and with whose keys and values
/// each layer looks at.
pub(super) fn with_large_layers(
    fields: &Fields<'_>,
    config: RmsConfig,
) -> Result<RmsConfig, Error> {
    let rope = match rope_object(fields)? {
        Some(_) => RopeConfig::read(&config.rope_context(fields))?,
        // What transformers takes where nothing is said, whatever is said of the base alone.
        None => RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Yarn {
                factor: 2048.0,
                attention_factor: 1.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original_max_position_embeddings: 512,
                truncate: true,
            },
        },
    };
    let rotated_layers = rotated_layers(fields, config.num_hidden_layers)?;
    let latent_sources = sources(fields, &rotated_layers)?;
    Ok(RmsConfig { rope, rotated_layers, latent_sources, learned_frequencies: true, ..config })
}

/// Of each layer, whose keys and values it looks at. Transformers finds what is shared by whether
/// layers rotate, and takes the last: what a file says must be the same.
fn sources(fields: &Fields<'_>, rotated: &[bool]) -> Result<Vec<KeyValueSource>, Error> {
    let layers = rotated.len();
    let Some(named) = layers_named(fields, SOURCES)? else {
        return Ok(vec![KeyValueSource::OWN; layers]);
    };
    if named.len() != layers {
        let expected = format!("it must be a list of {layers} layers' numbers, one per layer");
        return Err(fields.refuse(SOURCES, expected));
    }
    // Of layers that do not rotate and of those that do, the last one that shares.
    let mut last = [None; 2];
    let source = |layer: usize| {
        let at = u64::try_from(layer).ok();
        let is_shared = named[layer + 1..].iter().any(|source| Some(*source) == at);
        if Some(named[layer]) == at {
            if is_shared {
                last[usize::from(rotated[layer])] = at;
            }
            return Ok(KeyValueSource::Own { values_apart: false, is_shared });
        }
        match last[usize::from(rotated[layer])] {
            Some(source) if source == named[layer] => Ok(KeyValueSource::Layer(source as usize)),
            _ => {
                let expected = format!(
                    "layer {layer} must share with itself, or with the last one before it that has its own, rotates as it does and is \
                     shared"
                );
                Err(fields.refuse(SOURCES, expected))
            }
        }
    };
    (0..layers).map(source).collect()
}

/// Of all layers, what there is beside the fields of DeepSeek.
pub(super) const LARGE_FIELDS: &[KnownField] = &[
    ("final_logit_softcapping", Read),
    ("kv_source_layers", Read),
    ("model_type", Only(&["\"mistral_large4_text\""])),
    ("no_rope_layer_interval", Read),
    ("no_rope_layers", Read),
    ("norm_topk_prob", Effect::ON),
    ("q_lora_rank", Effect::UNSET),
];

/// Where checkpoints keep it.
pub(super) const LARGE_PARTS: MultimodalNames = MultimodalNames {
    prefixes: NAMES.prefixes,
    others: &[
        "model.vision_tower.",
        "model.multi_modal_projector.",
        "vision_encoder.",
        "patch_merger.",
        "pre_mm_projector_norm.",
        "vision_language_adapter.",
        // Of layers that guess further tokens.
        "mtp_dspark.",
        "model.mtp_dspark.",
    ],
};

/// As it is published.
pub(super) const LARGE_NAMES: &[(&str, &str)] = &[
    (r"^model\.embed_tokens\.", "tok_embeddings."),
    (r"^model\.rotary_emb\.", "lerope."),
    (r"^model\.norm\.", "norm."),
    (r"^lm_head\.", "output."),
    (r"^model\.layers\.(\d+)\.input_layernorm\.", "layers.$1.attention_norm."),
    (r"^model\.layers\.(\d+)\.post_attention_layernorm\.", "layers.$1.ffn_norm."),
    (r"^model\.layers\.(\d+)\.self_attn\.q_proj\.", "layers.$1.attention.wq."),
    (
        r"^model\.layers\.(\d+)\.self_attn\.kv_a_proj_with_mqa\.",
        "layers.$1.attention.wkv_a_with_mqa.",
    ),
    (r"^model\.layers\.(\d+)\.self_attn\.kv_a_layernorm\.", "layers.$1.attention.kv_a_norm."),
    (r"^model\.layers\.(\d+)\.self_attn\.kv_b_proj\.", "layers.$1.attention.wkv_b."),
    (r"^model\.layers\.(\d+)\.self_attn\.o_proj\.", "layers.$1.attention.wo."),
    (
        r"^model\.layers\.(\d+)\.self_attn\.(indexer\.)?softmax_scaling\.([sb])[a-z]+$",
        "layers.$1.attention.${2}ssmax_scaling.$3",
    ),
    (r"^model\.layers\.(\d+)\.self_attn\.indexer\.", "layers.$1.attention.indexer."),
    (r"^model\.layers\.(\d+)\.mlp\.gate\.", "layers.$1.gate."),
    (r"^model\.layers\.(\d+)\.mlp\.(experts\.\d+|shared_experts)\.gate_proj\.", "layers.$1.$2.w1."),
    (r"^model\.layers\.(\d+)\.mlp\.(experts\.\d+|shared_experts)\.down_proj\.", "layers.$1.$2.w2."),
    (r"^model\.layers\.(\d+)\.mlp\.(experts\.\d+|shared_experts)\.up_proj\.", "layers.$1.$2.w3."),
    (r"^model\.layers\.(\d+)\.mlp\.gate_proj\.", "layers.$1.feed_forward.w1."),
    (r"^model\.layers\.(\d+)\.mlp\.down_proj\.", "layers.$1.feed_forward.w2."),
    (r"^model\.layers\.(\d+)\.mlp\.up_proj\.", "layers.$1.feed_forward.w3."),
];
