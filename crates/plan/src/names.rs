use foldhash::fast::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// Names of which no two are alike, numbered from zero in the order in which they came.
///
/// One text holds all of them: a model has so many that a piece of memory for each would take longer than planning.
#[derive(Clone, Default)]
pub(crate) struct Names {
    text: String,
    /// Where each ends in the text.
    ends: Vec<usize>,
    /// Their numbers. The hash is a fast one, and seeded, so that nobody can choose names that meet.
    table: HashTable<u32>,
    hasher: RandomState,
}

/// The name of this number.
fn name<'t>(text: &'t str, ends: &[usize], at: usize) -> &'t str {
    let begin = at.checked_sub(1).map_or(0, |before| ends[before]);
    &text[begin..ends[at]]
}

impl Names {
    /// With room for so many names, and so many bytes of all of them.
    pub(crate) fn with_capacity(count: usize, bytes: usize) -> Self {
        Self {
            text: String::with_capacity(bytes),
            ends: Vec::with_capacity(count),
            table: HashTable::with_capacity(count),
            hasher: RandomState::default(),
        }
    }

    /// Adds a name; false if it is there already.
    pub(crate) fn add(&mut self, new: &str) -> bool {
        let Self {
            text,
            ends,
            table,
            hasher,
        } = self;
        let hash = hasher.hash_one(new);
        let is_new = |at: &u32| name(text, ends, *at as usize) == new;
        if table.find(hash, is_new).is_some() {
            return false;
        }
        let number = ends.len() as u32;
        table.insert_unique(hash, number, |at| {
            hasher.hash_one(name(text, ends, *at as usize))
        });
        text.push_str(new);
        ends.push(text.len());
        true
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The number of this name.
    pub(crate) fn find(&self, wanted: &str) -> Option<usize> {
        let is_it = |at: &u32| self.get(*at as usize) == wanted;
        let found = self.table.find(self.hasher.hash_one(wanted), is_it);
        found.map(|at| *at as usize)
    }

    /// The name of this number.
    pub(crate) fn get(&self, at: usize) -> &str {
        name(&self.text, &self.ends, at)
    }

    /// Names in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|at| self.get(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_number() {
        let mut names = Names::default();
        let all: Vec<String> = (0..1000)
            .map(|n| "x".repeat(n % 7) + &n.to_string())
            .collect();
        for name in &all {
            assert!(names.add(name));
        }
        assert!(names.add(""));
        for (number, name) in all.iter().enumerate() {
            assert!(!names.add(name));
            assert_eq!(names.find(name), Some(number));
            assert_eq!(names.get(number), name);
        }
        assert_eq!((names.len(), names.find("")), (1001, Some(1000)));
        assert_eq!(names.find("y"), None);
        assert!(names.iter().eq(all.iter().map(String::as_str).chain([""])));
    }
}
