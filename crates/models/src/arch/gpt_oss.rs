//! gpt-oss: experts stored in 4 bits, attention sinks, and every other layer with a sliding window.
//! OpenAI 2025 (arXiv:2508.10925).

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;
use outsize_kernels::has_kernels;

use super::expert_fields::{EXPERTS, swiglu_limit};
use super::internvl::INTERNVL;
use super::rms_config::{
    DEFAULTS, ExpertLayout, ExpertsConfig, FIELDS, RmsConfig, RmsDefaults, SinkLayers,
};
use super::rms_decoder::RmsForCausalLm;
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::{gemma3, internvl};
use crate::architecture::{Init, MultimodalNames};
use crate::config::Effect::{Harmless, Only, Read};
use crate::config::{
    Fields, KnownField, RopeConfig, RopeScaling, layer_windows, sliding_window, yarn_stretch,
};
use crate::layers::{
    Activation, Expert, Linear, Router, announce_all, expert_activations, mixed, two,
};
use crate::{Activations, Error, PassShape};

/// A gpt-oss with its language-modelling head.
pub type GptOssForCausalLm = RmsForCausalLm<RmsDecoderLayer<GptOssMlp>>;

/// Experts, a few of which each token goes to.
#[derive(Module, Debug)]
pub struct GptOssMlp {
    /// `[experts, hidden]`: scores the experts.
    pub router: Router,
    /// Gated feed-forward blocks.
    pub experts: Vec<GptOssExpert>,
}

/// `down(quick_gelu(min(gate, limit)) · (clamp(up, -limit, limit) +
/// 1))`, with biases. Checkpoints have gate and up as one weight, or as two.
#[derive(Module, Debug)]
pub struct GptOssExpert {
    /// Gate and up, `2 · intermediate` outputs in turns: `[out, in]` in 4 bits, `[in, out]` as
    /// floats.
    pub gate_up_proj: Option<Linear>,
    /// `[intermediate, hidden]`.
    pub gate_proj: Option<Linear>,
    /// `[intermediate, hidden]`.
    pub up_proj: Option<Linear>,
    /// Of `hidden` outputs, as the others.
    pub down_proj: Linear,
    limit: f64,
    inner: usize,
    hidden: usize,
}

impl GptOssExpert {
    fn new(hidden: usize, experts: &ExpertsConfig, init: &Init) -> Self {
        let inner = experts.intermediate_size;
        let linear = |inputs, outputs| match experts.layout {
            ExpertLayout::InOut => Linear::in_out(inputs, outputs, true, init),
            _ => Linear::new(inputs, outputs, true, init),
        };
        let is_apart = experts.layout == ExpertLayout::Apart;
        let half = || is_apart.then(|| linear(hidden, inner));
        Self {
            gate_up_proj: (!is_apart).then(|| linear(hidden, 2 * inner)),
            gate_proj: half(),
            up_proj: half(),
            down_proj: linear(inner, hidden),
            limit: experts.swiglu_limit.unwrap_or(f64::INFINITY),
            inner,
            hidden,
        }
    }

    /// Gate and up of tokens, `[1, tokens, intermediate]` each.
    fn gate_up(&self, x: Tensor<3>) -> [Tensor<3>; 2] {
        if let (Some(gate), Some(up)) = (&self.gate_proj, &self.up_proj) {
            return two([gate, up], x);
        }
        let both = self.gate_up_proj.as_ref().expect("an expert is made with one or the other");
        let [batch, tokens, inner] = [x.dims()[0], x.dims()[1], self.inner];
        let both = both.forward(x).reshape([batch, tokens, inner, 2]);
        [0, 1].map(|at| both.clone().narrow(3, at, 1).reshape([batch, tokens, inner]))
    }
}

impl Expert for GptOssExpert {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [gate, up] = self.gate_up(x);
        let gate = gate.clamp_max(self.limit);
        let up = up.clamp(-self.limit, self.limit) + 1.0;
        let inner = match has_kernels(&gate.device()) {
            true => outsize_kernels::gated(Activation::QuickGelu.kernel(), gate, up),
            false => Activation::QuickGelu.apply(gate) * up,
        };
        self.down_proj.forward(inner)
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        let first = [&self.gate_up_proj, &self.gate_proj, &self.up_proj];
        first.into_iter().flatten().chain([&self.down_proj])
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let [hidden, inner] = [self.hidden, self.inner].map(|n| n as u64);
        // Gate and up made together, with the copy that a bias or tiles make; or beside the copies
        // of both, one of which is clamped. Then what comes of them beside the product and its
        // copy.
        let rows = pass.rows();
        Activations::values(rows * (hidden + 5 * inner).max(inner + 2 * hidden))
            .with_unpooled(rows * 5 * inner)
    }
}

impl RmsFeedForward for GptOssMlp {
    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("gpt_oss", "GptOss"), (INTERNVL, "GptOss")];
    const IS_STACKED: bool = true;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        match model_type {
            INTERNVL => &[internvl::MULTIMODAL],
            _ => &[GPT_OSS, EXPERTS, FIELDS],
        }
    }

    fn text_types(model_type: &str) -> &'static [&'static str] {
        match model_type {
            INTERNVL => &["gpt_oss"],
            _ => &[],
        }
    }

    fn multimodal(model_type: &str) -> Option<&'static MultimodalNames> {
        (model_type == INTERNVL).then_some(&gemma3::NAMES)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<RmsConfig, Error> {
        if model_type == INTERNVL {
            return internvl::read_part::<Self>(fields, &["gpt_oss"]);
        }
        let absent = RmsDefaults {
            key_value_heads: Some(8),
            head_dim: Some(64),
            max_position_embeddings: 131_072,
            rms_norm_eps: 1e-5,
            rope_theta: 150_000.0,
            ..DEFAULTS
        };
        let config = RmsConfig::read(fields, &absent)?.with_rope(fields)?;
        let names = ["num_local_experts", "num_experts"];
        let mut config = config.with_experts(fields, names, (128, 4), true)?;
        // An empty object of the older name is none.
        let older = fields.object("rope_scaling")?;
        let has_older = older.is_some_and(|older| older.iter().next().is_some());
        let rope = match fields.get("rope_parameters").is_some() || has_older {
            false => RopeConfig { scaling: stretched(), ..config.rope },
            true => config.rope,
        };
        let window = sliding_window(fields, 128)?;
        let in_turns = (0..config.num_hidden_layers).map(|layer| window.filter(|_| layer % 2 == 0));
        let bias = fields.flag_or("attention_bias", true)?;
        let limit = swiglu_limit(fields, 7.0)?;
        let quantization = fields.object("quantization_config")?;
        let method = quantization.map(|fields| fields.text("quant_method")).transpose()?.flatten();
        if let Some(experts) = &mut config.experts {
            experts.swiglu_limit = Some(limit);
            experts.layout = match (fields.flag_or("experts_gate_apart", false)?, method) {
                (true, _) => ExpertLayout::Apart,
                (false, Some("mxfp4")) => ExpertLayout::OutIn,
                (false, _) => ExpertLayout::InOut,
            };
        }
        Ok(RmsConfig {
            rope,
            windows: layer_windows(fields, window, in_turns.collect())?,
            attention_in_bias: bias,
            attention_out_bias: bias,
            attention_sinks: SinkLayers::All,
            ..config
        })
    }

    fn new(config: &RmsConfig, _: usize, init: &Init) -> Self {
        let experts = config.experts.expect("the configuration of a model with experts");
        let one = |_| GptOssExpert::new(config.hidden_size, &experts, init);
        Self {
            router: Router::new(config.hidden_size, experts.count, experts.routing, init)
                .biased(init),
            experts: (0..experts.count).map(one).collect(),
        }
    }

    fn stacked(names: Names, experts: &ExpertsConfig) -> Result<Names, outsize_core::Error> {
        let module = r"\.experts\.(?<n>\d+)\.(gate_up_proj|down_proj)";
        // Floats lie the other way round, and may have the same shape.
        let weights = match experts.layout {
            ExpertLayout::OutIn => ".experts.${2}_blocks",
            ExpertLayout::InOut => ".experts.${2}",
            ExpertLayout::Apart | ExpertLayout::StacksApart => return Ok(names),
        };
        let (part, count) = ([0, 1], experts.count);
        names.stacked(&format!(r"{module}\.weight$"), weights, part, count)?.stacked(
            &format!(r"{module}\.bias$"),
            ".experts.${2}_bias",
            part,
            count,
        )
    }

    fn announce(&self, rows: usize) {
        announce_all(&self.experts, &self.router, rows);
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        mixed(x, &self.router, &self.experts)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        expert_activations(&self.router, &self.experts, pass)
    }
}

/// What transformers takes where nothing is said.
fn stretched() -> RopeScaling {
    RopeScaling::Yarn {
        factor: 32.0,
        attention_factor: yarn_stretch(32.0, 1.0),
        beta_fast: 32.0,
        beta_slow: 1.0,
        original_max_position_embeddings: 4096,
        truncate: false,
    }
}

const GPT_OSS: &[KnownField] = &[
    ("attention_bias", Read),
    ("sliding_window", Read),
    ("swiglu_limit", Read),
    ("swiglu_alpha", Only(&["1.702"])),
    // As GGUF files have it.
    ("experts_gate_apart", Read),
    // Said again for other software.
    ("experts_per_token", Harmless),
    ("initial_context_length", Harmless),
];
