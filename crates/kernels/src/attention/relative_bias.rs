//! What is added to scores by the distance between query and key.

use std::ops::Range;
use std::sync::Arc;

/// What each head adds to the score of a key by how many columns it stands behind the query, as in
/// T5 ([Raffel et al., 2020](https://arxiv.org/abs/1910.10683)). Beyond some distance, on either
/// side, it stays the same: so the table does not grow with the sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct RelativeBias {
    /// `[heads, 2 · reach + 1]`: those of distances `-reach` to `reach`.
    values: Arc<[f32]>,
    reach: usize,
}

impl RelativeBias {
    /// With `values` `[heads, 2 · reach + 1]`: for each head what it adds at distances from
    /// `-reach` (the key is before the query) to `reach`.
    ///
    /// # Panics
    ///
    /// If these are no whole heads.
    pub fn new(values: impl Into<Arc<[f32]>>, reach: usize) -> Self {
        let values = values.into();
        assert!(
            values.len().is_multiple_of(2 * reach + 1),
            "a bias needs {} values for each head, but there are {}",
            2 * reach + 1,
            values.len()
        );
        Self { values, reach }
    }

    /// How many heads it has values for.
    pub fn heads(&self) -> usize {
        self.values.len() / (2 * self.reach + 1)
    }

    /// What a head adds to the score of a key in column `key` for a query in column `query`.
    pub fn at(&self, head: usize, query: usize, key: usize) -> f32 {
        let distance = match key >= query {
            true => self.reach + (key - query).min(self.reach),
            false => self.reach - (query - key).min(self.reach),
        };
        self.values[head * (2 * self.reach + 1) + distance]
    }

    /// Adds biases to the scores of `columns`, of `lanes` rows one behind the other for each
    /// column, that are not scaled yet. `rows` are the heads and the columns of the first of them;
    /// the block's first column is `start`.
    pub(super) fn add(
        &self,
        scores: &mut [f32],
        lanes: usize,
        columns: Range<usize>,
        start: usize,
        rows: impl Iterator<Item = (usize, usize)>,
        scale: f32,
    ) {
        let unscaled = scale.recip();
        for (lane, (head, query)) in rows.enumerate() {
            let scores = scores[columns.start * lanes + lane..].iter_mut().step_by(lanes);
            for (score, key) in scores.zip(start + columns.start..start + columns.end) {
                *score += self.at(head, query, key) * unscaled;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_its_reach_it_stays_the_same() {
        let bias =
            RelativeBias::new(vec![0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 11.0, 12.0, 13.0, 14.0], 2);
        assert_eq!(bias.heads(), 2);
        let at = |head, keys: [usize; 7]| keys.map(|key| bias.at(head, 5, key));
        assert_eq!(at(0, [0, 3, 4, 5, 6, 7, 50]), [0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
        assert_eq!(at(1, [0, 3, 4, 5, 6, 7, 50]), [10.0, 10.0, 11.0, 12.0, 13.0, 14.0, 14.0]);
    }
}
