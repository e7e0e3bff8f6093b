//! How the fields of its file are read.

use super::{
    BlockNormKind, BlockNorms, BranchScales, ExpertLayout, ExpertsConfig, LayerMixer, RmsConfig,
    SinkLayers,
};
use crate::Error;
use crate::config::Effect::Read;
use crate::config::{
    self, Fields, KnownField, MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_INTERMEDIATE,
    MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, RopeConfig, RopeContext, RopeScaling,
};
use crate::layers::{Activation, KeyValueSource, LatentChoice, Routing, SeenBlocks};

/// What `transformers` takes where a field is absent.
pub(in crate::arch) struct RmsDefaults<'a> {
    /// Of sizes that a file must have otherwise.
    pub sizes: &'a [(&'a str, usize)],
    /// The name of the field that says how many layers there are.
    pub layers: &'static str,
    /// `None`: as many as heads of queries.
    pub key_value_heads: Option<usize>,
    /// `None`: the residual stream's width over the heads.
    pub head_dim: Option<usize>,
    pub max_position_embeddings: usize,
    pub rms_norm_eps: f64,
    /// The name of the field that says it.
    pub epsilon: &'static str,
    pub rope_theta: f64,
    /// The name of the field, and what it says if absent.
    pub activation: (&'static str, Activation),
    pub tie_word_embeddings: bool,
}

impl RmsDefaults<'_> {
    /// A size that a file has, or that it has if it says none.
    fn size(&self, fields: &Fields<'_>, field: &str, max: usize) -> Result<usize, Error> {
        match self.sizes.iter().find(|(name, _)| *name == field) {
            Some((_, default)) => fields.size_or(field, *default, max),
            None => fields.size(field, max),
        }
    }
}

/// Those of Llama.
pub(in crate::arch) const DEFAULTS: RmsDefaults<'static> = RmsDefaults {
    sizes: &[],
    layers: "num_hidden_layers",
    key_value_heads: None,
    head_dim: None,
    max_position_embeddings: 2048,
    rms_norm_eps: 1e-6,
    epsilon: "rms_norm_eps",
    rope_theta: 10_000.0,
    activation: ("hidden_act", Activation::Silu),
    tie_word_embeddings: false,
};

impl RmsConfig {
    /// Reads the fields that all have. What only some have is as in Llama, and the rotary embedding
    /// not yet read.
    pub(in crate::arch) fn read(
        fields: &Fields<'_>,
        absent: &RmsDefaults<'_>,
    ) -> Result<Self, Error> {
        let inner = absent.size(fields, "intermediate_size", MAX_INTERMEDIATE)?;
        Self::read_with_inner(fields, absent, inner)
    }

    /// The same of a model whose layers have inner layers of several widths.
    pub(in crate::arch) fn read_with_inner(
        fields: &Fields<'_>,
        absent: &RmsDefaults<'_>,
        intermediate_size: usize,
    ) -> Result<Self, Error> {
        let size = |field, max| absent.size(fields, field, max);
        let hidden_size = size("hidden_size", MAX_HIDDEN)?;
        let heads = size("num_attention_heads", MAX_HEADS)?;
        let num_hidden_layers = size(absent.layers, MAX_LAYERS)?;
        // Absent and null are not the same here.
        let field = "num_key_value_heads";
        let key_value_heads = absent.key_value_heads.filter(|_| !fields.has(field));
        let key_value_heads = fields.size_or(field, key_value_heads.unwrap_or(heads), MAX_HEADS)?;
        if heads % key_value_heads != 0 {
            let default = if fields.has(field) { "" } else { ", as many as there are then," };
            let expected = format!(
                "{key_value_heads} key-value heads{default} must divide num_attention_heads, {heads}"
            );
            return Err(fields.refuse(field, expected));
        }
        let head_dim = match absent.head_dim.filter(|_| fields.get("head_dim").is_none()) {
            Some(width) => width,
            None => head_dim(fields, hidden_size, heads)?,
        };
        let (field, activation) = absent.activation;
        let positions = absent.max_position_embeddings;
        Ok(Self {
            hidden_size,
            intermediate_size,
            num_hidden_layers,
            num_attention_heads: heads,
            layer_heads: None,
            num_key_value_heads: key_value_heads,
            local_key_value_heads: None,
            head_dim,
            vocab_size: size("vocab_size", MAX_VOCAB)?,
            rms_norm_eps: config::epsilon(fields, absent.epsilon, absent.rms_norm_eps)?,
            post_norm_eps: None,
            activation: config::activation(fields, field, activation)?,
            attention_gate: None,
            linear_attention: None,
            delta_attention: None,
            lightning_attention: None,
            convolution: None,
            mamba2: None,
            mamba: None,
            branch_scales: BranchScales::default(),
            mixers: vec![LayerMixer::Attention; num_hidden_layers],
            latent_attention: None,
            local_latent: None,
            choices: vec![LatentChoice::Own; num_hidden_layers],
            latent_sources: vec![KeyValueSource::OWN; num_hidden_layers],
            learned_frequencies: false,
            block_indexer: None,
            indexed_layers: vec![false; num_hidden_layers],
            compressed_attention: None,
            seen_blocks: vec![SeenBlocks::None; num_hidden_layers],
            tabled_layers: 0,
            attention_in_bias: false,
            attention_out_bias: false,
            renamed: &[],
            fused_projections: None,
            attention_sinks: SinkLayers::None,
            values: None,
            mlp_bias: false,
            mlp_clamps: vec![[None; 2]; num_hidden_layers],
            hyper_connections: None,
            experts: None,
            sparse_layers: vec![true; num_hidden_layers],
            norms: BlockNorms::Before,
            norm_gate_rank: None,
            norm_kind: BlockNormKind::Rms,
            norm_plus_one: false,
            last_norm_plain: false,
            query_key_norms: None,
            query_pre_attn_scalar: None,
            attention_softcap: None,
            attention_clip: None,
            logit_softcap: None,
            embed_scale: None,
            embed_norm: false,
            residual_scale: None,
            residual_scales: [[1.0; 2]; 3],
            residual_gate_temperature: None,
            logit_scale: None,
            rope: RopeConfig { theta: absent.rope_theta, scaling: RopeScaling::Default },
            local_rope: None,
            rope_interleaved: false,
            gates_apart: false,
            rope_reversed: false,
            query_growth: None,
            unrotated_growth: None,
            rotary_dim: head_dim,
            local_rotary_dim: None,
            rotated_layers: vec![true; num_hidden_layers],
            windows: vec![None; num_hidden_layers],
            chunked: false,
            head_bias: false,
            tie_word_embeddings: fields
                .flag_or("tie_word_embeddings", absent.tie_word_embeddings)?,
            max_position_embeddings: fields.size_or(
                "max_position_embeddings",
                positions,
                MAX_POSITIONS,
            )?,
        })
    }

    /// The same with the rotary embedding that the file has for all layers.
    pub(in crate::arch) fn with_rope(self, fields: &Fields<'_>) -> Result<Self, Error> {
        Ok(Self { rope: RopeConfig::read(&self.rope_context(fields))?, ..self })
    }

    /// The same with or without biases in attention, as the file says.
    pub(in crate::arch) fn with_attention_bias(self, fields: &Fields<'_>) -> Result<Self, Error> {
        let bias = fields.flag_or("attention_bias", false)?;
        Ok(Self { attention_in_bias: bias, attention_out_bias: bias, ..self })
    }

    /// The same, refused with another activation than SiLU: convolutions of linear attention have
    /// it too, and are built in with that one alone.
    pub(in crate::arch) fn with_silu_alone(self, fields: &Fields<'_>) -> Result<Self, Error> {
        if self.activation != Activation::Silu {
            return Err(fields.refuse("hidden_act", "only \"silu\" is supported".to_owned()));
        }
        Ok(self)
    }

    /// What a rotary embedding is read with.
    pub(in crate::arch) fn rope_context<'a>(&self, fields: &'a Fields<'a>) -> RopeContext<'a> {
        let Self { head_dim, max_position_embeddings, .. } = *self;
        RopeContext { fields, head_dim, max_position_embeddings, theta: self.rope.theta }
    }

    /// The same with experts: so many as `count` says, unless the file says otherwise, of which
    /// each token goes to `per_token`; and the names of these fields.
    pub(in crate::arch) fn with_experts<const N: usize>(
        self,
        fields: &Fields<'_>,
        names: [&str; N],
        absent: (usize, usize),
        normalized: bool,
    ) -> Result<Self, Error> {
        let field = field_of(fields, names)?;
        let count = (field, fields.size_or(field, absent.0, MAX_EXPERTS)?);
        let field = field_of(fields, ["num_experts_per_tok", "num_experts_per_token"])?;
        let per_token = (field, fields.size_or(field, absent.1, MAX_EXPERTS)?);
        self.with_experts_of(fields, count, per_token, normalized)
    }

    /// The same with so many experts, of which each token goes to `per_token`; and the fields that
    /// say so.
    pub(in crate::arch) fn with_experts_of(
        self,
        fields: &Fields<'_>,
        (field, count): (&str, usize),
        (of_token, per_token): (&str, usize),
        normalized: bool,
    ) -> Result<Self, Error> {
        if count * self.num_hidden_layers > MAX_EXPERTS {
            let expected = format!("all layers may have {MAX_EXPERTS} experts together");
            return Err(fields.refuse(field, expected));
        }
        if per_token > count {
            return Err(fields.refuse(of_token, format!("there are {count} experts")));
        }
        let experts = ExpertsConfig {
            count,
            routing: Routing::softmax(per_token, normalized),
            intermediate_size: self.intermediate_size,
            shared_intermediate_size: None,
            is_mean: false,
            latent_size: None,
            identities: 0,
            is_corrected: false,
            renamed: &[],
            swiglu_limit: None,
            layout: ExpertLayout::Apart,
        };
        Ok(Self { experts: Some(experts), ..self })
    }
}

/// The field that is there of some that mean the same, else the first.
pub(in crate::arch) fn field_of<'a, const N: usize>(
    fields: &Fields<'_>,
    names: [&'a str; N],
) -> Result<&'a str, Error> {
    let mut there = names.into_iter().filter(|name| fields.get(name).is_some());
    let first = there.next().unwrap_or(names[0]);
    match there.find(|name| fields.get(name) != fields.get(first)) {
        Some(other) => Err(fields.refuse(other, format!("it must be what `{first}` is"))),
        None => Ok(first),
    }
}

/// Width of one head.
fn head_dim(fields: &Fields<'_>, hidden_size: usize, heads: usize) -> Result<usize, Error> {
    let field = match fields.get("head_dim") {
        Some(_) => "head_dim",
        None if hidden_size.is_multiple_of(heads) => "hidden_size",
        None => {
            let expected = format!(
                "without a `head_dim` it must be a multiple of num_attention_heads, {heads}"
            );
            return Err(fields.refuse("hidden_size", expected));
        }
    };
    let width = fields.size_or("head_dim", hidden_size / heads, MAX_HEAD_DIM)?;
    if width == 0 || width % 2 != 0 {
        let expected = format!("the width of a head, {width}, must be even and not 0");
        return Err(fields.refuse(field, expected));
    }
    Ok(width)
}

/// Fields of all of these, beside those of all architectures.
pub(in crate::arch) const FIELDS: &[KnownField] = &[
    ("head_dim", Read),
    ("hidden_size", Read),
    ("intermediate_size", Read),
    ("layer_types", Read),
    ("max_position_embeddings", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("num_key_value_heads", Read),
    ("original_max_position_embeddings", Read),
    ("rms_norm_eps", Read),
    ("rope_parameters", Read),
    ("rope_scaling", Read),
    ("rope_theta", Read),
];
