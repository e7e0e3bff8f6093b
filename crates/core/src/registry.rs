//! The chunks of a stream, and which of them make up each parameter.

use crate::matching::{Matched, Stored};
use crate::neighbours::join;
use crate::streamed::Chunks;
use crate::{Access, Options};
use outsize_plan::{DeviceMap, Residency, Tier};
use outsize_stream::{Chunk, ChunkId, footprint};
use std::collections::{HashMap, HashSet};

/// The entries in the order in which a pass needs them: as the options say, then as declared.
pub(crate) fn in_order<'a>(matched: &'a [Matched<'a>], options: &Options) -> Vec<&'a Matched<'a>> {
    let Some(order) = &options.order else {
        return matched.iter().collect();
    };
    let turn: HashMap<&str, usize> = order.iter().map(String::as_str).zip(0..).collect();
    let mut sorted: Vec<_> = matched.iter().collect();
    sorted.sort_by_key(|entry| {
        turn.get(entry.parameter.path.as_str()).copied().unwrap_or(usize::MAX)
    });
    sorted
}

/// Burn's layers that go through their weights once for each step of a sequence.
pub(crate) const RECURRENT: [&str; 3] = ["Lstm", "Gru", "Rnn"];

/// How often the first schedule goes through a recurrent layer: as a guess at the number of steps
/// it only has to be large enough for the layer's weights not to seem done with after each. Later
/// passes know.
const STEPS: usize = 32;

/// The path of the recurrent layer that the parameter belongs to.
pub(crate) fn recurrent_layer<'a>(entry: &Matched<'a>) -> Option<&'a str> {
    let parameter = entry.parameter;
    (0..parameter.containers.len())
        .any(|depth| RECURRENT.contains(&parameter.class_at(depth)))
        .then(|| parameter.block(&RECURRENT.map(String::from)))
}

/// What says which tensor, or which part of one, a parameter is made of.
type Key = (usize, usize, usize);

/// Whether it stays in main memory.
fn stays(map: &DeviceMap, path: &str) -> bool {
    !matches!(map.residency(path), Some(Residency::Streamed | Residency::Resident(Tier::Gpu(_))))
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
            let chunk = Chunk { keep: true, ..entry.chunk(stored, &stored.weight) };
            (stored.key, chunk)
        })
        .collect()
}

/// What a stream is started with. Parameters that cannot be streamed have no chunks.
#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) order: Vec<ChunkId>,
    /// By the parameter's path: its chunks, and whether it stays once it is read.
    pub(crate) handles: HashMap<String, (Chunks, bool)>,
}

impl Registry {
    pub(crate) fn new(matched: &[Matched], map: &DeviceMap, options: &Options) -> Self {
        let mut registry = Self::default();
        // Parameters that share a value share its chunks.
        let mut shared: HashMap<_, Chunks> = HashMap::new();
        let mut joined: HashMap<Key, Chunks> = HashMap::new();
        for (chunk, parts) in join(&kept(matched, map, options)) {
            let id = registry.chunks.len();
            registry.chunks.push(chunk);
            joined.extend(parts.into_iter().map(|(key, range)| (key, Chunks::Part(id, range))));
        }
        // The recurrent layer of the entry before, and where its chunks begin in the order.
        let mut layer: (Option<&str>, usize) = (None, 0);
        // The parameter before, and how many chunks of it end the order.
        let mut before = ("", 0);
        for entry in in_order(matched, options) {
            if recurrent_layer(entry) != layer.0 {
                registry.repeat(layer);
                layer = (recurrent_layer(entry), registry.order.len());
            }
            let (true, Some(stored)) = (entry.parameter.streams, &entry.stored) else {
                continue;
            };
            let path = &entry.parameter.path;
            if let Some(Residency::Resident(Tier::Gpu(_))) = map.residency(path) {
                registry.handles.insert(path.clone(), (Chunks::OnGpu, true));
                continue;
            }
            let resident = stays(map, path);
            let access = if resident { Access::Whole } else { entry.access(options) };
            let mut chunks = shared
                .entry((stored.key, access, resident))
                .or_insert_with(|| match joined.get(&stored.key) {
                    Some(part) if resident => part.clone(),
                    _ => registry.divide(entry, stored, access, resident, options),
                })
                .clone();
            let partner = options.interleaved.get(path).filter(|partner| *partner == before.0);
            if let Some(first) = partner.and_then(|path| Some(&registry.handles.get(path)?.0))
                && registry.has_room_for_both(first, &chunks, map)
                && let Chunks::Tiles { interleaved, .. } = &mut chunks
            {
                *interleaved = true;
            }
            chunks.add_to(&mut registry.order, before.1);
            before = (path.as_str(), chunks.ids().len());
            registry.handles.insert(path.clone(), (chunks, resident));
        }
        registry.repeat(layer);
        registry
    }

    /// Whether a tile of each fits into the ring at the same time, beside as many that are read.
    fn has_room_for_both(&self, first: &Chunks, second: &Chunks, map: &DeviceMap) -> bool {
        let (Chunks::Tiles { rows, ids, .. }, Chunks::Tiles { rows: others, ids: more, .. }) =
            (first, second)
        else {
            return false;
        };
        let largest = ids.iter().chain(more).map(|id| self.chunks[*id].block_len() as u64).max();
        // On GPUs, tiles have memory of their own.
        let on_cpu = map.tiers().iter().all(|held| !matches!(held.tier, Tier::Gpu(_)));
        (rows, ids.len()) == (others, more.len())
            && on_cpu
            && largest.unwrap_or(0).saturating_mul(4) <= map.ring_bytes()
    }

    /// Expects a recurrent layer's chunks once for each step.
    fn repeat(&mut self, (layer, from): (Option<&str>, usize)) {
        if layer.is_some() {
            let step = self.order[from..].to_vec();
            for _ in 1..STEPS {
                self.order.extend(&step);
            }
        }
    }

    /// Adds the chunks of one tensor.
    fn divide(
        &mut self,
        entry: &Matched,
        stored: &Stored,
        access: Access,
        resident: bool,
        options: &Options,
    ) -> Chunks {
        let whole = Chunk { keep: resident, ..entry.chunk(stored, &stored.weight) };
        let first = self.chunks.len();
        match access {
            Access::Whole => {
                self.chunks.push(whole);
                Chunks::Whole(first)
            }
            Access::Rows => Chunks::Rows,
            Access::Tiles => {
                let height = stored.weight.rows();
                let rows = tile_rows(entry, stored, options);
                for start in (0..height).step_by(rows) {
                    let tile = stored.weight.slice(start..start + rows);
                    self.chunks.push(entry.chunk(stored, &tile));
                }
                let ids = (first..self.chunks.len()).collect();
                Chunks::Tiles { rows, ids, interleaved: false }
            }
        }
    }
}

/// What the rows of a tile are a multiple of, if it has room for as many: matmuls take as many at a
/// time.
const UNIT: usize = 32;

/// Rows of a tile: about as many in each, as a small last tile would cost as much as a large one.
pub(crate) fn tile_rows(entry: &Matched, stored: &Stored, options: &Options) -> usize {
    let (weight, row) = (&stored.weight, entry.row_bytes(stored));
    let height = weight.rows();
    let mut most = (options.tile_bytes / row.max(1)).max(1) as usize;
    let Some(grid) = weight.format().scales.filter(|_| entry.in_blocks) else {
        let unit = if most < UNIT { 1 } else { UNIT };
        let tiles = height.div_ceil(most / unit * unit).max(1);
        return height.div_ceil(tiles).next_multiple_of(unit).max(1);
    };
    // A tile takes the rows of scales that it needs, perhaps one more than if it began with the
    // first of them; and its own zero points.
    let one = weight.slice(0..1);
    let (scale_row, [.., zero_row]) =
        (one.scales().map_or(0, |row| row.len), one.bytes_in_memory());
    let memory = |rows: usize| {
        let scales = (rows.div_ceil(grid.block[0]) as u64 + 1).saturating_mul(scale_row);
        let data = weight.row_bytes().saturating_mul(rows as u64);
        let zeros = match zero_row {
            0 => 0,
            row => footprint(row.saturating_mul(rows as u64)),
        };
        data.saturating_add(footprint(scales)).saturating_add(zeros)
    };
    most = (options.tile_bytes / weight.row_bytes().max(1)).max(1) as usize;
    while most > 1 && memory(most) > options.tile_bytes {
        most -= most.div_ceil(8).min(most - 1);
    }
    let rows = height.div_ceil(height.div_ceil(most).max(1)).max(1);
    match rows / grid.block[0] * grid.block[0] {
        0 => rows,
        whole => whole,
    }
}
