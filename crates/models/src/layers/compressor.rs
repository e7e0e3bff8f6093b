//! The layer that makes entries of blocks of tokens.

use burn::module::{Module, Param};
use burn::tensor::activation::softmax;
use burn::tensor::{DType, Tensor};

use super::linear::matrix;
use super::{Linear, RmsNorm, Rope};
use crate::kv_cache::EntryInputs;
use crate::{EntryCache, Init};

/// The sizes of a [`Compressor`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompressorConfig {
    /// Tokens of a block.
    pub block: usize,
    /// Whether an entry is made of the block before its own too.
    pub overlaps: bool,
    /// Values of an entry.
    pub width: usize,
    /// Of these, how many are rotated: the last ones.
    pub rotated: usize,
    /// What the norm of entries adds.
    pub epsilon: f64,
}

/// Makes an entry of each block of consecutive tokens: of each channel the mean of what the tokens
/// have for it, by a softmax over what they have for its weight ([DeepSeek-AI,
/// 2026](https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro)).
#[derive(Module, Debug)]
pub struct Compressor {
    /// `[parts · width, hidden]`: values of the next block's entry if it overlaps, then of the own
    /// one's.
    pub kv_proj: Linear,
    /// `[parts · width, hidden]`: the same of weights.
    pub gate_proj: Linear,
    /// `[block, parts · width]`: what the weights have besides, by the place in a block.
    pub position_bias: Param<Tensor<2>>,
    /// `[width]`.
    pub kv_norm: RmsNorm,
    #[module(skip)]
    config: CompressorConfig,
}

impl Compressor {
    /// A layer without storage.
    pub fn new(hidden: usize, config: CompressorConfig, init: &Init) -> Self {
        let CompressorConfig { block, width, epsilon, .. } = config;
        let made = config.parts() * width;
        Self {
            kv_proj: Linear::new(hidden, made, false, init),
            gate_proj: Linear::new(hidden, made, false, init),
            position_bias: matrix([block, made], &init.device),
            kv_norm: RmsNorm::new(width, epsilon, init),
            config,
        }
    }

    /// What entries are made of, `[batch, tokens, hidden]` f32 to `[batch, tokens, inputs]`.
    pub(super) fn inputs(&self, x: Tensor<3>) -> Tensor<3> {
        Tensor::cat(vec![self.kv_proj.forward(x.clone()), self.gate_proj.forward(x)], 2)
    }

    /// Entries `[entries, width]` of what they are made of, from value `at` on.
    pub(super) fn entries(&self, inputs: &EntryInputs, at: usize, rope: &Rope) -> Tensor<2> {
        let CompressorConfig { block, overlaps, width, rotated, .. } = self.config;
        let made = self.config.parts() * width;
        let blocks = inputs.tokens.dims()[0] / block;
        let part = |from| {
            let part = inputs.tokens.clone().narrow(0, 0, blocks * block).narrow(1, from, made);
            part.reshape([blocks, block, made])
        };
        let (values, weights) = (part(at), part(at + made));
        let bias = self.position_bias.val().cast(DType::F32).to_device(&weights.device());
        let weights = weights + bias.unsqueeze::<3>();
        let (values, weights) = match overlaps {
            false => (values, weights),
            true => {
                // Before the first block of a text there is none.
                let is_first = inputs.first == 0;
                [(values, 0.0), (weights, f32::NEG_INFINITY)]
                    .map(|(x, nothing)| overlapping(x, width, is_first.then_some(nothing)))
                    .into()
            }
        };
        let entries = (values * softmax(weights, 1)).sum_dim(1).squeeze_dim::<2>(1);
        let [count, _] = entries.dims();
        let entries = self.kv_norm.forward(entries).reshape([1, count, 1, width]);
        let positions = (0..count).map(|entry| (inputs.first + entry) * block);
        let columns: Vec<_> =
            positions.map(|position| vec![position; rotated / 2].into()).collect();
        let rotation = rope.at_positions(&columns, 0, &entries.device());
        rotation.apply_behind(width - rotated, entries).reshape([count, width])
    }
}

/// Of blocks `[blocks, tokens, 2 · width]` each one's own part behind the other part of the block
/// before; before the first one there is `nothing`, or it is that before.
fn overlapping(x: Tensor<3>, width: usize, nothing: Option<f32>) -> Tensor<3> {
    let [blocks, tokens, _] = x.dims();
    let [before, own] = [0, width].map(|from| x.clone().narrow(2, from, width));
    match nothing {
        None => {
            let before = before.narrow(0, 0, blocks - 1);
            Tensor::cat(vec![before, own.narrow(0, 1, blocks - 1)], 1)
        }
        Some(nothing) => {
            let first = Tensor::full([1, tokens, width], nothing, (&x.device(), DType::F32));
            let before = match blocks {
                1 => first,
                _ => Tensor::cat(vec![first, before.narrow(0, 0, blocks - 1)], 0),
            };
            Tensor::cat(vec![before, own], 1)
        }
    }
}

impl CompressorConfig {
    /// Entries that a token has values for.
    fn parts(&self) -> usize {
        if self.overlaps { 2 } else { 1 }
    }

    /// Values of a token that entries are made of.
    pub(crate) fn inputs(&self) -> usize {
        2 * self.parts() * self.width
    }

    /// What a cache keeps of it.
    pub(crate) fn cache(&self) -> EntryCache {
        EntryCache {
            block: self.block,
            span: self.parts() * self.block,
            width: self.width,
            inputs: self.inputs(),
        }
    }
}
