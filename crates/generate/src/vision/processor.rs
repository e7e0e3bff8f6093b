//! Pixels as a vision encoder takes them, by `preprocessor_config.json`.

use std::path::{Path, PathBuf};

use half::bf16;
use outsize_checkpoint::{parse_object, read_object};
use outsize_models::{ImageScaling, PatchLayout, PatchOrder};
use outsize_picture::{Picture, PictureFilter};
use serde_json::{Map, Value};

use super::ImageInput;
use super::sizes::ImageSizes;
use super::tiles::{TileChoice, Tiles};
use crate::error::{Error, Result};
use crate::json_value::bad_key;

/// Width and height of a photograph, as phones take it.
const PHOTOGRAPH: [usize; 2] = [4080, 3072];

/// One side of an image may be so many times as long as the other.
const MOST_ASPECT: usize = 200;

/// The most pixels of a side that a checkpoint may ask for.
const MOST_EDGE: u64 = 1 << 14;

/// The most tokens or patches of an image that a checkpoint may ask for.
const MOST_COUNT: u64 = 1 << 16;

/// The most tiles of an image that a checkpoint may ask for.
const MOST_TILES: usize = 64;

/// The most pixels that a checkpoint may ask for.
const MOST_PIXELS: u64 = 1 << 28;

/// Mean and deviation of colours where a checkpoint has none: those of CLIP.
const CLIP_MEAN: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
const CLIP_DEVIATION: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];

/// Makes of a picture the patches that a vision encoder takes, as processors of `transformers` do.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageProcessor {
    layout: PatchLayout,
    sizes: ImageSizes,
    filter: PictureFilter,
    /// What is subtracted of a colour from 0 to 255, and what the rest is multiplied by.
    colours: [[f32; 2]; 3],
    /// What that is multiplied by first.
    scale: f32,
}

impl ImageProcessor {
    /// The file that says it, and the one of newer checkpoints that has the same as one of its objects.
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
        Some(Keys { path, object }.processor(layout))
    }

    /// The same for images of at most so many tokens.
    pub fn with_most_tokens(mut self, tokens: usize) -> Self {
        let unit = self.layout.unit();
        match &mut self.sizes {
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
        self.sizes.most_tokens(self.layout.unit())
    }

    /// Width and height in which an image is seen, multiples of a token's.
    ///
    /// # Errors
    /// An image of which one side is more than 200 times as long as the other.
    pub fn seen(&self, [width, height]: [usize; 2]) -> Result<[usize; 2]> {
        if width.max(height) > MOST_ASPECT * width.min(height) {
            return Err(Error::ImageAspect { width, height });
        }
        Ok(self.sizes.seen([width, height], self.layout.unit()))
    }

    /// How many tiles that is, which are below one another: one, of encoders that see images whole.
    pub fn tiles(&self, size: [usize; 2]) -> usize {
        match self.sizes {
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

    /// Rows and columns of its tokens, where they are as on the image: of tiles without the one that has all of it.
    ///
    /// # Errors
    /// As [`seen`](Self::seen).
    pub fn token_grid(&self, size: [usize; 2]) -> Result<[usize; 2]> {
        let [width, height] = self.seen(size)?;
        let unit = self.layout.unit();
        Ok(match self.sizes {
            ImageSizes::Tiles(tiles) => {
                let [columns, rows] = tiles.grid(size);
                [rows, columns].map(|count| count * tiles.side / unit)
            }
            _ => [height, width].map(|side| side / unit),
        })
    }

    /// A picture as patches, `[patches, values]` one behind the other: the patches of a token are neighbours, and the values of
    /// a patch are in the [order](PatchLayout::order) of the layout.
    ///
    /// # Errors
    /// As [`seen`](Self::seen).
    pub fn patches(&self, picture: &Picture) -> Result<Vec<f32>> {
        let size = [picture.width, picture.height];
        let [width, height] = self.seen(size)?;
        let PatchLayout { patch_size: patch, merge_size: merge, frames, .. } = self.layout;
        let (unit, colours) = (self.layout.unit(), self.colours);
        let canvas = self.sizes.canvas(picture, unit, self.filter);
        let mut values = Vec::with_capacity(3 * frames * width * height);
        let value = |row: usize, column: usize, colour: usize| {
            let [subtracted, factor] = colours[colour];
            let byte = f32::from(canvas.byte([row, column], colour));
            match self.layout.scaling {
                // Each step is one of bf16 there.
                ImageScaling::Tiles(_) => {
                    let [byte, subtracted] =
                        [byte, subtracted].map(|it| bf16_rounded(it * self.scale));
                    bf16_rounded(bf16_rounded(byte - subtracted) * (factor / self.scale))
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

    /// An upper bound on the bytes that making patches of a picture of so many pixels takes, both included.
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
        let picture = Picture { width, height, rgb: Vec::new() };
        let drawn = self.sizes.drawn([width, height], self.layout.unit());
        let mut resizing = picture.resizing_bytes(drawn[0], drawn[1]);
        if let ImageSizes::Tiles(tiles) = self.sizes {
            // What is drawn, while all of it is made as one tile.
            let drawn = (3 * drawn[0] * drawn[1]) as u64;
            resizing = resizing.max(drawn + picture.resizing_bytes(tiles.side, tiles.side));
        }
        decoding_bytes.max(3 * pixels + resizing + patches)
    }
}

fn bf16_rounded(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// The keys of the file.
struct Keys {
    path: PathBuf,
    object: Map<String, Value>,
}

impl Keys {
    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn processor(&self, layout: &PatchLayout) -> Result<ImageProcessor> {
        let of_file = |key| match self.get(key) {
            // As newer checkpoints have it.
            Some(value) => Some(value.get("height").unwrap_or(value)),
            None => None,
        };
        for (key, known) in [
            // Of one processor it is the side of a token.
            ("patch_size", [layout.patch_size, layout.unit()]),
            ("merge_size", [layout.merge_size; 2]),
            ("merge_kernel_size", [layout.merge_size; 2]),
            ("pooling_kernel_size", [layout.merge_size; 2]),
            ("temporal_patch_size", [layout.frames; 2]),
        ] {
            let differs = |value: &&Value| !known.iter().any(|known| **value == *known);
            if let Some(value) = of_file(key).filter(differs) {
                let expected = "the same as vision_config in config.json has";
                return Err(bad_key(&self.path, key, value, expected));
            }
        }
        // The encoder itself normalizes what it is given, from -1 to 1.
        let is_normal = matches!(layout.scaling, ImageScaling::Tokens(_));
        for (key, expected) in
            [("do_resize", true), ("do_rescale", true), ("do_normalize", !is_normal)]
        {
            if let Some(value) = self.get(key).filter(|value| **value != expected) {
                let expected = match expected {
                    true => "true: images are always seen so",
                    false => "false: images are never seen so",
                };
                return Err(bad_key(&self.path, key, value, expected));
            }
        }
        let scale = self.number("rescale_factor")?.unwrap_or(1.0 / 255.0);
        let [mean, deviation] = match layout.scaling {
            ImageScaling::Square(_)
            | ImageScaling::Tokens(_)
            | ImageScaling::NearestGrid
            | ImageScaling::Padded
            | ImageScaling::Tiles(_) => [[0.5; 3]; 2],
            ImageScaling::Pixels
            | ImageScaling::PixelsOfFrames
            | ImageScaling::LongestEdge
            | ImageScaling::StretchedTiles(_) => [CLIP_MEAN, CLIP_DEVIATION],
        };
        let [mean, deviation] = match is_normal {
            true => [mean, deviation],
            false => [self.three("image_mean", mean)?, self.three("image_std", deviation)?],
        };
        let colours = [0, 1, 2].map(|colour| {
            // In one step, as `transformers` does it.
            [(mean[colour] / scale) as f32, (scale / deviation[colour]) as f32]
        });
        Ok(ImageProcessor {
            layout: layout.clone(),
            sizes: match layout.scaling {
                ImageScaling::Pixels => {
                    let area = layout.unit() * layout.unit();
                    ImageSizes::Pixels(self.pixels([4 * area, 1280 * area])?)
                }
                ImageScaling::PixelsOfFrames => {
                    let pixels = self.pixels([112 * 112, 28 * 28 * 15_000])?;
                    ImageSizes::PixelsOfFrames(pixels, layout.frames)
                }
                ImageScaling::Square(side) => ImageSizes::Square(self.square(side)?),
                ImageScaling::Tokens(side) => {
                    ImageSizes::Tokens([self.count("max_soft_tokens", 280)?, side])
                }
                ImageScaling::LongestEdge => {
                    ImageSizes::LongestEdge(self.longest_edge()?, usize::MAX)
                }
                ImageScaling::NearestGrid => {
                    ImageSizes::NearestGrid(self.count("max_image_tokens", 4096)?)
                }
                ImageScaling::Padded => self.padded(layout)?,
                ImageScaling::Tiles(side) => {
                    self.tiles(side, 16, TileChoice::Fitted { enlarges: self.enlarges()? })?
                }
                ImageScaling::StretchedTiles(side) => {
                    let least = self.count("min_patches", 1)?;
                    self.tiles(side, 12, TileChoice::Stretched { least })?
                }
            },
            filter: match self.get("resample") {
                None if matches!(
                    layout.scaling,
                    ImageScaling::Square(_) | ImageScaling::Tiles(_)
                ) =>
                {
                    PictureFilter::Bilinear
                }
                None if layout.scaling == ImageScaling::NearestGrid => PictureFilter::Lanczos,
                None => PictureFilter::Bicubic,
                Some(value) => {
                    value.as_u64().and_then(PictureFilter::of_pillow).ok_or_else(|| {
                        bad_key(
                            &self.path,
                            "resample",
                            value,
                            "1, 2 or 3: Lanczos, bilinear or bicubic",
                        )
                    })?
                }
            },
            colours,
            scale: scale as f32,
        })
    }

    /// Tiles, of a side that the encoder asks for.
    fn tiles(&self, side: usize, absent: usize, choice: TileChoice) -> Result<ImageSizes> {
        let key = "max_patches";
        let most = self.count(key, absent)?;
        if most > MOST_TILES {
            let expected = "a number of tiles from 1 to 64";
            return Err(bad_key(&self.path, key, self.get(key).unwrap_or(&Value::Null), expected));
        }
        Ok(ImageSizes::Tiles(Tiles { side: self.square(side)?, most, choice }))
    }

    /// Whether images are made as large as their tiles.
    fn enlarges(&self) -> Result<bool> {
        let key = "resize_to_max_canvas";
        let Some(value) = self.get(key) else { return Ok(false) };
        value.as_bool().ok_or_else(|| bad_key(&self.path, key, value, "true or false"))
    }

    /// The side of all images, which the encoder asks for.
    fn square(&self, side: usize) -> Result<usize> {
        let of_file =
            ["height", "width"].map(|key| self.get("size").and_then(|size| size.get(key)));
        match of_file.into_iter().flatten().find(|value| **value != side) {
            Some(value) => {
                let expected = "the image_size of vision_config in config.json";
                Err(bad_key(&self.path, "size", value, expected))
            }
            None => Ok(side),
        }
    }

    /// The most patches of an image, and those of a side, under the names of transformers or as Kimi K2.5 is published.
    fn padded(&self, layout: &PatchLayout) -> Result<ImageSizes> {
        if let Some(value) = self.get("fixed_output_tokens") {
            let expected = "null: images have as many tokens as they are large";
            return Err(bad_key(&self.path, "fixed_output_tokens", value, expected));
        }
        let side = match self.get("size").and_then(|size| size.get("max_height")) {
            Some(side) => self.counted("max_height", side)?,
            None => self.count("patch_limit_on_one_side", 512)?,
        };
        let most = self.count("in_patch_limit", 16_384)?;
        let most = self.count("max_patches", most)?;
        Ok(ImageSizes::Padded([most, side, usize::MAX], layout.patch_size))
    }

    /// How many of something an image has at most.
    fn count(&self, key: &'static str, absent: usize) -> Result<usize> {
        self.get(key).map_or(Ok(absent), |value| self.counted(key, value))
    }

    fn counted(&self, key: &'static str, value: &Value) -> Result<usize> {
        match value.as_u64() {
            Some(count @ 1..=MOST_COUNT) => Ok(count as usize),
            _ => Err(bad_key(&self.path, key, value, "a number from 1 to 65,536")),
        }
    }

    /// The longest side, under either of its names.
    fn longest_edge(&self) -> Result<usize> {
        let size = self.get("size");
        let edge = size.and_then(|size| size.get("longest_edge").or_else(|| size.get("height")));
        match edge.map(Value::as_u64) {
            None => Ok(1024),
            Some(Some(edge @ 1..=MOST_EDGE)) => Ok(edge as usize),
            Some(_) => {
                let expected = "a number of pixels from 1 to 16,384";
                Err(bad_key(&self.path, "longest_edge", edge.unwrap_or(&Value::Null), expected))
            }
        }
    }

    /// The least and the most pixels, under their new names or their old ones, or those where the file has none.
    fn pixels(&self, [least, most]: [usize; 2]) -> Result<[usize; 2]> {
        // The old names count before the new ones, as `transformers` has it.
        let of_file = |old: &'static str, key: &'static str| match self.get(old) {
            Some(value) => (old, Some(value)),
            None => (key, self.get("size").and_then(|size| size.get(key))),
        };
        let number = |(key, value): (&'static str, Option<&Value>), absent: usize| match value {
            None => Ok(absent),
            Some(value) => match value.as_u64() {
                Some(pixels @ 1..=MOST_PIXELS) => Ok(pixels as usize),
                _ => Err(bad_key(&self.path, key, value, "a number of pixels from 1 to 2^28")),
            },
        };
        let least = number(of_file("min_pixels", "shortest_edge"), least)?;
        let most = number(of_file("max_pixels", "longest_edge"), most)?;
        Ok([least, most.max(least)])
    }

    fn number(&self, key: &'static str) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64().filter(|number| number.is_finite() && *number > 0.0) {
            Some(number) => Ok(Some(number)),
            None => Err(bad_key(&self.path, key, value, "a number above 0")),
        }
    }

    /// Three numbers above 0, one of each colour.
    fn three(&self, key: &'static str, absent: [f64; 3]) -> Result<[f64; 3]> {
        let Some(value) = self.get(key) else { return Ok(absent) };
        let numbers: Option<Vec<f64>> =
            value.as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
        let three = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
        three
            .filter(|three| three.iter().all(|number| number.is_finite() && *number > 0.0))
            .ok_or_else(|| {
                bad_key(&self.path, key, value, "three numbers above 0, one of each colour")
            })
    }
}
