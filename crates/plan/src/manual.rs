use crate::accelerate::check_fit;
use crate::accelerate::modules::Modules;
use crate::budget::unique;
use crate::module_map::{Single, place_of};
use crate::module_tree::{Kind, Node};
use crate::nearest::nearest;
use crate::{Assignment, Budget, ChosenBy, Error, ModuleMap, Options, Tier, Tree};
use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// The most bytes that the text of a map may have.
const MOST_BYTES: usize = 32 << 20;
/// The most entries that it may have.
const MOST_ENTRIES: usize = 1 << 20;

/// A device map written by hand or by other software: modules and tensors by path, each with its
/// device. The longest entry at or around a tensor's path applies to it; the empty path is the
/// whole model.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ManualMap(BTreeMap<String, Tier>);

impl ManualMap {
    /// Reads JSON or YAML: `{"model.layers.0": 0, "lm_head": "disk", "": "cpu"}`, a device being
    /// the number of a GPU, `cpu`, `disk`, `gpu0`, or `cuda:0` as PyTorch writes it. Accelerate's
    /// and transformers' `hf_device_map` is such a map, and so is a [`ModuleMap`].
    ///
    /// No path may be given twice. YAML's merge keys, aliases and tags are refused; a text has 32
    /// MiB at most.
    ///
    /// # Errors
    /// [`Error::Map`] with what is wrong and in which line.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let error = |reason: String| Error::Map { reason: shown(&reason) };
        if text.len() > MOST_BYTES {
            return Err(error(format!(
                "it has {} bytes, and at most {MOST_BYTES} are read",
                text.len()
            )));
        }
        let entries = if text.trim_start().starts_with('{') {
            // JSON is faster to read; what it refuses may still be YAML.
            serde_json::from_str(text).or_else(|json| match yaml(text) {
                Ok(entries) if !json.is_data() => Ok(entries),
                _ => Err(error(json.to_string())),
            })?
        } else {
            yaml(text).map_err(error)?
        };
        let Entries(entries) = entries;
        Ok(Self(entries.into_iter().map(|(path, Device(tier))| (path, tier)).collect()))
    }

    /// The entries by their paths.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Tier)> {
        self.0.iter().map(|(path, tier)| (path.as_str(), *tier))
    }

    /// The device of this path: that of the longest entry at or around it.
    pub fn get(&self, path: &str) -> Option<Tier> {
        place_of(self.iter(), path)
    }

    /// Assigns a model's tensors. A tier that `budget` does not name is not bounded; the others
    /// must hold their weights, the KV cache of their blocks, and the overhead in `options`.
    /// Nothing may be on disk if [`Options::must_fit`] or `disk=0` rules it out.
    ///
    /// # Errors
    /// [`Error::UnknownName`] for an entry that names nothing in the model, [`Error::NotPlaced`]
    /// for a tensor without an entry, [`Error::Tied`] for tied tensors that are not together,
    /// [`Error::OverBudget`] and [`Error::DoesNotFit`] for what does not fit, [`Error::Duplicate`]
    /// and [`Error::TooLarge`] for impossible trees.
    pub fn assign(
        &self,
        tree: &Tree,
        budget: &Budget,
        options: &Options,
    ) -> Result<Assignment, Error> {
        let options = &options.adjusted(tree);
        let modules = Modules::new(tree, &[])?;
        let nodes = &modules.tree.0;
        self.check_names(tree, nodes)?;
        let mut places = vec![None; nodes.len()];
        // Parents come first.
        for (id, node) in nodes.iter().enumerate() {
            // A KV cache is where its module is.
            let own = (node.kind != Kind::Cache).then(|| self.0.get(node.path).copied());
            places[id] = own.flatten().or(places[node.parent()]);
        }
        let mut lost = modules.tensors.iter().filter(|id| places[**id].is_none());
        if let Some(first) = lost.next() {
            return Err(Error::NotPlaced {
                name: nodes[*first].path.to_string(),
                others: lost.count(),
            });
        }
        let tiers = modules.tensors.iter();
        let tiers = tiers.map(|id| places[*id].unwrap_or(Tier::Disk)).collect();
        for (place, node) in places.iter_mut().zip(nodes) {
            if node.kind == Kind::Module {
                *place = None;
            }
        }
        check_ties(&modules, &places)?;
        let map = ModuleMap::clean(&modules.tree, |id| places[id], Single::Part);
        check_budgets(nodes, &places, &map, budget, options)?;
        Ok(Assignment { tiers, modules: map, warnings: Vec::new(), chosen_by: ChosenBy::Manual })
    }

    /// Checks that every entry names something.
    fn check_names(&self, tree: &Tree, nodes: &[Node<'_>]) -> Result<(), Error> {
        let paths = || {
            let nodes = nodes.iter().filter(|node| node.kind != Kind::Cache);
            nodes.map(|node| node.path)
        };
        let known: HashSet<&str> = paths().collect();
        let unknown = |path: &&String| {
            !known.contains(path.as_str()) && !tree.classes.contains_key(path.as_str())
        };
        match self.0.keys().find(unknown) {
            None => Ok(()),
            Some(path) => Err(Error::UnknownName {
                name: shown(path),
                nearest: nearest(path, paths()).map(shown),
            }),
        }
    }
}

/// Checks that tied tensors are together.
fn check_ties(modules: &Modules<'_>, places: &[Option<Tier>]) -> Result<(), Error> {
    for group in &modules.groups {
        for pair in group.windows(2) {
            if let [one, other] = pair
                && let (Some(tier), Some(other_tier)) = (places[*one], places[*other])
                && tier != other_tier
            {
                return Err(Error::Tied {
                    name: modules.tree.node(*one).path.to_string(),
                    tier,
                    other: modules.tree.node(*other).path.to_string(),
                    other_tier,
                });
            }
        }
    }
    Ok(())
}

/// Checks that no device holds more than its budget.
fn check_budgets(
    nodes: &[Node<'_>],
    places: &[Option<Tier>],
    map: &ModuleMap,
    budget: &Budget,
    options: &Options,
) -> Result<(), Error> {
    let placed = || nodes.iter().zip(places);
    if options.must_fit || budget.get(Tier::Disk) == Some(0) {
        let on_disk = placed().filter(|(_, tier)| **tier == Some(Tier::Disk));
        check_fit(map, on_disk.map(|(node, _)| node))?;
    }
    let mut held: BTreeMap<Tier, u64> = BTreeMap::new();
    for (node, tier) in placed() {
        if let Some(tier) = tier {
            // The sum of all was checked.
            *held.entry(*tier).or_default() += node.size;
        }
    }
    held.remove(&Tier::Disk);
    for (tier, bytes) in held {
        let needs = options.taken_of(tier);
        if let Some(budget) = budget.get(tier)
            && bytes.saturating_add(needs) > budget
        {
            return Err(Error::OverBudget { tier, bytes, needs, budget });
        }
    }
    Ok(())
}

/// A text from a file for a message: without control characters, and short.
fn shown(text: impl AsRef<str>) -> String {
    const MOST: usize = 240;
    let text = text.as_ref();
    let mut shown = String::new();
    for c in text.chars().take(MOST) {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    if text.chars().nth(MOST).is_some() {
        shown.push('…');
    }
    shown
}

/// What YAML says.
fn yaml(text: &str) -> Result<Entries, String> {
    // A map of scalars: nothing in it is nested or repeated.
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 2,
            max_documents: 1,
            max_nodes: 2 * MOST_ENTRIES + 2,
            max_events: 3 * MOST_ENTRIES,
            max_anchors: 0,
            max_aliases: 0,
        },
        // `unique` names the key; and numbers are names here: 0x10 is not 16.
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::PassThrough,
        with_snippet: false,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
    };
    let Entries(entries) =
        serde_saphyr::from_str_with_options(text, options).map_err(|error| error.to_string())?;
    // A text of nothing but blanks and comments is one, too.
    if entries.is_empty() && !text.contains('{') {
        return Err("it is empty".to_string());
    }
    Ok(Entries(entries))
}

/// A map in which no key comes twice.
struct Entries(BTreeMap<String, Device>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        unique(deserializer).map(Self)
    }
}

/// A device in any of the accepted spellings.
struct Device(Tier);

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AsDevice;

        impl Visitor<'_> for AsDevice {
            type Value = Device;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a GPU, `cpu` or `disk`")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Device, E> {
                usize::try_from(number)
                    .map(|number| Device(Tier::Gpu(number)))
                    .map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Device, E> {
                text.strip_prefix("cuda:")
                    .unwrap_or(text)
                    .parse()
                    .map(Device)
                    .map_err(|_| E::invalid_value(Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(AsDevice)
    }
}
