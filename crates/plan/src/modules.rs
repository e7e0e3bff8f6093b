//! A map by modules, as Accelerate writes it.

use crate::Tier;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::collections::HashMap;

/// Modules with their devices, in Accelerate's own format: `{"model.layers.0": 0, "lm_head": "disk"}`.
///
/// Keys are module paths in the checkpoint's names, the empty one being the whole model; a GPU is a number. Modules come in the order in which their
/// tensors were given. As Accelerate's `clean_device_map` does it, a module all of which is on one device stands for what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModuleMap(Vec<(String, Tier)>);

/// A module on the way to a tensor.
struct Node<'a> {
    path: &'a str,
    children: Vec<usize>,
    /// The device of all tensors below; nothing if they differ.
    tier: Option<Tier>,
    /// The slowest of the devices of its own tensors.
    own: Option<Tier>,
    tensors: Vec<(&'a str, Tier)>,
}

impl ModuleMap {
    /// Groups tensors by their paths.
    ///
    /// Accelerate moves what a module holds itself as one, so that a module whose own tensors are on several devices, such as a weight
    /// that is streamed and its bias that stays, counts as being on the slowest.
    pub fn new<'a>(tensors: impl IntoIterator<Item = (&'a str, Tier)>) -> Self {
        let mut nodes = vec![Node::new("")];
        let mut known: HashMap<&str, usize> = HashMap::from([("", 0)]);
        for (name, tier) in tensors {
            let mut at = 0;
            for (end, _) in name.match_indices('.').filter(|(end, _)| *end > 0) {
                let path = &name[..end];
                let new = nodes.len();
                let next = *known.entry(path).or_insert(new);
                if next == new {
                    nodes.push(Node::new(path));
                    nodes[at].children.push(new);
                }
                at = next;
            }
            let node = &mut nodes[at];
            node.own = node.own.max(Some(tier));
            node.tensors.push((name, tier));
        }
        // Children come after their parents.
        for at in (0..nodes.len()).rev() {
            let mut tiers = nodes[at]
                .children
                .iter()
                .map(|child| nodes[*child].tier)
                .chain(nodes[at].own.map(Some));
            let first = tiers.next().flatten();
            nodes[at].tier = first.filter(|_| tiers.all(|tier| tier == first));
        }
        let mut map = Vec::new();
        let mut open = vec![0];
        while let Some(at) = open.pop() {
            let node = &nodes[at];
            if let Some(tier) = node.tier {
                map.push((node.path.to_string(), tier));
                continue;
            }
            // Beside other modules, tensors of its own can only be named one by one.
            let own = node.own.unwrap_or(Tier::Disk);
            map.extend(node.tensors.iter().map(|(name, _)| (name.to_string(), own)));
            open.extend(node.children.iter().rev());
        }
        Self(map)
    }

    /// Modules and their devices.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Tier)> {
        self.0.iter().map(|(name, tier)| (name.as_str(), *tier))
    }

    /// Where the module or tensor of this path is: as the longest path that leads to it says.
    pub fn get(&self, path: &str) -> Option<Tier> {
        let leads = |module: &str| {
            module.is_empty()
                || path
                    .strip_prefix(module)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.iter()
            .filter(|(module, _)| leads(module))
            .max_by_key(|(module, _)| module.len())
            .map(|(_, tier)| tier)
    }
}

impl<'a> Node<'a> {
    fn new(path: &'a str) -> Self {
        Self {
            path,
            children: Vec::new(),
            tier: None,
            own: None,
            tensors: Vec::new(),
        }
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
        assert_eq!(
            written(&[("w", Cpu), ("a.w", Disk)]),
            r#"{"w":"cpu","a":"disk"}"#
        );
    }

    #[test]
    fn the_longest_path_says_where_something_is() {
        let map = ModuleMap::new([("a.b.w", Tier::Cpu), ("a.bc.w", Tier::Disk)]);
        assert_eq!(map.get("a.b"), Some(Tier::Cpu));
        assert_eq!(map.get("a.bc.w"), Some(Tier::Disk));
        assert_eq!(map.get("a"), None);
        assert_eq!(
            ModuleMap::new([("a.w", Tier::Cpu)]).get("else"),
            Some(Tier::Cpu)
        );
    }

    proptest! {
        /// Each tensor is where its module is said to be; that is its own device or a slower one of the same module.
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
