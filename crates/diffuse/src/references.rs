//! Pictures that a picture is to go by: what of them is seen, and what becomes of it.

use crate::error::Error;
use crate::kind::PipelineKind;
use outsize_picture::{COLOURS, Picture, PictureFilter};

/// The most pixels of which all are seen: of a larger picture as many, in its shape. Qwen-Image
/// sees about as many of any picture.
const MOST_PIXELS: usize = 1 << 20;

/// About as many does the text encoder of those that go by several pictures see.
const TOLD_PIXELS: usize = 384 * 384;

/// What the sides of pictures that Qwen-Image sees are multiples of.
const SIDE_UNIT: f64 = 32.0;

/// The shortest side, in pixels, and how much longer than the other one a side may be.
const LEAST_SIDE: usize = 64;
const MOST_RATIO: usize = 8;

/// The latter of pictures that are made larger too.
const MOST_RATIO_RESIZED: usize = 128;

/// Width and height of pictures that FLUX.1 Kontext was trained with.
const KONTEXT_SIZES: [[usize; 2]; 17] = [
    [672, 1568],
    [688, 1504],
    [720, 1456],
    [752, 1392],
    [800, 1328],
    [832, 1248],
    [880, 1184],
    [944, 1104],
    [1024, 1024],
    [1104, 944],
    [1184, 880],
    [1248, 832],
    [1328, 800],
    [1392, 752],
    [1456, 720],
    [1504, 688],
    [1568, 672],
];

/// How a picture to go by is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReferenceSize {
    /// Width and height that it is resized to.
    whole: [usize; 2],
    /// Width and height of the middle of that, which is seen.
    pub seen: [usize; 2],
    /// Width and height of what the text encoder sees, if it does.
    pub told: Option<[usize; 2]>,
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
    /// Of a picture for such a pipeline, of which `unit` columns, or rows, make a token.
    ///
    /// # Errors
    /// [`Error::Reference`]: it is too small, or too long.
    pub fn new(kind: PipelineKind, picture: &Picture, unit: usize) -> Result<Self, Error> {
        let [width, height] = [picture.width, picture.height];
        let (shortest, longest) = (width.min(height), width.max(height));
        let [least, ratio] = match kind.is_flux2() {
            true => [LEAST_SIDE, MOST_RATIO],
            false => [1, MOST_RATIO_RESIZED],
        };
        if shortest < least || longest > shortest.saturating_mul(ratio) {
            return Err(Error::Reference { width, height, least, ratio });
        }
        Ok(match kind {
            PipelineKind::FluxKontext => {
                let seen = whole_units(of_kontext(picture), unit);
                Self { whole: seen, seen, told: None }
            }
            PipelineKind::QwenImageEdit | PipelineKind::QwenImageEditPlus => {
                let seen = whole_units(of_area(picture, MOST_PIXELS), unit);
                let told = match kind {
                    PipelineKind::QwenImageEdit => seen,
                    _ => of_area(picture, TOLD_PIXELS),
                };
                Self { whole: seen, seen, told: Some(told) }
            }
            _ => Self::middle([width, height], unit),
        })
    }

    /// The middle of a picture, smaller if it is too large.
    fn middle(sides @ [width, height]: [usize; 2], unit: usize) -> Self {
        let pixels = width * height;
        let whole = match pixels > MOST_PIXELS {
            // In 64 bits and rounded as diffusers does.
            true => {
                let scale = (MOST_PIXELS as f64 / pixels as f64).sqrt();
                sides.map(|side| (side as f64 * scale) as usize)
            }
            false => sides,
        };
        Self { whole, seen: whole_units(whole, unit), told: None }
    }

    /// Values from -1 to 1 of what is seen, `[rows, columns, colours]`.
    pub fn values(&self, picture: &Picture) -> Vec<f32> {
        let Self { whole: [width, height], seen, .. } = *self;
        let picture = picture.resized(width, height, PictureFilter::Lanczos);
        let [left, top] = [(width, seen[0]), (height, seen[1])].map(|(all, some)| (all - some) / 2);
        let rows = picture.rgb.chunks(COLOURS * width).skip(top).take(seen[1]);
        let rgb = rows.flat_map(|row| &row[COLOURS * left..COLOURS * (left + seen[0])]);
        Picture { width: seen[0], height: seen[1], rgb: rgb.copied().collect() }.values()
    }

    /// What the text encoder sees, if it does.
    pub fn told(&self, picture: &Picture) -> Option<Picture> {
        self.told.map(|[width, height]| picture.resized(width, height, PictureFilter::Lanczos))
    }

    /// An upper bound on the bytes that [`values`](Self::values) or [`told`](Self::told) takes at
    /// once, its result included.
    pub fn work_bytes(&self, picture: &Picture) -> u64 {
        let resizing = |[width, height]: [usize; 2]| picture.resizing_bytes(width, height);
        let told = self.told.map_or(0, resizing);
        told.max(resizing(self.whole) + 5 * COLOURS as u64 * self.pixels())
    }

    /// Pixels that are seen.
    pub fn pixels(&self) -> u64 {
        let [width, height] = self.seen;
        width as u64 * height as u64
    }
}

/// Sides that are multiples of a token's.
fn whole_units(size: [usize; 2], unit: usize) -> [usize; 2] {
    size.map(|side| (side / unit).max(1) * unit)
}

/// The size of FLUX.1 Kontext whose shape is nearest to that of a picture, of two as near the
/// narrower one.
fn of_kontext(picture: &Picture) -> [usize; 2] {
    let ratio = |[width, height]: [usize; 2]| width as f64 / height as f64;
    let own = ratio([picture.width, picture.height]);
    let off = |size: &[usize; 2]| (own - ratio(*size)).abs();
    let nearest = KONTEXT_SIZES.into_iter().min_by(|one, other| off(one).total_cmp(&off(other)));
    nearest.unwrap_or(KONTEXT_SIZES[0])
}

/// Width and height of about so many pixels in the shape of a picture, counted as diffusers does.
fn of_area(picture: &Picture, pixels: usize) -> [usize; 2] {
    let ratio = picture.width as f64 / picture.height as f64;
    let width = (pixels as f64 * ratio).sqrt();
    // As Python rounds: to the even one of two that are as near.
    [width, width / ratio].map(|side| ((side / SIDE_UNIT).round_ties_even() * SIDE_UNIT) as usize)
}
