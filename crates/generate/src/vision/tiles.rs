//! Images as tiles, as `Llama4ImageProcessor`, `GotOcr2ImageProcessor`,
//! `Cohere2VisionImageProcessor` and `Idefics3ImageProcessor` of `transformers` have them.

/// Tiles of so many pixels a side.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tiles {
    /// Pixels of a side.
    pub side: usize,
    /// The most of an image, without the one that has all of it.
    pub most: usize,
    /// How they are chosen.
    pub choice: TileChoice,
}

/// How many tiles an image has, and what it is on them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum TileChoice {
    /// As many as make it smaller the least, or else larger the least, or the most if that is said;
    /// in its own shape, on black.
    Fitted {
        /// Whether an image is made as large as its tiles allow.
        enlarges: bool,
    },
    /// At least so many, in rows and columns that are nearest to its shape; stretched over them.
    Stretched {
        /// The least tiles.
        least: usize,
    },
    /// As many as make it smaller the least, or else larger the least; stretched over them.
    FittedStretched,
    /// Of an image that is first made so long, as many as it is long and wide, stretched over them.
    Edge(usize),
}

impl Tiles {
    /// How many columns and rows of tiles an image of such width and height has.
    pub fn grid(self, size: [usize; 2]) -> [usize; 2] {
        match self.choice {
            TileChoice::Fitted { enlarges } => {
                // Of 32 bits, as PyTorch divides there.
                self.fitted(enlarges, |at, pixels| f64::from(pixels as f32 / size[at] as f32))
            }
            TileChoice::Stretched { least } => self.nearest(size, least),
            TileChoice::FittedStretched => {
                self.fitted(false, |at, pixels| pixels as f64 / size[at] as f64)
            }
            TileChoice::Edge(longest) => self.along_edge(size, longest).1,
        }
    }

    /// Width and height that an image is first made, before it is stretched over its tiles.
    pub fn first(self, size: [usize; 2]) -> Option<[usize; 2]> {
        let TileChoice::Edge(longest) = self.choice else { return None };
        Some(self.along_edge(size, longest).0)
    }

    /// What an image is first made, and its columns and rows of tiles, with a longer side as near
    /// to `longest` as there may be tiles for.
    fn along_edge(self, size: [usize; 2], longest: usize) -> ([usize; 2], [usize; 2]) {
        let of = |longest: usize| {
            let shorter = shorter_side(size, longest).next_multiple_of(2).max(1);
            let first = oriented(size, longest, shorter);
            let longer = first[0].max(first[1]).next_multiple_of(self.side);
            let shorter = shorter_side(first, longer).max(1).next_multiple_of(self.side);
            (first, oriented(first, longer, shorter).map(|pixels| pixels / self.side))
        };
        if self.most == 1 {
            return (of(longest).0, [1; 2]);
        }
        let limits = (1..=longest.div_ceil(self.side)).rev().map(|tiles| tiles * self.side);
        let mut found = limits.map(|limit| of(longest.min(limit)));
        let fits = found.find(|(_, [columns, rows])| columns * rows <= self.most);
        fits.unwrap_or_else(|| of(longest.min(self.side)))
    }

    /// Those of the nearest shape: of several the most whose pixels are less than twice those of
    /// the image.
    fn nearest(self, [width, height]: [usize; 2], least: usize) -> [usize; 2] {
        let of_columns = |columns| (1..=self.most / columns).map(move |rows| [columns, rows]);
        let mut grids: Vec<_> = (1..=self.most).flat_map(of_columns).collect();
        grids.retain(|[columns, rows]| columns * rows >= least.min(self.most));
        grids.sort_by_key(|[columns, rows]| columns * rows);
        let (ratio, area) = (width as f64 / height as f64, (width * height) as f64);
        let (mut off, mut best) = (f64::INFINITY, [1; 2]);
        for grid in grids {
            let found = (ratio - grid[0] as f64 / grid[1] as f64).abs();
            let pixels = (self.side * self.side * grid[0] * grid[1]) as f64;
            if found < off || (found == off && area > 0.5 * pixels) {
                (off, best) = (found, grid);
            }
        }
        best
    }

    /// Of those as good the fewest; `over` says how many times a side of an image is in so many
    /// pixels.
    fn fitted(self, enlarges: bool, over: impl Fn(usize, usize) -> f64) -> [usize; 2] {
        let scale = |grid: [usize; 2]| {
            let [x, y] = [0, 1].map(|at| over(at, grid[at] * self.side));
            if y > x { x } else { y }
        };
        let grids = grids(self.most);
        let scales = || grids.iter().map(|grid| scale(*grid));
        let larger = scales().filter(|scale| *scale >= 1.0);
        let best = match enlarges {
            true => larger.reduce(f64::max),
            false => larger.reduce(f64::min),
        };
        let best = best.or_else(|| scales().reduce(f64::max));
        let chosen = grids.iter().filter(|grid| Some(scale(**grid)) == best);
        chosen.min_by_key(|[columns, rows]| columns * rows).copied().unwrap_or([1; 2])
    }

    /// How many tiles that makes.
    pub fn count(self, size: [usize; 2]) -> usize {
        let [columns, rows] = self.grid(size);
        with_whole(columns * rows)
    }

    /// The most tiles of any image.
    pub fn most_count(self) -> usize {
        with_whole(self.most)
    }

    /// The same for images of at most so many tiles, at least one.
    pub fn with_most(self, count: usize) -> Self {
        // One is all of it, where there are others.
        let most = if count >= self.most_count() { self.most } else { count.saturating_sub(1) };
        Self { most: most.clamp(1, self.most), ..self }
    }

    /// Width and height of the image itself on the tiles; the rest is black.
    pub fn drawn(self, size: [usize; 2]) -> [usize; 2] {
        let targets = self.grid(size).map(|tiles| tiles * self.side);
        let TileChoice::Fitted { enlarges } = self.choice else { return targets };
        let limits = [0, 1].map(|at| match (targets[at], size[at].max(self.side)) {
            (target, _) if enlarges => Limit { pixels: target, is_short: true },
            (target, longer) if target < longer => Limit { pixels: target, is_short: true },
            (_, longer) => Limit { pixels: longer, is_short: false },
        });
        let scales = [0, 1].map(|at| limits[at].over(size[at]));
        // The side that limits it is met, and the other one follows.
        let at = usize::from(scales[0] >= scales[1]);
        let mut drawn = limits.map(|limit| limit.pixels);
        let other = limits[at].times(size[1 - at], scales[at]);
        drawn[1 - at] = other.clamp(1, drawn[1 - at].max(1));
        drawn
    }
}

/// The shorter side of an image of such a shape whose longer one is so long.
fn shorter_side([width, height]: [usize; 2], longer: usize) -> usize {
    let (ratio, longer) = (width as f64 / height as f64, longer as f64);
    (if width >= height { longer / ratio } else { longer * ratio }) as usize
}

/// These as width and height of such a shape.
fn oriented([width, height]: [usize; 2], longer: usize, shorter: usize) -> [usize; 2] {
    if width >= height { [longer, shorter] } else { [shorter, longer] }
}

/// Tiles of an image of so many, with the one that has all of it.
fn with_whole(tiles: usize) -> usize {
    if tiles > 1 { tiles + 1 } else { tiles }
}

/// A length that a side must not be above.
#[derive(Clone, Copy)]
struct Limit {
    pixels: usize,
    /// Whether it is that of the tiles: the processor computes with it in 32 bits then, and in 64
    /// bits else.
    is_short: bool,
}

impl Limit {
    /// What a side of such length is multiplied by to be as long.
    fn over(self, side: usize) -> f64 {
        match self.is_short {
            true => f64::from(self.pixels as f32 / side as f32),
            false => self.pixels as f64 / side as f64,
        }
    }

    /// A side of such length multiplied by that.
    fn times(self, side: usize, scale: f64) -> usize {
        match self.is_short {
            true => (side as f32 * scale as f32).floor() as usize,
            false => (side as f64 * scale).floor() as usize,
        }
    }
}

/// All columns and rows of at most so many tiles, those of the same shape one behind the other.
fn grids(most: usize) -> Vec<[usize; 2]> {
    let of = |count: usize| {
        let rows = (1..=count).filter(move |rows| count.is_multiple_of(*rows));
        rows.map(move |rows| [count / rows, rows])
    };
    let all: Vec<[usize; 2]> = (1..=most).rev().flat_map(of).collect();
    let same = |one: &[usize; 2], other: &[usize; 2]| one[0] * other[1] == one[1] * other[0];
    let place = |grid: &[usize; 2]| all.iter().position(|other| same(grid, other));
    let mut sorted = all.clone();
    sorted.sort_by_key(place);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_of_a_shape_are_neighbours() {
        let expected = [[4, 1], [2, 2], [1, 1], [1, 4], [3, 1], [1, 3], [2, 1], [1, 2]];
        assert_eq!(grids(4), expected);
    }
}
