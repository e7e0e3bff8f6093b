//! GPT-2: learned positions, fused projections stored transposed. Radford et al. 2019.

use burn::module::Module;
use burn::tensor::Tensor;

use super::gpt_sizes::{FIELDS, GptSizes, IGNORED, WITHOUT_PARAMETERS};
use crate::architecture::{Architecture, Init};
use crate::config::Effect::Read;
use crate::config::{Fields, KnownField};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::layers::{Activation, Conv1d, Embedding, LayerNorm, Linear, attend};
use crate::pass::Pass;
use crate::{
    Activations, BlockInputs, Blocks, CacheSpec, Error, KvCache, PassShape, Residual, Rotation,
};

/// The configuration of a GPT-2.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// Its sizes.
    pub sizes: GptSizes,
    /// Whether scores are divided by the root of a head's width (`scale_attn_weights`).
    pub scale_attn_weights: bool,
    /// Whether scores are divided by the layer's number, from 1 on, too.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Whether the output head is the embedding table.
    pub tie_word_embeddings: bool,
}

/// A GPT-2 with its language-modelling head.
#[derive(Module, Debug)]
pub struct Gpt2LmHeadModel {
    /// The transformer.
    pub transformer: Gpt2Model,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    #[module(skip)]
    cache: CacheSpec,
}

/// Embeddings, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct Gpt2Model {
    /// `[vocabulary, hidden]`.
    pub wte: Embedding,
    /// `[positions, hidden]`.
    pub wpe: Embedding,
    /// In order of execution.
    pub h: Vec<Gpt2Block>,
    /// `[hidden]`.
    pub ln_f: LayerNorm,
}

/// One decoder layer: attention, then MLP, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct Gpt2Block {
    /// `[hidden]`.
    pub ln_1: LayerNorm,
    /// Causal self-attention.
    pub attn: Gpt2Attention,
    /// `[hidden]`.
    pub ln_2: LayerNorm,
    /// Feed-forward block.
    pub mlp: Gpt2Mlp,
}

/// Causal self-attention of one fused projection.
#[derive(Module, Debug)]
pub struct Gpt2Attention {
    /// `[hidden, 3 · hidden]`: queries, keys, values.
    pub c_attn: Conv1d,
    /// `[hidden, hidden]`.
    pub c_proj: Conv1d,
    heads: usize,
    scale: f64,
}

/// `proj(act(fc(x)))`.
#[derive(Module, Debug)]
pub struct Gpt2Mlp {
    /// `[hidden, inner]`.
    pub c_fc: Conv1d,
    /// `[inner, hidden]`.
    pub c_proj: Conv1d,
    #[module(skip)]
    activation: Activation,
}

impl Architecture for Gpt2LmHeadModel {
    type Config = Gpt2Config;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("gpt2", "GPT2")];
    const CLASS_PREFIX: &'static str = "Gpt2";
    const NO_SPLIT: &'static [&'static str] = &["Gpt2Block"];
    const OPTIONAL_PREFIX: &'static str = "transformer.";
    const IGNORED: &'static [&'static str] = IGNORED;
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = WITHOUT_PARAMETERS;

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[&[("scale_attn_by_inverse_layer_idx", Read), ("scale_attn_weights", Read)], FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<Gpt2Config, Error> {
        Ok(Gpt2Config {
            sizes: GptSizes::read(fields, 1024)?,
            scale_attn_weights: fields.flag_or("scale_attn_weights", true)?,
            scale_attn_by_inverse_layer_idx: fields
                .flag_or("scale_attn_by_inverse_layer_idx", false)?,
            tie_word_embeddings: fields.flag_or("tie_word_embeddings", true)?,
        })
    }

    fn new(config: &Gpt2Config, init: &Init) -> Self {
        let sizes = &config.sizes;
        Self {
            transformer: Gpt2Model {
                wte: Embedding::new(sizes.vocab_size, sizes.n_embd, init),
                wpe: Embedding::new(sizes.n_positions, sizes.n_embd, init),
                h: (0..sizes.n_layer).map(|index| Gpt2Block::new(config, index, init)).collect(),
                ln_f: sizes.norm(init),
            },
            lm_head: (!config.tie_word_embeddings)
                .then(|| Linear::new(sizes.n_embd, sizes.vocab_size, false, init)),
            cache: CacheSpec {
                cannot_slide: Some("it has learned an embedding of each position"),
                ..sizes.cache()
            },
        }
    }
}

impl DecoderArchitecture for Gpt2LmHeadModel {
    const LAYERS: &'static str = "transformer.h";
}

impl Decoder for Gpt2LmHeadModel {
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
        Head::new(self.lm_head.as_ref(), &self.transformer.wte)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let mut most = self.head().activations(pass);
        for block in &self.transformer.h {
            most = most.or(block.attn.activations(pass));
            let [hidden, inner] = block.mlp.c_fc.shape().map(|n| n as u64);
            // The norm's output or the result, and the inner layer with copies of it.
            most = most.or(Activations::values(pass.rows() * (hidden + 3 * inner)));
        }
        // Alive throughout: the residual stream.
        most.and(Activations::values(pass.rows() * self.transformer.wte.width() as u64))
    }
}

impl Blocks for Gpt2LmHeadModel {
    fn count(&self) -> usize {
        self.transformer.h.len()
    }

    fn inputs(&self, pass: &Pass<'_>) -> Result<BlockInputs, Error> {
        let model = &self.transformer;
        let x = pass.embed(&model.wte);
        // The tables may be on different devices.
        let positions = pass.embed_positions(&model.wpe, 0)?.to_device(&x.device());
        Ok(BlockInputs { residual: Residual::new(x + positions), rotations: Vec::new() })
    }

    fn block(
        &self,
        index: usize,
        residual: Residual,
        _rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
    ) -> Result<Residual, Error> {
        let block = &self.transformer.h[index];
        let (sum, normed) = block.ln_1.after(residual.stream, residual.pending);
        let mixed = block.attn.forward(normed, pass, cache, index)?;
        let (stream, normed) = block.ln_2.after(pass.needed(sum), Some(mixed));
        Ok(Residual { stream, pending: Some(block.mlp.forward(normed)) })
    }

    fn normed(&self, residual: Residual, pass: &Pass<'_>) -> Tensor<3> {
        let Residual { stream, pending } = residual.wanted(pass);
        self.transformer.ln_f.after(stream, pending).1
    }
}

impl Gpt2Block {
    fn new(config: &Gpt2Config, index: usize, init: &Init) -> Self {
        let sizes = &config.sizes;
        let (hidden, inner) = (sizes.n_embd, sizes.n_inner);
        let by_width = if config.scale_attn_weights { sizes.head_dim() as f64 } else { 1.0 };
        let by_layer = if config.scale_attn_by_inverse_layer_idx { index + 1 } else { 1 };
        Self {
            ln_1: sizes.norm(init),
            attn: Gpt2Attention {
                c_attn: Conv1d::new(hidden, 3 * hidden, init),
                c_proj: Conv1d::new(hidden, hidden, init),
                heads: sizes.n_head,
                scale: by_width.sqrt().recip() / by_layer as f64,
            },
            ln_2: sizes.norm(init),
            mlp: Gpt2Mlp {
                c_fc: Conv1d::new(hidden, inner, init),
                c_proj: Conv1d::new(inner, hidden, init),
                activation: sizes.activation,
            },
        }
    }
}

impl Gpt2Attention {
    /// `[batch, tokens, hidden]` f32 to the same. The tokens' keys and values are appended to layer
    /// `layer` of the cache.
    fn forward(
        &self,
        x: Tensor<3>,
        pass: &Pass<'_>,
        cache: &mut KvCache,
        layer: usize,
    ) -> Result<Tensor<3>, Error> {
        let [batch, tokens, hidden] = x.dims();
        let fused = self.c_attn.forward(x);
        let fused = fused.reshape([batch, tokens, 3 * self.heads, hidden / self.heads]);
        let [queries, keys, values] =
            [0, 1, 2].map(|part| fused.clone().narrow(2, part * self.heads, self.heads));
        drop(fused);
        let positions = pass.query_positions();
        let (all, scale) = ([queries, keys, values], Some(self.scale));
        let mixed = attend(all, self.c_proj.compute, scale, &positions, cache, layer)?;
        Ok(self.c_proj.forward(mixed))
    }

    /// What it holds at most, besides the residual stream.
    fn activations(&self, pass: &PassShape) -> Activations {
        let [hidden, _] = self.c_attn.shape();
        // The fused projection, a copy of each third of it and the result; or the same behind the
        // norm's output.
        let held_back = if pass.holds_back() { 2 } else { 0 };
        let scratch = pass.attention_scratch(self.heads, self.heads, hidden / self.heads);
        Activations::values(pass.rows() * (7 + held_back) * hidden as u64).with_scratch(scratch)
    }
}

impl Gpt2Mlp {
    /// `[batch, tokens, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.c_proj.forward(self.activation.activate(self.c_fc.forward(x)))
    }
}
