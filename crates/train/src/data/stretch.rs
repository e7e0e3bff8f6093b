//! The arithmetic of sharding: which items of an epoch are a rank's.

use std::ops::Range;

/// The items of rank `rank` if `items` are split as evenly as they can be: the first ranks get
/// one more.
pub(crate) fn share(items: usize, rank: usize, ranks: usize) -> Range<usize> {
    let (each, more) = (items / ranks, items % ranks);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

/// How the batches of an epoch lie on ranks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Items of all ranks' batches together, unless they are the last.
    pub batch_size: usize,
    pub ranks: usize,
    /// Whether all ranks get the same number of batches.
    pub even: bool,
}

/// A rank's part of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Stretch {
    /// Positions in the epoch's order.
    pub items: Range<usize>,
    /// How many of them no other rank has.
    pub own: usize,
    /// What this rank's mean counts for in the mean of all ranks' means.
    pub weight: f64,
}

impl Layout {
    /// Batches of an epoch of `items` items.
    pub fn batches(&self, items: usize) -> usize {
        items.div_ceil(self.batch_size)
    }

    /// What `rank` has of batch `batch`; nothing if it has no such batch.
    pub fn stretch(&self, items: usize, batch: usize, rank: usize) -> Option<Stretch> {
        let start = batch.checked_mul(self.batch_size)?;
        let here = items.checked_sub(start).filter(|&left| left > 0)?.min(self.batch_size);
        let own = if self.even {
            share(here, rank, self.ranks)
        } else {
            let each = self.batch_size / self.ranks;
            (rank * each).min(here)..((rank + 1) * each).min(here)
        };
        let weight = (own.len() * self.ranks) as f64 / here as f64;
        match own.len() {
            0 if self.even => Some(Stretch { items: start..start + 1, own: 0, weight }),
            0 => None,
            length => {
                Some(Stretch { items: start + own.start..start + own.end, own: length, weight })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_short_last_batch_is_split_evenly_or_in_whole_batches() {
        let even = Layout { batch_size: 8, ranks: 2, even: true };
        assert_eq!(even.batches(13), 2);
        assert_eq!(even.stretch(13, 0, 1).unwrap().items, 4..8);
        let (first, second) = (even.stretch(13, 1, 0).unwrap(), even.stretch(13, 1, 1).unwrap());
        assert_eq!((first.items, second.items), (8..11, 11..13));
        assert_eq!((first.weight, second.weight), (1.2, 0.8));
        let repeats = even.stretch(9, 1, 1).unwrap();
        assert_eq!(repeats, Stretch { items: 8..9, own: 0, weight: 0.0 });

        let uneven = Layout { even: false, ..even };
        assert_eq!(uneven.stretch(13, 1, 0).unwrap().items, 8..12);
        assert_eq!(uneven.stretch(13, 1, 1).unwrap().items, 12..13);
        assert_eq!(uneven.stretch(12, 1, 1), None);
    }

    proptest! {
        #[test]
        fn every_item_is_one_ranks_own(
            items in 0_usize..200, each in 1_usize..9, ranks in 1_usize..6, even: bool,
        ) {
            let layout = Layout { batch_size: each * ranks, ranks, even };
            let mut seen = Vec::new();
            for batch in 0..layout.batches(items) {
                let mut weights = 0.0;
                for rank in 0..ranks {
                    let Some(stretch) = layout.stretch(items, batch, rank) else {
                        prop_assert!(!even);
                        continue;
                    };
                    prop_assert!(stretch.items.len() <= each && !stretch.items.is_empty());
                    weights += stretch.weight;
                    if stretch.own > 0 {
                        prop_assert_eq!(stretch.own, stretch.items.len());
                        seen.extend(stretch.items);
                    }
                }
                prop_assert!((weights - ranks as f64).abs() < 1e-9);
            }
            prop_assert_eq!(seen, (0..items).collect::<Vec<_>>());
            prop_assert!((0..ranks).all(|rank| layout.stretch(items, layout.batches(items), rank).is_none()));
        }
    }
}
