//! What all tokens of a picture have in common: the time, and what is known of its text as a whole.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{Sinusoids, TimestepEmbedding};
use crate::Init;

/// Sines and cosines of a time.
const TIME_CHANNELS: usize = 256;

/// How these tell it.
const SINUSOIDS: Sinusoids = Sinusoids { cosines_first: true, freq_shift: 0.0 };

/// What guidance is multiplied by, so that it is told as a time is.
const GUIDANCE_SCALE: f32 = 1000.0;

/// The sum of embeddings of a time and of a text.
#[derive(Module, Debug)]
pub struct TimeTextEmbedding {
    timestep_embedder: TimestepEmbedding,
    /// `None` if it is not told how closely to follow the text.
    guidance_embedder: Option<TimestepEmbedding>,
    /// Of what is known of the text as a whole.
    text_embedder: TimestepEmbedding,
}

impl TimeTextEmbedding {
    /// Layers without storage, of texts of so many values, and of guidance too if it is told.
    pub(crate) fn new([pooled, hidden]: [usize; 2], is_guided: bool, init: &Init) -> Self {
        let time = || TimestepEmbedding::new(TIME_CHANNELS, hidden, init);
        Self {
            timestep_embedder: time(),
            guidance_embedder: is_guided.then(time),
            text_embedder: TimestepEmbedding::new(pooled, hidden, init),
        }
    }

    /// The sum of all embeddings, of texts `[batch, pooled]` f32: `[batch, hidden]` f32.
    pub(crate) fn forward(
        &self,
        timestep: f32,
        guidance: Option<f32>,
        pooled: Tensor<2>,
        device: &Device,
    ) -> Tensor<2> {
        let mut sum = self.timestep_embedder.embed(timestep, SINUSOIDS, device);
        if let Some(embedder) = &self.guidance_embedder {
            let guidance = guidance.expect("this model is told how closely to follow the text");
            let more = embedder.embed(guidance * GUIDANCE_SCALE, SINUSOIDS, device);
            sum = sum.clone() + more.to_device(&sum.device());
        }
        let text = self.text_embedder.forward(pooled);
        let sum = sum.to_device(&text.device());
        text + sum
    }
}
