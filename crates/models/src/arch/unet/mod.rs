//! The denoiser of Stable Diffusion: residual blocks and transformers on pictures of falling and
//! again rising size. Rombach et al. 2022 (arXiv:2112.10752).

mod blocks;
mod config;
mod transformer;
mod work;

use burn::module::Module;
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};
use outsize_kernels::upsample_nearest;

use self::blocks::{MidBlock, UnetBlock};
use self::config::FIELDS;
pub(super) use self::config::{MAX_BLOCKS, divides, sizes};
pub use self::config::{Unet2dConditionConfig, UnetAddition, UnetLevel};
use crate::architecture::{Architecture, Init};
use crate::component::{Component, as_convolution};
use crate::config::{Fields, KnownField};
use crate::layers::{Conv2d, GroupNorm, Sinusoids, TimestepEmbedding, entered, fetched};
use crate::{Activations, Error, PicturePass, PictureSize, WeightUse};

/// A denoiser that sees a text.
#[derive(Module, Debug)]
pub struct Unet2dConditionModel {
    time_embedding: TimestepEmbedding,
    /// Of what is told besides, in the larger versions.
    add_embedding: Option<TimestepEmbedding>,
    /// `[channels, in, 3, 3]`.
    conv_in: Conv2d,
    /// In order of execution.
    down_blocks: Vec<UnetBlock>,
    mid_block: MidBlock,
    /// In order of execution.
    up_blocks: Vec<UnetBlock>,
    /// `[channels]`.
    conv_norm_out: GroupNorm,
    /// `[out, channels, 3, 3]`.
    conv_out: Conv2d,
    cosines_first: bool,
    freq_shift: f64,
    /// Channels that each of the added sizes is told in.
    size_channels: usize,
}

/// What the denoiser of Stable Diffusion XL is told besides the texts' tokens. Podell et al. 2023
/// (arXiv:2307.01952).
#[derive(Debug, Clone)]
pub struct AddedConditions {
    /// Each text as a whole, `[batch, pooled]` f32.
    pub text_embeds: Tensor<2>,
    /// Pixels, rows before columns: the size of the original picture, the corner where it was cut,
    /// the size of the result.
    pub time_ids: [f32; TIME_IDS],
}

/// Numbers of [`AddedConditions::time_ids`].
pub const TIME_IDS: usize = 6;

impl Architecture for Unet2dConditionModel {
    type Config = Unet2dConditionConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("UNet2DConditionModel", "UNet2DCondition")];
    const CLASS_PREFIX: &'static str = "Unet2dCondition";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("MidBlock", "UNetMidBlock2DCrossAttn"),
        ("UnetBlock", "CrossAttnBlock2D"),
        ("ResnetBlock2d", "ResnetBlock2D"),
        ("Transformer2dModel", "Transformer2DModel"),
        ("GeGlu", "GEGLU"),
        ("Tuple", "ModuleList"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["ResnetBlock2d", "BasicTransformerBlock"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<Unet2dConditionConfig, Error> {
        Unet2dConditionConfig::read(fields)
    }

    fn new(config: &Unet2dConditionConfig, init: &Init) -> Self {
        let first = config.levels[0].channels;
        let last = config.levels.len() - 1;
        let time = config.time_width();
        let norm = GroupNorm::new(first, config.groups, config.epsilon, init);
        let above = |level: usize| config.levels[level.saturating_sub(1)].channels;
        let below = |level: usize| config.levels[(level + 1).min(last)].channels;
        let down = |level: usize| {
            let channels = config.levels[level].channels;
            let inputs = |index| if index == 0 { above(level) } else { channels };
            let attends = config.down_attention[level];
            UnetBlock::down(config, level, attends, inputs, level < last, init)
        };
        let up = |level: usize| {
            let channels = config.levels[level].channels;
            let inputs = |index| {
                let x = if index == 0 { below(level) } else { channels };
                // What is taken up again of the way down: the last is what came into that level.
                let skipped = if index == config.layers { above(level) } else { channels };
                x + skipped
            };
            let attends = config.up_attention[last - level];
            UnetBlock::up(config, level, attends, inputs, level > 0, init)
        };
        Self {
            time_embedding: TimestepEmbedding::new(first, time, init)
                .with_condition(config.guidance_channels, init),
            add_embedding: config
                .addition
                .map(|addition| TimestepEmbedding::new(addition.inputs, time, init)),
            conv_in: Conv2d::new(config.in_channels, first, 1, init),
            down_blocks: (0..=last).map(down).collect(),
            mid_block: MidBlock::new(config, last, init),
            up_blocks: (0..=last).rev().map(up).collect(),
            conv_norm_out: norm,
            conv_out: Conv2d::new(first, config.out_channels, 1, init),
            cosines_first: config.flip_sin_to_cos,
            freq_shift: config.freq_shift,
            size_channels: config.addition.map_or(0, |addition| addition.size_channels),
        }
    }
}

impl Component for Unet2dConditionModel {
    fn is_bias_first(path: &str) -> bool {
        // The layers of a time have a row or a few, and are matmuls.
        !work::is_of_time(path)
    }

    fn stored_shape(config: &Unet2dConditionConfig, path: &str, shape: Vec<usize>) -> Vec<usize> {
        let projects =
            [".proj_in.weight", ".proj_out.weight"].iter().any(|end| path.ends_with(end));
        match path.ends_with(".conv_shortcut.weight") || (projects && !config.use_linear_projection)
        {
            true => as_convolution(shape),
            false => shape,
        }
    }

    fn weight_use(config: &Unet2dConditionConfig, path: &str, pass: &PicturePass) -> WeightUse {
        work::weight_use(config, path, pass)
    }
}

impl Unet2dConditionModel {
    /// What is to be taken off noisy latents `[batch, rows, columns, in]` f32 at a time of the
    /// training's schedule, for a text `[batch, tokens, text]` f32: `[batch, rows, columns, out]`
    /// f32, in main memory. What is `added` counts if the configuration has an
    /// [`addition`](Unet2dConditionConfig::addition), and the `guidance`, how closely to follow the
    /// text, if it has [channels](Unet2dConditionConfig::guidance_channels) for it.
    ///
    /// # Panics
    /// If the latents have other channels, the texts another width or number, or a denoiser that
    /// needs an addition or the guidance has none.
    pub fn forward(
        &self,
        latents: Tensor<4>,
        timestep: f32,
        guidance: Option<f32>,
        context: Tensor<3>,
        added: Option<&AddedConditions>,
    ) -> Tensor<4> {
        let time = self.embed_time(timestep, guidance, added, &latents.device());
        // Once for all blocks.
        let context = entered(context, &self.conv_in.weight);
        let mut x = self.conv_in.forward(latents);
        let mut skipped = vec![x.clone()];
        for block in &self.down_blocks {
            for (resnet, attention) in block.layers() {
                x = resnet.forward(x, &time);
                if let Some(attention) = attention {
                    x = attention.forward(x, &context);
                }
                skipped.push(x.clone());
            }
            for sampler in block.downsamplers.iter().flatten() {
                x = sampler.conv.forward(x);
                skipped.push(x.clone());
            }
        }
        x = self.mid_block.forward(x, &time, &context);
        for block in &self.up_blocks {
            for (resnet, attention) in block.layers() {
                let parts = std::iter::once(x).chain(skipped.pop());
                x = resnet.forward(Tensor::cat(parts.collect(), 3), &time);
                if let Some(attention) = attention {
                    x = attention.forward(x, &context);
                }
            }
            for sampler in block.upsamplers.iter().flatten() {
                x = upsample_nearest(x);
                if let Some(skipped) = skipped.last() {
                    // An odd side, halved and doubled, is one too long.
                    let [_, rows, columns, _] = skipped.dims();
                    x = x.narrow(1, 0, rows).narrow(2, 0, columns);
                }
                x = sampler.conv.forward(x);
            }
        }
        let y = self.conv_out.forward(self.conv_norm_out.forward_silu(x));
        fetched(y, &self.conv_out.weight)
    }

    /// `silu` of the embedding of a time and of what is added: `[1, time]` f32, or `[batch, time]`
    /// with an addition.
    fn embed_time(
        &self,
        timestep: f32,
        guidance: Option<f32>,
        added: Option<&AddedConditions>,
        device: &Device,
    ) -> Tensor<2> {
        let (cosines_first, freq_shift) = (self.cosines_first, self.freq_shift);
        let sinusoids = Sinusoids { cosines_first, freq_shift };
        let time = self.time_embedding.embed_guided(timestep, guidance, sinusoids, device);
        let Some(embedding) = &self.add_embedding else {
            return silu(time);
        };
        let added = added.expect("a denoiser with an addition is told what is added");
        let [batch, _] = added.text_embeds.dims();
        let sizes = sinusoids.of(&added.time_ids, self.size_channels, device);
        let sizes = sizes.reshape([1, TIME_IDS * self.size_channels]).repeat_dim(0, batch);
        silu(embedding.forward(Tensor::cat(vec![added.text_embeds.clone(), sizes], 1)) + time)
    }

    /// An upper bound on the bytes of activations that a pass over latents of that size holds at
    /// once, beside a text of so many `tokens`; with the scratch memory of attention on so many
    /// threads.
    pub fn activation_bytes(&self, size: PictureSize, tokens: usize, threads: usize) -> u64 {
        let (mut size, mut skipped) = (size, Vec::new());
        let [channels, _] = self.conv_in.shape();
        let mut most = self.conv_in.activations(size);
        let sum = |skipped: &[Activations]| {
            skipped.iter().fold(Activations::default(), |sum, more| sum.and(*more))
        };
        skipped.push(size.values(channels));
        let mut sizes = Vec::new();
        for block in &self.down_blocks {
            sizes.push(size);
            for (resnet, attention) in block.layers() {
                let work = blocks::activations(resnet, attention, size, tokens, threads);
                most = most.or(sum(&skipped).and(work));
                skipped.push(size.values(resnet.outputs()));
            }
            for sampler in block.downsamplers.iter().flatten() {
                most = most.or(sum(&skipped).and(sampler.conv.activations(size)));
                size = sampler.conv.output(size);
                skipped.push(size.values(sampler.conv.shape()[0]));
            }
        }
        most = most.or(sum(&skipped).and(self.mid_block.activations(size, tokens, threads)));
        for block in &self.up_blocks {
            size = sizes.pop().unwrap_or(size);
            for (resnet, attention) in block.layers() {
                let work = blocks::activations(resnet, attention, size, tokens, threads);
                most = most.or(sum(&skipped).and(work));
                skipped.pop();
            }
            for sampler in block.upsamplers.iter().flatten() {
                let doubled = size.doubled();
                let work = doubled.values(sampler.conv.shape()[1]);
                most = most.or(sum(&skipped).and(work).and(sampler.conv.activations(doubled)));
            }
        }
        most.or(self.conv_out.activations(size)).bytes()
    }
}
