//! The units of a stream, and which of them make up each parameter.

use crate::matching::{Matched, Stored};
use crate::neighbours::{Part, join};
use crate::streamed::Units;
use crate::{Access, Options};
use outsize_plan::{DeviceMap, Residency};
use outsize_stream::{Chunk, ChunkId};
use std::collections::{HashMap, HashSet};

/// The entries in the order in which a pass needs them: as the options say, then as declared.
pub(crate) fn in_order<'a>(matched: &'a [Matched], options: &Options) -> Vec<&'a Matched> {
    let Some(order) = &options.order else {
        return matched.iter().collect();
    };
    let turn: HashMap<&str, usize> = order.iter().map(String::as_str).zip(0..).collect();
    let mut sorted: Vec<_> = matched.iter().collect();
    sorted.sort_by_key(|entry| {
        turn.get(entry.parameter.path.as_str())
            .copied()
            .unwrap_or(usize::MAX)
    });
    sorted
}

/// Burn's layers that go through their weights once for each step of a sequence.
pub(crate) const RECURRENT: [&str; 3] = ["Lstm", "Gru", "Rnn"];

/// How often the first schedule goes through a recurrent layer: as a guess at the number of steps it only has
/// to be large enough for the layer's weights not to seem done with after each. Later passes know.
const STEPS: usize = 32;

/// The path of the recurrent layer that the parameter belongs to.
pub(crate) fn recurrent_layer(entry: &Matched) -> Option<&str> {
    let parameter = &entry.parameter;
    (0..parameter.containers.len())
        .any(|depth| RECURRENT.contains(&parameter.class_at(depth)))
        .then(|| parameter.block(&RECURRENT.map(String::from)))
}

/// What says which tensor, or which part of one, a parameter is made of.
type Key = (usize, usize, usize);

/// Units made of neighbours, and the number of each once it is registered.
struct Joined {
    parts: HashMap<Key, Part<Key>>,
    units: HashMap<Key, ChunkId>,
}

fn stays(map: &DeviceMap, path: &str) -> bool {
    matches!(map.residency(path), Some(Residency::Resident(_)) | None)
}

/// What stays, each value once, in the order of use.
fn kept(matched: &[Matched], map: &DeviceMap, options: &Options) -> Vec<(Key, Chunk)> {
    let mut seen = HashSet::new();
    in_order(matched, options)
        .into_iter()
        .filter(|entry| entry.parameter.streams && stays(map, &entry.parameter.path))
        .filter_map(|entry| Some((entry, entry.stored.as_ref()?)))
        .filter(|(_, stored)| seen.insert(stored.key))
        .map(|(entry, stored)| {
            let unit = Chunk {
                keep: true,
                ..entry.unit(stored)
            };
            (stored.key, unit)
        })
        .collect()
}

/// What a stream is started with. Parameters that cannot be streamed have no units.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) units: Vec<Chunk>,
    pub(crate) order: Vec<ChunkId>,
    /// By the parameter's path: its units, and whether it stays once it is read.
    pub(crate) handles: HashMap<String, (Units, bool)>,
}

impl Registry {
    pub(crate) fn new(matched: &[Matched], map: &DeviceMap, options: &Options) -> Self {
        let mut registry = Self::default();
        // Parameters that share a value share its units.
        let mut shared: HashMap<_, Units> = HashMap::new();
        let mut joined = Joined {
            parts: join(&kept(matched, map, options)),
            units: HashMap::new(),
        };
        // The recurrent layer of the entry before, and where its units begin in the order.
        let mut layer: (Option<&str>, usize) = (None, 0);
        for entry in in_order(matched, options) {
            if recurrent_layer(entry) != layer.0 {
                registry.repeat(layer);
                layer = (recurrent_layer(entry), registry.order.len());
            }
            let (true, Some(stored)) = (entry.parameter.streams, &entry.stored) else {
                continue;
            };
            let path = &entry.parameter.path;
            let resident = stays(map, path);
            let access = if resident {
                Access::Whole
            } else {
                entry.access(options)
            };
            let units = shared
                .entry((stored.key, access, resident))
                .or_insert_with(|| match joined.parts.get(&stored.key) {
                    Some(part) if resident => {
                        let unit = *joined.units.entry(part.of).or_insert_with(|| {
                            registry.units.push(part.chunk.clone());
                            registry.units.len() - 1
                        });
                        Units::Part(unit, part.range.clone())
                    }
                    _ => registry.divide(entry, stored, access, resident, options),
                })
                .clone();
            match &units {
                Units::Whole(id) | Units::Part(id, _) => registry.order.push(*id),
                Units::Tiles { ids, .. } => registry.order.extend(ids),
                Units::Rows => {}
            }
            registry.handles.insert(path.clone(), (units, resident));
        }
        registry.repeat(layer);
        registry
    }

    /// Expects a recurrent layer's units once for each step.
    fn repeat(&mut self, (layer, from): (Option<&str>, usize)) {
        if layer.is_some() {
            let step = self.order[from..].to_vec();
            for _ in 1..STEPS {
                self.order.extend(&step);
            }
        }
    }

    /// Adds the units of one tensor.
    fn divide(
        &mut self,
        entry: &Matched,
        stored: &Stored,
        access: Access,
        resident: bool,
        options: &Options,
    ) -> Units {
        let info = &stored.info;
        let whole = Chunk {
            keep: resident,
            ..entry.unit(stored)
        };
        let first = self.units.len();
        match access {
            Access::Whole => {
                self.units.push(whole);
                Units::Whole(first)
            }
            Access::Rows => Units::Rows,
            Access::Tiles => {
                let row_bytes = stored.row_bytes();
                let held = entry.held(stored, row_bytes);
                let most = (options.tile_bytes / held.max(1)).max(1) as usize;
                // About as many rows in each: a small last tile would cost as much as a large one.
                let count = info.shape[0].div_ceil(most).max(1);
                let rows = info.shape[0].div_ceil(count).max(1);
                for start in (0..info.shape[0]).step_by(rows) {
                    let height = rows.min(info.shape[0] - start);
                    let mut tile = whole.clone();
                    for segment in &mut tile.segments {
                        segment.offset = info.offset + start as u64 * row_bytes;
                        segment.len = height as u64 * row_bytes;
                    }
                    self.units.push(tile);
                }
                Units::Tiles {
                    rows,
                    ids: (first..self.units.len()).collect(),
                }
            }
        }
    }
}
