//! OPT: learned positions, norms before or behind, embeddings of a width of their own. Zhang et al.
//! 2022 (arXiv:2205.01068).

use burn::module::Module;
use burn::tensor::Tensor;

use super::sizes::LayerNormSizes;
use crate::architecture::{Architecture, Init};
use crate::config::Effect::{self, Harmless, Read};
use crate::config::{self, Fields, KnownField, MAX_HIDDEN, MAX_INTERMEDIATE};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::kv_cache::MAX_CONTEXT;
use crate::layers::{Activation, Embedding, LayerNorm, Linear, attend, three};
use crate::pass::Pass;
use crate::{
    Activations, BlockInputs, Blocks, CacheSpec, Error, KvCache, PassShape, Residual, Rotation,
};

/// Rows of the table of positions that come before that of the first one.
const OFFSET: usize = 2;

/// The configuration of an OPT.
#[derive(Debug, Clone, PartialEq)]
pub struct OptConfig {
    /// Its sizes.
    pub sizes: LayerNormSizes,
    /// Width of an embedding; where it is not the residual stream's, two layers lead from one to
    /// the other.
    pub word_embed_proj_dim: usize,
    /// Whether norms come before attention and MLP, and a last one behind all blocks, or behind
    /// what was added.
    pub do_layer_norm_before: bool,
    /// Whether the blocks' linear layers have a bias.
    pub enable_bias: bool,
}

/// An OPT with its language-modelling head.
#[derive(Module, Debug)]
pub struct OptForCausalLm {
    /// The transformer.
    pub model: OptModel,
    /// `[vocabulary, embedding]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    #[module(skip)]
    cache: CacheSpec,
}

/// The transformer, of which there is a decoder alone.
#[derive(Module, Debug)]
pub struct OptModel {
    /// All of it.
    pub decoder: OptDecoder,
}

/// Embeddings, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct OptDecoder {
    /// `[vocabulary, embedding]`.
    pub embed_tokens: Embedding,
    /// `[2 + positions, hidden]`.
    pub embed_positions: Embedding,
    /// `[hidden, embedding]`.
    pub project_in: Option<Linear>,
    /// In order of execution.
    pub layers: Vec<OptDecoderLayer>,
    /// `[hidden]`.
    pub final_layer_norm: Option<LayerNorm>,
    /// `[embedding, hidden]`.
    pub project_out: Option<Linear>,
}

/// One decoder layer: attention, then MLP, each added to the residual stream.
#[derive(Module, Debug)]
pub struct OptDecoderLayer {
    /// Causal self-attention.
    pub self_attn: OptAttention,
    /// `[hidden]`: before attention, or behind it.
    pub self_attn_layer_norm: LayerNorm,
    /// `[inner, hidden]`.
    pub fc1: Linear,
    /// `[hidden, inner]`.
    pub fc2: Linear,
    /// `[hidden]`: before the MLP, or behind it.
    pub final_layer_norm: LayerNorm,
    #[module(skip)]
    activation: Activation,
    norm_before: bool,
}

/// Causal self-attention.
#[derive(Module, Debug)]
pub struct OptAttention {
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

impl Architecture for OptForCausalLm {
    type Config = OptConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("opt", "OPT")];
    const CLASS_PREFIX: &'static str = "Opt";
    const NO_SPLIT: &'static [&'static str] = &["OptDecoderLayer"];
    const OPTIONAL_PREFIX: &'static str = "model.";
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] =
        &[("model.decoder.layers.*.activation_fn", "Activation")];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<OptConfig, Error> {
        let names = ["hidden_size", "num_hidden_layers", "num_attention_heads"];
        let sizes = LayerNormSizes::read(fields, names, None, |_| {
            Ok((
                fields.size("ffn_dim", MAX_INTERMEDIATE)?,
                fields.size_or("max_position_embeddings", 2048, MAX_CONTEXT)?,
                config::activation(fields, "activation_function", Activation::Relu)?,
                fields.flag_or("tie_word_embeddings", true)?,
            ))
        })?;
        Ok(OptConfig {
            word_embed_proj_dim: fields.size_or("word_embed_proj_dim", sizes.hidden, MAX_HIDDEN)?,
            do_layer_norm_before: fields.flag_or("do_layer_norm_before", true)?,
            enable_bias: fields.flag_or("enable_bias", true)?,
            sizes,
        })
    }

    fn new(config: &OptConfig, init: &Init) -> Self {
        let (sizes, width) = (&config.sizes, config.word_embed_proj_dim);
        let (hidden, vocabulary) = (sizes.hidden, sizes.vocabulary);
        let project =
            |inputs, outputs| (width != hidden).then(|| Linear::new(inputs, outputs, false, init));
        Self {
            model: OptModel {
                decoder: OptDecoder {
                    embed_tokens: Embedding::new(vocabulary, width, init),
                    embed_positions: Embedding::new(OFFSET + sizes.positions, hidden, init),
                    project_in: project(width, hidden),
                    layers: (0..sizes.layers).map(|_| OptDecoderLayer::new(config, init)).collect(),
                    final_layer_norm: config.do_layer_norm_before.then(|| sizes.norm(init)),
                    project_out: project(hidden, width),
                },
            },
            lm_head: (!sizes.tied).then(|| Linear::new(width, vocabulary, false, init)),
            cache: CacheSpec {
                cannot_slide: Some("it has learned an embedding of each position"),
                ..sizes.cache(sizes.heads)
            },
        }
    }
}

impl DecoderArchitecture for OptForCausalLm {
    const LAYERS: &'static str = "model.decoder.layers";
}

impl Decoder for OptForCausalLm {
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
        Head::new(self.lm_head.as_ref(), &self.model.decoder.embed_tokens)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let decoder = &self.model.decoder;
        let hidden = decoder.embed_positions.width() as u64;
        // Both embeddings; the last norm and what it is projected to, or the copies of that.
        let mut most =
            Activations::values(pass.rows() * (hidden + decoder.embed_tokens.width() as u64))
                .or(Activations::values(pass.logit_rows() * 2 * hidden)
                    .and(self.head().activations(pass)));
        for layer in &decoder.layers {
            most = most.or(layer.self_attn.activations(pass));
            let inner = layer.fc1.weight.lazy_shape()[0] as u64;
            // The norm's output or the result, and the inner layer with copies of it; or the result
            // with copies of its own.
            let mlp = (hidden + 3 * inner).max(inner + 3 * hidden);
            most = most.or(Activations::values(pass.rows() * mlp).with_unpooled(0));
        }
        // Alive throughout: the residual stream.
        most.and(Activations::values(pass.rows() * hidden))
    }
}

impl Blocks for OptForCausalLm {
    fn count(&self) -> usize {
        self.model.decoder.layers.len()
    }

    fn inputs(&self, pass: &Pass<'_>) -> Result<BlockInputs, Error> {
        let decoder = &self.model.decoder;
        let mut x = pass.embed(&decoder.embed_tokens);
        if let Some(project) = &decoder.project_in {
            x = project.forward(x);
        }
        // The tables may be on different devices.
        let positions = pass.embed_positions(&decoder.embed_positions, OFFSET)?;
        let positions = positions.to_device(&x.device());
        let x = x + positions;
        Ok(BlockInputs { residual: Residual::new(x), rotations: Vec::new() })
    }

    fn block(
        &self,
        index: usize,
        residual: Residual,
        _rotations: &[Rotation],
        pass: &Pass<'_>,
        cache: &mut KvCache,
    ) -> Result<Residual, Error> {
        self.model.decoder.layers[index].forward(residual, pass, cache, index)
    }

    fn normed(&self, residual: Residual, pass: &Pass<'_>) -> Tensor<3> {
        let decoder = &self.model.decoder;
        let Residual { stream, pending } = residual.wanted(pass);
        let x = match &decoder.final_layer_norm {
            Some(norm) => norm.after(stream, pending).1,
            None => stream,
        };
        match &decoder.project_out {
            Some(project) => project.forward(x),
            None => x,
        }
    }
}

impl OptDecoderLayer {
    fn new(config: &OptConfig, init: &Init) -> Self {
        let (sizes, bias) = (&config.sizes, config.enable_bias);
        let square = || Linear::new(sizes.hidden, sizes.hidden, bias, init);
        Self {
            self_attn: OptAttention {
                k_proj: square(),
                v_proj: square(),
                q_proj: square(),
                out_proj: square(),
                heads: sizes.heads,
            },
            self_attn_layer_norm: sizes.norm(init),
            fc1: Linear::new(sizes.hidden, sizes.inner, bias, init),
            fc2: Linear::new(sizes.inner, sizes.hidden, bias, init),
            final_layer_norm: sizes.norm(init),
            activation: sizes.activation,
            norm_before: config.do_layer_norm_before,
        }
    }

    /// Takes the residual stream and what is still to be added to it, and gives them.
    fn forward(
        &self,
        Residual { stream: x, pending }: Residual,
        pass: &Pass<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<Residual, Error> {
        let mlp = |x| self.fc2.forward(self.activation.activate(self.fc1.forward(x)));
        if self.norm_before {
            let (x, normed) = self.self_attn_layer_norm.after(x, pending);
            let mixed = self.self_attn.forward(normed, pass, cache, index)?;
            let (x, normed) = self.final_layer_norm.after(pass.needed(x), Some(mixed));
            return Ok(Residual { stream: x, pending: Some(mlp(normed)) });
        }
        let mixed = self.self_attn.forward(x.clone(), pass, cache, index)?;
        let x = self.self_attn_layer_norm.after(pass.needed(x), Some(mixed)).1;
        let inner = mlp(x.clone());
        Ok(Residual { stream: self.final_layer_norm.after(x, Some(inner)).1, pending: None })
    }
}

impl OptAttention {
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
        let shape = [batch, tokens, self.heads, hidden / self.heads];
        let all = three([&self.q_proj, &self.k_proj, &self.v_proj], x).map(|y| y.reshape(shape));
        let mixed =
            attend(all, self.out_proj.compute, None, &pass.query_positions(), cache, layer)?;
        Ok(self.out_proj.forward(mixed))
    }

    /// What it holds at most, besides the residual stream.
    fn activations(&self, pass: &PassShape) -> Activations {
        let hidden = self.out_proj.weight.lazy_shape()[0];
        // The norm's output, queries, keys and values, and a copy of one; or these three with
        // attention's result.
        let held_back = if pass.holds_back() { 2 } else { 0 };
        let scratch = pass.attention_scratch(self.heads, self.heads, hidden / self.heads);
        let rows = pass.rows() * hidden as u64;
        Activations::values(rows * (5 + held_back))
            .with_unpooled(rows * (2 + held_back))
            .with_scratch(scratch)
    }
}

const FIELDS: &[KnownField] = &[
    ("_remove_final_layer_norm", Effect::OFF),
    ("activation_dropout", Harmless),
    ("activation_function", Read),
    ("do_layer_norm_before", Read),
    ("dropout", Harmless),
    ("enable_bias", Read),
    ("ffn_dim", Read),
    ("hidden_size", Read),
    ("init_std", Harmless),
    ("layer_norm_elementwise_affine", Effect::ON),
    ("layerdrop", Harmless),
    ("max_position_embeddings", Read),
    ("num_attention_heads", Read),
    ("num_hidden_layers", Read),
    ("word_embed_proj_dim", Read),
];
