//! Phi-3 and Phi-4: fused projections, LongRoPE, a part of each head rotated. Abdin et al. 2024
//! (arXiv:2404.14219).

use burn::module::Module;
use burn::tensor::Tensor;

use super::rms_config::{DEFAULTS, FIELDS, RmsConfig, RmsDefaults};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, RopeConfig, RopeScaling, sliding_window, uniform_windows};
use crate::layers::{FusedMlp, Linear, RmsNorm, Rotation, attend};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Phi-3 with its language-modelling head.
pub type Phi3ForCausalLm = RmsForCausalLm<Phi3DecoderLayer>;

/// One decoder layer: attention, then MLP, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct Phi3DecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: Phi3Attention,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub mlp: FusedMlp,
}

/// Causal self-attention of one fused projection.
#[derive(Module, Debug)]
pub struct Phi3Attention {
    /// `[(heads + 2 · key_value_heads) · head_dim, hidden]`: queries, keys, values.
    pub qkv_proj: Linear,
    /// `[hidden, heads · head_dim]`.
    pub o_proj: Linear,
    heads: usize,
    key_value_heads: usize,
}

impl RmsBlock for Phi3DecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("phi3", "Phi3")];
    const NO_SPLIT: &'static [&'static str] = &["Phi3DecoderLayer"];
    const RECOMPUTES_KEYS: bool = true;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[PHI3, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let absent = RmsDefaults { max_position_embeddings: 4096, rms_norm_eps: 1e-5, ..DEFAULTS };
        let config = RmsConfig::read(fields, &absent)?;
        let names = ["rope_theta", "partial_rotary_factor"];
        let (rope, rotary_dim) =
            RopeConfig::read_partial(&config.rope_context(fields), names, 1.0)?;
        let object = ["rope_scaling", "rope_parameters"]
            .into_iter()
            .find(|name| fields.get(name).is_some())
            .unwrap_or("rope_parameters");
        let original = "original_max_position_embeddings";
        match rope.scaling {
            RopeScaling::Default => {}
            // What is in the object does not count there.
            RopeScaling::LongRope { original_max_position_embeddings: 4096, .. } => {}
            RopeScaling::LongRope { .. } if fields.get(original).is_some() => {}
            RopeScaling::LongRope { .. } => return Err(fields.missing(original)),
            _ => {
                let expected = "a phi3 has no other scaling than \"longrope\"".to_owned();
                return Err(fields.refuse(object, expected));
            }
        }
        let window = match fields.has("sliding_window") {
            true => sliding_window(fields, 0)?,
            false => None,
        };
        let windows = uniform_windows(fields, "phi3", window, config.num_hidden_layers)?;
        Ok(RmsConfig { rope, rotary_dim, windows, ..config })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let (hidden, heads) = (config.hidden_size, config.num_attention_heads);
        let fused = (heads + 2 * config.num_key_value_heads) * config.head_dim;
        let norm = || config.norm(hidden, init);
        Self {
            input_layernorm: norm(),
            self_attn: Phi3Attention {
                qkv_proj: Linear::new(hidden, fused, false, init),
                o_proj: Linear::new(heads * config.head_dim, hidden, false, init),
                heads,
                key_value_heads: config.num_key_value_heads,
            },
            post_attention_layernorm: norm(),
            mlp: FusedMlp::new(hidden, config.intermediate_size, config.activation, init),
        }
    }

    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        let (x, normed) = self.input_layernorm.after(x, pending);
        let mixed = self.self_attn.forward(normed, &rotations[0], pass, cache, index)?;
        let [x, mixed] = [x, mixed].map(|x| pass.needed(x));
        let (x, normed) = self.post_attention_layernorm.add_forward(x, mixed);
        Ok(Residual { stream: x, pending: Some(self.mlp.forward(normed)) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        self.self_attn.activations(pass).or(self.mlp.activations(pass))
    }
}

impl Phi3Attention {
    /// `[batch, tokens, hidden]` f32 to the same. The tokens' keys and values are appended to layer
    /// `layer` of the cache.
    fn forward(
        &self,
        x: Tensor<3>,
        rotation: &Rotation,
        pass: &Pass<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let [batch, tokens, _] = x.dims();
        let (heads, keys) = (self.heads, self.key_value_heads);
        let fused = self.qkv_proj.forward(x);
        let width = fused.dims()[2] / (heads + 2 * keys);
        let fused = fused.reshape([batch, tokens, heads + 2 * keys, width]);
        let [queries, keys, values] = [(0, heads), (heads, keys), (heads + keys, keys)]
            .map(|(first, count)| fused.clone().narrow(2, first, count));
        drop(fused);
        let all = [rotation.apply(queries), rotation.apply(keys), values];
        let positions = pass.query_positions();
        let mixed = attend(all, self.o_proj.compute, None, &positions, cache, layer)?;
        Ok(self.o_proj.forward(mixed))
    }

    /// What it holds at most, besides the residual stream.
    fn activations(&self, pass: &PassShape) -> Activations {
        let [hidden, queries]: [usize; 2] = self.o_proj.weight.lazy_shape().dims();
        let width = queries / self.heads;
        let (queries, keys) = (queries as u64, (self.key_value_heads * width) as u64);
        let fused = queries + 2 * keys;
        // The norm's output and the fused projection with the copy of a tiled one; or the
        // projection, a copy of each part of it and the result; or attention's result, its
        // projection and the copy of a tiled one.
        let held_back = if pass.holds_back() { 2 * keys } else { 0 };
        let attend = 2 * fused + queries + held_back;
        let most = (hidden as u64 + 2 * fused).max(attend).max(queries + 2 * hidden as u64);
        let scratch = pass.attention_scratch(self.heads, self.key_value_heads, width);
        Activations::values(pass.rows() * most)
            .with_unpooled(pass.rows() * (fused + 2 * keys + held_back))
            .with_scratch(scratch)
    }
}

const PHI3: &[KnownField] = &[
    ("attention_bias", Effect::OFF),
    ("auto_map", Harmless),
    ("hidden_act", Read),
    ("max_window_layers", Effect::UNSET),
    ("mlp_bias", Effect::OFF),
    ("partial_rotary_factor", Read),
    ("sliding_window", Read),
    ("use_sliding_window", Effect::UNSET),
];
