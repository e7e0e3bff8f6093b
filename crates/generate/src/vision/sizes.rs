//! In what sizes images are seen.

/// In what sizes images are seen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ImageSizes {
    /// Of a least and a most number of pixels.
    Pixels([usize; 2]),
    /// The same of so many frames together; sides shorter than a token's are first made as long.
    PixelsOfFrames([usize; 2], usize),
    /// Of a longest side, and of at most so many tokens.
    LongestEdge(usize, usize),
    /// Of so many pixels a side.
    Square(usize),
    /// Of at most so many tokens, and of so many a side.
    Tokens([usize; 2]),
}

impl ImageSizes {
    /// Width and height in which an image of such is seen, multiples of a token's, which has so many pixels a side.
    pub fn seen(self, size: [usize; 2], unit: usize) -> [usize; 2] {
        match self {
            Self::Pixels(pixels) => within_pixels(size, unit, pixels.map(|n| n as f64)),
            Self::PixelsOfFrames(pixels, frames) => {
                let [width, height] = size.map(|side| side as f64);
                let stretch = (unit as f64 / width.min(height)).max(1.0);
                let size = [width, height].map(|side| (side * stretch) as usize);
                within_pixels(size, unit, pixels.map(|n| n as f64 / frames as f64))
            }
            Self::Square(side) => [side; 2],
            Self::Tokens(most) => within_tokens(size, unit, most),
            Self::LongestEdge(longest, most) => within_edge(size, unit, longest, most),
        }
    }

    /// The most tokens of any image, where the checkpoint says it.
    pub fn most_tokens(self, unit: usize) -> Option<usize> {
        match self {
            Self::Square(side) => Some((side / unit).pow(2)),
            Self::Tokens([most, _]) => Some(most),
            Self::Pixels(_) | Self::PixelsOfFrames(..) | Self::LongestEdge(..) => None,
        }
    }
}

/// As `smart_resize` of `transformers`.
fn within_pixels(size: [usize; 2], unit: usize, [least, most]: [f64; 2]) -> [usize; 2] {
    let (unit, sides) = (unit as f64, size.map(|side| side as f64));
    // As Python rounds: to the even one of two that are as near.
    let mut seen = sides.map(|side| (side / unit).round_ties_even() * unit);
    if seen[0] * seen[1] > most {
        let shrink = (sides[0] * sides[1] / most).sqrt();
        seen = sides.map(|side| ((side / shrink / unit).floor() * unit).max(unit));
    } else if seen[0] * seen[1] < least {
        let stretch = (least / (sides[0] * sides[1])).sqrt();
        seen = sides.map(|side| (side * stretch / unit).ceil() * unit);
    }
    seen.map(|side| side as usize)
}

/// As `get_aspect_ratio_preserving_size`, of at most so many tokens and of so many a side.
fn within_tokens(size: [usize; 2], unit: usize, [most, most_side]: [usize; 2]) -> [usize; 2] {
    let [width, height] = size.map(|side| side as f64);
    let (side, all) = (unit as f64, (most * unit * unit) as f64);
    let factor = (all / (width * height)).sqrt();
    let seen = match [width, height].map(|length| (factor * length / side).floor() as usize) {
        [_, 0] => [(size[0] / size[1]).clamp(1, most), 1],
        [0, _] => [1, (size[1] / size[0]).clamp(1, most)],
        seen => seen,
    };
    seen.map(|tokens| tokens.min(most_side) * unit)
}

/// As `get_resize_output_image_size`, with shorter sides where that would be too many tokens.
fn within_edge(size: [usize; 2], unit: usize, longest: usize, most: usize) -> [usize; 2] {
    let mut longest = longest;
    loop {
        let ratio = size.map(|side| side as f64 / longest as f64).into_iter().fold(1.0, f64::max);
        let seen = size.map(|side| ((side as f64 / ratio) as usize).max(1).div_ceil(unit));
        if seen[0] * seen[1] <= most || longest <= unit {
            return seen.map(|side| side * unit);
        }
        longest = longest.min(seen[0].max(seen[1]) * unit) - unit;
        longest = longest.max(unit);
    }
}
