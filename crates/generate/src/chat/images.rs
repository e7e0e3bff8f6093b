//! Images of a conversation.

use std::borrow::Cow;
use std::ops::Range;

use outsize_plan::Error as PlanError;

use super::message::ChatMessage;
use crate::error::Error;
use crate::pipeline::{Pipeline, PipelineError};
use crate::tokenizer::Tokenizer;
use crate::vision::{EncodedImage, ImageIds, ImageInput, VisionEncoder, framed, place_images};

/// The most bytes of the files of a conversation's images.
const FILE_BYTES: u64 = 8 << 20;

/// Images that a conversation may have: what encodes them, and how much memory that has.
#[derive(Debug)]
pub struct ChatImages {
    encoder: VisionEncoder,
    /// Tokens of all images of a conversation.
    most_tokens: usize,
    /// What encoding may take beside the process and the language model, in bytes.
    budget: u64,
    ids: ImageIds,
    /// Images that the KV cache holds.
    seen: Vec<SeenImage>,
}

/// An image that the KV cache holds.
#[derive(Debug)]
struct SeenImage {
    input: ImageInput,
    ids: Range<u32>,
    /// Rows and columns of its tokens.
    tokens: [usize; 2],
}

impl ChatImages {
    /// Images of up to `most_tokens` tokens together, which are encoded while the language model is
    /// in memory.
    ///
    /// # Errors
    /// As [`VisionEncoder::least_bytes`].
    pub fn new(encoder: VisionEncoder, most_tokens: usize) -> Result<Self, PipelineError> {
        let budget = encoder.least_bytes(most_tokens)?.saturating_add(FILE_BYTES);
        let (ids, seen) = (ImageIds::default(), Vec::new());
        Ok(Self { encoder, most_tokens, budget, ids, seen })
    }

    /// Bytes that are to be [counted](crate::GenerationWorkload::images) beside the language model:
    /// of what encodes, and of the images of a conversation.
    pub fn bytes(&self) -> u64 {
        // Files come in requests, and are decoded from text.
        let files = 2 * FILE_BYTES;
        [self.encoder.held_bytes(self.most_tokens), files]
            .into_iter()
            .fold(self.budget, u64::saturating_add)
    }

    /// As [`VisionEncoder::least_pass`].
    pub fn least_pass(&self) -> usize {
        self.encoder.least_pass()
    }

    /// The text of a conversation as it is read.
    pub(super) fn framed<'p>(&self, prompt: &'p str, messages: &[ChatMessage]) -> Cow<'p, str> {
        let images = messages.iter().map(|message| message.images.len()).sum();
        framed(prompt, images, self.encoder.layout().spelling)
    }

    /// Has the KV cache hold the images of a conversation, and no others.
    pub(super) fn see(
        &mut self,
        messages: &[ChatMessage],
        pipeline: &mut Pipeline,
    ) -> Result<(), PipelineError> {
        let images = || messages.iter().flat_map(|message| &message.images).map(|(_, image)| image);
        let tokens = images().map(|image| self.encoder.processor().tokens(image.size()));
        let tokens = tokens.sum::<Result<usize, Error>>()?;
        if tokens > self.most_tokens {
            return Err(Error::ImageTokens { tokens, most: self.most_tokens }.into());
        }
        let files: u64 = images().map(ImageInput::len).sum();
        if files > FILE_BYTES {
            return Err(Error::ImageFiles { bytes: files, most: FILE_BYTES }.into());
        }
        self.seen.retain(|seen| images().any(|wanted| *wanted == seen.input));
        let kept = self.seen.iter().map(|seen| seen.ids.start).collect::<Vec<_>>();
        pipeline.retain_images(|ids| kept.contains(&ids.start));
        for image in images() {
            if self.find(image).is_some() {
                continue;
            }
            // One after the other: that is what the memory is for.
            let image = std::slice::from_ref(image);
            let encoded = self.encoder.encode(image, (self.budget, 0), |_| {});
            for encoded in encoded.map_err(|error| too_large(error, &image[0]))? {
                let ids = self.ids.take(encoded.features.tokens())?;
                let EncodedImage { input, tokens, features } = encoded;
                pipeline.add_image(ids.start, features)?;
                self.seen.push(SeenImage { input, ids, tokens });
            }
        }
        Ok(())
    }

    fn find(&self, image: &ImageInput) -> Option<&SeenImage> {
        self.seen.iter().find(|seen| seen.input == *image)
    }

    /// The tokens of a conversation with those of its images, which are held.
    pub(super) fn place_in(
        &self,
        ids: &[u32],
        messages: &[ChatMessage],
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, Error> {
        let images = messages.iter().flat_map(|message| &message.images);
        let seen = images.filter_map(|(_, image)| self.find(image));
        let placed = seen.map(|seen| (seen.ids.clone(), seen.tokens));
        place_images(ids, placed, self.encoder.layout(), tokenizer)
    }
}

/// An image of more pixels than there is memory to decode.
fn too_large(error: PipelineError, image: &ImageInput) -> PipelineError {
    match error {
        PipelineError::Core(outsize_core::Error::Plan(PlanError::TooSmall(_))) => {
            let [width, height] = image.size();
            let name = image.name().to_owned();
            Error::ImageSize { name, width, height }.into()
        }
        error => error,
    }
}
