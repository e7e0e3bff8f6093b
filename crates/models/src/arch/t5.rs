//! T5: an encoder that reads the prompt and a decoder that writes the answer, with positions told
//! by distance alone. Raffel et al. 2020; version 1.1 after Shazeer 2020.

mod config;
mod encoder;
mod layers;

use burn::module::Module;
use burn::tensor::Tensor;

use self::config::FIELDS;
pub use self::config::T5Config;
pub use self::encoder::T5EncoderModel;
use self::layers::{T5Block, T5LayerCrossAttention, T5LayerFeedForward, T5LayerSelfAttention};
use crate::architecture::{Architecture, Init};
use crate::config::{Fields, KnownField};
use crate::decoder::{Decoder, DecoderArchitecture, Head};
use crate::layers::{DistanceBuckets, Embedding, Linear, PositionBias, QueryPositions, RmsNorm};
use crate::pass::Pass;
use crate::{Activations, CacheSpec, Error, KvCache, PassShape};

/// A layer of the encoder: self-attention, then MLP.
type EncoderLayers = (T5LayerSelfAttention, T5LayerFeedForward);

/// A layer of the decoder: self-attention, cross-attention, MLP.
type DecoderLayers = (T5LayerSelfAttention, T5LayerCrossAttention, T5LayerFeedForward);

/// A T5 with its language-modelling head.
#[derive(Module, Debug)]
pub struct T5ForConditionalGeneration {
    /// `[vocabulary, hidden]`: of encoder and decoder.
    shared: Embedding,
    encoder: T5Stack<EncoderLayers>,
    decoder: T5Stack<DecoderLayers>,
    /// `[vocabulary, hidden]`; `None` if tied, when the embedding table serves.
    lm_head: Option<Linear>,
    /// What the decoder's output is multiplied by before the head.
    scale: Option<f64>,
    start: u32,
    #[module(skip)]
    cache: CacheSpec,
    #[module(skip)]
    buckets: [DistanceBuckets; 2],
}

/// Encoder or decoder.
#[derive(Module, Debug)]
struct T5Stack<L: Module> {
    /// In order of execution.
    block: Vec<T5Block<L>>,
    /// `[hidden]`.
    final_layer_norm: RmsNorm,
}

impl Architecture for T5ForConditionalGeneration {
    type Config = T5Config;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[("t5", "T5")];
    const CLASS_PREFIX: &'static str = "T5";
    const HEADS: &'static [&'static str] = &["ForConditionalGeneration", "WithLMHeadModel"];
    const CLASSES: &'static [(&'static str, &'static str)] =
        &[("RmsNorm", "T5LayerNorm"), ("T5LayerFeedForward", "T5LayerFF"), ("Tuple", "ModuleList")];
    const NO_SPLIT: &'static [&'static str] = &["T5Block"];
    // The table under its other names, and a bias of versions that had one and never used it.
    const IGNORED: &'static [&'static str] = &[
        "encoder.embed_tokens.weight",
        "decoder.embed_tokens.weight",
        "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
    ];
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = &[
        ("encoder.embed_tokens", "Embedding"),
        ("encoder.dropout", "Dropout"),
        ("decoder.embed_tokens", "Embedding"),
        ("decoder.dropout", "Dropout"),
    ];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<T5Config, Error> {
        T5Config::read(fields)
    }

    fn new(config: &T5Config, init: &Init) -> Self {
        Self {
            shared: Embedding::new(config.vocab_size, config.d_model, init),
            encoder: T5Stack::encoder(config, init),
            decoder: T5Stack::decoder(config, init),
            lm_head: (!config.tied)
                .then(|| Linear::new(config.d_model, config.vocab_size, false, init)),
            scale: config.scale_decoder_outputs.then(|| (config.d_model as f64).powf(-0.5)),
            start: config.decoder_start_token_id,
            cache: config.cache(),
            buckets: [true, false].map(|bidirectional| config.buckets(bidirectional)),
        }
    }
}

impl DecoderArchitecture for T5ForConditionalGeneration {
    const LAYERS: &'static str = "decoder.block";
    // As in transformers 5, which ties them in any case.
    const SPARE_HEAD: Option<&'static str> = Some("shared.weight");

    fn is_of_prompt(path: &str) -> bool {
        let cross = [".EncDecAttention.k.weight", ".EncDecAttention.v.weight"];
        path.starts_with("encoder.") || cross.iter().any(|end| path.ends_with(end))
    }
}

impl Decoder for T5ForConditionalGeneration {
    fn cache(&self) -> &CacheSpec {
        &self.cache
    }

    fn start(&self) -> Option<u32> {
        Some(self.start)
    }

    fn encode(&self, prompt: &Pass<'_>, cache: &mut KvCache) -> Result<(), Error> {
        let [buckets, _] = &self.buckets;
        let x = prompt.embed(&self.shared);
        let states = self.encoder.encode(x, buckets, &prompt.query_positions());
        for (index, block) in self.decoder.block.iter().enumerate() {
            let (keys, values) = block.layer.1.EncDecAttention.keys_and_values(&states);
            cache.keep_prompt(index, keys, values)?;
        }
        Ok(())
    }

    fn hidden(&self, pass: &Pass<'_>, cache: &mut KvCache) -> Result<Tensor<3>, Error> {
        let [_, buckets] = &self.buckets;
        let mut x = pass.embed(&self.shared);
        let bias = bias(self.decoder.block.first().map(|block| &block.layer.0), buckets);
        let mut pending = None;
        for (index, block) in self.decoder.block.iter().enumerate() {
            let (attention, cross, feed_forward) = &block.layer;
            let (sum, normed) = attention.layer_norm.after(x, pending);
            let positions = pass.query_positions();
            let attention = &attention.SelfAttention;
            let mixed = attention.decode(normed, bias.as_ref(), &positions, cache, index)?;
            let (sum, normed) = cross.layer_norm.after(sum, Some(mixed));
            let mixed = cross.EncDecAttention.over_prompt(normed, cache, index)?;
            let (sum, normed) = feed_forward.layer_norm.after(sum, Some(mixed));
            (x, pending) = (sum, Some(feed_forward.DenseReluDense.forward(normed)));
        }
        let pending = pending.map(|more| pass.wanted(more));
        let hidden = self.decoder.final_layer_norm.after(pass.wanted(x), pending).1;
        Ok(match self.scale {
            Some(scale) => hidden * scale,
            None => hidden,
        })
    }

    fn head(&self) -> Head<'_> {
        Head::new(self.lm_head.as_ref(), &self.shared)
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        let (prompt, hidden) = (pass.of_prompt(), self.shared.width() as u64);
        let mut encoder = self.encoder.most(&prompt);
        let mut decoder = self.head().activations(pass);
        for T5Block { layer: (attention, cross, feed_forward) } in &self.decoder.block {
            encoder = encoder.or(cross.EncDecAttention.activations_of_prompt(&prompt));
            decoder = decoder.or(attention.SelfAttention.activations(pass));
            decoder = decoder.or(cross.EncDecAttention.activations(&pass.over_prompt()));
            decoder = decoder.or(feed_forward.DenseReluDense.activations(pass));
        }
        // Alive throughout: the residual stream, and the biases.
        let [encoder, decoder] = [(encoder, prompt), (decoder, *pass)]
            .map(|(most, pass)| most.and(Activations::values(pass.rows() * hidden)));
        encoder.or(decoder).and(self.encoder.bias_activations(&self.buckets[0]))
    }
}

impl T5Stack<EncoderLayers> {
    fn encoder(config: &T5Config, init: &Init) -> Self {
        // The first layer has the biases of all.
        let layers = |index| {
            let attention = T5LayerSelfAttention::new(config, index == 0, init);
            T5Block { layer: (attention, T5LayerFeedForward::new(config, init)) }
        };
        Self {
            block: (0..config.num_layers).map(layers).collect(),
            final_layer_norm: RmsNorm::new(config.d_model, config.layer_norm_epsilon, init),
        }
    }

    /// Embeddings `[batch, tokens, hidden]` f32 to the states behind the final norm, of the same
    /// shape.
    fn encode(
        &self,
        mut x: Tensor<3>,
        buckets: &DistanceBuckets,
        positions: &QueryPositions<'_>,
    ) -> Tensor<3> {
        let bias = bias(self.block.first().map(|block| &block.layer.0), buckets);
        let mut pending = None;
        for block in &self.block {
            let (attention, feed_forward) = &block.layer;
            let (sum, normed) = attention.layer_norm.after(x, pending);
            let mixed = attention.SelfAttention.encode(normed, bias.as_ref(), positions);
            let (sum, normed) = feed_forward.layer_norm.after(sum, Some(mixed));
            (x, pending) = (sum, Some(feed_forward.DenseReluDense.forward(normed)));
        }
        self.final_layer_norm.after(x, pending).1
    }

    /// What a layer holds at most, besides the residual stream and the biases.
    fn most(&self, pass: &PassShape) -> Activations {
        let layers = self.block.iter().map(|block| &block.layer);
        layers.fold(Activations::default(), |most, (attention, feed_forward)| {
            let most = most.or(attention.SelfAttention.activations(pass));
            most.or(feed_forward.DenseReluDense.activations(pass))
        })
    }

    /// What the biases of all layers take.
    fn bias_activations(&self, buckets: &DistanceBuckets) -> Activations {
        let heads = self.block.first().map_or(0, |block| block.layer.0.SelfAttention.heads());
        Activations::values(PositionBias::activations(buckets, heads))
    }
}

impl T5Stack<DecoderLayers> {
    fn decoder(config: &T5Config, init: &Init) -> Self {
        let layers = |index| {
            let attention = T5LayerSelfAttention::new(config, index == 0, init);
            let cross = T5LayerCrossAttention::new(config, init);
            T5Block { layer: (attention, cross, T5LayerFeedForward::new(config, init)) }
        };
        Self {
            block: (0..config.num_decoder_layers).map(layers).collect(),
            final_layer_norm: RmsNorm::new(config.d_model, config.layer_norm_epsilon, init),
        }
    }
}

/// The biases of all layers, which the first one has.
fn bias(first: Option<&T5LayerSelfAttention>, buckets: &DistanceBuckets) -> Option<PositionBias> {
    let table = first?.SelfAttention.relative_attention_bias.as_ref()?;
    Some(PositionBias::new(table, buckets))
}
