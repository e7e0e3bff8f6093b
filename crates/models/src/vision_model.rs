//! The part of a model that sees images.

use burn::tensor::Tensor;

use crate::{Component, ImageFeatures};

/// A part of a model that makes features of images, which stand among the tokens of a text.
pub trait VisionModel: Component {
    /// How it takes images.
    fn layout(config: &Self::Config) -> PatchLayout;

    /// What stands for an image in a text: of its patches `[patches, values]` f32, which make so
    /// many rows and columns. The patches of a token are one behind the other, and so are the
    /// values of a patch, as the [layout](PatchLayout::order) has them.
    ///
    /// # Panics
    /// If there are not as many patches, or sides are no multiples of a token's.
    fn see(&self, pixels: Tensor<2>, sides: [usize; 2]) -> ImageFeatures;

    /// An upper bound on the bytes of activations that a pass over so many patches holds at once,
    /// its results included, with the scratch memory of attention on so many threads.
    fn activation_bytes(&self, patches: usize, threads: usize) -> u64;
}

/// How images are cut into patches, and where they are in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchLayout {
    /// Pixels of a patch's side.
    pub patch_size: usize,
    /// Patches of a token's side.
    pub merge_size: usize,
    /// Frames of a patch, which are alike.
    pub frames: usize,
    /// Values that a token has as long as it is part of a text.
    pub features: usize,
    /// In what size images are seen.
    pub scaling: ImageScaling,
    /// The token that stands for an image in a prompt.
    pub image_token: u32,
    /// What a text has for an image.
    pub spelling: ImageSpelling,
    /// As [`ImageFeatures::sees_itself`].
    pub sees_itself: bool,
    /// In what order the values of a patch are.
    pub order: PatchOrder,
}

/// In what order the values of a patch are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchOrder {
    /// Colours, of each frames, of each rows.
    ColoursFirst,
    /// Frames, of each colours, of each rows.
    FramesFirst,
    /// Rows, of each columns, of each colours.
    ColoursLast,
}

/// In what size images are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageScaling {
    /// With a least and a most number of pixels, as `Qwen2VLImageProcessor` of `transformers`.
    Pixels,
    /// The same of all frames together, as `Glm4vImageProcessor`.
    PixelsOfFrames,
    /// With a longest side, as `PixtralImageProcessor`.
    LongestEdge,
    /// Of so many pixels a side, whatever its own are, as `Gemma3ImageProcessor`.
    Square(usize),
    /// In the largest size of at most so many tokens, as `Gemma4ImageProcessor`; a side has at most
    /// those here.
    Tokens(usize),
    /// In the grid of at most so many tokens as the checkpoint says whose sides are nearest to
    /// those of the image, as `MuseGlimmerImageProcessor`.
    NearestGrid,
    /// No larger than it is, on black up to whole tokens, as `Kimi_K25ImageProcessor`.
    Padded,
    /// As tiles of so many pixels a side, and as one more where there are several, as
    /// `Llama4ImageProcessor`. They are below one another.
    Tiles(usize),
    /// The same of tiles of so many pixels a side that an image is stretched over, in the rows and
    /// columns that are nearest to its shape, as `GotOcr2ImageProcessor`.
    StretchedTiles(usize),
    /// The same in as many as make it smaller the least, or else larger the least, as
    /// `Cohere2VisionImageProcessor`.
    FittedTiles(usize),
    /// The same of an image that is first made as long as the checkpoint says, in as many as it
    /// then takes, as `Idefics3ImageProcessor`.
    EdgeTiles(usize),
}

/// What a text has for an image beside its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageSpelling {
    /// Nothing that is known.
    Bare,
    /// These tokens before it and behind it, which prompts have.
    Marked([u32; 2]),
    /// The tokens `[IMG_BREAK]` behind each row but the last, and `[IMG_END]` behind that.
    Rows,
    /// `<start_of_image>` before it and `<end_of_image>` behind it, between empty lines. Prompts
    /// have the first alone.
    Framed,
    /// These tokens before it and behind it, which prompts do not have.
    Wrapped([u32; 2]),
    /// The same of the tokens with these names.
    Named([&'static str; 2]),
    /// These tokens, by their names: before it, behind each of its tiles, and behind it. Prompts
    /// have the token that stands for an image.
    NamedTiles([&'static str; 3]),
    /// Texts of Aya Vision: `<|START_OF_IMG|>` before it, `TILE_1` and so on before each of its
    /// tiles, `TILE_GLOBAL` before all of it, and `<|END_OF_IMG|>` behind it. Prompts have
    /// `<image>`.
    NumberedTiles,
    /// Texts of Idefics3: before each of its tiles `<fake_token_around_image>` and its place, such
    /// as `<row_1_col_2>`, before all of it `<global-img>` in place of that; a line for each row of
    /// tiles, and an empty one; and `<fake_token_around_image>` behind it. Prompts have the token
    /// that stands for an image.
    PlacedTiles,
    /// Tiles, which `<|tile_x_separator|>` and `<|tile_y_separator|>` are between and behind the
    /// rows of, and `<|image|>` and all of it in one more; between `<|image_start|>` and
    /// `<|image_end|>`. Prompts have `<|image|>` alone.
    Tiles,
    /// This text, in prompts that do not have the token which stands for an image.
    Quoted {
        /// That token.
        token: &'static str,
        /// What stands for an image then.
        text: &'static str,
    },
}

impl PatchLayout {
    /// Values of a patch.
    pub fn patch_values(&self) -> usize {
        3 * self.frames * self.patch_size * self.patch_size
    }

    /// Patches of a token.
    pub fn merged(&self) -> usize {
        self.merge_size * self.merge_size
    }

    /// Pixels of a token's side.
    pub fn unit(&self) -> usize {
        self.patch_size * self.merge_size
    }
}

/// Row and column of each patch, in the order in which the patches of a token are one behind the
/// other.
pub(crate) fn patch_places([rows, columns]: [usize; 2], merge: usize) -> Vec<[usize; 2]> {
    let token = |row, column| {
        (0..merge).flat_map(move |down| (0..merge).map(move |right| [row + down, column + right]))
    };
    let tokens = |row| (0..columns).step_by(merge).flat_map(move |column| token(row, column));
    (0..rows).step_by(merge).flat_map(tokens).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_of_a_token_are_neighbours() {
        let places = patch_places([2, 4], 2);
        let expected = [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]];
        assert_eq!(places, expected);
    }
}
