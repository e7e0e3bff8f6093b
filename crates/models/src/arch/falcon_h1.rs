//! Falcon-H1: attention and Mamba-2 side by side in each block, and a multiplier at each place
//! where scales matter. Zuo et al. 2025 (arXiv:2507.22448).

use burn::module::Module;
use burn::tensor::Tensor;
use serde_json::Value;

use super::mamba2_fields::{MAMBA2, read_mamba2};
use super::rms_config::{BranchScales, DEFAULTS, FIELDS, LayerMixer, RmsConfig, RmsDefaults};
use super::rms_decoder::{FinalNormName, RmsBlock, RmsForCausalLm};
use crate::architecture::Init;
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, MAX_INTERMEDIATE, multiplier};
use crate::layers::{
    Activation, Attention, Linear, Mamba2Config, Mamba2Mixer, Mamba2Norm, RmsNorm, Rotation,
    gated_activations, gated_down, two,
};
use crate::pass::Pass;
use crate::{Activations, Error, KvCache, PassShape, Residual};

/// A Falcon-H1 with its language-modelling head.
pub type FalconH1ForCausalLm = RmsForCausalLm<FalconH1DecoderLayer>;

/// One decoder layer: Mamba-2 and attention of the same input, then an MLP, both added to the
/// residual stream.
#[derive(Module, Debug)]
pub struct FalconH1DecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Mamba-2.
    pub mamba: Mamba2Mixer,
    /// Causal self-attention.
    pub self_attn: Attention,
    /// `[hidden]`.
    pub pre_ff_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub feed_forward: FalconH1Mlp,
    #[module(skip)]
    scales: BranchScales,
}

/// `down(act(gate(x)) · up(x))`, of which the gate and the result are multiplied by something.
#[derive(Module, Debug)]
pub struct FalconH1Mlp {
    /// `[intermediate, hidden]`.
    pub gate_proj: Linear,
    /// `[intermediate, hidden]`.
    pub up_proj: Linear,
    /// `[hidden, intermediate]`.
    pub down_proj: Linear,
    #[module(skip)]
    activation: Activation,
    #[module(skip)]
    scales: BranchScales,
}

impl FalconH1Mlp {
    fn new(config: &RmsConfig, init: &Init) -> Self {
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, config.mlp_bias, init);
        Self {
            gate_proj: linear(hidden, inner),
            up_proj: linear(hidden, inner),
            down_proj: linear(inner, hidden),
            activation: config.activation,
            scales: config.branch_scales,
        }
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let layers = [&self.gate_proj, &self.up_proj];
        let y = match self.scales.gate {
            None => gated_down(layers, &self.down_proj, self.activation, x),
            scale => {
                let [gate, up] = two(layers, x);
                self.down_proj.forward(self.activation.activate(scaled(gate, scale)) * up)
            }
        };
        scaled(y, self.scales.mlp_out)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let inner = self.gate_proj.widths()[0] as u64;
        let unpooled = if self.scales.gate.is_some() { inner } else { 0 };
        gated_activations(&self.gate_proj, pass).with_unpooled(pass.rows() * unpooled)
    }
}

impl RmsBlock for FalconH1DecoderLayer {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("falcon_h1", "FalconH1")];
    const NO_SPLIT: &'static [&'static str] = &["FalconH1DecoderLayer"];
    const FINAL_NORM: FinalNormName = FinalNormName::FinalLayernorm;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FALCON_H1, MAMBA2, FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        let absent = RmsDefaults {
            key_value_heads: Some(8),
            max_position_embeddings: 8192,
            rms_norm_eps: 1e-5,
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?;
        let config = config.with_rope(fields)?.with_attention_bias(fields)?;
        if fields.get("layer_types").is_some() {
            let expected = "all layers have both attention and Mamba-2".to_owned();
            return Err(fields.refuse("layer_types", expected));
        }
        let [gate, mlp_out] = multipliers(fields, "mlp_multipliers")?;
        let different = |scale: f64| Some(scale).filter(|&scale| scale != 1.0);
        // Scores are as many times larger as keys would be.
        let keys = multiplier(fields, "key_multiplier")?;
        let width = config.head_dim as f64;
        Ok(RmsConfig {
            query_pre_attn_scalar: keys.map(|scale| width / scale.powi(2)),
            embed_scale: multiplier(fields, "embedding_multiplier")?,
            logit_scale: multiplier(fields, "lm_head_multiplier")?,
            mlp_bias: fields.flag_or("mlp_bias", false)?,
            mixers: vec![LayerMixer::Both; config.num_hidden_layers],
            mamba2: Some(read_mamba(fields, &config)?),
            branch_scales: BranchScales {
                mamba_in: multiplier(fields, "ssm_in_multiplier")?,
                mamba_out: multiplier(fields, "ssm_out_multiplier")?,
                attention_in: multiplier(fields, "attention_in_multiplier")?,
                attention_out: multiplier(fields, "attention_out_multiplier")?,
                gate: different(gate),
                mlp_out: different(mlp_out),
            },
            ..config
        })
    }

    fn new(config: &RmsConfig, index: usize, init: &Init) -> Self {
        let mamba = config.mamba2.expect("the configuration of a model with Mamba-2");
        Self {
            input_layernorm: config.norm(config.hidden_size, init),
            mamba: Mamba2Mixer::new(config.hidden_size, &mamba, init),
            self_attn: config.plain_attention(index, init),
            pre_ff_layernorm: config.norm(config.hidden_size, init),
            feed_forward: FalconH1Mlp::new(config, init),
            scales: config.branch_scales,
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
        let (positions, scales) = (pass.query_positions(), self.scales);
        let mamba = scaled(normed.clone(), scales.mamba_in);
        let mamba = self.mamba.forward(mamba, &positions, cache, index)?;
        let mamba = scaled(mamba, scales.mamba_out);
        let normed = scaled(normed, scales.attention_in);
        let attention =
            self.self_attn.forward(normed, rotations.first(), &positions, cache, index)?;
        let attention = scaled(attention, scales.attention_out);
        let [x, mamba] = [x, mamba].map(|x| pass.needed(x));
        let mixed = mamba + attention;
        let (x, normed) = self.pre_ff_layernorm.add_forward(x, mixed);
        Ok(Residual { stream: x, pending: Some(self.feed_forward.forward(normed)) })
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mixed = self.mamba.activations(pass).or(self.self_attn.activations(pass));
        // What both take waits for attention, with what Mamba-2 gave.
        let hidden = self.input_layernorm.width() as u64;
        let kept = Activations::values(pass.rows() * 2 * hidden);
        mixed.and(kept).or(self.feed_forward.activations(pass))
    }
}

fn scaled(x: Tensor<3>, scale: Option<f64>) -> Tensor<3> {
    match scale {
        Some(scale) => x * scale,
        None => x,
    }
}

fn read_mamba(fields: &Fields<'_>, config: &RmsConfig) -> Result<Mamba2Config, Error> {
    let field = "mamba_d_ssm";
    // Absent and null are not the same here.
    let inner = match fields.has(field) && fields.get(field).is_none() {
        true => None,
        false => Some(fields.size_or(field, 1024, MAX_INTERMEDIATE)?),
    };
    let is_before_gate = fields.flag_or("mamba_norm_before_gate", true)?;
    let norm = Mamba2Norm { epsilon: config.rms_norm_eps, is_before_gate };
    Ok(Mamba2Config {
        out_bias: fields.flag_or("projectors_bias", false)?,
        norm: fields.flag_or("mamba_rms_norm", false)?.then_some(norm),
        multipliers: multipliers(fields, "ssm_multipliers")?,
        ..read_mamba2(fields, config, inner)?
    })
}

/// Multipliers in a list; all one if it is absent.
fn multipliers<const N: usize>(fields: &Fields<'_>, field: &str) -> Result<[f64; N], Error> {
    let Some(value) = fields.get(field) else {
        return Ok([1.0; N]);
    };
    let number = |value: &Value| value.as_f64().filter(|number| (1e-6..=1e6).contains(number));
    let numbers = value.as_array().and_then(|all| all.iter().map(number).collect());
    numbers.and_then(|numbers: Vec<f64>| numbers.try_into().ok()).ok_or_else(|| {
        fields.refuse(field, format!("it must be a list of {N} numbers from 1e-6 to 1e6"))
    })
}

const FALCON_H1: &[KnownField] = &[
    ("attention_bias", Read),
    ("attention_in_multiplier", Read),
    ("attention_out_multiplier", Read),
    ("embedding_multiplier", Read),
    ("hidden_act", Read),
    ("key_multiplier", Read),
    ("lm_head_multiplier", Read),
    ("mamba_d_ssm", Read),
    ("mamba_norm_before_gate", Read),
    ("mamba_rms_norm", Read),
    ("mlp_bias", Read),
    ("mlp_multipliers", Read),
    ("projectors_bias", Read),
    ("ssm_in_multiplier", Read),
    ("ssm_multipliers", Read),
    ("ssm_out_multiplier", Read),
    // In transformers these are always so.
    ("attn_layer_indices", Effect::UNSET),
    ("mamba_use_mlp", Effect::ON),
    // Said again for other software.
    ("mlp_expansion_factor", Harmless),
];
