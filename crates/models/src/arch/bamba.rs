//! Bamba: Llama's blocks with Mamba-2 in most layers in place of attention. IBM, Princeton, CMU and UIUC 2024
//! (<https://huggingface.co/blog/bamba>).

use burn::module::Module;

use super::expert_fields::layers_named;
use super::mamba2_fields::{MAMBA2, read_mamba2};
use super::qwen3_next::listed_mixers;
use super::rms_config::{DEFAULTS, FIELDS, LayerMixer, RmsConfig, RmsDefaults};
use super::rms_decoder::{FinalNormName, RmsBlock, RmsForCausalLm};
use crate::architecture::Init;
use crate::config::Effect::{Harmless, Read};
use crate::config::{Fields, KnownField, RopeConfig};
use crate::layers::{Attention, Mamba2Mixer, Mlp, RmsNorm, Rotation};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Bamba with its language-modelling head.
pub type BambaForCausalLm = RmsForCausalLm<BambaDecoderLayer>;

/// One decoder layer: Mamba-2 or attention, then an MLP, each added to the residual stream.
#[derive(Module, Debug)]
pub struct BambaDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention, in some layers.
    pub self_attn: Option<Attention>,
    /// Mamba-2, in the others.
    pub mamba: Option<Mamba2Mixer>,
    /// `[hidden]`.
    pub pre_ff_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub feed_forward: Mlp,
}

impl RmsBlock for BambaDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("bamba", "Bamba")];
    const NO_SPLIT: &'static [&'static str] = &["BambaDecoderLayer"];
    const FINAL_NORM: FinalNormName = FinalNormName::FinalLayernorm;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[BAMBA, MAMBA2, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let absent = RmsDefaults {
            key_value_heads: Some(8),
            max_position_embeddings: 262_144,
            rms_norm_eps: 1e-5,
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?.with_attention_bias(fields)?;
        // Half of each head is rotated.
        let names = ["rope_theta", "partial_rotary_factor"];
        let around = config.rope_context(fields);
        let (rope, rotary_dim) = RopeConfig::read_partial(&around, names, 0.5)?;
        let attends = layers_named(fields, "attn_layer_indices")?.unwrap_or_default();
        let mixers = 0..config.num_hidden_layers as u64;
        let mixers: Vec<_> =
            mixers.map(|layer| LayerMixer::attends(attends.contains(&layer))).collect();
        let field = "layer_types";
        if fields.get(field).is_some() && listed_mixers(fields, field, mixers.len())? != mixers {
            let expected = "it must be what attn_layer_indices says".to_owned();
            return Err(fields.refuse(field, expected));
        }
        Ok(RmsConfig {
            rope,
            rotary_dim,
            mixers,
            mamba: Some(read_mamba2(fields, &config, None)?),
            mlp_bias: fields.flag_or("mlp_bias", false)?,
            ..config
        })
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let (hidden, mixer) = (config.hidden_size, config.mixers[index]);
        let mamba = config.mamba.filter(|_| mixer.has_linear());
        Self {
            input_layernorm: config.norm(hidden, init),
            self_attn: mixer.has_attention().then(|| config.plain_attention(index, init)),
            mamba: mamba.map(|mamba| Mamba2Mixer::new(hidden, &mamba, init)),
            pre_ff_layernorm: config.norm(hidden, init),
            feed_forward: config.mlp(config.intermediate_size, init),
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
        let positions = pass.query_positions();
        let mixed = match (&self.mamba, &self.self_attn) {
            (Some(mamba), _) => mamba.forward(normed, &positions, cache, index),
            (None, Some(attention)) => {
                attention.forward(normed, rotations.first(), &positions, cache, index)
            }
            (None, None) => unreachable!("a layer is made with one of them"),
        }?;
        let (x, normed) = self.pre_ff_layernorm.add_forward(x, mixed);
        Ok(Residual { stream: x, pending: Some(self.feed_forward.forward(normed)) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mamba = self.mamba.as_ref().map(|mamba| mamba.activations(pass));
        let attention = self.self_attn.as_ref().map(|attention| attention.activations(pass));
        mamba.or(attention).unwrap_or_default().or(self.feed_forward.activations(pass))
    }
}

const BAMBA: &[KnownField] = &[
    ("attention_bias", Read),
    ("attn_layer_indices", Read),
    ("hidden_act", Read),
    ("mlp_bias", Read),
    ("partial_rotary_factor", Read),
    // Said again for other software, or of training.
    ("attn_rotary_emb", Harmless),
    ("z_loss_coefficient", Harmless),
];
