//! The text encoders of pipelines, whatever their modules.

use std::path::Path;

use burn::tensor::{DType, Tensor};
use outsize_models::arch::{
    ClipTextConfig, ClipTextModel, DecoderTextEncoder, DecoderTextEncoderConfig, PROJECTION_IN_OUT,
    T5EncoderModel, TextFilling,
};
use outsize_models::{Component, ImageFeatures, PicturePass};
use outsize_stream::Stats;

use crate::adapter::{AdapterFile, ModuleNames};
use crate::error::Error;
use crate::kind::PipelineKind;
use crate::part::{AnyPart, Part, PartDescription, PassBytes, Turn};
use crate::pipeline_part::PipelinePart;
use crate::qwen_image_prompt::QwenImagePrompt;
use crate::settings::ImageSettings;
use crate::tokenizer::{ChatAround, PromptTokenizer, PromptTokenizerFiles};

/// A text encoder that is described.
#[derive(Debug)]
pub(crate) enum TextEncoder {
    /// Of CLIP, with a projection or without one.
    Clip(Box<Part<ClipTextModel>>),
    /// Of T5, for texts of so many tokens.
    T5(Box<Part<T5EncoderModel>>, usize),
    /// Of Qwen3, without its last layer.
    Qwen3(Box<Part<DecoderTextEncoder>>),
    /// The same, or what of Mistral 3 reads text, up to a layer in its middle, of texts that are
    /// filled up in what stands around them.
    Filled(Box<Part<DecoderTextEncoder>>, ChatAround),
    /// What of Qwen2.5-VL reads text, in what stands around a prompt.
    QwenVl(Box<Part<DecoderTextEncoder>>, &'static QwenImagePrompt),
}

use TextEncoder::{Clip, Filled, Qwen3, QwenVl, T5};

/// Tokens of a text of T5, and the most of one of Qwen, as diffusers' pipelines read it; to so many
/// some fill it up.
const MOST_TOKENS: usize = 512;

/// Tokens of a text of T5 for Stable Diffusion 3.
const SD3_TOKENS: usize = 256;

/// Layers of Qwen3 after which FLUX.2 klein takes hidden states, and those of Mistral 3 after which
/// FLUX.2 dev does.
pub(crate) const KLEIN_STATES: [usize; 3] = [9, 18, 27];
pub(crate) const FLUX2_STATES: [usize; 3] = [10, 20, 30];

/// What the text encoder of FLUX.2 dev is told before a prompt.
const FLUX2_SYSTEM: &str = "You are an AI that reasons about image descriptions. You give structured responses focusing on object \
                            relationships, object\nattribution and actions without speculation.";

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
            (kind, PipelinePart::TextEncoder2) if kind.is_flux1() => {
                Ok(T5(Box::new(Part::new(part, place, description)?), MOST_TOKENS))
            }
            (_, PipelinePart::TextEncoder3) => {
                Ok(T5(Box::new(Part::new(part, place, description)?), SD3_TOKENS))
            }
            (PipelineKind::ZImage, _) => Ok(Qwen3(Box::new(Part::new(part, place, description)?))),
            (kind, _) if kind.is_qwen_image() => {
                let prompt = QwenImagePrompt::of(kind);
                Ok(QwenVl(Box::new(Part::new(part, place, description)?), prompt))
            }
            (kind, _) if kind.is_flux2() => {
                let (states, around) = match kind {
                    PipelineKind::Flux2 => (&FLUX2_STATES, ChatAround::System(FLUX2_SYSTEM)),
                    _ => (&KLEIN_STATES, ChatAround::Answer { thinks: false }),
                };
                let change = |config: &mut DecoderTextEncoderConfig| {
                    *config = config.clone().with_states(states)?;
                    Ok(())
                };
                Ok(Filled(Box::new(Part::changed(part, place, description, change)?), around))
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
            T5(part, _) => &**part,
            Qwen3(part) | Filled(part, _) | QwenVl(part, _) => &**part,
        }
    }

    /// Adds what an adapter's file has for it.
    pub fn adapt(&mut self, file: &AdapterFile) -> Result<Vec<String>, Error> {
        match self {
            Clip(part) => {
                let projection_in_out = part.config.config.projection_in_out;
                part.adapt(file, &ModuleNames::Clip { projection_in_out })
            }
            T5(part, _) => part.adapt(file, &ModuleNames::Plain),
            Qwen3(part) | Filled(part, _) | QwenVl(part, _) => {
                part.adapt(file, &ModuleNames::Plain)
            }
        }
    }

    /// Width of what it makes of each token.
    pub fn width(&self) -> usize {
        match self {
            Clip(part) => part.config.config.sizes.hidden,
            T5(part, _) => part.config.config.d_model,
            Qwen3(part) | Filled(part, _) | QwenVl(part, _) => part.config.config.width(),
        }
    }

    /// Width of what it makes of a text as a whole.
    pub fn pooled_width(&self) -> usize {
        match self {
            Clip(part) => part.config.config.pooled(),
            T5(..) | Qwen3(_) | Filled(..) | QwenVl(..) => 0,
        }
    }

    /// How many times what it makes of each token is held at once: of CLIP, that of the last layer
    /// and of that before it, and once more when both encoders' come together.
    pub fn copies(&self) -> u64 {
        if matches!(self, Filled(..)) { 1 } else { 3 }
    }

    /// The most tokens of a text, but for those of pictures.
    pub fn tokens(&self) -> usize {
        match self {
            Clip(part) => part.config.config.sizes.positions,
            T5(_, tokens) => *tokens,
            Qwen3(_) | Filled(..) => MOST_TOKENS,
            QwenVl(_, prompt) => prompt.unseen_tokens + MOST_TOKENS,
        }
    }

    /// Its tokenizer, of these files, for prompts with so many pictures.
    pub fn tokenizer(
        &self,
        files: PromptTokenizerFiles,
        pictures: usize,
    ) -> Result<PromptTokenizer, Error> {
        match self {
            Clip(_) => files.load(),
            T5(_, tokens) => files.with_length(*tokens).load(),
            Qwen3(_) => {
                files.with_length(MOST_TOKENS).load_chat(ChatAround::Answer { thinks: true })
            }
            Filled(_, around) => files.with_length(MOST_TOKENS).load_filled_chat(*around),
            QwenVl(_, prompt) => {
                files.with_length(self.tokens()).load_between(prompt.around(pictures))
            }
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
            T5(part, _) => part.config.model().activation_bytes(texts, pass.tokens, threads),
            Qwen3(part) | Filled(part, _) | QwenVl(part, _) => {
                part.config.model().activation_bytes(texts, pass.tokens, threads)
            }
        };
        let packed = self.any().packed_bytes(settings, pass.all_tokens());
        // Rows of tables, beside what is passed on.
        let beside_gpu = 4 * pass.all_tokens() * self.width() as u64;
        let alone = PassBytes { activations, on_gpu: activations, beside_gpu, packed };
        alone.and(self.any().adapter_bytes(pass))
    }

    /// Reads texts, of which these are the ids, when it is its turn. `filling` is what fills up
    /// those that are filled up here. Of pictures in all of them the first id and the features are
    /// given.
    pub fn encode(
        &self,
        turn: &Turn<'_>,
        texts: &[Vec<u32>],
        filling: Option<TextFilling>,
        pictures: &[(u32, ImageFeatures)],
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
            T5(part, _) => run(part, turn, |model| {
                let last = model.forward(&texts.concat(), texts.len())?;
                Ok(TextStates { last, lengths: lengths.clone(), penultimate: None, pooled: None })
            }),
            Qwen3(part) => run(part, turn, |model| {
                let last = model.forward(texts)?;
                Ok(TextStates { last, lengths: lengths.clone(), penultimate: None, pooled: None })
            }),
            QwenVl(part, prompt) => {
                let unseen = prompt.unseen_tokens;
                if lengths.iter().any(|tokens| *tokens <= unseen) {
                    return Ok((Err(outsize_models::Error::NoTokens), Stats::default()));
                }
                let (states, stats) = match pictures {
                    [] => states(part, turn, [|model: &DecoderTextEncoder| model.forward(texts)])?,
                    // A pass sees the pictures of one text.
                    pictures => {
                        let seen = |text| {
                            move |model: &DecoderTextEncoder| model.forward_seeing(text, pictures)
                        };
                        states(part, turn, texts.iter().map(|text| seen(text)))?
                    }
                };
                let states = states.map(|states| {
                    let last = left_padded(states);
                    let tokens = last.dims()[1];
                    TextStates {
                        last: last.narrow(1, unseen, tokens - unseen),
                        lengths: lengths.iter().map(|tokens| tokens - unseen).collect(),
                        penultimate: None,
                        pooled: None,
                    }
                });
                Ok((states, stats))
            }
            Filled(part, _) => run(part, turn, |model| {
                let filling = filling.expect("its tokenizer says what fills up a text");
                let last = model.forward_filled(texts, filling)?;
                let lengths = vec![MOST_TOKENS; texts.len()];
                Ok(TextStates { last, lengths, penultimate: None, pooled: None })
            }),
        }
    }
}

/// What passes of a module make of texts, when it is its turn, and what was read.
fn states<C: Component + Send + 'static, P>(
    part: &Part<C>,
    turn: &Turn<'_>,
    passes: impl IntoIterator<Item = P>,
) -> Result<(Result<Vec<Tensor<3>>, outsize_models::Error>, Stats), outsize_core::Error>
where
    P: Fn(&C) -> Result<Tensor<3>, outsize_models::Error>,
{
    turn.module(part).run(|module| {
        let states = passes.into_iter().map(|pass| module.run(pass));
        let states = states.collect::<Result<Vec<_>, outsize_core::Error>>()?;
        Ok((states.into_iter().collect(), module.stats()))
    })?
}

/// Texts `[texts, tokens, width]` f32 one behind the other, with zeros before those that are
/// shorter.
fn left_padded(states: Vec<Tensor<3>>) -> Tensor<3> {
    let longest = states.iter().map(|states| states.dims()[1]).max().unwrap_or_default();
    let padded = states.into_iter().map(|states| {
        let [texts, tokens, width] = states.dims();
        let zeros = Tensor::zeros([texts, longest - tokens, width], (&states.device(), DType::F32));
        if tokens == longest { states } else { Tensor::cat(vec![zeros, states], 1) }
    });
    Tensor::cat(padded.collect(), 0)
}

/// What a module makes of texts, when it is its turn.
fn run<C: Component + Send + 'static>(
    part: &Part<C>,
    turn: &Turn<'_>,
    pass: impl Fn(&C) -> Result<TextStates, outsize_models::Error>,
) -> Result<Encoded, outsize_core::Error> {
    turn.module(part).run(|module| Ok((module.run(pass)?, module.stats())))?
}
