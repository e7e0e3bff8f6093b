//! What layers of a pass look at, for later ones that look at the same.

use std::collections::BTreeMap;

use super::{KvCache, Seen};
use crate::Error;

/// By the numbers of these layers.
#[derive(Debug, Default)]
pub(super) struct SharedSeen(BTreeMap<usize, Seen>);

impl KvCache {
    /// Has later layers of the pass look at what a layer looks at.
    pub(crate) fn share(&mut self, layer: usize, seen: Seen) {
        self.shared.0.insert(layer, seen);
    }

    /// What an earlier layer of the pass looks at.
    ///
    /// # Errors
    /// It did not [share](Self::share) it.
    pub(crate) fn shared(&self, layer: usize) -> Result<&Seen, Error> {
        self.shared.0.get(&layer).ok_or(Error::CacheLost { layer })
    }

    /// Writes what was held back of what layers share, once all layers are through.
    pub(crate) fn keep_shared(&mut self) -> Result<(), Error> {
        for (layer, seen) in std::mem::take(&mut self.shared).0 {
            self.keep(layer, seen)?;
        }
        Ok(())
    }
}
