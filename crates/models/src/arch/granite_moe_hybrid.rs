//! Granite 4: Granite's blocks with Mamba-2 in most layers, an MLP, and in some models experts
//! beside it. Granite Team 2025 (<https://huggingface.co/ibm-granite/granite-4.0-h-small>).

use burn::module::Module;
use outsize_core::Names;

use super::expert_fields::EXPERTS;
use super::granite;
use super::granite_moe::{GraniteMoe, MOE, shared_mlp};
use super::mamba2_fields::{MAMBA2, read_mamba2};
use super::qwen3_next::listed_mixers;
use super::rms_config::{DEFAULTS, ExpertsConfig, FIELDS, LayerMixer, RmsConfig, field_of};
use super::rms_decoder::{RmsBlock, RmsForCausalLm};
use super::rms_layer::{RmsFeedForward, SharedMlp};
use crate::architecture::Init;
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE};
use crate::layers::{Attention, Either, Mamba2Mixer, Mlp, RmsNorm, Rotation, either};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Granite 4 with its language-modelling head.
pub type GraniteMoeHybridForCausalLm = RmsForCausalLm<GraniteMoeHybridDecoderLayer>;

/// One decoder layer: Mamba-2 or attention, then an MLP and perhaps experts, each added to the
/// residual stream.
#[derive(Module, Debug)]
pub struct GraniteMoeHybridDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention, in some layers.
    pub self_attn: Option<Attention>,
    /// Mamba-2, in the others.
    pub mamba: Option<Mamba2Mixer>,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Experts.
    pub block_sparse_moe: Option<GraniteMoe>,
    /// A gated feed-forward block, beside them.
    pub shared_mlp: Either<SharedMlp, Mlp>,
    /// Which of the rotary embeddings attention takes, if any.
    #[module(skip)]
    rotation: Option<usize>,
    #[module(skip)]
    residual_scale: f64,
}

impl RmsBlock for GraniteMoeHybridDecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("granitemoehybrid", "GraniteMoeHybrid")];
    const NO_SPLIT: &'static [&'static str] = &["GraniteMoeHybridDecoderLayer"];
    const IS_STACKED: bool = true;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[HYBRID, MAMBA2, MOE, EXPERTS, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let config = RmsConfig::read(fields, &DEFAULTS)?.with_rope(fields)?;
        let mut config = granite::scaled(fields, config)?;
        let layers = config.num_hidden_layers;
        config.mixers = match field_of(fields, ["layer_types", "layers_block_type"])? {
            field if fields.get(field).is_some() => listed_mixers(fields, field, layers)?,
            _ => vec![LayerMixer::Linear; layers],
        };
        if config.mixers.contains(&LayerMixer::Linear) {
            config.mamba2 = Some(read_mamba2(fields, &config, None)?);
        }
        let rotates = match fields.text("position_embedding_type")? {
            Some("rope") => true,
            Some("nope") | None => false,
            Some(_) => {
                let expected = "only \"rope\" and \"nope\" are supported".to_owned();
                return Err(fields.refuse("position_embedding_type", expected));
            }
        };
        config.rotated_layers = vec![rotates; layers];
        let names = ["num_local_experts", "num_experts"];
        if fields.get(field_of(fields, names)?).and_then(|count| count.as_u64()) != Some(0) {
            config = config.with_experts(fields, names, (8, 2), true)?;
        }
        // The other one is the experts'.
        config.intermediate_size =
            fields.size_or("shared_intermediate_size", 1024, MAX_INTERMEDIATE)?;
        Ok(config)
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        GraniteMoe::stacked(names, experts)
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let (hidden, mixer) = (config.hidden_size, config.mixers[index]);
        let mamba = config.mamba2.filter(|_| mixer.has_linear());
        Self {
            input_layernorm: config.norm(hidden, init),
            self_attn: mixer.has_attention().then(|| config.plain_attention(index, init)),
            mamba: mamba.map(|mamba| Mamba2Mixer::new(hidden, &mamba, init)),
            post_attention_layernorm: config.norm(hidden, init),
            block_sparse_moe: config.experts.map(|_| GraniteMoe::new(config, index, init)),
            shared_mlp: shared_mlp(config, config.intermediate_size, init),
            rotation: config.rotation(index),
            residual_scale: config.residual_scale.unwrap_or(1.0),
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
        if let Some(experts) = &self.block_sparse_moe {
            experts.announce(pass.rows());
        }
        let (x, normed) = self.input_layernorm.after(x, pending);
        let positions = pass.query_positions();
        let mixed = match (&self.mamba, &self.self_attn) {
            (Some(mamba), _) => mamba.forward(normed, &positions, cache, index),
            (None, Some(attention)) => {
                let rotation = self.rotation.map(|rotation| &rotations[rotation]);
                attention.forward(normed, rotation, &positions, cache, index)
            }
            (None, None) => unreachable!("a layer is made with one of them"),
        }?;
        let [x, mixed] = [x, mixed].map(|x| pass.needed(x));
        let (x, normed) = self.post_attention_layernorm.add_forward(x, mixed * self.residual_scale);
        let shared = either!(&self.shared_mlp, mlp => mlp.forward(normed.clone()));
        let inner = match &self.block_sparse_moe {
            Some(experts) => experts.forward(normed) + shared,
            None => shared,
        };
        Ok(Residual { stream: x, pending: Some(inner * self.residual_scale) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mamba = self.mamba.as_ref().map(|mamba| mamba.activations(pass));
        let attention = self.self_attn.as_ref().map(|attention| attention.activations(pass));
        let mixed = mamba.or(attention).unwrap_or_default();
        let shared = either!(&self.shared_mlp, mlp => mlp.activations(pass));
        mixed.or(match &self.block_sparse_moe {
            // What the MLP gives waits for the experts, with what both take.
            Some(experts) => {
                let hidden = self.input_layernorm.width() as u64;
                let kept = Activations::values(pass.rows() * 2 * hidden);
                shared.or(experts.activations(pass)).and(kept)
            }
            None => shared,
        })
    }
}

const HYBRID: &[KnownField] = &[
    ("layers_block_type", Read),
    ("position_embedding_type", Read),
    ("shared_intermediate_size", Read),
    // Said again for other software, or of how weights were drawn.
    ("init_method", Harmless),
    ("normalization_function", Only(&["\"rmsnorm\""])),
];
