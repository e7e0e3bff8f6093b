//! The tiles of an image that vision encoders see one by one, each with one token more than its
//! patches.

use super::vision_fields::MAX_PATCH;
use crate::config::Fields;
use crate::pass_shape::pixel_attention_scratch;
use crate::{Activations, Error, PicturePass, WeightUse};

/// The most pixels of a tile's side.
const MAX_SIDE: usize = 1 << 12;

/// The sides of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VisionTile {
    /// Pixels of its side.
    pub image_size: usize,
    /// Pixels of a patch's side; divide those of the tile.
    pub patch_size: usize,
    /// Patches of a token's side; divide those of the tile.
    pub merge_size: usize,
}

impl VisionTile {
    /// As the encoder's fields say, and `ratio` of `fields`: what part of the patches of a side
    /// tokens are, half of them if it is absent.
    pub(super) fn read(
        vision: &Fields<'_>,
        (fields, ratio): (&Fields<'_>, &str),
    ) -> Result<Self, Error> {
        let image_size = square(vision, "image_size", 448, MAX_SIDE)?;
        let patch_size = square(vision, "patch_size", 14, MAX_PATCH)?;
        if !image_size.is_multiple_of(patch_size) {
            let expected = format!("it must divide image_size, {image_size}");
            return Err(vision.refuse("patch_size", expected));
        }
        let patches = image_size / patch_size;
        let part = fields.number_within_or(ratio, 0.5, 1e-3, 1.0)?;
        let merge_size = part.recip().round() as usize;
        if (part * merge_size as f64 - 1.0).abs() > 1e-6 || !patches.is_multiple_of(merge_size) {
            let expected = format!(
                "it must be one divided by a number that divides the patches of a tile's side, {patches}"
            );
            return Err(fields.refuse(ratio, expected));
        }
        Ok(Self { image_size, patch_size, merge_size })
    }

    /// Patches of its side.
    pub(super) fn side(&self) -> usize {
        self.image_size / self.patch_size
    }

    /// Patches.
    pub(super) fn patches(&self) -> usize {
        self.side() * self.side()
    }

    /// Tokens that it has in the encoder.
    pub(super) fn tokens(&self) -> usize {
        self.patches() + 1
    }

    /// Tokens that the language model has for so many patches.
    fn features(&self, patches: u64) -> u64 {
        patches / (self.merge_size * self.merge_size) as u64
    }

    /// As [`Component::weight_use`](crate::Component::weight_use); of weights that are used for
    /// each token of the language model, or for each patch.
    pub(super) fn weight_use(
        &self,
        path: &str,
        pass: &PicturePass,
        is_of_token: bool,
    ) -> WeightUse {
        let patches = pass.latents.pixels();
        match is_of_token {
            true => WeightUse::of_rows(self.features(patches)),
            false => WeightUse {
                rows: patches,
                attended: if path.contains(".q_proj.") { self.tokens() as u64 } else { 0 },
            },
        }
    }

    /// What an encoder takes for tiles of so many patches, on so many threads: with blocks of such
    /// a width, heads and width of the MLP's inner layer; while features are made of the states,
    /// for each token `of_token` values; and `more` values all the time.
    pub(super) fn activation_bytes(
        &self,
        [patches, threads]: [usize; 2],
        [hidden, heads, inner]: [usize; 3],
        of_token: usize,
        more: usize,
    ) -> u64 {
        let tiles = patches.div_ceil(self.patches());
        let count = (tiles * self.tokens()) as u64;
        let shape = [tiles, self.tokens(), self.tokens()];
        let scratch = pixel_attention_scratch(shape, heads, hidden / heads, threads);
        let [hidden, inner] = [hidden, inner].map(|width| width as u64);
        let pixels = 3 * (self.patch_size * self.patch_size) as u64;
        // The norm's output, queries, keys and values, one of them normed or rotated, and what
        // attention gives; or the inner layer and a copy; or the pixels, with what is made of
        // them, once more with the class and with positions; beside the residual stream.
        let block = (7 * hidden).max(2 * hidden + 2 * inner).max(pixels + 3 * hidden);
        // Beside the residual stream the states, normed and without the class.
        let features = self.features(patches as u64).saturating_mul(of_token as u64);
        let last = count.saturating_mul(3 * hidden) + features;
        let values = count.saturating_mul(block).max(last) + count.saturating_mul(hidden);
        Activations::values(values + more as u64).with_scratch(scratch).bytes()
    }
}

/// A number, or a list of it for both sides.
fn square(fields: &Fields<'_>, field: &str, default: usize, most: usize) -> Result<usize, Error> {
    let Some(value) = fields.get(field) else { return Ok(default) };
    let sides = match value.as_array() {
        Some(sides) => sides.iter().map(serde_json::Value::as_u64).collect::<Option<Vec<_>>>(),
        None => value.as_u64().map(|side| vec![side; 2]),
    };
    match sides.as_deref() {
        Some([one, other]) if one == other && (1..=most as u64).contains(one) => Ok(*one as usize),
        _ => Err(fields.refuse(field, format!("both sides must be one number from 1 to {most}"))),
    }
}
