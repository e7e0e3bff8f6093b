use crate::Tier;
use crate::module_tree::{Kind, ModuleTree, NodeId, Paths, ROOT, is_around};
use serde::ser::{Serialize, SerializeMap, Serializer};

/// Modules and tensors with their devices, in Accelerate's format of a `device_map`:
/// `{"model.layers.0": 0, "lm_head": "disk"}`.
///
/// Keys are paths in the checkpoint's names, the empty one being the whole model; a GPU is a
/// number. A [`ManualMap`](crate::ManualMap) reads what is written here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleMap(Vec<(String, Tier)>);

impl ModuleMap {
    /// Groups tensors by their modules, in the order in which they come: a module all of which is
    /// on one device stands for what it holds.
    ///
    /// Accelerate moves a module's own tensors together, so if they are on several devices, such as
    /// a streamed weight and its resident bias, the module counts as being on the slowest.
    pub fn new<'a>(tensors: impl IntoIterator<Item = (&'a str, Tier)>) -> Self {
        let mut paths = Paths::with_capacity(0);
        let mut own: Vec<Option<Tier>> = Vec::new();
        for (name, tier) in tensors {
            let holder = paths.holder(name);
            paths.push(name, holder, Kind::Parameter, 0);
            own.resize(paths.parts.len(), None);
            let own = &mut own[holder as usize];
            *own = (*own).max(Some(tier));
        }
        let (tree, of_part) = ModuleTree::new(&paths);
        let mut places = vec![None; tree.0.len()];
        for (part, id) in paths.parts.iter().zip(of_part) {
            let id = id as NodeId;
            if tree.node(id).is_tensor() {
                places[id] = own[part.parent as usize];
            }
        }
        Self::clean(&tree, |id| places[id], Single::Module)
    }

    /// The map of the fewest entries that says the same as `place`, which tells where a node was
    /// placed as a whole: a module all of whose parts are in one place is not divided.
    pub(crate) fn clean(
        tree: &ModuleTree<'_>,
        place: impl Fn(NodeId) -> Option<Tier>,
        single: Single,
    ) -> Self {
        // Preorder, without what is in something that was placed as a whole.
        let mut visited: Vec<Visited> = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        let mut id = ROOT;
        while let Some(node) = tree.0.get(id) {
            while open.pop_if(|at| tree.node(visited[*at].id).end() <= id).is_some() {}
            let own = place(id);
            if node.kind != Kind::Cache {
                visited.push(Visited {
                    id,
                    around: open.last().copied(),
                    parts: own.map_or(Parts::None, Parts::One),
                });
            }
            if own.is_none() {
                open.push(visited.len() - 1);
            }
            id = if own.is_some() { node.end() } else { id + 1 };
        }
        for at in (0..visited.len()).rev() {
            if let Some(around) = visited[at].around {
                visited[around].parts = visited[around].parts.and(visited[at].parts);
            }
        }
        let mut map = Vec::new();
        let mut behind = ROOT;
        for one in visited.into_iter() {
            let tier = match (place(one.id), one.parts) {
                _ if one.id < behind => None,
                (None, Parts::One(tier)) if single == Single::Module => Some(tier),
                (None, Parts::Several(tier)) => Some(tier),
                (own, _) => own,
            };
            if let Some(tier) = tier {
                let node = tree.node(one.id);
                map.push((node.path.to_string(), tier));
                behind = node.end();
            }
        }
        Self(map)
    }

    /// Modules and tensors with their devices.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Tier)> {
        self.0.iter().map(|(name, tier)| (name.as_str(), *tier))
    }

    /// The device of this path: that of the longest entry at or around it.
    pub fn get(&self, path: &str) -> Option<Tier> {
        place_of(self.iter(), path)
    }
}

/// The device of the longest of `entries` at or around `path`.
pub(crate) fn place_of<'a>(
    entries: impl Iterator<Item = (&'a str, Tier)>,
    path: &str,
) -> Option<Tier> {
    entries
        .filter(|(entry, _)| is_around(entry, path))
        .max_by_key(|(entry, _)| entry.len())
        .map(|(_, tier)| tier)
}

impl FromIterator<(String, Tier)> for ModuleMap {
    fn from_iter<I: IntoIterator<Item = (String, Tier)>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl Serialize for ModuleMap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, tier) in self.iter() {
            match tier {
                Tier::Gpu(number) => map.serialize_entry(name, &number)?,
                Tier::Cpu | Tier::Disk => map.serialize_entry(name, &tier)?,
            }
        }
        map.end()
    }
}

/// What stands for a module that holds a single thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Single {
    /// The module itself.
    Module,
    /// What it holds, as in Accelerate's `clean_device_map`.
    Part,
}

/// A node on the way to a map.
struct Visited {
    id: NodeId,
    /// The index of the module that holds it.
    around: Option<usize>,
    parts: Parts,
}

/// Where the parts of a module are.
#[derive(Clone, Copy)]
enum Parts {
    None,
    One(Tier),
    /// Several in one place.
    Several(Tier),
    /// In several places.
    Mixed,
}

impl Parts {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::None, parts) | (parts, Self::None) => parts,
            (Self::One(own) | Self::Several(own), Self::One(tier) | Self::Several(tier))
                if own == tier =>
            {
                Self::Several(own)
            }
            _ => Self::Mixed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(tensors: &[(&str, Tier)]) -> String {
        serde_json::to_string(&ModuleMap::new(tensors.iter().copied())).unwrap()
    }

    #[test]
    fn what_is_all_on_one_device_is_one_entry() {
        use Tier::{Cpu, Disk, Gpu};
        assert_eq!(written(&[]), "{}");
        assert_eq!(written(&[("a.b.w", Cpu), ("c.w", Cpu)]), r#"{"":"cpu"}"#);
        // The vector of Accelerate's own test of `clean_device_map`.
        assert_eq!(
            written(&[
                ("a.x.w", Gpu(0)),
                ("a.y.w", Gpu(0)),
                ("b.x.w", Gpu(1)),
                ("b.y.w", Gpu(1)),
                ("c.w", Gpu(1))
            ]),
            r#"{"a":0,"b":1,"c":1}"#
        );
        assert_eq!(
            written(&[
                ("m.10.attn.w", Gpu(0)),
                ("m.10.mlp.up.w", Cpu),
                ("m.10.mlp.down.w", Cpu),
                ("m.2.attn.w", Gpu(0)),
                ("head.w", Disk),
            ]),
            r#"{"m.10.attn":0,"m.10.mlp":"cpu","m.2":0,"head":"disk"}"#
        );
    }

    #[test]
    fn a_module_is_not_torn_apart() {
        use Tier::{Cpu, Disk};
        assert_eq!(
            written(&[("a.weight", Disk), ("a.bias", Cpu), ("b.w", Cpu)]),
            r#"{"a":"disk","b":"cpu"}"#
        );
        assert_eq!(
            written(&[("a.scale", Cpu), ("a.b.w", Disk), ("c.w", Disk)]),
            r#"{"a.scale":"cpu","a.b":"disk","c":"disk"}"#
        );
        // A tensor that belongs to the model itself.
        assert_eq!(written(&[("w", Cpu), ("a.w", Disk)]), r#"{"w":"cpu","a":"disk"}"#);
    }

    #[test]
    fn the_longest_path_says_where_something_is() {
        let map = ModuleMap::new([("a.b.w", Tier::Cpu), ("a.bc.w", Tier::Disk)]);
        assert_eq!(map.get("a.b"), Some(Tier::Cpu));
        assert_eq!(map.get("a.bc.w"), Some(Tier::Disk));
        assert_eq!(map.get("a"), None);
        assert_eq!(ModuleMap::new([("a.w", Tier::Cpu)]).get("else"), Some(Tier::Cpu));
    }

    proptest! {
        /// Each tensor is where its module is said to be; that is its own device or a slower one of
        /// the same module.
        #[test]
        fn every_tensor_is_covered(tiers in prop::collection::vec((prop::sample::select(vec!["a", "b", "a.x", "a.y", "b.x.0", "b.x.1", ""]), 0usize..4), 0..12)) {
            let named: Vec<(String, Tier)> = tiers.iter().enumerate().map(|(at, (module, tier))| {
                let tier = match tier { 0 => Tier::Gpu(0), 1 => Tier::Gpu(1), 2 => Tier::Cpu, _ => Tier::Disk };
                let dot = if module.is_empty() { "" } else { "." };
                (format!("{module}{dot}t{at}"), tier)
            }).collect();
            let map = ModuleMap::new(named.iter().map(|(name, tier)| (name.as_str(), *tier)));
            for (name, _) in &named {
                let holder = name.rsplit_once('.').map_or("", |(holder, _)| holder);
                let slowest = named.iter().filter(|(other, _)| other.rsplit_once('.').map_or("", |(holder, _)| holder) == holder).map(|(_, tier)| *tier).max();
                prop_assert_eq!(map.get(name), slowest, "{}", name);
            }
            let mut seen = std::collections::HashSet::new();
            prop_assert!(map.iter().all(|(name, _)| seen.insert(name.to_string())));
        }

        #[test]
        fn odd_names_are_no_trouble(names in prop::collection::vec("[ab.]{0,6}", 0..8)) {
            let map = ModuleMap::new(names.iter().map(|name| (name.as_str(), Tier::Cpu)));
            prop_assert!(names.iter().all(|name| map.get(name) == Some(Tier::Cpu)));
        }
    }
}
