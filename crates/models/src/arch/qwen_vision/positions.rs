//! Where the patches of an image are.

use burn::tensor::{DType, Tensor, TensorData};

use crate::layers::Embedding;

/// The embeddings of these places in an image of so many rows and columns, `[1, patches, hidden]` f32: of a table of `grid` rows
/// and columns that is stretched over the image, between the four that are next.
pub(super) fn position_embeddings(
    table: &Embedding,
    places: &[[usize; 2]],
    sides: [usize; 2],
    grid: usize,
) -> Tensor<3> {
    let ids: Vec<u32> = (0..(grid * grid) as u32).collect();
    let table = table.forward(&ids).into_data().try_into_vec::<f32>().expect("embeddings are f32");
    let hidden = table.len() / (grid * grid);
    let mut embeddings = Vec::with_capacity(places.len() * hidden);
    for place in places {
        let [down, right] = [0, 1].map(|side| neighbours(place[side], sides[side], grid));
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

/// The two lines of a grid around a place on a side of that length, and their weights.
fn neighbours(place: usize, side: usize, grid: usize) -> [(usize, f32); 2] {
    let at = place as f32 * (grid - 1) as f32 / side.saturating_sub(1).max(1) as f32;
    let line = at.floor();
    let share = at - line;
    let line = line as usize;
    [(line, 1.0 - share), ((line + 1).min(grid - 1), share)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_an_image_are_those_of_the_grid() {
        assert_eq!(neighbours(0, 7, 5), [(0, 1.0), (1, 0.0)]);
        assert_eq!(neighbours(6, 7, 5), [(4, 1.0), (4, 0.0)]);
        assert_eq!(neighbours(0, 1, 5), [(0, 1.0), (1, 0.0)]);
        assert_eq!(neighbours(1, 3, 5), [(2, 1.0), (3, 0.0)]);
    }
}
