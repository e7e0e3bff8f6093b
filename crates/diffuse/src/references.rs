//! Pictures that a picture is to go by: what of them is seen, and what becomes of it.

use crate::error::Error;
use outsize_picture::{COLOURS, Picture, PictureFilter};

/// The most pixels of which all are seen: of a larger picture as many, in its shape.
const MOST_PIXELS: usize = 1 << 20;

/// The shortest side, in pixels, and how much longer than the other one a side may be.
const LEAST_SIDE: usize = 64;
const MOST_RATIO: usize = 8;

/// How a picture to go by is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReferenceSize {
    /// Width and height that it is resized to.
    whole: [usize; 2],
    /// Width and height of the middle of that, which is seen.
    pub seen: [usize; 2],
}

/// What the autoencoder makes of pictures to go by, one behind the other.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// Their tokens' values.
    pub tokens: Vec<f32>,
    /// Rows and columns of each in tokens.
    pub sizes: Vec<[usize; 2]>,
}

impl ReferenceSize {
    /// Of a picture of which `unit` columns, or rows, make a token.
    ///
    /// # Errors
    /// [`Error::Reference`]: it is too small, or too long.
    pub fn new(picture: &Picture, unit: usize) -> Result<Self, Error> {
        let sides @ [width, height] = [picture.width, picture.height];
        let (shortest, longest) = (width.min(height), width.max(height));
        if shortest < LEAST_SIDE || longest > shortest.saturating_mul(MOST_RATIO) {
            return Err(Error::Reference { width, height, least: LEAST_SIDE, ratio: MOST_RATIO });
        }
        let pixels = width * height;
        let whole = match pixels > MOST_PIXELS {
            // In 64 bits and rounded as diffusers does.
            true => {
                let scale = (MOST_PIXELS as f64 / pixels as f64).sqrt();
                sides.map(|side| (side as f64 * scale) as usize)
            }
            false => sides,
        };
        Ok(Self { whole, seen: whole.map(|side| (side / unit).max(1) * unit) })
    }

    /// Values from -1 to 1 of what is seen, `[rows, columns, colours]`.
    pub fn values(&self, picture: &Picture) -> Vec<f32> {
        let Self { whole: [width, height], seen } = *self;
        let picture = picture.resized(width, height, PictureFilter::Lanczos);
        let [left, top] = [(width, seen[0]), (height, seen[1])].map(|(all, some)| (all - some) / 2);
        let rows = picture.rgb.chunks(COLOURS * width).skip(top).take(seen[1]);
        let rgb = rows.flat_map(|row| &row[COLOURS * left..COLOURS * (left + seen[0])]);
        Picture { width: seen[0], height: seen[1], rgb: rgb.copied().collect() }.values()
    }

    /// An upper bound on the bytes that [`values`](Self::values) takes at once, its result included.
    pub fn work_bytes(&self, picture: &Picture) -> u64 {
        let [width, height] = self.whole;
        picture.resizing_bytes(width, height) + 5 * COLOURS as u64 * self.pixels()
    }

    /// Pixels that are seen.
    pub fn pixels(&self) -> u64 {
        let [width, height] = self.seen;
        width as u64 * height as u64
    }
}
