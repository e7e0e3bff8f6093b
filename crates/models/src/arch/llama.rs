//! Llama, and the models that took its shape: Mistral, Qwen2. Touvron et al. 2023 (arXiv:2302.13971).

use burn::module::Module;
use burn::tensor::Tensor;

use crate::architecture::{Architecture, Init};
use crate::config::Effect::{self, Read};
use crate::config::{
    self, DEFAULT_WINDOW, Fields, KnownField, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN,
    MAX_INTERMEDIATE, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, RopeConfig, RopeContext, RopeScaling,
    layer_windows, sliding_window,
};
use crate::decoder::{Decoder, Head, Pass};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{
    Activation, Attention, AttentionConfig, Embedding, Linear, Mlp, RmsNorm, Rope, Rotation,
};
use crate::{Activations, CacheLayer, CacheSpec, Error, KvCache, PassShape};

/// The configuration of a Llama, or of a model of its shape. Fields carry the names and defaults of `transformers`.
#[derive(Debug, Clone, PartialEq)]
pub struct LlamaConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP's inner layer.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides the query heads.
    pub num_key_value_heads: usize,
    /// Width of one head; even. Not always `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Token ids run from 0 to this, exclusive.
    pub vocab_size: usize,
    /// Added to the mean square in RMSNorm.
    pub rms_norm_eps: f64,
    /// The non-linear function of the MLP (`hidden_act`).
    pub activation: Activation,
    /// Whether the projections to queries, keys and values have a bias.
    pub attention_in_bias: bool,
    /// Whether the projection from attention has a bias.
    pub attention_out_bias: bool,
    /// Whether the MLP's projections have a bias.
    pub mlp_bias: bool,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// Of each layer, how many tokens a token sees, itself included; `None` is all before it.
    pub windows: Vec<Option<usize>>,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
    /// The longest context that the model was trained for, in tokens.
    pub max_position_embeddings: usize,
}

/// A Llama, or a model of its shape, with its language-modelling head.
#[derive(Module, Debug)]
pub struct LlamaForCausalLm {
    /// The transformer.
    pub model: LlamaModel,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    #[module(skip)]
    rope: Rope,
    #[module(skip)]
    cache: CacheSpec,
}

/// Embedding, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct LlamaModel {
    /// `[vocabulary, hidden]`.
    pub embed_tokens: Embedding,
    /// In order of execution.
    pub layers: Vec<LlamaDecoderLayer>,
    /// `[hidden]`.
    pub norm: RmsNorm,
}

/// One decoder layer: attention, then MLP, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct LlamaDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: Attention,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub mlp: Mlp,
}

impl Architecture for LlamaForCausalLm {
    type Config = LlamaConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("llama", "Llama"), ("mistral", "Mistral"), ("qwen2", "Qwen2")];
    const CLASS_PREFIX: &'static str = "Llama";
    const NO_SPLIT: &'static [&'static str] = &["LlamaDecoderLayer"];
    const IGNORED: &'static [&'static str] = &[".rotary_emb.inv_freq"];
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = &[
        ("model.rotary_emb", "RotaryEmbedding"),
        ("model.layers.*.self_attn.rotary_emb", "RotaryEmbedding"),
        ("model.layers.*.rotary_emb", "RotaryEmbedding"),
        ("model.layers.*.mlp.act_fn", "Activation"),
    ];

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "mistral" => &[MISTRAL, FIELDS],
            "qwen2" => &[QWEN2, FIELDS],
            _ => &[LLAMA, FIELDS],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<LlamaConfig, Error> {
        LlamaConfig::read(model_type, fields)
    }

    fn new(config: &LlamaConfig, init: &Init) -> Self {
        let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
        let layers = 0..config.num_hidden_layers;
        Self {
            model: LlamaModel {
                embed_tokens: Embedding::new(vocabulary, hidden, init),
                layers: layers.map(|_| LlamaDecoderLayer::new(config, init)).collect(),
                norm: RmsNorm::new(hidden, config.rms_norm_eps, init),
            },
            lm_head: (!config.tie_word_embeddings)
                .then(|| Linear::new(hidden, vocabulary, false, init)),
            rope: Rope::new(&config.rope, config.head_dim),
            cache: config.cache(),
        }
    }
}

impl Decoder for LlamaForCausalLm {
    const LAYERS: &'static str = "model.layers";

    fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        let mut x = pass.embed(&self.model.embed_tokens);
        let rotation = pass.rotation(&self.rope, &x.device());
        let mut pending = None;
        for (index, layer) in self.model.layers.iter().enumerate() {
            let (sum, more) = layer.forward(x, pending, &rotation, pass, cache, index)?;
            (x, pending) = (sum, Some(more));
        }
        let pending = pending.map(|more| pass.wanted(more));
        Ok(self.model.norm.after(pass.wanted(x), pending).1)
    }

    fn head(&self) -> Head<'_> {
        match &self.lm_head {
            Some(head) => Head::Own(head),
            None => Head::Tied(&self.model.embed_tokens),
        }
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mut most = self.head().activations(pass);
        for layer in &self.model.layers {
            most = most.or(layer.self_attn.activations(pass));
            most = most.or(layer.mlp.activations(pass));
        }
        // Alive throughout: the residual stream, and the rotations.
        let hidden = self.model.embed_tokens.width() as u64;
        most.and(Activations::values(pass.rows() * (hidden + self.rope.width() as u64)))
    }
}

impl LlamaDecoderLayer {
    fn new(config: &LlamaConfig, init: &Init) -> Self {
        let norm = || RmsNorm::new(config.hidden_size, config.rms_norm_eps, init);
        let attention = AttentionConfig {
            hidden: config.hidden_size,
            heads: config.num_attention_heads,
            key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            in_bias: config.attention_in_bias,
            out_bias: config.attention_out_bias,
        };
        Self {
            input_layernorm: norm(),
            self_attn: Attention::new(&attention, init),
            post_attention_layernorm: norm(),
            mlp: Mlp::new(
                config.hidden_size,
                config.intermediate_size,
                config.mlp_bias,
                config.activation,
                init,
            ),
        }
    }

    /// Takes the residual stream and what is still to be added to it, and gives them, so that each addition is made together
    /// with the norm behind it.
    fn forward(
        &self,
        x: Tensor<3>,
        pending: Option<Tensor<3>>,
        rotation: &Rotation,
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<(Tensor<3>, Tensor<3>), Error> {
        let (x, normed) = self.input_layernorm.after(x, pending);
        let positions = pass.query_positions();
        let mixed = self.self_attn.forward(normed, rotation, &positions, cache, index)?;
        let (x, normed) = self.post_attention_layernorm.add_forward(x, mixed);
        Ok((x, self.mlp.forward(normed)))
    }
}

impl LlamaConfig {
    fn read(model_type: &str, fields: &Fields<'_>) -> Result<Self, Error> {
        let hidden_size = fields.size("hidden_size", MAX_HIDDEN)?;
        let heads = fields.size("num_attention_heads", MAX_HEADS)?;
        // Absent and null are not the same here.
        let absent = match model_type {
            _ if fields.has("num_key_value_heads") => heads,
            "mistral" => 8,
            "qwen2" => 32,
            _ => heads,
        };
        let kv_heads = fields.size_or("num_key_value_heads", absent, MAX_HEADS)?;
        if heads % kv_heads != 0 {
            return Err(fields.refuse(
                "num_key_value_heads",
                format!("{kv_heads} key-value heads must divide num_attention_heads, {heads}"),
            ));
        }
        let head_dim = head_dim(fields, hidden_size, heads)?;
        let trained = match model_type {
            "mistral" => 4096 * 32,
            "qwen2" => 32_768,
            _ => 2048,
        };
        let max_position_embeddings =
            fields.size_or("max_position_embeddings", trained, MAX_POSITIONS)?;
        let (in_bias, out_bias, mlp_bias) = match model_type {
            "mistral" => (false, false, false),
            "qwen2" => (true, false, false),
            _ => {
                let attention = fields.flag_or("attention_bias", false)?;
                (attention, attention, fields.flag_or("mlp_bias", false)?)
            }
        };
        let rms_norm_eps = config::epsilon(fields, "rms_norm_eps", 1e-6)?;
        let rope = RopeConfig::read(&RopeContext { fields, head_dim, max_position_embeddings })?;
        let num_hidden_layers = fields.size("num_hidden_layers", MAX_LAYERS)?;
        Ok(Self {
            hidden_size,
            intermediate_size: fields.size("intermediate_size", MAX_INTERMEDIATE)?,
            num_hidden_layers,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            vocab_size: fields.size("vocab_size", MAX_VOCAB)?,
            rms_norm_eps,
            activation: config::activation(fields, "hidden_act", Activation::Silu)?,
            attention_in_bias: in_bias,
            attention_out_bias: out_bias,
            mlp_bias,
            rope,
            windows: windows(model_type, fields, num_hidden_layers)?,
            tie_word_embeddings: fields.flag_or("tie_word_embeddings", false)?,
            max_position_embeddings,
        })
    }

    fn cache(&self) -> CacheSpec {
        let layer = |&window| CacheLayer {
            heads: self.num_attention_heads,
            key_value_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            window,
        };
        let dynamic = matches!(self.rope.scaling, RopeScaling::Dynamic { .. });
        CacheSpec {
            layers: self.windows.iter().map(layer).collect(),
            cross: Vec::new(),
            trained_context: self.max_position_embeddings,
            longest_context: if dynamic { MAX_CONTEXT } else { self.max_position_embeddings },
            cannot_slide: self.rope.cannot_slide(),
        }
    }
}

/// Width of one head.
pub(super) fn head_dim(
    fields: &Fields<'_>,
    hidden_size: usize,
    heads: usize,
) -> Result<usize, Error> {
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

/// Of each layer, how many tokens a token sees.
pub(super) fn windows(
    model_type: &str,
    fields: &Fields<'_>,
    layers: usize,
) -> Result<Vec<Option<usize>>, Error> {
    let (window, first) = match model_type {
        "mistral" => (sliding_window(fields, DEFAULT_WINDOW)?, 0),
        "qwen2" | "qwen3" => {
            let used = fields.flag_or("use_sliding_window", false)?;
            // Checked even where it is not used.
            let (window, first) = (sliding_window(fields, DEFAULT_WINDOW)?, first_window(fields)?);
            (window.filter(|_| used), first)
        }
        _ => (None, 0),
    };
    let by_rule: Vec<_> = (0..layers).map(|layer| window.filter(|_| layer >= first)).collect();
    let windows = layer_windows(fields, window, by_rule.clone())?;
    // Only Qwen2 and Qwen3 choose by layer; the others must not contradict themselves.
    if !["qwen2", "qwen3"].contains(&model_type) && windows != by_rule {
        let expected = format!("all layers of a {model_type} with this sliding window are alike");
        return Err(fields.refuse("layer_types", expected));
    }
    Ok(windows)
}

/// The layer from which on Qwen2 and Qwen3 slide; may be beyond the last.
fn first_window(fields: &Fields<'_>) -> Result<usize, Error> {
    let field = "max_window_layers";
    let Some(value) = fields.get(field) else {
        return Ok(28);
    };
    let first = value.as_u64().filter(|&first| first <= MAX_LAYERS as u64);
    first.map(|first| first as usize).ok_or_else(|| {
        let expected = format!("it must be a whole number from 0 to {MAX_LAYERS}");
        fields.refuse(field, expected)
    })
}

const FIELDS: &[KnownField] = &[
    ("head_dim", Read),
    ("hidden_act", Read),
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

const LLAMA: &[KnownField] = &[
    ("attention_bias", Read),
    ("mlp_bias", Read),
    ("qkv_bias", Effect::OFF),
    ("use_qkv_bias", Effect::OFF),
    ("max_window_layers", Effect::UNSET),
    ("sliding_window", Effect::UNSET),
    ("use_sliding_window", Effect::OFF),
];

const MISTRAL: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("mlp_bias", Effect::OFF),
    ("qkv_bias", Effect::OFF),
    ("use_qkv_bias", Effect::OFF),
    ("max_window_layers", Effect::UNSET),
    ("sliding_window", Read),
    ("use_sliding_window", Effect::ON),
];

const QWEN2: &[KnownField] = &[
    ("attention_bias", Effect::ON),
    ("mlp_bias", Effect::OFF),
    ("qkv_bias", Effect::ON),
    ("use_qkv_bias", Effect::ON),
    ("max_window_layers", Read),
    ("sliding_window", Read),
    ("use_sliding_window", Read),
];
