//! Pixels as a vision encoder takes them, by `preprocessor_config.json`.

use std::path::{Path, PathBuf};

use half::bf16;
use outsize_checkpoint::{parse_object, read_object};
use outsize_models::{ImageScaling, PatchLayout, PatchOrder};
use outsize_picture::Picture;
use serde_json::{Map, Value};

use super::ImageInput;
use super::processor_file::{ImageSettings, ProcessorFile};
use super::sizes::ImageSizes;
use crate::error::{Error, Result};

/// Width and height of a photograph, as phones take it.
const PHOTOGRAPH: [usize; 2] = [4080, 3072];

/// One side of an image may be so many times as long as the other.
const MOST_ASPECT: usize = 200;

/// Makes of a picture the patches that a vision encoder takes, as processors of `transformers` do.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageProcessor {
    layout: PatchLayout,
    settings: ImageSettings,
}

impl ImageProcessor {
    /// The file that says it, and the one of newer checkpoints that has the same as one of its
    /// objects.
    pub const FILES: [&'static str; 2] = ["preprocessor_config.json", "processor_config.json"];

    /// Reads what the checkpoint in `folder` says, for an encoder that takes images so.
    ///
    /// # Errors
    /// Neither file, one that is not JSON, or a value that is not possible.
    pub fn open(folder: &Path, layout: &PatchLayout) -> Result<Self> {
        for file in Self::FILES {
            let path = folder.join(file);
            let Some(object) = read_object(&path)? else { continue };
            if let Some(processor) = Self::of_file(path, object, layout) {
                return processor;
            }
        }
        Err(Error::NoImageProcessor { folder: folder.to_owned() })
    }

    /// The same of what one of [`FILES`](Self::FILES) holds, at `path`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn parse(path: &Path, text: &str, layout: &PatchLayout) -> Result<Self> {
        let object = parse_object(path, text.as_bytes())?;
        let folder = path.parent().unwrap_or(path);
        let missing = || Err(Error::NoImageProcessor { folder: folder.to_owned() });
        Self::of_file(path.to_owned(), object, layout).unwrap_or_else(missing)
    }

    /// Of a file that says something of images.
    fn of_file(
        path: PathBuf,
        mut object: Map<String, Value>,
        layout: &PatchLayout,
    ) -> Option<Result<Self>> {
        if path.ends_with(Self::FILES[1]) {
            match object.remove("image_processor") {
                Some(Value::Object(of_images)) => object = of_images,
                _ => return None,
            }
        }
        // As Kimi K2.5 is published.
        if let Some(Value::Object(of_media)) = object.remove("media_proc_cfg") {
            object = of_media;
        }
        let settings = ProcessorFile { path, object }.settings(layout);
        Some(settings.map(|settings| Self { layout: layout.clone(), settings }))
    }

    /// The same for images of at most so many tokens.
    pub fn with_most_tokens(mut self, tokens: usize) -> Self {
        let unit = self.layout.unit();
        match &mut self.settings.sizes {
            ImageSizes::Pixels([least, most]) => {
                *most = (*most).min(tokens.max(1).saturating_mul(unit * unit));
                *least = (*least).min(*most);
            }
            ImageSizes::PixelsOfFrames([least, most], frames) => {
                *most = (*most).min(tokens.max(1).saturating_mul(unit * unit * *frames));
                *least = (*least).min(*most);
            }
            ImageSizes::LongestEdge(_, most) => *most = tokens.max(1),
            ImageSizes::Tokens([most, _]) | ImageSizes::NearestGrid(most) => {
                *most = tokens.clamp(1, *most);
            }
            ImageSizes::Padded([.., most], _) => *most = tokens.max(1),
            ImageSizes::Tiles(tiles) => {
                *tiles = tiles.with_most(tokens / (tiles.side / unit).pow(2));
            }
            // All take as many.
            ImageSizes::Square(_) => {}
        }
        self
    }

    /// The most tokens of any image, where the checkpoint says it.
    pub(crate) fn most_tokens(&self) -> Option<usize> {
        self.settings.sizes.most_tokens(self.layout.unit())
    }

    /// Width and height in which an image is seen, multiples of a token's.
    ///
    /// # Errors
    /// An image of which one side is more than 200 times as long as the other.
    pub fn seen(&self, [width, height]: [usize; 2]) -> Result<[usize; 2]> {
        if width.max(height) > MOST_ASPECT * width.min(height) {
            return Err(Error::ImageAspect { width, height });
        }
        Ok(self.settings.sizes.seen([width, height], self.layout.unit()))
    }

    /// How many tiles that is, which are below one another: one, of encoders that see images whole.
    pub fn tiles(&self, size: [usize; 2]) -> usize {
        match self.settings.sizes {
            ImageSizes::Tiles(tiles) => tiles.count(size),
            _ => 1,
        }
    }

    /// Tokens that an image of so many pixels takes.
    ///
    /// # Errors
    /// As [`seen`](Self::seen).
    pub fn tokens(&self, size: [usize; 2]) -> Result<usize> {
        let [width, height] = self.seen(size)?;
        let unit = self.layout.unit();
        Ok(width / unit * (height / unit))
    }

    /// Rows and columns of patches of an image of so many pixels.
    ///
    /// # Errors
    /// As [`seen`](Self::seen).
    pub fn grid(&self, size: [usize; 2]) -> Result<[usize; 2]> {
        let [width, height] = self.seen(size)?;
        Ok([height, width].map(|side| side / self.layout.patch_size))
    }

    /// Rows and columns of its tokens, where they are as on the image: of tiles without the one
    /// that has all of it.
    ///
    /// # Errors
    /// As [`seen`](Self::seen).
    pub fn token_grid(&self, size: [usize; 2]) -> Result<[usize; 2]> {
        let [width, height] = self.seen(size)?;
        let unit = self.layout.unit();
        Ok(match self.settings.sizes {
            ImageSizes::Tiles(tiles) => {
                let [columns, rows] = tiles.grid(size);
                [rows, columns].map(|count| count * tiles.side / unit)
            }
            _ => [height, width].map(|side| side / unit),
        })
    }

    /// A picture as patches, `[patches, values]` one behind the other: the patches of a token are
    /// neighbours, and the values of a patch are in the [order](PatchLayout::order) of the layout.
    ///
    /// # Errors
    /// As [`seen`](Self::seen).
    pub fn patches(&self, picture: &Picture) -> Result<Vec<f32>> {
        let size = [picture.width, picture.height];
        let [width, height] = self.seen(size)?;
        let PatchLayout { patch_size: patch, merge_size: merge, frames, .. } = self.layout;
        let (unit, colours) = (self.layout.unit(), self.settings.colours);
        let canvas = self.settings.sizes.canvas(picture, unit, self.settings.filter);
        let mut values = Vec::with_capacity(3 * frames * width * height);
        let value = |row: usize, column: usize, colour: usize| {
            let [subtracted, factor] = colours[colour];
            let byte = f32::from(canvas.byte([row, column], colour));
            match self.layout.scaling {
                // Each step is one of bf16 there.
                ImageScaling::Tiles(_) => {
                    let [byte, subtracted] =
                        [byte, subtracted].map(|it| bf16_rounded(it * self.settings.scale));
                    bf16_rounded(bf16_rounded(byte - subtracted) * (factor / self.settings.scale))
                }
                _ => (byte - subtracted) * factor,
            }
        };
        for (top, left) in (0..height)
            .step_by(unit)
            .flat_map(|top| (0..width).step_by(unit).map(move |left| (top, left)))
        {
            for place in 0..merge * merge {
                let (top, left) = (top + place / merge * patch, left + place % merge * patch);
                if self.layout.order == PatchOrder::ColoursLast {
                    for row in top..top + patch {
                        let columns = left..left + patch;
                        values.extend(columns.flat_map(|column| {
                            (0..3).map(move |colour| value(row, column, colour))
                        }));
                    }
                    continue;
                }
                for plane in 0..3 * frames {
                    let colour = match self.layout.order {
                        PatchOrder::FramesFirst => plane % 3,
                        _ => plane / frames,
                    };
                    for row in top..top + patch {
                        let columns = left..left + patch;
                        values.extend(columns.map(|column| value(row, column, colour)));
                    }
                }
            }
        }
        Ok(values)
    }

    /// An upper bound on the bytes that making patches of a picture of so many pixels takes, both
    /// included.
    pub fn patches_bytes(&self, size: [usize; 2]) -> u64 {
        self.bytes_of(size, 0)
    }

    /// An upper bound on the bytes that an image takes until it is patches, these included.
    pub(crate) fn work_bytes(&self, image: &ImageInput) -> u64 {
        self.bytes_of(image.size(), image.decoding_bytes())
    }

    /// The same of a photograph of 12 megapixels, beside its file.
    pub(crate) fn photograph_bytes(&self) -> u64 {
        let [width, height] = PHOTOGRAPH;
        self.bytes_of(PHOTOGRAPH, (3 * width * height) as u64)
    }

    fn bytes_of(&self, [width, height]: [usize; 2], decoding_bytes: u64) -> u64 {
        let pixels = (width as u64).saturating_mul(height as u64);
        let seen = self.seen([width, height]).unwrap_or([0, 0]);
        let patches = 3 * 4 * (self.layout.frames * seen[0] * seen[1]) as u64;
        let of = |[width, height]: [usize; 2]| Picture { width, height, rgb: Vec::new() };
        let bytes = |[width, height]: [usize; 2]| (3 * width * height) as u64;
        let mut picture = of([width, height]);
        let drawn = self.settings.sizes.drawn([width, height], self.layout.unit());
        let mut resizing = picture.resizing_bytes(drawn[0], drawn[1]);
        if let ImageSizes::Tiles(tiles) = self.settings.sizes {
            if let Some(first) = tiles.first([width, height]) {
                let to_first = picture.resizing_bytes(first[0], first[1]);
                let further = bytes(first) + of(first).resizing_bytes(drawn[0], drawn[1]);
                (resizing, picture) = (to_first.max(further), of(drawn));
            }
            // What is drawn, while all of it is made as one tile.
            resizing = resizing.max(bytes(drawn) + picture.resizing_bytes(tiles.side, tiles.side));
        }
        decoding_bytes.max(3 * pixels + resizing + patches)
    }
}

fn bf16_rounded(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}
