use super::Residency;
use crate::budget::unique;
use crate::groups::Names;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Where each tensor is between two uses. Maps of one model share its names.
#[derive(Clone)]
pub(super) struct Residencies {
    names: Arc<Names>,
    /// In the order of the names.
    of: Vec<Residency>,
}

impl Residencies {
    /// Those of tensors of these names, in the same order.
    pub(super) fn new(names: Arc<Names>, of: Vec<Residency>) -> Self {
        debug_assert_eq!(names.len(), of.len());
        Self { names, of }
    }

    /// That of the tensor of this path.
    pub(super) fn get(&self, tensor: &str) -> Option<Residency> {
        self.of.get(self.names.get_index_of(tensor)?).copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, Residency)> {
        let names = self.names.iter().map(|name| &**name);
        names.zip(self.of.iter().copied())
    }

    fn sorted(&self) -> Vec<(&str, Residency)> {
        let mut all: Vec<_> = self.iter().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all
    }
}

impl<'de> Deserialize<'de> for Residencies {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map: BTreeMap<String, Residency> = unique(deserializer)?;
        let (names, of): (Vec<_>, Vec<_>) = map.into_iter().unzip();
        let names = names.into_iter().map(String::into_boxed_str).collect();
        Ok(Self::new(Arc::new(names), of))
    }
}

impl PartialEq for Residencies {
    /// Whatever the order.
    fn eq(&self, other: &Self) -> bool {
        if Arc::ptr_eq(&self.names, &other.names) {
            return self.of == other.of;
        }
        self.of.len() == other.of.len()
            && self.iter().all(|(name, residency)| other.get(name) == Some(residency))
    }
}

impl Eq for Residencies {}

impl Serialize for Residencies {
    /// A map, ordered by name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.of.len()))?;
        for (name, residency) in self.sorted() {
            map.serialize_entry(name, &residency)?;
        }
        map.end()
    }
}

impl fmt::Debug for Residencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.sorted()).finish()
    }
}
