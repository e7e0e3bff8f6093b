//! Where the patches of an image are, in a table that is stretched over it.

use burn::tensor::{DType, Tensor, TensorData};

use crate::layers::Embedding;

/// The embeddings of these places in an image, `[1, patches, hidden]` f32: sums of a square
/// table's, which is one or lies in several one behind the other. Of its lines `lines` gives some
/// with their weights, for a place along a side (0 for rows). Weights of rows and columns are
/// multiplied.
pub(super) fn position_embeddings<const LINES: usize>(
    tables: &[Embedding],
    places: &[[usize; 2]],
    lines: impl Fn(usize, usize) -> [(usize, f32); LINES],
) -> Tensor<3> {
    let [rows, hidden] = tables[0].weight.lazy_shape().dims();
    let grid = (rows * tables.len()).isqrt();
    let ids: Vec<u32> = (0..rows as u32).collect();
    let values = |table: &Embedding| {
        table.forward(&ids).into_data().try_into_vec::<f32>().expect("embeddings are f32")
    };
    let table: Vec<f32> = match tables {
        [table] => values(table),
        tables => {
            let mut all = Vec::with_capacity(tables.len() * rows * hidden);
            tables.iter().for_each(|table| all.extend(values(table)));
            all
        }
    };
    let mut embeddings = Vec::with_capacity(places.len() * hidden);
    for place in places {
        let [down, right] = [0, 1].map(|side| lines(place[side], side));
        let start = embeddings.len();
        embeddings.resize(start + hidden, 0.0);
        for (row, of_row) in down {
            for (column, of_column) in right {
                let (weight, at) = (of_row * of_column, (row * grid + column) * hidden);
                let neighbour = &table[at..at + hidden];
                for (sum, value) in embeddings[start..].iter_mut().zip(neighbour) {
                    *sum += value * weight;
                }
            }
        }
    }
    let data = TensorData::new(embeddings, [1, places.len(), hidden]);
    Tensor::from_data(data, (&burn::tensor::Device::flex(), DType::F32))
}

/// The two lines of a grid around a place on a side of that length, whose ends are those of the
/// grid, and their weights.
pub(super) fn between_two(place: usize, side: usize, grid: usize) -> [(usize, f32); 2] {
    let at = place as f32 * (grid - 1) as f32 / side.saturating_sub(1).max(1) as f32;
    let line = at.floor();
    let share = at - line;
    let line = line as usize;
    [(line, 1.0 - share), ((line + 1).min(grid - 1), share)]
}

/// The two lines of a grid around the middle of a place on a side of that length, as bilinear
/// interpolation of `torch` weights them: those beyond the ends count nothing.
pub(super) fn between_two_inside(place: usize, side: usize, grid: usize) -> [(usize, f32); 2] {
    let at = middle(place, side, grid);
    let line = at.floor();
    let share = at - line;
    [(line, 1.0 - share), (line + 1.0, share)].map(|(line, weight)| {
        let inside = (0.0..=(grid - 1) as f32).contains(&line);
        (line.clamp(0.0, (grid - 1) as f32) as usize, if inside { weight } else { 0.0 })
    })
}

/// Where on a grid the middle of a place is, on a side of that length.
fn middle(place: usize, side: usize, grid: usize) -> f32 {
    (place as f32 + 0.5) * grid as f32 / side as f32 - 0.5
}

/// The four lines of a grid around the middle of a place on a side of that length, as bicubic
/// interpolation of `torch` weights them: those beyond the ends are the ends.
pub(super) fn between_four(place: usize, side: usize, grid: usize) -> [(usize, f32); 4] {
    let at = middle(place, side, grid);
    let line = at.floor();
    let share = at - line;
    let weights = [1.0 + share, share, 1.0 - share, 2.0 - share].map(cubic);
    [0, 1, 2, 3].map(|n| {
        let line = (line + n as f32 - 1.0).clamp(0.0, (grid - 1) as f32);
        (line as usize, weights[n])
    })
}

/// Keys' convolution at that distance, below 2, of a sharpness of -0.75 (1981).
fn cubic(distance: f32) -> f32 {
    const A: f32 = -0.75;
    match distance <= 1.0 {
        true => ((A + 2.0) * distance - (A + 3.0)) * distance * distance + 1.0,
        false => ((A * distance - 5.0 * A) * distance + 8.0 * A) * distance - 4.0 * A,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_an_image_are_those_of_the_grid() {
        assert_eq!(between_two(0, 7, 5), [(0, 1.0), (1, 0.0)]);
        assert_eq!(between_two(6, 7, 5), [(4, 1.0), (4, 0.0)]);
        assert_eq!(between_two(0, 1, 5), [(0, 1.0), (1, 0.0)]);
        assert_eq!(between_two(1, 3, 5), [(2, 1.0), (3, 0.0)]);
    }

    #[test]
    fn four_lines_around_a_place_weigh_one() {
        // As large as the grid: each place is a line.
        assert_eq!(between_four(2, 5, 5), [(1, 0.0), (2, 1.0), (3, 0.0), (4, 0.0)]);
        for (place, side, grid) in [(0, 9, 4), (8, 9, 4), (1, 2, 7), (0, 1, 1), (3, 50, 24)] {
            let lines = between_four(place, side, grid);
            let sum: f32 = lines.iter().map(|(_, weight)| weight).sum();
            assert!((sum - 1.0).abs() < 1e-6 && lines.iter().all(|(line, _)| *line < grid));
        }
    }
}
