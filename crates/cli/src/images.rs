//! Images that the arguments give.

use crate::args::{ModelArgs, PromptImageArgs};
use crate::error::Failure;
use crate::views::output::say;
use crate::{interrupt, model};
use outsize::core::process_bytes;
use outsize::generate::{
    EncodedImage, Error as TextError, ImageIds, ImageInput, Pipeline, Tokenizer, VisionEncoder,
    framed, image_place, place_images,
};
use outsize::machine::{Machine, begun_rss};
use outsize::models::{ImageSpelling, PatchLayout};
use outsize::plan::Tier;
use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

/// Tokens of an image, or of all of a conversation, unless the arguments say otherwise.
pub const IMAGE_TOKENS: usize = 1024;

/// The images of a prompt, as the model takes them.
#[derive(Debug)]
pub struct PromptImages {
    /// Each with the ids of its tokens.
    encoded: Vec<(Range<u32>, EncodedImage)>,
    layout: PatchLayout,
    /// What they take while the model runs.
    pub bytes: u64,
    /// As [`VisionEncoder::least_pass`].
    pub least_pass: usize,
}

impl PromptImages {
    /// Reads and encodes the images, before the language model is there; nothing without any.
    pub fn new(
        args: &PromptImageArgs,
        model_args: &ModelArgs,
        quiet: bool,
    ) -> Result<Option<Self>, Failure> {
        if args.image.is_empty() {
            let unused = [
                ("--image-tokens", args.image_tokens.is_some()),
                ("--mmproj", args.mmproj.is_some()),
            ];
            return match unused.into_iter().find(|(_, given)| *given) {
                Some((flag, _)) => Err(Failure::usage(format!("{flag}: give --image"))),
                None => Ok(None),
            };
        }
        let most_tokens = args.image_tokens.unwrap_or(IMAGE_TOKENS);
        let encoder = encoder(model_args, args.mmproj.as_deref(), most_tokens)?;
        let encoder = encoder.ok_or_else(sees_none)?;
        let images = args.image.iter().map(ImageInput::read).collect::<Result<Vec<_>, _>>()?;
        let tokens = encoder.tokens(&images)?;
        let budget = match &model_args.max_memory {
            Some(budget) => budget.clone(),
            None => model::max_memory(model_args, &Machine::detect()),
        };
        let budget = budget.get(Tier::Cpu).unwrap_or(u64::MAX);
        let process = process_bytes(begun_rss().unwrap_or(0));
        let encoded = encoder.encode(&images, (budget, process), |image| {
            if !quiet {
                say(seen(&encoder, image));
            }
        })?;
        let mut ids = ImageIds::default();
        let with_ids = |image: EncodedImage| Ok((ids.take(image.features.tokens())?, image));
        Ok(Some(Self {
            encoded: encoded.into_iter().map(with_ids).collect::<Result<_, TextError>>()?,
            layout: encoder.layout().clone(),
            bytes: encoder.held_bytes(tokens),
            least_pass: encoder.least_pass(),
        }))
    }

    /// The ids of a prompt with those of its images: in the places that it has for them, or before
    /// its text if it has none.
    pub fn place_in(&self, prompt: Vec<u32>, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
        let image_token = image_place(&self.layout, tokenizer)?;
        let place = match self.layout.spelling {
            ImageSpelling::Marked([begin, end]) => vec![begin, image_token, end],
            // What is before and behind it is put there with it, or stands in the text by now.
            _ => vec![image_token],
        };
        let mut prompt = prompt;
        if !prompt.contains(&image_token) {
            // Behind the tokens that any text begins with.
            let begin = tokenizer.encode("", true)?;
            let begin = begin.iter().zip(&prompt).take_while(|(begin, id)| begin == id).count();
            prompt.splice(begin..begin, place.repeat(self.encoded.len()));
        }
        let placed = self.encoded.iter().map(|(ids, image)| (ids.clone(), image.tokens));
        Ok(place_images(&prompt, placed, &self.layout, tokenizer)?)
    }

    /// The text of a prompt as it is read.
    pub fn framed<'p>(&self, prompt: &'p str) -> Cow<'p, str> {
        framed(prompt, self.encoded.len(), self.layout.spelling)
    }

    /// Has the model find them.
    pub fn add_to(self, pipeline: &mut Pipeline) -> Result<(), Failure> {
        for (ids, image) in self.encoded {
            pipeline.add_image(ids.start, image.features)?;
        }
        Ok(())
    }
}

/// The vision encoder of a model that sees images; `file` is what is given to --mmproj.
pub fn encoder(
    args: &ModelArgs,
    file: Option<&Path>,
    most_tokens: usize,
) -> Result<Option<VisionEncoder>, Failure> {
    let encoder = match file {
        Some(_) if args.model.is_dir() => {
            let what = "--mmproj: this model is a folder, which has its vision encoder in it";
            return Err(Failure::usage(what));
        }
        Some(file) => Some(VisionEncoder::open_gguf(&args.model, file, most_tokens)?),
        None => VisionEncoder::open(&args.model, most_tokens)?,
    };
    Ok(encoder.map(|encoder| encoder.with(args.dtypes.compute, Some(interrupt::flag()))))
}

/// The refusal of images for a model that sees none.
pub fn sees_none() -> Failure {
    let known: Vec<_> = VisionEncoder::model_types().collect();
    let known = known.join(", ");
    Failure::usage(format!(
        "--image: this model sees no images, or not here: those that do are {known}; a GGUF file needs that of its vision encoder beside it, or at --mmproj"
    ))
}

/// One line on an image.
pub fn seen(encoder: &VisionEncoder, image: &ImageInput) -> String {
    let processor = encoder.processor();
    let ([width, height], name) = (image.size(), image.name());
    let tiles = processor.tiles(image.size());
    match (processor.seen(image.size()), processor.tokens(image.size())) {
        (Ok([seen_width, seen_height]), Ok(tokens)) => {
            let of_tiles = if tiles == 1 { String::new() } else { format!("{tiles} tiles of ") };
            let seen_height = seen_height / tiles;
            format!(
                "{name}: {width} x {height}, seen as {of_tiles}{seen_width} x {seen_height}: {tokens} tokens"
            )
        }
        _ => format!("{name}: {width} x {height}"),
    }
}
