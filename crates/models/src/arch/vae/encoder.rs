//! The encoder of the autoencoder: pictures to latents, in bands as the decoder has them.

use burn::module::Module;
use burn::tensor::{DType, Tensor};
use outsize_checkpoint::TensorInfo;
use outsize_core::{Access, Names};

use super::bands::{Bands, copied};
use super::config::fields;
use super::latent_norm::LatentNorm;
use super::{
    AutoencoderKl, AutoencoderKlConfig, BAND_BYTES, COUNT, EPSILON, VaeAttention, VaeMidBlock,
    block_work, held, in_bands, stored, work,
};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    Conv2d, Linear, PictureNorm, Resampler, ResnetBlock2d, ResnetSizes, entered, fetched,
};
use crate::{Activations, Error, PicturePass, PictureSize, WeightSpec, WeightUse};

/// The autoencoder: its encoder.
#[derive(Module, Debug)]
pub struct AutoencoderKlEncoder {
    encoder: VaeEncoder,
    /// `[2 · latent, 2 · latent]`; a 1x1 convolution.
    quant_conv: Option<Linear>,
    /// Where latents are normalised.
    bn: Option<LatentNorm>,
    band_bytes: usize,
}

/// A picture to means and variances of latents.
#[derive(Module, Debug)]
struct VaeEncoder {
    conv_in: Conv2d,
    /// In order of execution.
    down_blocks: Vec<VaeDownBlock>,
    mid_block: VaeMidBlock,
    conv_norm_out: PictureNorm,
    conv_out: Conv2d,
}

/// Residual blocks, then half the size.
#[derive(Module, Debug)]
struct VaeDownBlock {
    resnets: Vec<ResnetBlock2d>,
    downsamplers: Option<Vec<Resampler>>,
}

impl Architecture for AutoencoderKlEncoder {
    type Config = AutoencoderKlConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = AutoencoderKl::MODEL_TYPES;
    const CLASS_PREFIX: &'static str = "AutoencoderKl";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("VaeEncoder", "Encoder"),
        ("VaeMidBlock", "UNetMidBlock2D"),
        ("VaeDownBlock", "DownEncoderBlock2D"),
        ("VaeAttention", "Attention"),
        ("LatentNorm", "BatchNorm2d"),
        ("Resampler", "Downsample2D"),
        ("ResnetBlock2d", "ResnetBlock2D"),
    ];
    const NO_SPLIT: &'static [&'static str] = AutoencoderKl::NO_SPLIT;

    fn fields(class: &str) -> &'static [&'static [KnownField]] {
        fields(class)
    }

    fn read(class: &'static str, fields: &Fields<'_>) -> Result<AutoencoderKlConfig, Error> {
        let config = AutoencoderKlConfig::read(class, fields)?;
        config.check_encoder(fields)?;
        Ok(config)
    }

    fn new(config: &AutoencoderKlConfig, init: &Init) -> Self {
        let moments = 2 * config.latent_channels;
        let norm = |channels| PictureNorm::new(config.norm, channels, EPSILON, init);
        let resnet = |inputs, outputs| {
            let channels = [inputs, outputs];
            let sizes = ResnetSizes { channels, time: None, norm: config.norm, epsilon: EPSILON };
            ResnetBlock2d::new(sizes, init)
        };
        let levels = &config.channels;
        let (highest, lowest) = (levels[0], levels[levels.len() - 1]);
        let down_block = |(level, &channels): (usize, &usize)| {
            let first = resnet(levels[level.saturating_sub(1)], channels);
            let conv = || vec![Resampler { conv: Conv2d::new(channels, channels, 2, init) }];
            VaeDownBlock {
                resnets: std::iter::once(first)
                    .chain((1..config.layers).map(|_| resnet(channels, channels)))
                    .collect(),
                downsamplers: (level + 1 < levels.len()).then(conv),
            }
        };
        let attention = || VaeAttention::new(norm(lowest), lowest, init);
        Self {
            encoder: VaeEncoder {
                conv_in: Conv2d::new(config.in_channels, highest, 1, init),
                down_blocks: levels.iter().enumerate().map(down_block).collect(),
                mid_block: VaeMidBlock {
                    attentions: config
                        .mid_block_add_attention
                        .then(attention)
                        .into_iter()
                        .collect(),
                    resnets: (0..2).map(|_| resnet(lowest, lowest)).collect(),
                },
                conv_norm_out: norm(lowest),
                conv_out: Conv2d::new(lowest, moments, 1, init),
            },
            quant_conv: config.use_quant_conv.then(|| Linear::new(moments, moments, true, init)),
            bn: config
                .batch_norm_eps
                .map(|epsilon| LatentNorm::new(config.latent_channels, epsilon, init)),
            band_bytes: BAND_BYTES,
        }
    }
}

impl Component for AutoencoderKlEncoder {
    fn names(config: &AutoencoderKlConfig, tensors: &[TensorInfo]) -> Names {
        stored::names(config, tensors)
    }

    fn is_unused(config: &AutoencoderKlConfig, tensor: &str) -> bool {
        ["decoder.", "post_quant_conv.", COUNT].iter().any(|part| tensor.starts_with(part))
            || stored::is_for_frames(config, tensor)
    }

    fn stored_shape(config: &AutoencoderKlConfig, path: &str, shape: Vec<usize>) -> Vec<usize> {
        stored::shape(config, path, shape)
    }

    fn weight_use(config: &AutoencoderKlConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let levels = config.channels.len() - 1;
        let block = path.strip_prefix("encoder.down_blocks.");
        let block = block.and_then(|path| path.split('.').next()?.parse::<usize>().ok());
        // Each level but the last halves the picture at its end.
        let halvings = match block {
            Some(block) => block + usize::from(path.contains(".downsamplers.")),
            None if path.starts_with("encoder.conv_in") => 0,
            None => levels,
        };
        let doublings = levels.saturating_sub(halvings);
        let rows = (0..doublings).fold(pass.latents, |size, _| size.doubled()).pixels();
        let pixels = rows / (pass.latents.batch as u64).max(1);
        WeightUse { rows, attended: if path.contains(".to_q.") { pixels } else { 0 } }
    }

    fn access(weight: &WeightSpec) -> Access {
        AutoencoderKl::access(weight)
    }
}

impl AutoencoderKlEncoder {
    /// The same with bands of about so many bytes: of at least one row of latents, or of the whole
    /// picture if there is room.
    pub fn with_band_bytes(self, band_bytes: usize) -> Self {
        Self { band_bytes, ..self }
    }

    /// A picture `[1, rows, columns, channels]` f32 of values from -1 to 1 to its latents' means
    /// and the logarithms of their variances, one behind the other:
    /// `[1, rows, columns, 2 · latent]` f32 in main memory, as many times smaller as there are
    /// levels to halve it. The sides are multiples of that.
    pub fn encode(&self, picture: Tensor<4>) -> Tensor<4> {
        let encoder = &self.encoder;
        let [_, _, columns, _] = picture.dims();
        let step = self.band_rows(&encoder.conv_in, columns, encoder.down_blocks.len());
        let (weight, mut x) = (encoder.conv_in.matrix(), Bands::default());
        Bands::whole(picture).for_each(step, |band| {
            x.push(encoder.conv_in.forward_rows(band.with_neighbours, band.ends, &weight));
        });
        drop(weight);
        for (level, block) in encoder.down_blocks.iter().enumerate() {
            for resnet in &block.resnets {
                x = in_bands(resnet, x);
            }
            for sampler in block.downsamplers.iter().flatten() {
                x = self.downsample(&sampler.conv, x, encoder.down_blocks.len() - level - 1);
            }
        }
        let x = encoder.mid_block.forward(x.joined());
        let x = encoder.conv_norm_out.forward_silu(x);
        let y = fetched(encoder.conv_out.forward(x), &encoder.conv_out.weight);
        match &self.quant_conv {
            Some(conv) => fetched(conv.forward_pixels(y), &conv.weight),
            None => y,
        }
    }

    /// The means alone, `[1, rows, columns, latent]` f32 in main memory; normalised where the
    /// decoder takes such, for which their sides are even.
    pub fn encode_mean(&self, picture: Tensor<4>) -> Tensor<4> {
        let moments = self.encode(picture);
        let latent = moments.dims()[3] / 2;
        let mean = moments.narrow(3, 0, latent);
        match &self.bn {
            Some(norm) => norm.normalized(mean),
            None => mean,
        }
    }

    /// Rows of a band of what a convolution makes with so many columns, which the `levels` to come
    /// can halve, the first aside.
    fn band_rows(&self, conv: &Conv2d, columns: usize, levels: usize) -> usize {
        let unit = 1 << (levels - 1);
        let row = columns * conv.shape()[0] * size_of::<f32>();
        (self.band_bytes / row.max(1) / unit * unit).max(unit)
    }

    /// A convolution at every second row and column, with zeros on the right and below alone.
    fn downsample(&self, conv: &Conv2d, x: Bands, levels: usize) -> Bands {
        let [_, _, columns, _] = x.dims();
        let enough = self.band_rows(conv, columns / 2, levels);
        let (weight, mut made) = (conv.matrix(), Bands::default());
        let mut waiting: Vec<Tensor<4>> = Vec::new();
        x.for_each(usize::MAX, |band| {
            let seen = entered(band.with_neighbours, &conv.weight);
            let [batch, rows, columns, channels] = seen.dims();
            let [above, below] = band.ends;
            // Outputs begin with the band's own first row.
            let skipped = usize::from(!above);
            let seen = seen.narrow(1, skipped, rows - skipped);
            // A column of zeros more on the left, and what is seen there passed over.
            let sides = [batch, rows - skipped, 1, channels];
            let zeros = Tensor::<4>::zeros(sides, (&seen.device(), DType::F32));
            let padded = Tensor::cat(vec![zeros, seen], 2);
            let y = conv.forward_rows(padded, [false, below], &weight);
            let rows: usize = waiting.iter().map(|rows| rows.dims()[1]).sum();
            if rows > 0 && rows + y.dims()[1] > enough {
                made.push(Tensor::cat(std::mem::take(&mut waiting), 1));
            }
            waiting.push(copied(y.narrow(2, 1, columns / 2)));
        });
        made.push(Tensor::cat(waiting, 1));
        made
    }

    /// An upper bound on the bytes of activations that encoding a picture with such latents holds
    /// at once, with the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, latents: PictureSize, threads: usize) -> u64 {
        self.activations(latents, threads, Activations::and)
    }

    /// The same of a GPU, which holds what is worked on alone.
    pub fn band_activation_bytes(&self, latents: PictureSize) -> u64 {
        self.activations(latents, 1, |_, work| work)
    }

    /// What is held at most of bands that wait, together with those that are worked on.
    fn activations(
        &self,
        latents: PictureSize,
        threads: usize,
        both: impl Fn(Activations, Activations) -> Activations,
    ) -> u64 {
        let encoder = &self.encoder;
        let levels = encoder.down_blocks.len();
        let mut size = (1..levels).fold(latents, |size, _| size.doubled());
        // At least so many rows: those that are made of one band.
        let band_of = |conv: &Conv2d, size: PictureSize, levels, least: usize| {
            let rows = self.band_rows(conv, size.columns, levels).max(least);
            PictureSize { rows: rows.min(size.rows), ..size }
        };
        let mut band = band_of(&encoder.conv_in, size, levels, 0);
        let [highest, colours] = encoder.conv_in.shape();
        let mut most = both(size.values(colours + highest), work(&encoder.conv_in, band));
        for (level, block) in encoder.down_blocks.iter().enumerate() {
            for resnet in &block.resnets {
                most = most.or(both(held(resnet, size), block_work(resnet, band)));
            }
            for sampler in block.downsamplers.iter().flatten() {
                let [channels, _] = sampler.conv.shape();
                most = most.or(both(size.values(channels), work(&sampler.conv, band)));
                size = size.halved(1);
                band = band_of(&sampler.conv, size, levels - level - 1, band.rows / 2);
            }
        }
        for resnet in &encoder.mid_block.resnets {
            most = most.or(resnet.activations(size));
        }
        for attention in &encoder.mid_block.attentions {
            most = most.or(attention.activations(size, threads));
        }
        most.or(encoder.conv_out.activations(size)).bytes()
    }
}
