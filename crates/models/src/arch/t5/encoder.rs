//! The encoder of T5 alone, as a part of models of pictures: every token of a text sees all others,
//! padding too.

use burn::module::Module;
use burn::tensor::Tensor;

use super::config::FIELDS;
use super::{EncoderLayers, T5Config, T5ForConditionalGeneration, T5Stack};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::Effect::Harmless;
use crate::config::{Fields, KnownField};
use crate::layers::{DistanceBuckets, Embedding, QueryPositions, fetched};
use crate::{Activations, Error, PassShape, PicturePass, WeightUse};

/// The encoder of a T5.
#[derive(Module, Debug)]
pub struct T5EncoderModel {
    /// `[vocabulary, hidden]`.
    shared: Embedding,
    encoder: T5Stack<EncoderLayers>,
    #[module(skip)]
    buckets: DistanceBuckets,
}

impl Architecture for T5EncoderModel {
    type Config = T5Config;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        T5ForConditionalGeneration::MODEL_TYPES;
    const CLASS_PREFIX: &'static str = T5ForConditionalGeneration::CLASS_PREFIX;
    const HEADS: &'static [&'static str] = &["T5EncoderModel"];
    const CLASSES: &'static [(&'static str, &'static str)] = T5ForConditionalGeneration::CLASSES;
    const NO_SPLIT: &'static [&'static str] = T5ForConditionalGeneration::NO_SPLIT;
    // The table under its other name.
    const IGNORED: &'static [&'static str] = &["encoder.embed_tokens.weight"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        // Files of the encoder say either.
        &[&[("is_encoder_decoder", Harmless)], FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<T5Config, Error> {
        T5Config::read(fields)
    }

    fn new(config: &T5Config, init: &Init) -> Self {
        Self {
            shared: Embedding::new(config.vocab_size, config.d_model, init),
            encoder: T5Stack::encoder(config, init),
            buckets: config.buckets(true),
        }
    }
}

impl Component for T5EncoderModel {
    const INTERLEAVES: bool = true;

    fn is_unused(_: &T5Config, tensor: &str) -> bool {
        // Of a whole model.
        ["decoder.", "lm_head."].iter().any(|part| tensor.starts_with(part))
    }

    fn weight_use(_: &T5Config, path: &str, pass: &PicturePass) -> WeightUse {
        let attended = if path.ends_with(".q.weight") { pass.tokens as u64 } else { 0 };
        WeightUse { rows: pass.all_tokens(), attended }
    }
}

impl T5EncoderModel {
    /// Runs `rows` texts of equal length, whose token ids are one behind the other:
    /// `[rows, tokens, hidden]` f32, behind the final norm and in main memory. Padding is seen like
    /// any token.
    ///
    /// # Errors
    /// No ids, ids that do not fill the rows, or an id outside the vocabulary.
    pub fn forward(&self, ids: &[u32], rows: usize) -> Result<Tensor<3>, Error> {
        let [vocabulary, hidden]: [usize; 2] = self.shared.weight.lazy_shape().dims();
        if ids.is_empty() || rows == 0 || !ids.len().is_multiple_of(rows) {
            return Err(Error::NoTokens);
        }
        if let Some(index) = ids.iter().position(|id| *id as usize >= vocabulary) {
            return Err(Error::TokenId { id: ids[index], index, vocab_size: vocabulary });
        }
        let x = self.shared.forward(ids).reshape([rows, ids.len() / rows, hidden]);
        let padding = vec![0; rows];
        let positions = QueryPositions { padding: &padding, ..Default::default() };
        let states = self.encoder.encode(x, &self.buckets, &positions);
        let weight = self.encoder.final_layer_norm.weight.as_ref();
        Ok(fetched(states, weight.expect("a norm of T5 has a weight")))
    }

    /// An upper bound on the bytes of activations that a pass of `rows` texts of `tokens` tokens
    /// each holds at once, with the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, rows: usize, tokens: usize, threads: usize) -> u64 {
        let pass = PassShape::of_texts(rows, tokens, threads);
        let stream = Activations::values(pass.rows() * self.shared.width() as u64);
        let biases = self.encoder.bias_activations(&self.buckets);
        self.encoder.most(&pass).and(stream).and(biases).bytes()
    }
}
