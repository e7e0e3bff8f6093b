//! Tokens of several pictures and texts one behind the other, and where they are.

use burn::module::Param;
use burn::tensor::{DType, Device, Tensor};

use super::config::AXES;
use crate::layers::{AxialRope, Rotation, joined};

/// What the tokens of a picture, and those of a text, are a multiple of.
pub(super) const MULTIPLE: u64 = 32;

/// Which tokens see each other, and their rotations.
pub(super) struct Sequences {
    /// Tokens of each sequence, which lie one behind the other.
    pub lengths: Vec<usize>,
    pub rotation: Rotation,
}

/// Pictures of the same size and their texts.
pub(super) struct Places {
    /// Rows and columns of a picture's tokens.
    pub size: [usize; 2],
    /// Tokens of each text, with those that fill it up.
    pub texts: Vec<usize>,
}

/// So many tokens, filled up.
pub(super) fn filled(tokens: u64) -> u64 {
    tokens.div_ceil(MULTIPLE).saturating_mul(MULTIPLE)
}

impl Places {
    /// Pictures of that size, and texts of so many tokens.
    pub fn new(size: [usize; 2], lengths: &[usize]) -> Self {
        let texts = lengths.iter().map(|tokens| filled(*tokens as u64) as usize).collect();
        Self { size, texts }
    }

    /// Tokens of a picture, with those that fill it up.
    pub fn image_tokens(&self) -> usize {
        filled(self.size.iter().product::<usize>() as u64) as usize
    }

    /// The tokens of the pictures alone.
    pub fn images(&self, rope: AxialRope<AXES>, device: &Device) -> Sequences {
        let places: Vec<_> = self.texts.iter().flat_map(|text| self.image(*text)).collect();
        let lengths = vec![self.image_tokens(); self.texts.len()];
        Sequences { lengths, rotation: rope.at(&places, device) }
    }

    /// The tokens of the texts alone.
    pub fn texts(&self, rope: AxialRope<AXES>, device: &Device) -> Sequences {
        let places: Vec<_> = self.texts.iter().flat_map(|text| Self::text(*text)).collect();
        Sequences { lengths: self.texts.clone(), rotation: rope.at(&places, device) }
    }

    /// The tokens of each picture, and behind them those of its text.
    pub fn both(&self, rope: AxialRope<AXES>, device: &Device) -> Sequences {
        let both = |text: &usize| self.image(*text).chain(Self::text(*text));
        let places: Vec<_> = self.texts.iter().flat_map(both).collect();
        let lengths = self.texts.iter().map(|text| self.image_tokens() + text).collect();
        Sequences { lengths, rotation: rope.at(&places, device) }
    }

    /// Where the tokens of a picture are that has a text of so many: behind the text, in a row and
    /// a column; what fills it up is nowhere.
    fn image(&self, text: usize) -> impl Iterator<Item = [usize; AXES]> {
        let [rows, columns] = self.size;
        let places = (0..rows).flat_map(move |row| (0..columns).map(move |column| [row, column]));
        let places = places.map(move |[row, column]| [text + 1, row, column]);
        let rest = self.image_tokens() - rows * columns;
        places.chain(std::iter::repeat_n([0; AXES], rest))
    }

    /// Where the tokens of a text are: one after the other, with those that fill it up.
    fn text(tokens: usize) -> impl Iterator<Item = [usize; AXES]> {
        (1..=tokens).map(|place| [place, 0, 0])
    }
}

/// Sequences `[1, tokens of all, hidden]` f32 of so many tokens each, each filled up with a learned
/// token `[1, hidden]`.
pub(super) fn fill(x: Tensor<3>, lengths: &[usize], token: &Param<Tensor<2>>) -> Tensor<3> {
    let token = token.val().cast(DType::F32).to_device(&x.device());
    let [_, hidden] = token.dims();
    let mut parts = Vec::with_capacity(2 * lengths.len());
    for (length, part) in lengths.iter().zip(split(&x, lengths)) {
        parts.push(part);
        let rest = filled(*length as u64) as usize - length;
        if rest > 0 {
            parts.push(token.clone().unsqueeze::<3>().expand([1, rest, hidden]));
        }
    }
    drop(x);
    joined(parts, 1)
}

/// The parts of `[1, tokens of all, hidden]` that have so many tokens.
pub(super) fn split<'a>(
    x: &'a Tensor<3>,
    lengths: &'a [usize],
) -> impl Iterator<Item = Tensor<3>> + 'a {
    let mut start = 0;
    lengths.iter().map(move |length| {
        let part = x.clone().narrow(1, start, *length);
        start += length;
        part
    })
}
