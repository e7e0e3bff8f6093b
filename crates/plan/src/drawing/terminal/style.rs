//! How a plan is drawn in a terminal: its size, and its characters.

use crate::drawing::bar::Part;

/// How a plan is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Columns that a line may have; at least 20 are used.
    pub width: usize,
    /// Whether escape sequences for colours are understood.
    pub colour: bool,
    /// Whether only ASCII is.
    pub ascii: bool,
}

impl Default for Style {
    /// For a file: 80 columns without colours.
    fn default() -> Self {
        Self {
            width: 80,
            colour: false,
            ascii: false,
        }
    }
}

/// The characters of a drawing.
pub(super) struct Glyphs {
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

pub(super) const UNICODE: Glyphs = Glyphs {
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

pub(super) const ASCII: Glyphs = Glyphs {
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
    pub fn of(&self, part: Part) -> char {
        match part {
            Part::Weights => self.weights[0],
            Part::Ring => self.ring,
            Part::KvCache => self.kv_cache,
            Part::Activations | Part::Other => self.other,
            Part::Free => ' ',
        }
    }
}
