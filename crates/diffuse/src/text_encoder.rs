//! The text encoders of pipelines, whatever their modules.

use std::path::Path;

use burn::tensor::Tensor;
use outsize_models::arch::{
    ClipTextConfig, ClipTextModel, PROJECTION_IN_OUT, QwenTextEncoder, QwenTextEncoderConfig,
    T5EncoderModel,
};
use outsize_models::{Component, PicturePass};
use outsize_stream::Stats;

use crate::adapter::{AdapterFile, ModuleNames};
use crate::error::Error;
use crate::kind::PipelineKind;
use crate::part::{AnyPart, Part, PartDescription, PassBytes, Turn};
use crate::pipeline_part::PipelinePart;
use crate::settings::ImageSettings;
use crate::tokenizer::{PromptTokenizer, PromptTokenizerFiles};

/// A text encoder that is described.
#[derive(Debug)]
pub(crate) enum TextEncoder {
    /// Of CLIP, with a projection or without one.
    Clip(Box<Part<ClipTextModel>>),
    /// Of T5.
    T5(Box<Part<T5EncoderModel>>),
    /// Of Qwen3, without its last layer.
    Qwen3(Box<Part<QwenTextEncoder>>),
    /// The same up to a layer in its middle, of texts that are filled up.
    Qwen3Filled(Box<Part<QwenTextEncoder>>),
    /// What of Qwen2.5-VL reads text.
    QwenVl(Box<Part<QwenTextEncoder>>),
}

use TextEncoder::{Clip, Qwen3, Qwen3Filled, QwenVl, T5};

/// Tokens of a text of T5, and the most of one of Qwen, as diffusers' pipelines read it; to so many some fill it up.
const MOST_TOKENS: usize = 512;

/// What stands before and behind a prompt of Qwen-Image.
const QWEN_IMAGE_PROMPT: [&str; 2] = [
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of \
     the objects and background:<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
];

/// Tokens in front of it that the transformer does not see.
const UNSEEN_TOKENS: usize = 34;

/// Layers of Qwen3 after which FLUX.2 klein takes hidden states.
pub(crate) const KLEIN_STATES: [usize; 3] = [9, 18, 27];

/// What a text encoder makes of texts, in main memory.
#[derive(Debug)]
pub(crate) struct TextStates {
    /// Of each token, `[texts, tokens, width]` f32: of the last layer that is run.
    pub last: Tensor<3>,
    /// Tokens of each text, which are its last ones.
    pub lengths: Vec<usize>,
    /// The same before the last layer, of CLIP.
    pub penultimate: Option<Tensor<3>>,
    /// Of each text as a whole, `[texts, pooled]` f32, of CLIP.
    pub pooled: Option<Tensor<2>>,
}

/// What came of reading texts, and what was read of the weights.
type Encoded = (Result<TextStates, outsize_models::Error>, Stats);

impl TextEncoder {
    /// The text encoder `part` of a pipeline of that kind at `place`.
    pub fn new(
        kind: PipelineKind,
        part: PipelinePart,
        place: &Path,
        description: &PartDescription,
    ) -> Result<Self, Error> {
        match (kind, part) {
            (PipelineKind::Flux, PipelinePart::TextEncoder2) => {
                Ok(T5(Box::new(Part::new(part, place, description)?)))
            }
            (PipelineKind::ZImage, _) => Ok(Qwen3(Box::new(Part::new(part, place, description)?))),
            (PipelineKind::QwenImage, _) => {
                Ok(QwenVl(Box::new(Part::new(part, place, description)?)))
            }
            (PipelineKind::Flux2Klein, _) => {
                let change = |config: &mut QwenTextEncoderConfig| {
                    *config = config.clone().with_states(&KLEIN_STATES)?;
                    Ok(())
                };
                Ok(Qwen3Filled(Box::new(Part::changed(part, place, description, change)?)))
            }
            _ => {
                let mut tensors = description.tensors.iter();
                let in_out = tensors.any(|tensor| tensor.name == PROJECTION_IN_OUT);
                let change = |config: &mut ClipTextConfig| {
                    config.projection_in_out = in_out;
                    Ok(())
                };
                Ok(Clip(Box::new(Part::changed(part, place, description, change)?)))
            }
        }
    }

    pub fn any(&self) -> &dyn AnyPart {
        match self {
            Clip(part) => &**part,
            T5(part) => &**part,
            Qwen3(part) | Qwen3Filled(part) | QwenVl(part) => &**part,
        }
    }

    /// Adds what an adapter's file has for it.
    pub fn adapt(&mut self, file: &AdapterFile) -> Result<Vec<String>, Error> {
        match self {
            Clip(part) => {
                let projection_in_out = part.config.config.projection_in_out;
                part.adapt(file, &ModuleNames::Clip { projection_in_out })
            }
            T5(part) => part.adapt(file, &ModuleNames::Plain),
            Qwen3(part) | Qwen3Filled(part) | QwenVl(part) => part.adapt(file, &ModuleNames::Plain),
        }
    }

    /// Width of what it makes of each token.
    pub fn width(&self) -> usize {
        match self {
            Clip(part) => part.config.config.sizes.hidden,
            T5(part) => part.config.config.d_model,
            Qwen3(part) | Qwen3Filled(part) | QwenVl(part) => part.config.config.width(),
        }
    }

    /// Width of what it makes of a text as a whole.
    pub fn pooled_width(&self) -> usize {
        match self {
            Clip(part) => part.config.config.pooled(),
            T5(_) | Qwen3(_) | Qwen3Filled(_) | QwenVl(_) => 0,
        }
    }

    /// How many times what it makes of each token is held at once: of CLIP, that of the last layer and of that before it, and once
    /// more when both encoders' come together.
    pub fn copies(&self) -> u64 {
        if matches!(self, Qwen3Filled(_)) { 1 } else { 3 }
    }

    /// The most tokens of a text.
    pub fn tokens(&self) -> usize {
        match self {
            Clip(part) => part.config.config.sizes.positions,
            T5(_) | Qwen3(_) | Qwen3Filled(_) => MOST_TOKENS,
            QwenVl(_) => UNSEEN_TOKENS + MOST_TOKENS,
        }
    }

    /// Its tokenizer, of these files.
    pub fn tokenizer(&self, files: PromptTokenizerFiles) -> Result<PromptTokenizer, Error> {
        match self {
            Clip(_) => files.load(),
            T5(_) => files.with_length(MOST_TOKENS).load(),
            Qwen3(_) => files.with_length(MOST_TOKENS).load_chat(true),
            Qwen3Filled(_) => files.with_length(MOST_TOKENS).load_filled_chat(),
            QwenVl(_) => files.with_length(self.tokens()).load_between(QWEN_IMAGE_PROMPT),
        }
    }

    /// What a pass holds.
    pub fn pass_bytes(
        &self,
        settings: &ImageSettings,
        pass: &PicturePass,
        threads: usize,
    ) -> PassBytes {
        let texts = pass.latents.batch;
        let activations = match self {
            Clip(part) => part.config.model().activation_bytes(texts, pass.tokens, threads),
            T5(part) => part.config.model().activation_bytes(texts, pass.tokens, threads),
            Qwen3(part) | Qwen3Filled(part) | QwenVl(part) => {
                part.config.model().activation_bytes(texts, pass.tokens, threads)
            }
        };
        let packed = self.any().packed_bytes(settings, pass.all_tokens());
        // Rows of tables, beside what is passed on.
        let beside_gpu = 4 * pass.all_tokens() * self.width() as u64;
        let alone = PassBytes { activations, on_gpu: activations, beside_gpu, packed };
        alone.and(self.any().adapter_bytes(pass))
    }

    /// Reads texts, of which these are the ids, when it is its turn. `padding` fills up those that are filled up here.
    pub fn encode(
        &self,
        turn: &Turn<'_>,
        texts: &[Vec<u32>],
        padding: Option<u32>,
    ) -> Result<Encoded, outsize_core::Error> {
        let lengths: Vec<usize> = texts.iter().map(Vec::len).collect();
        match self {
            Clip(part) => run(part, turn, |model| {
                let ids = texts.concat();
                let states = model.forward(&ids, texts.len())?;
                let pooled = model.pool(&ids, &states.last);
                Ok(TextStates {
                    last: states.last,
                    lengths: lengths.clone(),
                    penultimate: Some(states.penultimate),
                    pooled: Some(pooled),
                })
            }),
            T5(part) => run(part, turn, |model| {
                let last = model.forward(&texts.concat(), texts.len())?;
                Ok(TextStates { last, lengths: lengths.clone(), penultimate: None, pooled: None })
            }),
            Qwen3(part) => run(part, turn, |model| {
                let last = model.forward(texts)?;
                Ok(TextStates { last, lengths: lengths.clone(), penultimate: None, pooled: None })
            }),
            QwenVl(part) => run(part, turn, |model| {
                if lengths.iter().any(|tokens| *tokens <= UNSEEN_TOKENS) {
                    return Err(outsize_models::Error::NoTokens);
                }
                let states = model.forward(texts)?;
                let seen = states.dims()[1] - UNSEEN_TOKENS;
                let last = states.narrow(1, UNSEEN_TOKENS, seen);
                let lengths = lengths.iter().map(|tokens| tokens - UNSEEN_TOKENS).collect();
                Ok(TextStates { last, lengths, penultimate: None, pooled: None })
            }),
            Qwen3Filled(part) => run(part, turn, |model| {
                let padding = padding.expect("its tokenizer says what fills up a text");
                let last = model.forward_filled(texts, padding, MOST_TOKENS)?;
                let lengths = vec![MOST_TOKENS; texts.len()];
                Ok(TextStates { last, lengths, penultimate: None, pooled: None })
            }),
        }
    }
}

/// What a module makes of texts, when it is its turn.
fn run<C: Component + Send + 'static>(
    part: &Part<C>,
    turn: &Turn<'_>,
    pass: impl Fn(&C) -> Result<TextStates, outsize_models::Error>,
) -> Result<Encoded, outsize_core::Error> {
    turn.module(part).run(|module| Ok((module.run(pass)?, module.stats())))?
}
