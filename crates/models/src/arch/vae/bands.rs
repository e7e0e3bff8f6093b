//! A picture in bands of rows.

use std::collections::VecDeque;

use burn::tensor::Tensor;

/// The rows of pictures from top to bottom, `[batch, some, columns, channels]` f32 each.
#[derive(Debug, Default)]
pub(super) struct Bands(VecDeque<Tensor<4>>);

/// Some rows, as a 3x3 convolution sees them.
pub(super) struct Band {
    /// The rows.
    pub rows: Tensor<4>,
    /// The rows with the one above them and the one below, where there are.
    pub with_neighbours: Tensor<4>,
    /// Whether there is none above, and none below.
    pub ends: [bool; 2],
}

impl Bands {
    /// All rows in one band.
    pub fn whole(picture: Tensor<4>) -> Self {
        Self(VecDeque::from([picture]))
    }

    /// Adds rows below the last.
    pub fn push(&mut self, rows: Tensor<4>) {
        self.0.push_back(rows);
    }

    /// Takes the uppermost band.
    pub fn pop(&mut self) -> Option<Tensor<4>> {
        self.0.pop_front()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Tensor<4>> {
        self.0.iter()
    }

    /// Sizes of the uppermost band; zeros if there is none.
    pub fn dims(&self) -> [usize; 4] {
        self.0.front().map_or([0; 4], Tensor::dims)
    }

    /// All rows in one tensor.
    pub fn joined(mut self) -> Tensor<4> {
        match self.0.len() {
            1 => self.0.remove(0).expect("there is one"),
            _ => Tensor::cat(self.0.into(), 1),
        }
    }

    /// Calls `work` with at most `step` rows of a band at a time, from top to bottom. A band is
    /// freed when its last rows are done.
    pub fn for_each(mut self, step: usize, mut work: impl FnMut(Band)) {
        let mut above: Option<Tensor<4>> = None;
        while let Some(band) = self.0.pop_front() {
            let count = band.dims()[1];
            let below = self.0.front().map(|next| next.clone().narrow(1, 0, 1));
            let ends = [above.is_none(), below.is_none()];
            let last = below.is_some().then(|| copied(band.clone().narrow(1, count - 1, 1)));
            let first = usize::from(above.is_some());
            let band_rows = band.clone();
            let parts: Vec<_> = above.into_iter().chain([band]).chain(below).collect();
            let all = match parts.len() {
                1 => parts.into_iter().next().expect("there is one"),
                _ => Tensor::cat(parts, 1),
            };
            let rows = all.dims()[1];
            for start in (0..count).step_by(step.min(count)) {
                let end = count.min(start.saturating_add(step));
                let (from, to) = ((first + start).saturating_sub(1), rows.min(first + end + 1));
                work(Band {
                    rows: band_rows.clone().narrow(1, start, end - start),
                    with_neighbours: all.clone().narrow(1, from, to - from),
                    ends: [ends[0] && start == 0, ends[1] && end == count],
                });
            }
            above = last;
        }
    }
}

/// The same values in memory of their own: a view would keep all of what it is of.
pub(super) fn copied(rows: Tensor<4>) -> Tensor<4> {
    let (device, dtype) = (rows.device(), rows.dtype());
    Tensor::from_data(rows.into_data(), (&device, dtype))
}
