//! The blocks of the denoiser: residual blocks, each with a transformer behind it or none, then a
//! change of size.

use burn::module::Module;
use burn::tensor::Tensor;

use super::Unet2dConditionConfig;
use super::transformer::Transformer2dModel;
use crate::architecture::Init;
use crate::layers::{Conv2d, PictureNormKind, Resampler, ResnetBlock2d, ResnetSizes};
use crate::{Activations, PictureSize};

/// A level of the way down or up.
#[derive(Module, Debug)]
pub(super) struct UnetBlock {
    /// In order of execution, taking turns with `attentions`.
    resnets: Vec<ResnetBlock2d>,
    /// As many, or none at all.
    attentions: Vec<Transformer2dModel>,
    /// Halves the size, on the way down.
    pub downsamplers: Option<Vec<Resampler>>,
    /// Doubles the size, on the way up.
    pub upsamplers: Option<Vec<Resampler>>,
}

/// The lowest level: a transformer between two residual blocks.
#[derive(Module, Debug)]
pub(super) struct MidBlock {
    attentions: Vec<Transformer2dModel>,
    resnets: Vec<ResnetBlock2d>,
}

fn resnet(config: &Unet2dConditionConfig, channels: [usize; 2], init: &Init) -> ResnetBlock2d {
    let time = Some(config.time_width());
    let (norm, epsilon) = (PictureNormKind::Groups(config.groups), config.epsilon);
    ResnetBlock2d::new(ResnetSizes { channels, time, norm, epsilon }, init)
}

impl UnetBlock {
    /// So many residual blocks, of which each has the inputs that `inputs` says, and no change of
    /// size.
    fn new(
        config: &Unet2dConditionConfig,
        level: usize,
        attends: bool,
        inputs: impl Iterator<Item = usize>,
        init: &Init,
    ) -> Self {
        let channels = config.levels[level].channels;
        let resnets: Vec<_> =
            inputs.map(|inputs| resnet(config, [inputs, channels], init)).collect();
        let attention = |_| Transformer2dModel::new(config, level, init);
        Self {
            attentions: (0..resnets.len()).filter(|_| attends).map(attention).collect(),
            resnets,
            downsamplers: None,
            upsamplers: None,
        }
    }

    pub fn down(
        config: &Unet2dConditionConfig,
        level: usize,
        attends: bool,
        inputs: impl Fn(usize) -> usize,
        halves: bool,
        init: &Init,
    ) -> Self {
        let channels = config.levels[level].channels;
        let conv = || vec![Resampler { conv: Conv2d::new(channels, channels, 2, init) }];
        Self {
            downsamplers: halves.then(conv),
            ..Self::new(config, level, attends, (0..config.layers).map(inputs), init)
        }
    }

    pub fn up(
        config: &Unet2dConditionConfig,
        level: usize,
        attends: bool,
        inputs: impl Fn(usize) -> usize,
        doubles: bool,
        init: &Init,
    ) -> Self {
        let channels = config.levels[level].channels;
        let conv = || vec![Resampler { conv: Conv2d::new(channels, channels, 1, init) }];
        Self {
            upsamplers: doubles.then(conv),
            ..Self::new(config, level, attends, (0..=config.layers).map(inputs), init)
        }
    }

    /// The residual blocks in order, each with the transformer behind it.
    pub fn layers(&self) -> impl Iterator<Item = (&ResnetBlock2d, Option<&Transformer2dModel>)> {
        self.resnets.iter().enumerate().map(|(index, resnet)| (resnet, self.attentions.get(index)))
    }
}

impl MidBlock {
    pub fn new(config: &Unet2dConditionConfig, level: usize, init: &Init) -> Self {
        let channels = config.levels[level].channels;
        Self {
            attentions: vec![Transformer2dModel::new(config, level, init)],
            resnets: (0..2).map(|_| resnet(config, [channels; 2], init)).collect(),
        }
    }

    fn layers(&self) -> impl Iterator<Item = (&ResnetBlock2d, Option<&Transformer2dModel>)> {
        self.resnets.iter().enumerate().map(|(index, resnet)| (resnet, self.attentions.get(index)))
    }

    /// `[batch, rows, columns, channels]` f32 to the same.
    pub fn forward(&self, mut x: Tensor<4>, time: &Tensor<2>, context: &Tensor<3>) -> Tensor<4> {
        for (resnet, attention) in self.layers() {
            x = resnet.forward(x, time);
            if let Some(attention) = attention {
                x = attention.forward(x, context);
            }
        }
        x
    }

    /// What it holds at most, its input included.
    pub fn activations(&self, size: PictureSize, tokens: usize, threads: usize) -> Activations {
        let layers = self.layers();
        layers.fold(Activations::default(), |most, (resnet, attention)| {
            most.or(activations(resnet, attention, size, tokens, threads))
        })
    }
}

/// What a residual block and the transformer behind it hold at most, their input included.
pub(super) fn activations(
    resnet: &ResnetBlock2d,
    attention: Option<&Transformer2dModel>,
    size: PictureSize,
    tokens: usize,
    threads: usize,
) -> Activations {
    let attention = attention.map(|attention| attention.activations(size, tokens, threads));
    resnet.activations(size).or(attention.unwrap_or_default())
}
