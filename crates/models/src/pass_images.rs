//! The tokens of images that a pass runs.

use std::ops::Range;

use burn::tensor::{Device, Tensor};

use crate::kv_cache::ImagePart;
use crate::layers::{Rope, Rotation};
use crate::{Batch, KvCache};

/// The tokens of images that a pass of one text runs, and how far images before them moved its
/// positions.
#[derive(Debug, Clone)]
pub(crate) struct PassImages {
    parts: Vec<ImagePart>,
    /// Positions that images before the pass save.
    saved: usize,
}

impl PassImages {
    pub fn new(batch: &Batch, cache: &KvCache) -> Self {
        Self { parts: cache.image_parts(batch), saved: cache.saved_positions() }
    }

    /// Columns of images whose tokens see each other, in a pass that begins at column `start`.
    pub fn groups(&self, start: usize) -> Vec<Range<usize>> {
        let seeing = self.parts.iter().filter(|part| part.features.sees_itself);
        seeing.map(|part| start + part.columns.start..start + part.columns.end).collect()
    }

    /// `[1, tokens, hidden]` with the images' features in place of what their tokens have.
    pub fn embed(&self, x: Tensor<3>) -> Tensor<3> {
        self.parts.iter().fold(x, |x, part| {
            let [_, _, hidden] = x.dims();
            let features = part.of(&part.features.embeddings, &x.device());
            x.slice_assign([0..1, part.columns.clone(), 0..hidden], features)
        })
    }

    /// Whether anything is added behind a block.
    pub fn adds_behind(&self, block: usize) -> bool {
        self.parts.iter().any(|part| part.features.deepstack.len() > block)
    }

    /// `[1, tokens, hidden]` with what is added behind a block.
    pub fn add_deepstack(&self, block: usize, x: Tensor<3>) -> Tensor<3> {
        self.parts.iter().fold(x, |x, part| {
            let Some(features) = part.features.deepstack.get(block) else { return x };
            let [_, _, hidden] = x.dims();
            let added = part.of(features, &x.device());
            let place = [0..1, part.columns.clone(), 0..hidden];
            let sum = x.clone().slice(place.clone()) + added;
            x.slice_assign(place, sum)
        })
    }

    /// The rotations of `tokens` columns from `start` on, if images have anything to do with them.
    pub fn rotation(
        &self,
        rope: &Rope,
        [start, tokens, length]: [usize; 3],
        device: &Device,
    ) -> Option<Rotation> {
        let axes = self.parts.iter().find_map(|part| part.features.positions.as_ref());
        let Some(axes) = axes.map(|grid| grid.axes_of(rope.width() / 2)) else {
            // A text behind images.
            let moved = |()| rope.at(start - self.saved, tokens, length, &[0], device);
            return (self.saved > 0).then_some(()).map(moved);
        };
        let (mut position, mut positions) = (start - self.saved, Vec::with_capacity(tokens));
        let mut parts = self.parts.iter().peekable();
        let mut column = 0;
        while column < tokens {
            let part = parts.next_if(|part| part.columns.start == column);
            match part.and_then(|part| Some((part, part.features.positions.as_ref()?))) {
                Some((part, grid)) => {
                    // Where the image began, be it in an earlier pass.
                    let begin = position - part.token;
                    let tokens = part.token..part.token + part.columns.len();
                    positions.extend(tokens.clone().map(|token| {
                        Box::from_iter(axes.iter().map(|axis| grid.position(begin, token, *axis)))
                    }));
                    position += part.columns.len();
                    if tokens.end == part.features.tokens() {
                        position -= grid.saved();
                    }
                    column = part.columns.end;
                }
                None => {
                    positions.push(vec![position; axes.len()].into());
                    position += 1;
                    column += 1;
                }
            }
        }
        Some(rope.at_positions(&positions, length, device))
    }
}

impl ImagePart {
    /// Of features `[tokens, hidden]` those of these tokens, `[1, tokens, hidden]`.
    fn of(&self, features: &Tensor<2>, device: &Device) -> Tensor<3> {
        let features = features.clone().narrow(0, self.token, self.columns.len());
        features.unsqueeze::<3>().to_device(device)
    }
}
