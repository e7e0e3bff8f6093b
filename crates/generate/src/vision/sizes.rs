//! In what sizes images are seen.

use outsize_picture::{Picture, PictureFilter};

use super::tiles::Tiles;

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
    /// In the grid of at most so many tokens whose sides are nearest to those of the image.
    NearestGrid(usize),
    /// No larger than it is, on a ground of whole tokens: of at most so many patches, of so many a
    /// side, and so many tokens; and the side of a patch.
    Padded([usize; 3], usize),
    /// As tiles, below one another.
    Tiles(Tiles),
}

impl ImageSizes {
    /// Width and height in which an image of such is seen, multiples of a token's, which has so
    /// many pixels a side.
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
            Self::NearestGrid(most) => nearest_grid(size, unit, most).map(|tokens| tokens * unit),
            Self::Padded(..) => self.drawn(size, unit).map(|side| side.next_multiple_of(unit)),
            Self::Tiles(tiles) => [tiles.side, tiles.side * tiles.count(size)],
        }
    }

    /// Width and height that the image itself has of that; the rest is black.
    pub fn drawn(self, size: [usize; 2], unit: usize) -> [usize; 2] {
        match self {
            Self::Padded(most, patch) => shrunk(size, unit, most, patch),
            Self::Tiles(tiles) => tiles.drawn(size),
            _ => self.seen(size, unit),
        }
    }

    /// A picture in the size in which it is seen.
    pub fn canvas(self, picture: &Picture, unit: usize, filter: PictureFilter) -> Canvas {
        let size = [picture.width, picture.height];
        let [width, height] = self.drawn(size, unit);
        let first = match self {
            Self::Tiles(tiles) => tiles.first(size),
            _ => None,
        };
        let drawn = match first {
            Some([across, down]) => {
                picture.resized(across, down, filter).resized(width, height, filter)
            }
            None => picture.resized(width, height, filter),
        };
        let tiles = match self {
            Self::Tiles(tiles) => {
                let [columns, rows] = tiles.grid(size);
                let all = if first.is_some() { &drawn } else { picture };
                let whole =
                    (columns * rows > 1).then(|| all.resized(tiles.side, tiles.side, filter));
                Some((tiles.side, [columns, rows], whole))
            }
            _ => None,
        };
        Canvas { drawn, tiles }
    }

    /// The most tokens of any image, where the checkpoint says it.
    pub fn most_tokens(self, unit: usize) -> Option<usize> {
        match self {
            Self::Square(side) => Some((side / unit).pow(2)),
            Self::Tokens([most, _]) => Some(most),
            Self::NearestGrid(most) => Some(most),
            Self::Tiles(tiles) => Some((tiles.side / unit).pow(2) * tiles.most_count()),
            Self::Pixels(_)
            | Self::PixelsOfFrames(..)
            | Self::LongestEdge(..)
            | Self::Padded(..) => None,
        }
    }
}

/// A picture in the size in which it is seen, on black.
pub(super) struct Canvas {
    drawn: Picture,
    /// Of tiles, pixels of a side, columns and rows, and behind them all of it in one more.
    tiles: Option<(usize, [usize; 2], Option<Picture>)>,
}

impl Canvas {
    /// A colour of a pixel in this row and column; tiles are below one another.
    pub fn byte(&self, [row, column]: [usize; 2], colour: usize) -> u8 {
        let of = |picture: &Picture, row: usize, column: usize| {
            let is_drawn = column < picture.width && row < picture.height;
            if is_drawn { picture.rgb[(row * picture.width + column) * 3 + colour] } else { 0 }
        };
        let Some((side, [columns, rows], whole)) = &self.tiles else {
            return of(&self.drawn, row, column);
        };
        let (tile, row) = (row / side, row % side);
        match whole {
            Some(whole) if tile == columns * rows => of(whole, row, column),
            _ => of(&self.drawn, tile / columns * side + row, tile % columns * side + column),
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

/// As `smart_resize` of `MuseGlimmerImageProcessor`. Of two grids that are as near it is the larger
/// one; there it depends on how Python orders a set.
fn nearest_grid(size: [usize; 2], unit: usize, most: usize) -> [usize; 2] {
    let sides = size.map(|side| side as f64 / unit as f64);
    let ratio = sides[0] / sides[1];
    let ideal = match sides[0] * sides[1] > most as f64 {
        true => {
            let rows = (most as f64 / ratio).sqrt();
            [rows * ratio, rows]
        }
        false => sides,
    };
    let off = |[columns, rows]: [usize; 2]| {
        (rows as f64 / columns as f64 - size[1] as f64 / size[0] as f64).abs()
    };
    let both = |side: f64| [side.ceil() as usize, side.floor() as usize];
    let grids = both(ideal[0])
        .into_iter()
        .flat_map(|columns| both(ideal[1]).into_iter().map(move |rows| [columns, rows]));
    let grids = grids.filter(|[columns, rows]| (1..=most).contains(&(columns * rows)));
    let nearest = grids.min_by(|one, other| off(*one).total_cmp(&off(*other)));
    // Of a strip, which is no longer than that either.
    nearest.unwrap_or_else(|| ideal.map(|side| (side.round_ties_even() as usize).clamp(1, most)))
}

/// As `navit_resize` of `Kimi_K25ImageProcessor`, and smaller where that would be too many tokens.
fn shrunk(size: [usize; 2], unit: usize, most: [usize; 3], patch: usize) -> [usize; 2] {
    let [most_patches, most_side, most_tokens] = most;
    let [width, height] = size.map(|side| side as f64);
    let patches = size.map(|side| (side / patch).max(1) as f64);
    let longest = (most_side * patch) as f64;
    let of_patches = (most_patches as f64 / (patches[0] * patches[1])).sqrt();
    let mut scale = of_patches.min(longest / width).min(longest / height).min(1.0);
    loop {
        let drawn =
            [width, height].map(|side| ((side * scale) as usize).clamp(1, most_side * patch));
        let tokens = drawn.map(|side| side.div_ceil(unit));
        if tokens[0] * tokens[1] <= most_tokens || tokens == [1, 1] {
            return drawn;
        }
        // By a token of the longer side at least.
        let longer = tokens[0].max(tokens[1]);
        scale *= ((longer - 1) as f64 / longer as f64).max(0.5);
    }
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
