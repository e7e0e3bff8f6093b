//! Windows of an image: squares of tokens whose patches attend to each other alone.

use std::cmp::Reverse;

use burn::tensor::{Int, Tensor, TensorData};
use outsize_kernels::attention::BLOCK;

use crate::ActivationDtype;
use crate::layers::attend_tokens;

/// The windows of an image, those of as many tokens one behind the other.
#[derive(Debug)]
pub(in crate::arch) struct ImageWindows {
    /// Its tokens window by window, counted from 0 in rows.
    order: Vec<usize>,
    /// Windows that are attended to at once: how many, and the patches of each.
    groups: Vec<[usize; 2]>,
}

impl ImageWindows {
    /// Those of so many rows and columns of tokens, of up to `side` tokens a side; a token is of
    /// `merged` patches.
    pub fn new([rows, columns]: [usize; 2], side: usize, merged: usize) -> Self {
        let tokens = |top: usize, left: usize| {
            let row = move |row| (left..columns.min(left + side)).map(move |at| row * columns + at);
            (top..rows.min(top + side)).flat_map(row).collect::<Vec<_>>()
        };
        let of_row = |top| (0..columns).step_by(side).map(move |left| tokens(top, left));
        let mut windows: Vec<_> = (0..rows).step_by(side).flat_map(of_row).collect();
        windows.sort_by_key(|window| Reverse(window.len()));
        let alike = windows.chunk_by(|a, b| a.len() == b.len());
        let groups = alike.flat_map(|windows| {
            let patches = windows[0].len() * merged;
            // Keys take whole blocks of scratch memory: at once no more than those of the whole
            // image.
            let blocks = |patches: usize| patches.div_ceil(BLOCK);
            let most = blocks(rows * columns * merged) / blocks(patches);
            windows.chunks(most).map(move |windows| [windows.len(), patches])
        });
        Self { groups: groups.collect(), order: windows.concat() }
    }

    /// Patches `[1, patches, hidden]` window by window.
    pub fn ordered(&self, x: Tensor<3>) -> Tensor<3> {
        let dims @ [_, patches, hidden] = x.dims();
        let tokens = self.order.len();
        let x = x.reshape([tokens, patches / tokens * hidden]);
        selected(x, &self.order).reshape(dims)
    }

    /// The same of what is known of each patch.
    pub fn ordered_places(&self, places: &[[usize; 2]]) -> Vec<[usize; 2]> {
        let merged = places.len() / self.order.len();
        let tokens = self.order.iter();
        tokens.flat_map(|token| &places[token * merged..][..merged]).copied().collect()
    }

    /// Tokens `[tokens, hidden]` in rows again.
    pub fn in_rows(&self, x: Tensor<2>) -> Tensor<2> {
        let mut places = vec![0; self.order.len()];
        for (place, token) in self.order.iter().enumerate() {
            places[*token] = place;
        }
        selected(x, &places)
    }

    /// Queries, keys and values `[1, patches, heads, width]` to `[1, patches, heads · width]`, each
    /// window by itself.
    pub fn attend(&self, compute: ActivationDtype, projected: [Tensor<4>; 3]) -> Tensor<3> {
        let [_, _, heads, width] = projected[0].dims();
        let mut start = 0;
        let group = |&[windows, patches]: &[usize; 2]| {
            let (first, count) = (start, windows * patches);
            start += count;
            let shape = [windows, patches, heads, width];
            let part = |x: &Tensor<4>| x.clone().narrow(1, first, count).reshape(shape);
            let mixed = attend_tokens(compute, projected.each_ref().map(part));
            mixed.reshape([1, count, heads * width])
        };
        Tensor::cat(self.groups.iter().map(group).collect(), 1)
    }
}

/// Rows of `[rows, width]`.
fn selected(x: Tensor<2>, rows: &[usize]) -> Tensor<2> {
    let rows: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    let rows = Tensor::<1, Int>::from_data(TensorData::from(&rows[..]), &x.device());
    x.select(0, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{DType, Device};

    #[test]
    fn windows_at_the_edges_are_smaller() {
        let windows = ImageWindows::new([3, 5], 2, 4);
        // Two whole ones, then those of two tokens: of the last column, and of the last row.
        let expected = [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14];
        assert_eq!(windows.order, expected);
        let groups = [[1, 16], [1, 16], [1, 8], [1, 8], [1, 8], [1, 4]];
        assert_eq!(windows.groups, groups);
    }

    #[test]
    fn a_window_attends_as_it_does_by_itself() {
        // Windows of 64 patches take 256 keys each, and all patches 1,280.
        let windows = ImageWindows::new([16, 17], 4, 4);
        assert_eq!(windows.groups, [[5, 64], [5, 64], [5, 64], [1, 64], [4, 16]]);
        assert_eq!(ImageWindows::new([2, 3], 4, 4).groups, [[1, 24]]);
        let (patches, heads, width) = (1088, 2, 8);
        let x = |seed: usize| {
            let values = (0..patches * heads * width).map(|i| ((i * 7 + seed) as f32).sin());
            let data = TensorData::new(values.collect::<Vec<_>>(), [1, patches, heads, width]);
            Tensor::<4>::from_data(data, (&Device::flex(), DType::F32))
        };
        let projected = [x(1), x(2), x(3)];
        let found = windows.attend(ActivationDtype::F32, projected.clone());
        for window in [0..64, 320..384, 960..1024, 1024..1040, 1072..1088] {
            let (start, count) = (window.start, window.len());
            let part = projected.clone().map(|x| x.narrow(1, start, count));
            let alone = attend_tokens(ActivationDtype::F32, part);
            let found = found.clone().narrow(1, start, count);
            let [found, alone] = [found, alone].map(|x| x.into_data().try_to_vec::<f32>().unwrap());
            assert_eq!(found, alone, "{window:?}");
        }
        let x = x(4).reshape([1, patches, heads * width]);
        let ordered = windows.ordered(x.clone()).reshape([272, 4 * heads * width]);
        let restored = windows.in_rows(ordered).reshape([1, patches, heads * width]);
        assert_eq!(restored.into_data(), x.into_data());
    }
}
