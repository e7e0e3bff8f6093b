//! The characters of a drawing.

use super::bar::MemoryUse;

/// The characters of a drawing.
pub struct Glyphs {
    pub left: &'static str,
    pub right: &'static str,
    pub weights: [char; 2],
    pub ring: char,
    pub kv_cache: char,
    pub other: char,
    pub arrow: &'static str,
    pub between: &'static str,
    pub ellipsis: &'static str,
}

pub const UNICODE: Glyphs = Glyphs {
    left: "▕",
    right: "▏",
    weights: ['█', '▓'],
    ring: '▒',
    kv_cache: '▞',
    other: '░',
    arrow: "→",
    between: " · ",
    ellipsis: "…",
};

pub const ASCII: Glyphs = Glyphs {
    left: "[",
    right: "]",
    weights: ['#', '='],
    ring: '~',
    kv_cache: 'k',
    other: '-',
    arrow: "->",
    between: " | ",
    ellipsis: "...",
};

impl Glyphs {
    pub fn of(&self, part: MemoryUse) -> char {
        match part {
            MemoryUse::Weights => self.weights[0],
            MemoryUse::Ring => self.ring,
            MemoryUse::KvCache => self.kv_cache,
            MemoryUse::Activations | MemoryUse::Other => self.other,
            MemoryUse::Free => ' ',
        }
    }
}
