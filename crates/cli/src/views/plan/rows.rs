//! The list of blocks, with like neighbours in one row.

use super::report::BlockReport;
use crate::views::human;
use crate::views::text::plain;
use outsize::plan::{Tier, list_index};
use std::collections::BTreeMap;

/// The most rows of one module list; beyond, the list is one row.
const MOST_OF_A_LIST: usize = 12;

/// Consecutive blocks on the same devices.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Their names: `model.layers.0-12`.
    pub name: String,
    /// Bytes of all.
    pub bytes: u64,
    /// Where these are.
    pub shares: BTreeMap<Tier, u64>,
    /// For each device, the least and the most percent of a block on it.
    percents: BTreeMap<Tier, (u32, u32)>,
    computes: (Tier, Tier),
}

/// A block, or the parts of one layer.
struct Unit<'a> {
    /// The path before the first number in the name, and the number.
    numbered: Option<(&'a str, u64)>,
    row: Row,
}

/// All blocks in the order of execution.
pub fn rows(blocks: &[BlockReport]) -> Vec<Row> {
    let units = units(blocks);
    let mut rows = Vec::new();
    for list in units.chunk_by(|a, b| a.follows(b)) {
        let like: Vec<Row> =
            list.chunk_by(|a, b| a.row.places() == b.row.places()).filter_map(merged).collect();
        if like.len() > MOST_OF_A_LIST {
            rows.extend(merged(list));
        } else {
            rows.extend(like);
        }
    }
    rows
}

/// Blocks, with the parts of one numbered module merged.
fn units(blocks: &[BlockReport]) -> Vec<Unit<'_>> {
    let mut units: Vec<Unit<'_>> = Vec::new();
    for block in blocks {
        let numbered = list_index(&block.name);
        let row = Row::of(block);
        match (units.last_mut(), numbered) {
            (Some(last), Some((owner, number))) if last.numbered == numbered => {
                last.row.join(&row);
                last.row.percents = percents(&last.row.shares);
                last.row.name = plain(&format!("{owner}.{number}"));
            }
            _ => units.push(Unit { numbered, row }),
        }
    }
    units
}

impl Unit<'_> {
    /// Whether `next` is the next element of the list and computes on the same devices.
    fn follows(&self, next: &Self) -> bool {
        let after = self.numbered.and_then(|(owner, number)| Some((owner, number.checked_add(1)?)));
        after.is_some() && after == next.numbered && self.row.computes == next.row.computes
    }
}

/// One row for consecutive units of one list.
fn merged(units: &[Unit<'_>]) -> Option<Row> {
    let mut row = Row::joined(units.iter().map(|unit| unit.row.clone()))?;
    if let [first, .., last] = units
        && let (Some((owner, number)), Some((_, last))) = (first.numbered, last.numbered)
    {
        row.name = plain(&format!("{owner}.{number}-{last}"));
    }
    Some(row)
}

impl Row {
    fn of(block: &BlockReport) -> Self {
        Self {
            name: plain(&block.name),
            bytes: block.bytes,
            percents: percents(&block.shares),
            shares: block.shares.clone(),
            computes: (block.prefill_on, block.decode_on),
        }
    }

    /// Any neighbours as one row; none if there are none.
    pub fn together(blocks: &[BlockReport]) -> Option<Self> {
        let mut row = Self::joined(blocks.iter().map(Self::of))?;
        if let [_, .., last] = blocks {
            row.name = format!("{} to {}", row.name, plain(&last.name));
        }
        Some(row)
    }

    fn joined(rows: impl Iterator<Item = Self>) -> Option<Self> {
        rows.reduce(|mut all, row| {
            all.join(&row);
            all
        })
    }

    fn join(&mut self, other: &Self) {
        self.bytes = self.bytes.saturating_add(other.bytes);
        for (tier, bytes) in &other.shares {
            let sum = self.shares.entry(*tier).or_default();
            *sum = sum.saturating_add(*bytes);
        }
        let tiers: Vec<Tier> = self.percents.keys().chain(other.percents.keys()).copied().collect();
        for tier in tiers {
            let (low, high) = self.percents.get(&tier).copied().unwrap_or((0, 0));
            let (other_low, other_high) = other.percents.get(&tier).copied().unwrap_or((0, 0));
            self.percents.insert(tier, (low.min(other_low), high.max(other_high)));
        }
    }

    /// What neighbours in one row have in common.
    fn places(&self) -> (Vec<Tier>, (Tier, Tier)) {
        (self.percents.keys().copied().collect(), self.computes)
    }

    /// Where the blocks are and compute: `cpu 45 %`, `disk 55 %`.
    pub fn parts(&self) -> Vec<(Tier, String)> {
        let alone = self.percents.len() == 1;
        let mut parts: Vec<(Tier, String)> = self
            .percents
            .iter()
            .map(|(tier, (low, high))| {
                let text = match (low, high) {
                    _ if alone => tier.to_string(),
                    (low, high) if low == high => format!("{tier} {low} %"),
                    (low, high) => format!("{tier} {low}-{high} %"),
                };
                (*tier, text)
            })
            .collect();
        let (prefill, decode) = self.computes;
        let elsewhere = |tier: Tier| tier != self.home() && tier != Tier::Disk;
        if parts.is_empty() {
            parts.push((decode, decode.to_string()));
        } else if prefill == decode && elsewhere(decode) {
            parts.push((decode, format!("computes on {decode}")));
        } else {
            let places = [("prompt", prefill), ("tokens", decode)];
            let places = places.into_iter().filter(|(_, tier)| elsewhere(*tier));
            parts.extend(places.map(|(what, tier)| (tier, format!("{what} on {tier}"))));
        }
        parts
    }

    /// Where it computes by default.
    fn home(&self) -> Tier {
        match self.percents.keys().next() {
            Some(Tier::Disk) | None => Tier::Cpu,
            Some(tier) => *tier,
        }
    }

    /// The same in one text.
    pub fn place(&self, between: &str) -> String {
        let parts: Vec<String> = self.parts().into_iter().map(|(_, text)| text).collect();
        parts.join(between)
    }
}

/// Percents by device, without those that round to zero: the small tensors of a streamed layer do
/// not make it resident.
fn percents(shares: &BTreeMap<Tier, u64>) -> BTreeMap<Tier, (u32, u32)> {
    let total: u128 = shares.values().map(|bytes| u128::from(*bytes)).sum();
    shares
        .iter()
        .filter_map(|(tier, bytes)| {
            let percent = human::percent(u128::from(*bytes), total)?;
            (percent > 0).then_some((*tier, (percent, percent)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str, shares: &[(Tier, u64)]) -> BlockReport {
        BlockReport {
            name: name.to_string(),
            class: String::new(),
            bytes: shares.iter().map(|(_, bytes)| bytes).sum(),
            shares: shares.iter().copied().collect(),
            kv_bytes: 0,
            streamed_bytes: 0,
            kept_bytes: 0,
            upload_bytes: 0,
            prefill_on: Tier::Cpu,
            prefill_seconds: 0.0,
            decode_on: Tier::Cpu,
            decode_seconds: 0.0,
        }
    }

    fn shown(blocks: &[BlockReport]) -> Vec<String> {
        rows(blocks).iter().map(|row| format!("{} → {}", row.name, row.place(" · "))).collect()
    }

    #[test]
    fn neighbours_in_like_places_are_one_row() {
        let mut blocks = vec![block("embed", &[(Tier::Gpu(0), 7)])];
        blocks.extend((0..3).map(|n| block(&format!("m.layers.{n}"), &[(Tier::Gpu(0), 100)])));
        blocks.extend((3..6).map(|n| {
            block(&format!("m.layers.{n}"), &[(Tier::Cpu, 40 + n), (Tier::Disk, 60 - n)])
        }));
        blocks.push(block("m.layers.6", &[(Tier::Cpu, 1), (Tier::Disk, 999)]));
        blocks.push(block("head", &[]));
        for block in &mut blocks[..4] {
            (block.prefill_on, block.decode_on) = (Tier::Gpu(0), Tier::Gpu(0));
        }
        assert_eq!(
            shown(&blocks),
            [
                "embed → gpu0",
                "m.layers.0-2 → gpu0",
                "m.layers.3-5 → cpu 43-45 % · disk 55-57 %",
                "m.layers.6 → disk",
                "head → cpu",
            ]
        );
        assert_eq!(rows(&blocks)[2].bytes, 300);
    }

    #[test]
    fn where_something_computes_is_said_if_it_is_elsewhere() {
        let mut blocks: Vec<_> =
            (0..4).map(|n| block(&format!("h.{n}"), &[(Tier::Cpu, 10)])).collect();
        blocks[0].prefill_on = Tier::Gpu(1);
        (blocks[1].prefill_on, blocks[1].decode_on) = (Tier::Gpu(1), Tier::Gpu(1));
        assert_eq!(
            shown(&blocks),
            ["h.0 → cpu · prompt on gpu1", "h.1 → cpu · computes on gpu1", "h.2-3 → cpu"]
        );
    }

    #[test]
    fn a_list_in_many_places_is_one_row() {
        let blocks: Vec<_> = (0..40)
            .map(|n| match n % 2 {
                0 => block(&format!("h.{n}"), &[(Tier::Cpu, 10)]),
                _ => block(&format!("h.{n}"), &[(Tier::Cpu, 4), (Tier::Disk, 6)]),
            })
            .collect();
        assert_eq!(shown(&blocks), ["h.0-39 → cpu 40-100 % · disk 0-60 %"]);
        assert_eq!(shown(&blocks[..4]).len(), 4);
    }

    #[test]
    fn parts_of_a_layer_count_together_and_lists_apart() {
        let names = ["e.0.a", "e.0.b", "e.1.a", "e.1.b", "d.0", "d.1", "d.3", "d.1"];
        let blocks: Vec<_> = names.iter().map(|name| block(name, &[(Tier::Cpu, 1)])).collect();
        assert_eq!(shown(&blocks), ["e.0-1 → cpu", "d.0-1 → cpu", "d.3 → cpu", "d.1 → cpu"]);
    }
}
