//! Phi-3.5-MoE: Mixtral's experts, two of which each token goes to by shares of their own, and
//! LayerNorm. Abdin et al. 2024 (arXiv:2404.14219).

use super::rms_config::{BlockNormKind, DEFAULTS, RmsConfig, RmsDefaults};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, ROPE, RopeConfig, RopeScaling, rope_object, sliding_window, theta,
    uniform_windows,
};
use crate::layers::Shares;

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 32_064),
        ("hidden_size", 4096),
        ("intermediate_size", 6400),
        ("num_hidden_layers", 32),
        ("num_attention_heads", 32),
    ],
    key_value_heads: Some(8),
    max_position_embeddings: 4096 * 32,
    rms_norm_eps: 1e-5,
    rope_theta: 1e6,
    ..DEFAULTS
};

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let config = RmsConfig::read(fields, &ABSENT)?.with_attention_bias(fields)?;
    let rope = rope(fields, &config)?;
    let names = ["num_local_experts", "num_experts"];
    let mut config = config.with_experts(fields, names, (16, 2), false)?;
    let jitter = fields.number_within_or("router_jitter_noise", 0.01, 0.0, 1e3)?;
    if let Some(experts) = &mut config.experts {
        // As many as there are shares for, whatever a file says.
        if experts.count < 2 {
            return Err(fields.refuse(names[0], "two of them are chosen".to_owned()));
        }
        experts.routing.per_token = 2;
        experts.routing.shares = Shares::SparseMixer { jitter };
    }
    let window = match fields.has("sliding_window") {
        true => sliding_window(fields, 0)?,
        false => None,
    };
    Ok(RmsConfig {
        rope,
        windows: uniform_windows(fields, "phimoe", window, config.num_hidden_layers)?,
        norm_kind: BlockNormKind::Layer { bias: true },
        head_bias: fields.flag_or("lm_head_bias", false)?,
        ..config
    })
}

/// The rotary embedding, of which a stretched one says itself what queries and keys are multiplied
/// by.
fn rope(fields: &Fields<'_>, config: &RmsConfig) -> Result<RopeConfig, Error> {
    let around = config.rope_context(fields);
    let base = theta(fields, "rope_theta", around.theta)?;
    let Some(object) = rope_object(fields)? else {
        return Ok(RopeConfig { theta: base, scaling: RopeScaling::Default });
    };
    let mut rope = RopeConfig::read_object(&object, &around, base, &[SCALES, ROPE])?;
    match &mut rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::LongRope { attention_factor, .. } => {
            let scale = |field| object.number_within(field, 1e-6, 1e6);
            *attention_factor = scale("short_mscale")?;
            if scale("long_mscale")? != *attention_factor {
                let expected = "only what `short_mscale` is, is supported".to_owned();
                return Err(object.refuse("long_mscale", expected));
            }
        }
        _ => {
            let expected = "only the types \"default\" and \"longrope\" are supported".to_owned();
            let field = if object.get("rope_type").is_some() { "rope_type" } else { "type" };
            return Err(object.refuse(field, expected));
        }
    }
    Ok(rope)
}

const SCALES: &[KnownField] = &[("long_mscale", Read), ("short_mscale", Read)];

pub(super) const PHIMOE: &[KnownField] = &[
    ("attention_bias", Read),
    ("auto_map", Harmless),
    ("hidden_act", Read),
    // Of training.
    ("input_jitter_noise", Harmless),
    ("lm_head_bias", Read),
    ("max_window_layers", Effect::UNSET),
    ("mlp_bias", Effect::OFF),
    ("num_experts", Read),
    ("num_experts_per_tok", Only(&["2"])),
    ("num_local_experts", Read),
    ("output_router_logits", Harmless),
    ("router_aux_loss_coef", Harmless),
    ("router_jitter_noise", Read),
    ("sliding_window", Read),
];
