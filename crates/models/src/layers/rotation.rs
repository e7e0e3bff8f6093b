//! The rotations of some positions, and what they are applied to.

use std::borrow::Cow;
use std::cell::RefCell;

use burn::tensor::{Device, Tensor};
use outsize_kernels::RotaryPairs;

use super::attention::query_positions::QueryPositions;

/// The rotations of some consecutive positions.
#[derive(Debug, Clone)]
pub struct Rotation {
    /// Cosines and sines, `[1 or batch, tokens, 1, rotated / 2]` each, if anything is rotated.
    pub(super) angles: Option<[Tensor<4>; 2]>,
    pairs: RotaryPairs,
    /// `[1 or batch, tokens, 1, 1]`: what queries are multiplied by, if by anything.
    growth: Option<Tensor<4>>,
    /// The same on another device, if they were asked for there.
    moved: RefCell<Option<[Tensor<4>; 2]>>,
}

impl Rotation {
    /// The rotations of such pairs of dimensions, by cosines and sines
    /// `[1 or batch, tokens, 1, rotated / 2]` f32; none that do nothing. Queries do not grow.
    pub(crate) fn new(pairs: RotaryPairs, angles: Option<[Tensor<4>; 2]>) -> Self {
        Self { angles, pairs, growth: None, moved: RefCell::default() }
    }

    /// The same with what queries are multiplied by, `[1 or batch, tokens, 1, 1]` f32.
    pub(crate) fn growing(self, growth: Option<Tensor<4>>) -> Self {
        Self { growth, ..self }
    }

    /// Rotates `[batch, tokens, heads, head_dim]`; of each head the first `rotated` elements.
    pub fn apply(&self, x: Tensor<4>) -> Tensor<4> {
        self.apply_to_pairs(self.pairs, x)
    }

    /// The same of other pairs of dimensions.
    pub(crate) fn apply_to_pairs(&self, pairs: RotaryPairs, x: Tensor<4>) -> Tensor<4> {
        match &self.angles {
            Some(angles) => {
                let [cos, sin] = self.on(angles, &x.device());
                outsize_kernels::rotate(x, pairs, cos, sin)
            }
            None => x,
        }
    }

    /// The same the other way round.
    pub(crate) fn inverse(&self) -> Self {
        Self::new(self.pairs, self.angles.clone().map(|[cos, sin]| [cos, -sin]))
    }

    /// Rotates `[batch, tokens, heads, head_dim]`; of each head the elements behind the first
    /// `plain`.
    pub(crate) fn apply_behind(&self, plain: usize, x: Tensor<4>) -> Tensor<4> {
        self.apply_to_pairs_behind(self.pairs, plain, x)
    }

    /// The same of other pairs of dimensions.
    pub(crate) fn apply_to_pairs_behind(
        &self,
        pairs: RotaryPairs,
        plain: usize,
        x: Tensor<4>,
    ) -> Tensor<4> {
        if plain == 0 {
            return self.apply_to_pairs(pairs, x);
        }
        let rotated = x.dims()[3] - plain;
        let [first, last] =
            [(0, plain), (plain, rotated)].map(|(at, n)| x.clone().narrow(3, at, n));
        Tensor::cat(vec![first, self.apply_to_pairs(pairs, last)], 3)
    }

    /// The rotations of some of the tokens alone.
    pub(crate) fn of_tokens(&self, first: usize, count: usize) -> Self {
        let narrow = |x: &Tensor<4>| x.clone().narrow(1, first, count);
        let angles = self.angles.as_ref().map(|angles| angles.each_ref().map(narrow));
        Self { growth: self.growth.as_ref().map(narrow), ..Self::new(self.pairs, angles) }
    }

    /// The rotations of the tokens that queries are wanted of.
    pub(crate) fn of_queries(&self, positions: &QueryPositions<'_>) -> Cow<'_, Self> {
        match positions.queries {
            Some([first, count]) => Cow::Owned(self.of_tokens(first, count)),
            None => Cow::Borrowed(self),
        }
    }

    /// Rotates queries `[batch, tokens, heads, head_dim]`, and scales them if they grow with their
    /// position.
    pub fn apply_to_queries(&self, x: Tensor<4>) -> Tensor<4> {
        self.grown(self.apply(x))
    }

    /// Queries `[batch, tokens, heads, head_dim]`, scaled if they grow with their position.
    pub(crate) fn grown(&self, x: Tensor<4>) -> Tensor<4> {
        match &self.growth {
            Some(growth) => {
                let growth = growth.clone().to_device(&x.device());
                x * growth
            }
            None => x,
        }
    }

    fn on(&self, angles: &[Tensor<4>; 2], device: &Device) -> [Tensor<4>; 2] {
        let own = angles.clone();
        if own[0].device() == *device {
            return own;
        }
        let mut moved = self.moved.borrow_mut();
        match &*moved {
            Some(held) if held[0].device() == *device => held.clone(),
            _ => moved.insert(own.map(|angles| angles.to_device(device))).clone(),
        }
    }
}

/// `[batch, tokens, heads, head_dim]` rotated, if there is a rotation.
pub(crate) fn rotated(rotation: Option<&Rotation>, x: Tensor<4>) -> Tensor<4> {
    match rotation {
        Some(rotation) => rotation.apply(x),
        None => x,
    }
}
