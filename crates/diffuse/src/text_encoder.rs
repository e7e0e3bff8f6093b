//! The text encoders of pipelines, whatever their modules.

use burn::tensor::Tensor;
use outsize_models::PicturePass;
use outsize_models::arch::ClipTextModel;
use outsize_stream::Stats;

use crate::error::Error;
use crate::part::{AnyPart, Part, PartDescription, PassBytes, PipelinePart, Turn};
use crate::settings::ImageSettings;

/// A text encoder that is described.
#[derive(Debug)]
pub(crate) enum TextEncoder {
    /// Of CLIP, with a projection or without one.
    Clip(Part<ClipTextModel>),
}

use TextEncoder::Clip;

/// What a text encoder makes of texts, in main memory.
#[derive(Debug)]
pub(crate) struct TextStates {
    /// Of each token, `[texts, tokens, width]` f32.
    pub last: Tensor<3>,
    /// The same before the last layer.
    pub penultimate: Tensor<3>,
    /// Of each text as a whole, `[texts, pooled]` f32.
    pub pooled: Tensor<2>,
}

impl TextEncoder {
    /// The text encoder `part` of the pipeline at `place`.
    pub fn new(
        part: PipelinePart,
        place: &std::path::Path,
        description: &PartDescription,
    ) -> Result<Self, Error> {
        Ok(Clip(Part::new(part, place, description)?))
    }

    pub fn any(&self) -> &dyn AnyPart {
        match self {
            Clip(part) => part,
        }
    }

    /// Width of what it makes of each token.
    pub fn width(&self) -> usize {
        match self {
            Clip(part) => part.config.config.sizes.hidden,
        }
    }

    /// Width of what it makes of a text as a whole.
    pub fn pooled_width(&self) -> usize {
        match self {
            Clip(part) => part.config.config.pooled(),
        }
    }

    /// Tokens of a text.
    pub fn tokens(&self) -> usize {
        match self {
            Clip(part) => part.config.config.sizes.positions,
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
        let (activations, packed) = match self {
            Clip(part) => (
                part.config.model().activation_bytes(texts, pass.tokens, threads),
                part.packed_bytes(settings, pass.all_tokens()),
            ),
        };
        // Rows of tables, beside what is passed on.
        let beside_gpu = 4 * pass.all_tokens() * self.width() as u64;
        PassBytes { activations, on_gpu: activations, beside_gpu, packed }
    }

    /// Reads `texts` texts of equal length, whose ids are one behind the other, when it is its turn.
    pub fn encode(
        &self,
        turn: &Turn<'_>,
        ids: &[u32],
        texts: usize,
    ) -> Result<(Result<TextStates, outsize_models::Error>, Stats), outsize_core::Error> {
        match self {
            Clip(part) => {
                let module = turn.module(part);
                module.run(|module| {
                    let states = module.run(|model| {
                        let states = model.forward(ids, texts)?;
                        let pooled = model.pool(ids, &states.last);
                        Ok(TextStates {
                            last: states.last,
                            penultimate: states.penultimate,
                            pooled,
                        })
                    })?;
                    Ok((states, module.stats()))
                })?
            }
        }
    }
}
