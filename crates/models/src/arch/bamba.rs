//! Bamba: Llama's blocks with Mamba-2 in most layers in place of attention. IBM, Princeton, CMU and
//! UIUC 2024 (<https://huggingface.co/blog/bamba>). Jamba's blocks are the same, with Mamba and
//! experts.

use burn::module::Module;
use outsize_core::Names;

use super::expert_fields::{EXPERTS, layers_named};
use super::jamba::{self, JAMBA, JambaMoe};
use super::mamba2_fields::{MAMBA2, read_mamba2};
use super::qwen3_next::listed_mixers;
use super::rms_config::{DEFAULTS, ExpertsConfig, FIELDS, LayerMixer, RmsConfig, RmsDefaults};
use super::rms_decoder::{FinalNormName, RmsBlock, RmsForCausalLm};
use crate::architecture::Init;
use crate::config::Effect::{Harmless, Read};
use crate::config::{Fields, KnownField, RopeConfig};
use crate::layers::{Attention, Either, Mamba2Mixer, MambaMixer, Mlp, RmsNorm, Rotation, either};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Bamba with its language-modelling head.
pub type BambaForCausalLm = RmsForCausalLm<BambaDecoderLayer>;

/// One decoder layer: a state space or attention, then an MLP or experts, each added to the
/// residual stream.
#[derive(Module, Debug)]
pub struct BambaDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention, in some layers.
    pub self_attn: Option<Attention>,
    /// Mamba-2 or Mamba, in the others.
    pub mamba: Option<Either<Mamba2Mixer, MambaMixer>>,
    /// `[hidden]`.
    pub pre_ff_layernorm: RmsNorm,
    /// Gated feed-forward block, or experts.
    pub feed_forward: Either<Mlp, JambaMoe>,
}

impl RmsBlock for BambaDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("bamba", "Bamba"), ("jamba", "Jamba")];
    const NO_SPLIT: &'static [&'static str] = &["BambaDecoderLayer"];
    const FINAL_NORM: FinalNormName = FinalNormName::FinalLayernorm;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            "jamba" => &[JAMBA, EXPERTS],
            _ => &[BAMBA, MAMBA2, FIELDS],
        }
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        if model_type == "jamba" {
            return jamba::read(fields);
        }
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
            mamba2: Some(read_mamba2(fields, &config, None)?),
            mlp_bias: fields.flag_or("mlp_bias", false)?,
            ..config
        })
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        jamba::stacked(names, experts)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let (hidden, mixer) = (config.hidden_size, config.mixers[index]);
        let experts = config.experts.filter(|_| config.sparse_layers[index]);
        Self {
            input_layernorm: config.norm(hidden, init),
            self_attn: mixer.has_attention().then(|| config.plain_attention(index, init)),
            mamba: config.mamba_mixer(index, init),
            pre_ff_layernorm: config.norm(hidden, init),
            feed_forward: match experts {
                None => Either::One(config.mlp(config.intermediate_size, init)),
                Some(experts) => Either::Other(JambaMoe::new(config, &experts, init)),
            },
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
        if let Either::Other(experts) = &self.feed_forward {
            experts.announce(pass.rows());
        }
        let (x, normed) = self.input_layernorm.after(x, pending);
        let positions = pass.query_positions();
        let mixed = match (&self.mamba, &self.self_attn) {
            (Some(mamba), _) => {
                either!(mamba, mamba => mamba.forward(normed, &positions, cache, index))
            }
            (None, Some(attention)) => {
                attention.forward(normed, rotations.first(), &positions, cache, index)
            }
            (None, None) => unreachable!("a layer is made with one of them"),
        }?;
        let [x, mixed] = [x, mixed].map(|x| pass.needed(x));
        let (x, normed) = self.pre_ff_layernorm.add_forward(x, mixed);
        let pending = either!(&self.feed_forward, block => block.forward(normed));
        Ok(Residual { stream: x, pending: Some(pending) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mamba = self.mamba.as_ref();
        let mamba = mamba.map(|mamba| either!(mamba, mamba => mamba.activations(pass)));
        let attention = self.self_attn.as_ref().map(|attention| attention.activations(pass));
        let behind = either!(&self.feed_forward, block => block.activations(pass));
        mamba.or(attention).unwrap_or_default().or(behind)
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
