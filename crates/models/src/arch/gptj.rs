//! GPT-J: interleaved rotary positions, attention and MLP side by side. Wang and Komatsuzaki 2021.

use burn::module::Module;
use burn::tensor::Tensor;

use super::gpt_sizes::{FIELDS, GptSizes, IGNORED, WITHOUT_PARAMETERS};
use crate::architecture::{Architecture, Init};
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{Fields, KnownField, RopeConfig, RopeScaling};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::layers::{Activation, Embedding, LayerNorm, Linear, Rope, Rotation, attend, three};
use crate::pass::Pass;
use crate::{Activations, BlockInputs, Blocks, CacheSpec, Error, KvCache, PassShape, Residual};

/// The configuration of a GPT-J.
#[derive(Debug, Clone, PartialEq)]
pub struct GptjConfig {
    /// Its sizes.
    pub sizes: GptSizes,
    /// Elements of a head that are rotated, the first ones; even.
    pub rotary_dim: usize,
}

/// A GPT-J with its language-modelling head.
#[derive(Module, Debug)]
pub struct GptjForCausalLm {
    /// The transformer.
    pub transformer: GptjModel,
    /// `[vocabulary, hidden]`, with a bias.
    pub lm_head: Linear,
    #[module(skip)]
    rope: Rope,
    #[module(skip)]
    cache: CacheSpec,
}

/// Embedding, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct GptjModel {
    /// `[vocabulary, hidden]`.
    pub wte: Embedding,
    /// In order of execution.
    pub h: Vec<GptjBlock>,
    /// `[hidden]`.
    pub ln_f: LayerNorm,
}

/// One decoder layer: attention and MLP behind the same norm, both added to the residual stream.
#[derive(Module, Debug)]
pub struct GptjBlock {
    /// `[hidden]`.
    pub ln_1: LayerNorm,
    /// Causal self-attention.
    pub attn: GptjAttention,
    /// Feed-forward block.
    pub mlp: GptjMlp,
}

/// Causal self-attention without biases.
#[derive(Module, Debug)]
pub struct GptjAttention {
    /// `[hidden, hidden]`.
    pub k_proj: Linear,
    /// `[hidden, hidden]`.
    pub v_proj: Linear,
    /// `[hidden, hidden]`.
    pub q_proj: Linear,
    /// `[hidden, hidden]`.
    pub out_proj: Linear,
    heads: usize,
}

/// `out(act(in(x)))`.
#[derive(Module, Debug)]
pub struct GptjMlp {
    /// `[inner, hidden]`.
    pub fc_in: Linear,
    /// `[hidden, inner]`.
    pub fc_out: Linear,
    #[module(skip)]
    activation: Activation,
}

impl Architecture for GptjForCausalLm {
    type Config = GptjConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("gptj", "GPTJ")];
    const CLASS_PREFIX: &'static str = "Gptj";
    const NO_SPLIT: &'static [&'static str] = &["GptjBlock"];
    const IGNORED: &'static [&'static str] = IGNORED;
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = WITHOUT_PARAMETERS;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[
            &[
                ("rotary", Effect::ON),
                ("rotary_dim", Read),
                // Scores are scaled whatever this says.
                ("scale_attn_weights", Harmless),
                ("tie_word_embeddings", Effect::OFF),
            ],
            FIELDS,
        ]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<GptjConfig, Error> {
        let sizes = GptSizes::read(fields, 2048)?;
        // `null` is not the default here, and gives no model that runs.
        let rotary_dim = match fields.has("rotary_dim") {
            true => fields.size("rotary_dim", sizes.head_dim())?,
            false => 64,
        };
        if rotary_dim % 2 != 0 || rotary_dim > sizes.head_dim() {
            let expected = format!("it must be even and at most {}", sizes.head_dim());
            return Err(fields.refuse("rotary_dim", expected));
        }
        Ok(GptjConfig { sizes, rotary_dim })
    }

    fn new(config: &GptjConfig, init: &Init) -> Self {
        let sizes = &config.sizes;
        let rope = RopeConfig { theta: 10_000.0, scaling: RopeScaling::Default };
        Self {
            transformer: GptjModel {
                wte: Embedding::new(sizes.vocab_size, sizes.n_embd, init),
                h: (0..sizes.n_layer).map(|_| GptjBlock::new(sizes, init)).collect(),
                ln_f: sizes.norm(init),
            },
            lm_head: Linear::new(sizes.n_embd, sizes.vocab_size, true, init),
            rope: Rope::new(&rope, config.rotary_dim).interleaved(),
            cache: sizes.cache(),
        }
    }
}

impl DecoderArchitecture for GptjForCausalLm {
    const LAYERS: &'static str = "transformer.h";
}

impl Decoder for GptjForCausalLm {
    fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        self.through(pass, cache)
    }

    fn blocks(&self) -> Option<&dyn Blocks> {
        Some(self)
    }

    fn head(&self) -> Head<'_> {
        Head::Own(&self.lm_head)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = self.transformer.wte.width() as u64;
        let mut most = self.head().activations(pass);
        for block in &self.transformer.h {
            let inner = block.mlp.fc_in.weight.lazy_shape()[0] as u64;
            most = most.or(block.attn.activations(pass));
            // What attention gave and the result, and the inner layer with copies of it.
            let mlp = Activations::values(pass.rows() * (2 * hidden + 3 * inner));
            most = most.or(mlp.with_unpooled(0));
        }
        // Alive throughout: the residual stream, the norm's output, and the rotations.
        let alive = 2 * hidden + self.rope.width() as u64;
        most.and(Activations::values(pass.rows() * alive))
    }
}

impl Blocks for GptjForCausalLm {
    fn count(&self) -> usize {
        self.transformer.h.len()
    }

    fn inputs(&self, pass: &Pass<'_>) -> Result<BlockInputs, Error> {
        let x = pass.embed(&self.transformer.wte);
        let rotations = vec![pass.rotation(&self.rope, &x.device())];
        Ok(BlockInputs { residual: Residual::new(x), rotations })
    }

    fn block(
        &self,
        index: usize,
        residual: Residual,
        rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
    ) -> Result<Residual, Error> {
        let block = &self.transformer.h[index];
        let (stream, normed) = block.ln_1.after(residual.stream, residual.pending);
        let mixed = block.attn.forward(normed.clone(), &rotations[0], pass, cache, index)?;
        let [stream, normed] = [stream, normed].map(|x| pass.needed(x));
        Ok(Residual { stream, pending: Some(mixed + block.mlp.forward(normed)) })
    }

    fn normed(&self, residual: Residual, pass: &Pass<'_>) -> Tensor<3> {
        let Residual { stream, pending } = residual.wanted(pass);
        self.transformer.ln_f.after(stream, pending).1
    }
}

impl GptjBlock {
    fn new(sizes: &GptSizes, init: &Init) -> Self {
        let (hidden, inner) = (sizes.n_embd, sizes.n_inner);
        let square = || Linear::new(hidden, hidden, false, init);
        Self {
            ln_1: sizes.norm(init),
            attn: GptjAttention {
                k_proj: square(),
                v_proj: square(),
                q_proj: square(),
                out_proj: square(),
                heads: sizes.n_head,
            },
            mlp: GptjMlp {
                fc_in: Linear::new(hidden, inner, true, init),
                fc_out: Linear::new(inner, hidden, true, init),
                activation: sizes.activation,
            },
        }
    }
}

impl GptjAttention {
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
        let [batch, tokens, hidden] = x.dims();
        let width = hidden / self.heads;
        let all = three([&self.q_proj, &self.k_proj, &self.v_proj], x);
        let [queries, keys, values] = all.map(|y| y.reshape([batch, tokens, self.heads, width]));
        let all = [rotation.apply(queries), rotation.apply(keys), values];
        let positions = pass.query_positions();
        let mixed = attend(all, self.out_proj.compute, None, &positions, cache, layer)?;
        Ok(self.out_proj.forward(mixed))
    }

    /// What it holds at most, besides the residual stream and the norm's output.
    fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = self.out_proj.weight.lazy_shape()[0];
        // Queries, keys and values, of which one is twice there; or the first two of them with
        // attention's result.
        let held_back = if pass.holds_back() { 2 } else { 0 };
        let scratch = pass.attention_scratch(self.heads, self.heads, hidden / self.heads);
        let rows = pass.rows() * hidden as u64;
        Activations::values(rows * (4 + held_back))
            .with_unpooled(rows * (2 + held_back))
            .with_scratch(scratch)
    }
}

impl GptjMlp {
    /// `[batch, tokens, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.fc_out.forward(self.activation.activate(self.fc_in.forward(x)))
    }
}
