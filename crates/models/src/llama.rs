//! Llama, and the models that took its shape: Mistral, Qwen2.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use outsize_kernels::ActivationDtype;

use crate::attention::QueryPositions;
use crate::{
    Attention, Batch, Embedding, Error, KvCache, Linear, Mlp, ModelConfig, RmsNorm, Rope, Rotation,
};

/// Of which positions logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Logits {
    /// The last one, which is what generating needs.
    Last,
    /// All of this pass.
    All,
}

impl Logits {
    /// How many positions of a pass of `tokens` tokens.
    pub fn positions(self, tokens: usize) -> usize {
        match self {
            Self::Last => tokens.min(1),
            Self::All => tokens,
        }
    }
}

/// A Llama, or a model of its shape, with its language-modelling head. Fields are named, and parameters shaped, as in the checkpoint.
#[derive(Module, Debug)]
pub struct LlamaForCausalLm {
    /// The transformer.
    pub model: LlamaModel,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    pub lm_head: Option<Linear>,
    vocab_size: usize,
    key_value_heads: usize,
    head_dim: usize,
    #[module(skip)]
    rope: Rope,
    #[module(skip)]
    windows: Vec<Option<usize>>,
}

/// Embedding, decoder layers and final norm.
#[derive(Module, Debug)]
pub struct LlamaModel {
    /// `[vocabulary, hidden]`.
    pub embed_tokens: Embedding,
    /// In order of execution.
    pub layers: Vec<LlamaDecoderLayer>,
    /// `[hidden]`.
    pub norm: RmsNorm,
}

/// One decoder layer: attention, then MLP, each behind a norm and added to the residual stream.
#[derive(Module, Debug)]
pub struct LlamaDecoderLayer {
    /// `[hidden]`.
    pub input_layernorm: RmsNorm,
    /// Causal self-attention.
    pub self_attn: Attention,
    /// `[hidden]`.
    pub post_attention_layernorm: RmsNorm,
    /// Gated feed-forward block.
    pub mlp: Mlp,
}

impl LlamaForCausalLm {
    /// A model without storage.
    pub fn new(config: &ModelConfig, device: &Device) -> Self {
        let (hidden, vocabulary) = (config.hidden_size, config.vocab_size);
        Self {
            model: LlamaModel {
                embed_tokens: Embedding::new(vocabulary, hidden, device),
                layers: (0..config.num_hidden_layers)
                    .map(|_| LlamaDecoderLayer::new(config, device))
                    .collect(),
                norm: RmsNorm::new(hidden, config.rms_norm_eps, device),
            },
            lm_head: (!config.tie_word_embeddings)
                .then(|| Linear::new(hidden, vocabulary, false, device)),
            vocab_size: vocabulary,
            key_value_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            rope: Rope::new(config),
            windows: (0..config.num_hidden_layers)
                .map(|layer| config.window(layer))
                .collect(),
        }
    }

    /// The same model, its linear layers multiplying activations in another type. [`ActivationDtype::F32`] unless said; attention, norms
    /// and sums are f32 in any case.
    pub fn compute_in(mut self, compute: ActivationDtype) -> Self {
        self.model.embed_tokens.compute = compute;
        for layer in &mut self.model.layers {
            let (attention, mlp) = (&mut layer.self_attn, &mut layer.mlp);
            for linear in [
                &mut attention.q_proj,
                &mut attention.k_proj,
                &mut attention.v_proj,
                &mut attention.o_proj,
                &mut mlp.gate_proj,
                &mut mlp.up_proj,
                &mut mlp.down_proj,
            ] {
                linear.compute = compute;
            }
        }
        if let Some(head) = &mut self.lm_head {
            head.compute = compute;
        }
        self
    }

    /// Runs `ids` behind the tokens that the cache holds, and adds them to it. Gives logits `[1, positions, vocabulary]`
    /// f32, with as many positions as asked for.
    ///
    /// A pass that fails leaves the cache as it was, but for a sliding window: what it overwrote there is gone, and if the
    /// next pass would see it, that is an error that says so.
    ///
    /// # Errors
    /// No ids, an id outside the vocabulary, a cache of another model or for several texts, or one without room for the
    /// ids. All are found before anything is computed.
    pub fn forward(
        &self,
        ids: &[u32],
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Tensor<3>, Error> {
        self.forward_batch(&Batch::left_padded(&[ids])?, cache, logits)
    }

    /// Runs texts side by side behind those that the cache holds. Gives logits `[rows, positions, vocabulary]` f32, with
    /// as many positions as asked for; those at padding mean nothing.
    ///
    /// Each text gives what it would give alone, up to rounding: its positions count from its first token, and it does not
    /// see its padding. Padding may only come before a text's first token.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); and another number of texts than the cache is for, or padding behind tokens.
    pub fn forward_batch(
        &self,
        batch: &Batch,
        cache: &mut KvCache,
        logits: Logits,
    ) -> Result<Tensor<3>, Error> {
        self.check(batch, cache)?;
        let (tokens, start) = (batch.tokens(), cache.position());
        let padding: Vec<usize> = cache
            .padding()
            .iter()
            .zip(batch.padding())
            .map(|(held, more)| held + more)
            .collect();
        cache.begin(tokens);
        let x = self.model.embed_tokens.forward(batch.ids());
        let hidden = x.dims()[2];
        let mut x = x.reshape([batch.rows(), tokens, hidden]);
        let length = cache.length_after(tokens);
        let rotation = self.rope.at(start, tokens, length, &padding, &x.device());
        let standing = QueryPositions {
            start,
            padding: &padding,
        };
        let mut pending = None;
        for (index, layer) in self.model.layers.iter().enumerate() {
            let (sum, more) = layer.forward(x, pending, &rotation, &standing, cache, index)?;
            (x, pending) = (sum, Some(more));
        }
        let positions = logits.positions(tokens);
        let wanted = |x: Tensor<3>| x.narrow(1, tokens - positions, positions);
        let x = self.model.norm.after(wanted(x), pending.map(wanted)).1;
        let logits = match &self.lm_head {
            Some(head) => head.forward(x),
            None => self.model.embed_tokens.project(x),
        };
        cache.advance(batch);
        Ok(logits)
    }

    fn check(&self, batch: &Batch, cache: &KvCache) -> Result<(), Error> {
        for (row, ids) in batch.ids().chunks_exact(batch.tokens()).enumerate() {
            let outside = |id: &u32| *id as usize >= self.vocab_size;
            if let Some(column) = ids.iter().position(outside) {
                return Err(Error::TokenId {
                    id: ids[column],
                    // Padding repeats the first token.
                    index: column.saturating_sub(batch.padding()[row]),
                    vocab_size: self.vocab_size,
                });
            }
        }
        cache.check(self.key_value_heads, self.head_dim, &self.windows, batch)
    }
}

impl LlamaDecoderLayer {
    fn new(config: &ModelConfig, device: &Device) -> Self {
        let norm = || RmsNorm::new(config.hidden_size, config.rms_norm_eps, device);
        Self {
            input_layernorm: norm(),
            self_attn: Attention::new(config, device),
            post_attention_layernorm: norm(),
            mlp: Mlp::new(config, device),
        }
    }

    /// Takes the residual stream and what is still to be added to it, and gives them, so that each addition is made together with
    /// the norm behind it.
    fn forward(
        &self,
        x: Tensor<3>,
        pending: Option<Tensor<3>>,
        rotation: &Rotation,
        standing: &QueryPositions<'_>,
        cache: &mut KvCache,
        index: usize,
    ) -> Result<(Tensor<3>, Tensor<3>), Error> {
        let (x, normed) = self.input_layernorm.after(x, pending);
        let mixed = self
            .self_attn
            .forward(normed, rotation, standing, cache, index)?;
        let (x, normed) = self.post_attention_layernorm.add_forward(x, mixed);
        Ok((x, self.mlp.forward(normed)))
    }
}
