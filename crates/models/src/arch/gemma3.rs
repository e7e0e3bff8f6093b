//! Gemma 3, its text part: four norms a block, and layers of a sliding window with a rotary base of their own between those
//! that see everything. Gemma Team 2025 (arXiv:2503.19786).

use burn::module::Module;
use burn::tensor::Tensor;

use super::rms_decoder::{FIELDS, RmsBlock, RmsDefaults, RmsForCausalLm, RmsFrame, RmsSizes};
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{
    DEFAULT_WINDOW, Fields, KnownField, MAX_LAYERS, ROPE, RopeConfig, RopeContext, RopeScaling,
    check, layer_windows, sliding_window, theta,
};
use crate::decoder::Pass;
use crate::layers::{Activation, Attention, Mlp, RmsNorm, Rope, Rotation};
use crate::{Activations, Error, KvCache, PassShape};

/// The text part of a Gemma 3 with its language-modelling head.
pub type Gemma3ForCausalLm = RmsForCausalLm<Gemma3DecoderLayer>;

/// The configuration of the text part of a Gemma 3.
#[derive(Debug, Clone, PartialEq)]
pub struct Gemma3Config {
    /// Its sizes.
    pub sizes: RmsSizes,
    /// Whether attention's projections have a bias.
    pub attention_bias: bool,
    /// Scores are divided by the root of this.
    pub query_pre_attn_scalar: f64,
    /// Rotary position embedding of the layers that see everything.
    pub rope: RopeConfig,
    /// Rotary position embedding of the layers with a sliding window.
    pub local_rope: RopeConfig,
    /// Of each layer, how many tokens a token sees, itself included; `None` is all before it.
    pub windows: Vec<Option<usize>>,
}

/// One decoder layer: attention, then MLP, each between two norms and added to the residual stream.
#[derive(Module, Debug)]
pub struct Gemma3DecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: Attention,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// `[hidden]`.
    pub pre_feedforward_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub mlp: Mlp,
    /// `[hidden]`.
    pub post_feedforward_layernorm: RmsNorm,
    /// Which of the rotary embeddings it takes.
    rotation: usize,
}

impl RmsBlock for Gemma3DecoderLayer {
    type Config = Gemma3Config;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("gemma3_text", "Gemma3")];
    const NO_SPLIT: &'static [&'static str] = &["Gemma3DecoderLayer"];

    fn fields() -> &'static [&'static [KnownField]] {
        &[GEMMA3, FIELDS]
    }

    fn read(fields: &Fields<'_>) -> Result<Gemma3Config, Error> {
        let absent = RmsDefaults {
            key_value_heads: Some(4),
            head_dim: Some(256),
            max_position_embeddings: 131_072,
            rms_norm_eps: 1e-6,
            activation: ("hidden_activation", Activation::GeluTanh),
            tie_word_embeddings: true,
        };
        let sizes = RmsSizes::read(fields, &absent)?;
        let query_pre_attn_scalar = match fields.get("query_pre_attn_scalar") {
            Some(_) => fields.number_within("query_pre_attn_scalar", 1e-6, 1e6)?,
            None => 256.0,
        };
        let window = sliding_window(fields, DEFAULT_WINDOW)?;
        if window.is_none() {
            return Err(fields.refuse("sliding_window", "a gemma3_text needs one".to_owned()));
        }
        let pattern = fields.size_or("sliding_window_pattern", 6, MAX_LAYERS)?;
        let slides = |layer: usize| !(layer + 1).is_multiple_of(pattern);
        let by_rule = (0..sizes.num_hidden_layers).map(|n| window.filter(|_| slides(n))).collect();
        let around = RopeContext {
            fields,
            head_dim: sizes.head_dim,
            max_position_embeddings: sizes.max_position_embeddings,
        };
        Ok(Gemma3Config {
            attention_bias: fields.flag_or("attention_bias", false)?,
            query_pre_attn_scalar,
            rope: rope(&around, "full_attention", ("rope_theta", 1_000_000.0))?,
            local_rope: rope(&around, "sliding_attention", ("rope_local_base_freq", 10_000.0))?,
            windows: layer_windows(fields, window, by_rule)?,
            sizes,
        })
    }

    fn frame(config: &Gemma3Config, init: &Init) -> RmsFrame {
        let sizes = &config.sizes;
        let [full, local] =
            [&config.rope, &config.local_rope].map(|rope| Rope::new(rope, sizes.head_dim));
        let mut frame = sizes.frame(&config.windows, full, init);
        frame.norm = RmsNorm::plus_one(sizes.hidden_size, sizes.rms_norm_eps, init);
        frame.embed_scale = Some((sizes.hidden_size as f64).sqrt());
        let cannot_slide = config.local_rope.cannot_slide();
        frame.cache.cannot_slide = frame.cache.cannot_slide.or(cannot_slide);
        frame.ropes.push(local);
        frame
    }

    fn new(config: &Gemma3Config, index: usize, init: &Init) -> Self {
        let sizes = &config.sizes;
        let norm = |width| RmsNorm::plus_one(width, sizes.rms_norm_eps, init);
        let attention = sizes.attention(config.attention_bias, init);
        Self {
            input_layernorm: norm(sizes.hidden_size),
            self_attn: attention
                .normed(norm(sizes.head_dim), norm(sizes.head_dim))
                .scaled(config.query_pre_attn_scalar.sqrt().recip()),
            post_attention_layernorm: norm(sizes.hidden_size),
            pre_feedforward_layernorm: norm(sizes.hidden_size),
            mlp: sizes.mlp(init),
            post_feedforward_layernorm: norm(sizes.hidden_size),
            rotation: usize::from(config.windows[index].is_some()),
        }
    }

    fn forward(
        &self,
        x: Tensor<3>,
        pending: Option<Tensor<3>>,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<(Tensor<3>, Tensor<3>), Error> {
        let (x, normed) = self.input_layernorm.after(x, pending);
        let (rotation, positions) = (&rotations[self.rotation], pass.query_positions());
        let mixed = self.self_attn.forward(normed, rotation, &positions, cache, index)?;
        let mixed = self.post_attention_layernorm.forward(mixed);
        let (x, normed) = self.pre_feedforward_layernorm.add_forward(x, mixed);
        Ok((x, self.post_feedforward_layernorm.forward(self.mlp.forward(normed))))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        self.self_attn.activations(pass).or(self.mlp.activations(pass))
    }
}

/// The rotary embedding of one kind of layers: in `rope_parameters` under that name, or as files had it before: with the base
/// in a field, and scaled, if it is not the local one, by `rope_scaling`.
fn rope(
    around: &RopeContext<'_>,
    kind: &'static str,
    (base, absent): (&'static str, f64),
) -> Result<RopeConfig, Error> {
    let fields = around.fields;
    let theta = theta(fields, base, absent)?;
    let read = |object: &Fields<'_>| RopeConfig::read_object(object, around, theta, &[ROPE]);
    let plain = RopeConfig { theta, scaling: RopeScaling::Default };
    match (fields.object("rope_parameters")?, fields.object("rope_scaling")?) {
        (Some(_), Some(_)) => {
            let expected = "beside `rope_parameters` it is not supported".to_owned();
            Err(fields.refuse("rope_scaling", expected))
        }
        (Some(nested), None) => {
            check(&nested, &[NESTED])?;
            nested.object(kind)?.map_or(Ok(plain), |object| read(&object))
        }
        (None, Some(object)) if kind == "full_attention" => read(&object),
        (None, _) => Ok(plain),
    }
}

/// Of `rope_parameters`, whose objects are those of kinds of layers.
const NESTED: &[KnownField] = &[("full_attention", Read), ("sliding_attention", Read)];

const GEMMA3: &[KnownField] = &[
    // What is saved beside `layer_types`, and not read again.
    ("_sliding_window_pattern", Harmless),
    ("attention_bias", Read),
    ("cache_implementation", Harmless),
    ("hidden_activation", Read),
    ("query_pre_attn_scalar", Read),
    ("rope_local_base_freq", Read),
    ("sliding_window", Read),
    ("sliding_window_pattern", Read),
    ("use_sliding_window", Effect::UNSET),
];
