//! `config.json` of DeepSeek-V4.

use serde_json::Value;

use super::super::expert_fields::{EXPERTS, share_scale, shared_width, swiglu_limit};
use super::super::rms_config::{self, DEFAULTS, ExpertsConfig, RmsConfig, RmsDefaults, field_of};
use crate::Error;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS,
    MAX_POSITIONS, RopeConfig, RopeScaling, check, epsilon, rope_object, sliding_window, theta,
};
use crate::layers::{
    CompressedAttentionConfig, EntryIndexerConfig, HyperConnectionConfig, MlpClamp, Routing,
    SeenBlocks, Shares,
};

const ABSENT: RmsDefaults<'static> = RmsDefaults {
    sizes: &[
        ("vocab_size", 129_280),
        ("hidden_size", 4096),
        ("num_hidden_layers", 43),
        ("num_attention_heads", 64),
    ],
    key_value_heads: Some(1),
    head_dim: Some(512),
    max_position_embeddings: 1_048_576,
    ..DEFAULTS
};

/// Tokens of a block of layers that choose among entries, and of those that see all.
const BLOCKS: [(&str, usize); 2] =
    [("compressed_sparse_attention", 4), ("heavily_compressed_attention", 128)];

pub(super) fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let inner = field_of(fields, ["moe_intermediate_size", "intermediate_size"])?;
    let inner = fields.size_or(inner, 2048, MAX_INTERMEDIATE)?;
    let config = RmsConfig::read_with_inner(fields, &ABSENT, inner)?;
    if config.num_key_value_heads != 1 {
        return Err(fields.refuse("num_key_value_heads", "only 1 is supported".to_owned()));
    }
    let names = ["n_routed_experts", "num_local_experts", "num_experts"];
    let mut config = config.with_experts(fields, names, (256, 6), true)?;
    let layers = config.num_hidden_layers;
    let shared = shared_width(fields, "n_shared_experts", 1, inner)?;
    if shared != Some(inner) {
        return Err(fields.refuse("n_shared_experts", "only 1 is supported".to_owned()));
    }
    if let Some(experts) = &mut config.experts {
        let routing = Routing {
            shares: match fields.text("scoring_func")? {
                None | Some("sqrtsoftplus") => Shares::RootSoftplus,
                Some("sigmoid") => Shares::Sigmoid,
                Some(_) => {
                    let expected = "only \"sqrtsoftplus\" and \"sigmoid\" are supported".to_owned();
                    return Err(fields.refuse("scoring_func", expected));
                }
            },
            scale: share_scale(fields, "routed_scaling_factor", 1.5)?,
            ..experts.routing
        };
        *experts = ExpertsConfig { shared_intermediate_size: shared, routing, ..*experts };
    }
    let limit = swiglu_limit(fields, 10.0)?;
    config.mlp_clamps.fill([Some(MlpClamp::Before(limit)); 2]);
    config.tabled_layers = tabled_layers(fields, layers)?;
    config.hyper_connections = Some(HyperConnectionConfig {
        streams: fields.size_or("hc_mult", 4, 64)?,
        magnitude: 2.0,
        epsilon: epsilon(fields, "hc_eps", 1e-6)?,
        mixing_steps: Some(fields.size_or("hc_sinkhorn_iters", 20, 1000)?),
        norm_epsilon: config.rms_norm_eps,
    });
    let Some(window) = sliding_window(fields, 128)? else {
        return Err(fields.refuse("sliding_window", "it must be a number of tokens".to_owned()));
    };
    config.windows.fill(Some(window));
    config.seen_blocks = seen_blocks(fields, layers)?;
    let rotated = rotated(fields, config.head_dim)?;
    let attention = attention(fields, &config, rotated)?;
    config.compressed_attention = Some(attention);
    let [main, compressed] = ropes(fields, &config, rotated)?;
    Ok(RmsConfig {
        rope: compressed,
        rotary_dim: rotated,
        local_rope: Some(main),
        local_rotary_dim: Some(rotated),
        rope_interleaved: true,
        ..config
    })
}

fn attention(
    fields: &Fields<'_>,
    config: &RmsConfig,
    rotated: usize,
) -> Result<CompressedAttentionConfig, Error> {
    let heads = config.num_attention_heads;
    let groups = fields.size_or("o_groups", 8, MAX_HEADS)?;
    if !heads.is_multiple_of(groups) {
        let expected = format!("the {heads} heads must be in groups of equally many");
        return Err(fields.refuse("o_groups", expected));
    }
    let head_dim = fields.size_or("index_head_dim", 128, MAX_HEAD_DIM)?;
    if head_dim < rotated {
        let expected = format!("of its elements {rotated} are rotated");
        return Err(fields.refuse("index_head_dim", expected));
    }
    let rates = fields.object("compress_rates")?;
    if let Some(rates) = &rates {
        check(rates, &[RATES])?;
    }
    let block = |at: usize, legacy| -> Result<usize, Error> {
        let (name, absent) = BLOCKS[at];
        match (fields.get(legacy), &rates) {
            (Some(_), _) => fields.size(legacy, MAX_POSITIONS),
            (None, Some(rates)) => rates.size_or(name, absent, MAX_POSITIONS),
            (None, None) => Ok(absent),
        }
    };
    Ok(CompressedAttentionConfig {
        heads,
        head_dim: config.head_dim,
        rotated,
        query_rank: fields.size_or("q_lora_rank", 1024, MAX_HIDDEN)?,
        groups,
        output_rank: fields.size_or("o_lora_rank", 1024, MAX_HIDDEN)?,
        epsilon: config.rms_norm_eps,
        blocks: [block(0, "compress_rate_csa")?, block(1, "compress_rate_hca")?],
        indexer: EntryIndexerConfig {
            heads: fields.size_or("index_n_heads", 64, MAX_HEADS)?,
            head_dim,
            top_k: fields.size_or("index_topk", 512, MAX_POSITIONS)?,
        },
    })
}

/// Elements of a head that are rotated.
fn rotated(fields: &Fields<'_>, head_dim: usize) -> Result<usize, Error> {
    let field = "partial_rotary_factor";
    let (field, rotated) = match fields.get(field) {
        Some(_) => (field, head_dim as f64 * fields.number_within(field, 0.0, 1.0)?),
        None => {
            let field = "qk_rope_head_dim";
            (field, fields.size_or(field, head_dim / 8, head_dim)? as f64)
        }
    };
    let rotated = rotated as usize;
    if rotated == 0 || !rotated.is_multiple_of(2) {
        let expected = format!("of a head's {head_dim} elements an even number must be rotated");
        return Err(fields.refuse(field, expected));
    }
    Ok(rotated)
}

/// The rotary embedding of layers that see the last tokens alone, and of the others.
fn ropes(
    fields: &Fields<'_>,
    config: &RmsConfig,
    rotated: usize,
) -> Result<[RopeConfig; 2], Error> {
    let around = config.rope_context(fields);
    let share = rotated as f64 / config.head_dim as f64;
    let same = |(rope, width): (RopeConfig, usize)| match width == rotated {
        true => Ok(rope),
        false => {
            let expected = format!("in all layers {rotated} elements of a head must be rotated");
            Err(fields.refuse("rope_parameters", expected))
        }
    };
    let main = theta(fields, "rope_theta", 10_000.0)?;
    let compressed = theta(fields, "compress_rope_theta", 160_000.0)?;
    let object = rope_object(fields)?;
    if let Some(kinds) = object.as_ref().filter(|kinds| kinds.get("main").is_some()) {
        check(kinds, &[KINDS])?;
        let of_kind = |kind, theta| {
            same(RopeConfig::read_part(kinds.object(kind)?.as_ref(), &around, theta, share)?)
        };
        return Ok([of_kind("main", main)?, of_kind("compress", compressed)?]);
    }
    let mut rope = same(RopeConfig::read_part(object.as_ref(), &around, compressed, share)?)?;
    rope.theta = compressed;
    let says = object.is_some_and(|object| object.get("attention_factor").is_some());
    if let RopeScaling::Yarn { attention_factor, .. } = &mut rope.scaling
        && !says
    {
        // Nothing is stretched beside frequencies.
        *attention_factor = 1.0;
    }
    Ok([RopeConfig { theta: main, scaling: RopeScaling::Default }, rope])
}

/// Of each layer, which blocks of tokens it sees beside the last tokens.
fn seen_blocks(fields: &Fields<'_>, layers: usize) -> Result<Vec<SeenBlocks>, Error> {
    let field = match fields.get("layer_types") {
        Some(_) => "layer_types",
        None => "compress_ratios",
    };
    let Some(value) = fields.get(field) else {
        let by_rule = |layer: usize| match layer < 2 || layer.is_multiple_of(2) {
            true => SeenBlocks::All,
            false => SeenBlocks::Chosen,
        };
        return Ok((0..layers).map(by_rule).collect());
    };
    let kind = |kind: &Value| match (kind.as_str(), kind.as_u64()) {
        (Some("sliding_attention"), _) | (_, Some(0)) => Some(SeenBlocks::None),
        (Some("compressed_sparse_attention"), _) | (_, Some(4)) => Some(SeenBlocks::Chosen),
        (Some("heavily_compressed_attention"), _) | (_, Some(128)) => Some(SeenBlocks::All),
        _ => None,
    };
    let kinds = value.as_array().filter(|kinds| kinds.len() >= layers);
    let kinds = kinds.and_then(|kinds| kinds[..layers].iter().map(kind).collect());
    kinds.ok_or_else(|| {
        let expected = format!(
            "it must be a list of {layers} of \"sliding_attention\", \"compressed_sparse_attention\" and \
             \"heavily_compressed_attention\", or of 0, 4 and 128"
        );
        fields.refuse(field, expected)
    })
}

/// How many layers, the first ones, have experts that a table chooses.
fn tabled_layers(fields: &Fields<'_>, layers: usize) -> Result<usize, Error> {
    let Some(value) = fields.get("mlp_layer_types") else {
        return Ok(match fields.get("num_hash_layers") {
            Some(Value::Number(count)) if count.as_u64() == Some(0) => 0,
            _ => fields.size_or("num_hash_layers", 3, MAX_LAYERS)?.min(layers),
        });
    };
    let is_tabled = |kind: &Value| match kind.as_str() {
        Some("hash_moe") => Some(true),
        Some("moe") => Some(false),
        _ => None,
    };
    let kinds = value.as_array().filter(|kinds| kinds.len() >= layers);
    let kinds: Option<Vec<bool>> =
        kinds.and_then(|kinds| kinds[..layers].iter().map(is_tabled).collect());
    let first = kinds.and_then(|kinds| {
        let first = kinds.iter().take_while(|kind| **kind).count();
        kinds[first..].iter().all(|kind| !kind).then_some(first)
    });
    first.ok_or_else(|| {
        let expected = format!("it must be a list of {layers}, first \"hash_moe\", then \"moe\"");
        fields.refuse("mlp_layer_types", expected)
    })
}

pub(super) const FIELDS: &[&[KnownField]] = &[V4, EXPERTS, rms_config::FIELDS];

const V4: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("compress_rate_csa", Read),
    ("compress_rate_hca", Read),
    ("compress_rates", Read),
    ("compress_ratios", Read),
    ("compress_rope_theta", Read),
    // Of weights that are quantised.
    ("expert_dtype", Harmless),
    ("hc_eps", Read),
    ("hc_mult", Read),
    ("hc_sinkhorn_iters", Read),
    ("index_head_dim", Read),
    ("index_n_heads", Read),
    ("index_topk", Read),
    ("mlp_layer_types", Read),
    ("moe_intermediate_size", Read),
    ("n_routed_experts", Read),
    ("n_shared_experts", Read),
    // The reference does so whatever it says.
    ("norm_topk_prob", Harmless),
    ("num_hash_layers", Read),
    ("num_nextn_predict_layers", Harmless),
    ("o_groups", Read),
    ("o_lora_rank", Read),
    ("partial_rotary_factor", Read),
    ("q_lora_rank", Read),
    ("qk_rope_head_dim", Read),
    ("routed_scaling_factor", Read),
    ("scoring_func", Read),
    ("sliding_window", Read),
    ("swiglu_limit", Read),
    ("topk_method", Only(&["\"noaux_tc\""])),
];

const RATES: &[KnownField] =
    &[("compressed_sparse_attention", Read), ("heavily_compressed_attention", Read)];

const KINDS: &[KnownField] = &[("compress", Read), ("main", Read)];
