//! LongCat-Flash: two attentions over a compressed cache and two MLPs a layer, with experts beside
//! the second half, some of which give what they take. Meituan 2025 (arXiv:2509.01322).

use burn::module::Module;
use outsize_core::Names;

use super::deepseek::{LATENT, softmax_stretch};
use super::expert_fields::{EXPERTS, share_scale};
use super::rms_config::{DEFAULTS, ExpertsConfig, FIELDS, RmsConfig, RmsDefaults, field_of};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HIDDEN, MAX_INTERMEDIATE, MAX_LAYERS,
    layer_windows,
};
use crate::layers::{
    Either, KeyValueSource, LatentAttention, LatentAttentionConfig, LatentGate, Mlp, Parameterless,
    RmsNorm, Rotation, Router, announce_all, expert_activations, mixed,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A LongCat-Flash with its language-modelling head.
pub type LongcatForCausalLm = RmsForCausalLm<LongcatDecoderLayer>;

/// One layer: attention and an MLP, twice; and experts, which take what the first MLP takes and
/// whose results are added behind the second one.
#[derive(Module, Debug)]
pub struct LongcatDecoderLayer {
    /// `[hidden]`, before each attention.
    pub input_layernorm: Vec<RmsNorm>,
    /// Causal self-attention.
    pub self_attn: Vec<LatentAttention>,
    /// `[hidden]`, before each MLP.
    pub post_attention_layernorm: Vec<RmsNorm>,
    /// Experts.
    pub mlp: LongcatMoe,
    /// Gated feed-forward blocks.
    pub mlps: Vec<Mlp>,
}

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct LongcatMoe {
    /// `[experts, hidden]`: scores all experts.
    pub router: Router,
    /// Gated feed-forward blocks; the last ones have no weights, and give what they take.
    pub experts: Vec<Either<Mlp, Parameterless>>,
}

impl RmsBlock for LongcatDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("longcat_flash", "LongcatFlash")];
    const NO_SPLIT: &'static [&'static str] = &["LongcatDecoderLayer"];
    const ATTENTIONS: usize = 2;

    fn has_more_layers(_: &str) -> bool {
        true
    }

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[LONGCAT, LATENT, EXPERTS, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        read(fields)
    }

    fn stacked(names: Names, _: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        names.or_rename(r"\.mlp\.router\.weight$", ".mlp.router.classifier.weight")
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let hidden = config.hidden_size;
        let latent = config.latent_attention.expect("the configuration of a LongCat-Flash");
        let experts = config.experts.expect("the configuration of a model with experts");
        let attention = || {
            let heads = config.num_attention_heads;
            LatentAttention::new(hidden, heads, latent, config.attention_in_bias, init)
        };
        let norm = || config.norm(hidden, init);
        let mlp = || config.mlp(config.intermediate_size, init);
        let expert = |at| match at < experts.count - experts.identities {
            true => Either::One(config.mlp(experts.intermediate_size, init)),
            false => Either::Other(Parameterless::default()),
        };
        Self {
            input_layernorm: vec![norm(), norm()],
            self_attn: vec![attention(), attention()],
            post_attention_layernorm: vec![norm(), norm()],
            mlp: LongcatMoe {
                router: Router::new(hidden, experts.count, experts.routing, init).corrected(init),
                experts: (0..experts.count).map(expert).collect(),
            },
            mlps: vec![mlp(), mlp()],
        }
    }

    fn is_unused(&self, name: &str) -> bool {
        // Some checkpoints have weights of experts that are none.
        let expert = name.strip_prefix("mlp.experts.").and_then(|name| name.split_once('.'));
        let expert = expert.and_then(|(number, _)| number.parse().ok());
        let expert = expert.and_then(|number: usize| self.mlp.experts.get(number));
        matches!(expert, Some(Either::Other(_)))
    }

    fn forward(
        &self,
        Residual { stream: mut x, mut pending }: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        let LongcatMoe { router, experts } = &self.mlp;
        announce_all(experts, router, pass.rows());
        let mut beside = None;
        for half in 0..Self::ATTENTIONS {
            let is_last = half + 1 == Self::ATTENTIONS;
            let (stream, normed) = self.input_layernorm[half].after(x, pending);
            let layer = Self::ATTENTIONS * index + half;
            let rotation = rotations.first();
            let attention = &self.self_attn[half];
            let positions = pass.query_positions();
            let positions = match is_last {
                true => positions,
                false => positions.of_all(),
            };
            let attended = attention.forward(normed, rotation, &positions, cache, layer)?;
            let stream = if is_last { pass.needed(stream) } else { stream };
            let (stream, normed) =
                self.post_attention_layernorm[half].after(stream, Some(attended));
            if half == 0 {
                beside = Some(mixed(pass.needed(normed.clone()), router, experts));
            }
            (x, pending) = (stream, Some(self.mlps[half].forward(normed)));
        }
        let pending = match (pending, beside) {
            (Some(pending), Some(beside)) => Some(pending + beside),
            (pending, _) => pending,
        };
        Ok(Residual { stream: x, pending })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let LongcatMoe { router, experts } = &self.mlp;
        let attention = self.self_attn[0].activations(pass);
        let mlp = self.mlps[0].activations(pass);
        // What the experts take waits for the first MLP, and what they give for the second one.
        let kept = Activations::values(pass.rows() * 2 * router.hidden() as u64);
        attention.or(mlp).or(expert_activations(router, experts, pass)).and(kept)
    }
}

fn read(fields: &Fields<'_>) -> Result<RmsConfig, Error> {
    let width = |field, absent| fields.size_or(field, absent, MAX_HEAD_DIM);
    let [plain, rotated] = [width("qk_nope_head_dim", 128)?, width("qk_rope_head_dim", 64)?];
    if rotated % 2 != 0 {
        return Err(fields.refuse("qk_rope_head_dim", "it must be even".to_owned()));
    }
    let layers = fields.size_or("num_layers", 28, MAX_LAYERS)?;
    let absent = RmsDefaults {
        sizes: &[
            ("vocab_size", 131_072),
            ("hidden_size", 6144),
            ("num_attention_heads", 64),
            // Of attention, of which a layer has two.
            ("num_hidden_layers", 2 * layers),
        ],
        head_dim: Some(rotated),
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 1e7,
        ..DEFAULTS
    };
    let field = field_of(fields, ["ffn_hidden_size", "intermediate_size"])?;
    let inner = fields.size_or(field, 12_288, MAX_INTERMEDIATE)?;
    let config = RmsConfig::read_with_inner(fields, &absent, inner)?;
    let attentions = config.num_hidden_layers;
    if attentions != 2 * layers {
        let expected = format!("there are two attentions in each of num_layers, {layers}");
        return Err(fields.refuse("num_hidden_layers", expected));
    }
    if config.num_key_value_heads != config.num_attention_heads {
        let expected = "all heads have keys of their own".to_owned();
        return Err(fields.refuse("num_key_value_heads", expected));
    }
    if config.head_dim != rotated {
        let expected = format!("it must be qk_rope_head_dim, {rotated}");
        return Err(fields.refuse("head_dim", expected));
    }
    // All layers see everything, whatever else a file may ask for.
    layer_windows(fields, None, vec![None; attentions])?;
    let config = config.with_rope(fields)?.with_attention_bias(fields)?;
    let mut config = with_experts(fields, config)?;
    let hidden = config.hidden_size as f64;
    let query_rank = fields.size_or("q_lora_rank", 1536, MAX_HIDDEN)?;
    let rank = fields.size_or("kv_lora_rank", 512, MAX_HIDDEN)?;
    let scale = (hidden / query_rank as f64 / (plain + rotated) as f64).sqrt();
    config.latent_attention = Some(LatentAttentionConfig {
        query_rank: Some(query_rank),
        rank,
        plain,
        rotated,
        value: width("v_head_dim", 128)?,
        apart: fields.flag_or("kv_b_apart", false)?,
        scale: scale * softmax_stretch(fields, &config.rope)?,
        epsilon: 1e-6,
        latent_scale: Some((hidden / rank as f64).sqrt()),
        norms_rotated: false,
        has_sinks: false,
        gate: LatentGate::None,
        scales_queries: false,
        source: KeyValueSource::OWN,
        indexer: None,
    });
    Ok(RmsConfig { num_hidden_layers: layers, rope_interleaved: true, ..config })
}

fn with_experts(fields: &Fields<'_>, config: RmsConfig) -> Result<RmsConfig, Error> {
    let field = field_of(fields, ["n_routed_experts", "num_local_experts", "num_experts"])?;
    let weighted = fields.size_or(field, 512, MAX_EXPERTS)?;
    let identities = match fields.get("zero_expert_num") {
        Some(count) if count.as_u64() == Some(0) => 0,
        None if fields.has("zero_expert_num") => 0,
        _ => fields.size_or("zero_expert_num", 256, MAX_EXPERTS)?,
    };
    let of_token = field_of(fields, ["moe_topk", "num_experts_per_tok"])?;
    let per_token = (of_token, fields.size_or(of_token, 12, MAX_EXPERTS)?);
    let count = (field, weighted + identities);
    let mut config = config.with_experts_of(fields, count, per_token, false)?;
    let names = ["expert_ffn_hidden_size", "moe_intermediate_size"];
    let inner = fields.size_or(field_of(fields, names)?, 2048, MAX_INTERMEDIATE)?;
    if let Some(experts) = &mut config.experts {
        experts.identities = identities;
        experts.intermediate_size = inner;
        experts.routing.scale = share_scale(fields, "routed_scaling_factor", 6.0)?;
    }
    Ok(config)
}

const LONGCAT: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_method", Only(&["\"MLA\""])),
    ("auto_map", Harmless),
    ("expert_ffn_hidden_size", Read),
    ("ffn_hidden_size", Read),
    ("mla_scale_kv_lora", Effect::ON),
    ("mla_scale_q_lora", Effect::ON),
    ("moe_intermediate_size", Read),
    ("moe_topk", Read),
    ("n_routed_experts", Read),
    ("norm_topk_prob", Effect::OFF),
    ("num_layers", Read),
    ("routed_scaling_factor", Read),
    ("router_bias", Effect::OFF),
    ("router_dtype", Harmless),
    ("zero_expert_num", Read),
    ("zero_expert_type", Only(&["\"identity\""])),
];
