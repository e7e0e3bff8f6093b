//! `preprocessor_config.json`: in what size images are seen, and what becomes of their colours.

use std::path::PathBuf;

use outsize_models::{ImageScaling, PatchLayout};
use outsize_picture::PictureFilter;
use serde_json::{Map, Value};

use super::sizes::ImageSizes;
use super::tiles::{TileChoice, Tiles};
use crate::error::Result;
use crate::json_value::bad_key;

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

/// How images are seen.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ImageSettings {
    pub sizes: ImageSizes,
    pub filter: PictureFilter,
    /// What is subtracted of a colour from 0 to 255, and what the rest is multiplied by.
    pub colours: [[f32; 2]; 3],
    /// What that is multiplied by first.
    pub scale: f32,
}

/// What such a file says of images.
pub(super) struct ProcessorFile {
    pub path: PathBuf,
    pub object: Map<String, Value>,
}

impl ProcessorFile {
    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// For an encoder that takes images so.
    ///
    /// # Errors
    /// A value that is not possible.
    pub fn settings(&self, layout: &PatchLayout) -> Result<ImageSettings> {
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
            | ImageScaling::Tiles(_)
            | ImageScaling::EdgeTiles(_) => [[0.5; 3]; 2],
            ImageScaling::Pixels
            | ImageScaling::PixelsOfFrames
            | ImageScaling::LongestEdge
            | ImageScaling::StretchedTiles(_)
            | ImageScaling::FittedTiles(_) => [CLIP_MEAN, CLIP_DEVIATION],
        };
        let [mean, deviation] = match is_normal {
            true => [mean, deviation],
            false => [self.three("image_mean", mean)?, self.three("image_std", deviation)?],
        };
        let colours = [0, 1, 2].map(|colour| {
            // In one step, as `transformers` does it.
            [(mean[colour] / scale) as f32, (scale / deviation[colour]) as f32]
        });
        Ok(ImageSettings {
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
                    ImageSizes::LongestEdge(self.longest_edge(1024)?, usize::MAX)
                }
                ImageScaling::NearestGrid => {
                    ImageSizes::NearestGrid(self.count("max_image_tokens", 4096)?)
                }
                ImageScaling::Padded => self.padded(layout)?,
                ImageScaling::Tiles(side) => self.tiles(
                    side,
                    16,
                    TileChoice::Fitted { enlarges: self.flag("resize_to_max_canvas", false)? },
                )?,
                ImageScaling::StretchedTiles(side) => {
                    let least = self.count("min_patches", 1)?;
                    self.tiles(side, 12, TileChoice::Stretched { least })?
                }
                ImageScaling::FittedTiles(side) => {
                    let key = "crop_to_patches";
                    if let Some(value) = self.get(key).filter(|value| **value != true) {
                        let expected = "true: images are always seen as tiles";
                        return Err(bad_key(&self.path, key, value, expected));
                    }
                    self.tiles(side, 12, TileChoice::FittedStretched)?
                }
                ImageScaling::EdgeTiles(side) => self.edge_tiles(side)?,
            },
            filter: match self.get("resample") {
                None if matches!(
                    layout.scaling,
                    ImageScaling::Square(_) | ImageScaling::Tiles(_)
                ) =>
                {
                    PictureFilter::Bilinear
                }
                None if matches!(
                    layout.scaling,
                    ImageScaling::NearestGrid | ImageScaling::EdgeTiles(_)
                ) =>
                {
                    PictureFilter::Lanczos
                }
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

    /// Tiles of that side of an image whose longer one is as long as the file says; one, where it
    /// is not split.
    fn edge_tiles(&self, side: usize) -> Result<ImageSizes> {
        let of_tile = self.get("max_image_size").and_then(|size| size.get("longest_edge"));
        if let Some(value) = of_tile.filter(|value| **value != side) {
            let expected = "the image_size of vision_config in config.json";
            return Err(bad_key(&self.path, "max_image_size", value, expected));
        }
        let longest = self.longest_edge(4 * 364)?;
        let all = longest.div_ceil(side).pow(2);
        if all > MOST_TILES {
            let expected = "a longest_edge of at most eight tiles";
            return Err(bad_key(&self.path, "size", &longest.into(), expected));
        }
        let most = if self.flag("do_image_splitting", true)? { all } else { 1 };
        Ok(ImageSizes::Tiles(Tiles { side, most, choice: TileChoice::Edge(longest) }))
    }

    fn flag(&self, key: &'static str, absent: bool) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(absent) };
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

    /// The most patches of an image, and those of a side, under the names of transformers or as
    /// Kimi K2.5 is published.
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
    fn longest_edge(&self, absent: usize) -> Result<usize> {
        let size = self.get("size");
        let edge = size.and_then(|size| size.get("longest_edge").or_else(|| size.get("height")));
        match edge.map(Value::as_u64) {
            None => Ok(absent),
            Some(Some(edge @ 1..=MOST_EDGE)) => Ok(edge as usize),
            Some(_) => {
                let expected = "a number of pixels from 1 to 16,384";
                Err(bad_key(&self.path, "longest_edge", edge.unwrap_or(&Value::Null), expected))
            }
        }
    }

    /// The least and the most pixels, under their new names or their old ones, or those where the
    /// file has none.
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
