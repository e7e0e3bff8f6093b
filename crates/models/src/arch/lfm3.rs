//! LFM3: LFM2's short convolutions between layers of attention over a window and over everything,
//! with norms around both, and attention gated head by head. Liquid AI 2026
//! (<https://huggingface.co/LiquidAI/LFM3-1.7B>).

use super::gemma4;
use super::qwen3_next::convolution_taps;
use super::rms_config::{
    BlockNorms, ConvolutionConfig, DEFAULTS, LayerMixer, QueryKeyNorms, RmsConfig, RmsDefaults,
};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField, sliding_window};
use crate::layers::{AttentionGate, GateFunction, GateProjection};

/// Those of `Lfm3Config`.
const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 128_000),
        ("hidden_size", 2048),
        ("intermediate_size", 7680),
        ("num_hidden_layers", 24),
        ("num_attention_heads", 16),
    ],
    key_value_heads: Some(4),
    head_dim: Some(128),
    max_position_embeddings: 128_000,
    rms_norm_eps: 1e-5,
    epsilon: "norm_eps",
    tie_word_embeddings: true,
    ..DEFAULTS
};

/// What a layer makes its tokens know of each other with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LayerKind {
    Convolution,
    Sliding,
    Full,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    if fields.get("rope_scaling").is_some() {
        let expected = "`rope_parameters` says it of each kind of layers".to_owned();
        return Err(fields.refuse("rope_scaling", expected));
    }
    let config = RmsConfig::read(fields, &ABSENT)?.with_attention_bias(fields)?;
    let kinds = kinds(fields, config.num_hidden_layers)?;
    let window = sliding_window(fields, 256)?;
    if window.is_none() && kinds.contains(&LayerKind::Sliding) {
        return Err(fields.refuse("sliding_window", "some layers need one".to_owned()));
    }
    let rope = |kind, absent| gemma4::rope(fields, &config, kind, absent, config.head_dim);
    let (rope, local) =
        (rope("full_attention", (1e6, Some(0.5)))?, rope("sliding_attention", (1e4, None))?);
    let mixer = |kind: &LayerKind| LayerMixer::attends(*kind != LayerKind::Convolution);
    let gate = AttentionGate {
        projection: GateProjection::Gate,
        function: GateFunction::Sigmoid,
        of_heads: true,
    };
    Ok(RmsConfig {
        norms: match fields.flag_or("use_sandwich_norm", true)? {
            true => BlockNorms::Around,
            false => BlockNorms::Before,
        },
        query_key_norms: Some(QueryKeyNorms::EachHead),
        attention_gate: fields.flag_or("use_attention_gate", true)?.then_some(gate),
        convolution: Some(ConvolutionConfig {
            taps: convolution_taps(fields, "conv_L_cache", 7)?,
            bias: fields.flag_or("conv_bias", false)?,
        }),
        mixers: kinds.iter().map(mixer).collect(),
        windows: (kinds.iter())
            .map(|kind| window.filter(|_| *kind == LayerKind::Sliding))
            .collect(),
        rope,
        local_rope: Some(local),
        ..config
    })
}

fn kinds(fields: &Fields<'_>, layers: usize) -> Result<Vec<LayerKind>, Error> {
    if fields.get("layer_types").is_none() {
        let by_rule = |layer: usize| match layer % 4 {
            2 => LayerKind::Full,
            0 if layer > 0 => LayerKind::Sliding,
            _ => LayerKind::Convolution,
        };
        return Ok((0..layers).map(by_rule).collect());
    }
    let kinds = [
        ("conv", LayerKind::Convolution),
        ("sliding_attention", LayerKind::Sliding),
        ("full_attention", LayerKind::Full),
    ];
    fields.listed("layer_types", layers, &kinds)
}

pub(super) const LFM3: &[KnownField] = &[
    ("attention_bias", Read),
    ("conv_L_cache", Read),
    ("conv_bias", Read),
    ("norm_eps", Read),
    ("sliding_window", Read),
    ("use_attention_gate", Read),
    ("use_sandwich_norm", Read),
];
