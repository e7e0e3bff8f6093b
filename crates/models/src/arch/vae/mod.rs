//! The autoencoder of Stable Diffusion: its decoder makes pictures of latents, its encoder latents
//! of pictures. Each is a module of its own, as few pipelines run both. Rombach et al. 2022
//! (arXiv:2112.10752). That of Qwen-Image was made for films (Wan Team 2025, arXiv:2503.20314): of
//! a picture it does the same, with norms of each pixel's channels.
//!
//! The picture grows to hundreds of megabytes on the way. It is worked on in bands of rows, whose
//! inputs are freed as their outputs are made; norms take their statistics from all of it first. So
//! the result is that of the whole picture at once, bit for bit. Bands wait in main memory wherever
//! they are worked on.

mod bands;
mod config;
mod encoder;
mod latent_norm;
mod stored;

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::{Access, Names};
use outsize_kernels::{attend_pixels, upsample_nearest};

use self::bands::Bands;
pub use self::config::AutoencoderKlConfig;
use self::config::{FLUX2, QWEN_IMAGE, fields};
pub use self::encoder::AutoencoderKlEncoder;
use self::latent_norm::LatentNorm;
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    Conv2d, Linear, PictureNorm, Resampler, ResnetBlock2d, ResnetSizes, entered, fetched,
};
use crate::pass_shape::pixel_attention_scratch;
use crate::{Activations, Error, PicturePass, PictureSize, WeightSpec, WeightUse};

/// What norms add to variances.
const EPSILON: f64 = 1e-6;

/// Bytes of a band, about: large enough for the convolutions to be worth reordering their weights
/// for.
const BAND_BYTES: usize = 8 << 20;

/// What a batch norm counts in training.
const COUNT: &str = "bn.num_batches_tracked";

/// The autoencoder: its decoder.
#[derive(Module, Debug)]
pub struct AutoencoderKl {
    /// Where latents are normalised.
    bn: Option<LatentNorm>,
    /// `[latent, latent]`; a 1x1 convolution.
    post_quant_conv: Option<Linear>,
    decoder: VaeDecoder,
    band_bytes: usize,
}

/// Latents to a picture.
#[derive(Module, Debug)]
struct VaeDecoder {
    conv_in: Conv2d,
    mid_block: VaeMidBlock,
    /// In order of execution.
    up_blocks: Vec<VaeUpBlock>,
    conv_norm_out: PictureNorm,
    conv_out: Conv2d,
}

/// Residual blocks with attention between them, or none.
#[derive(Module, Debug)]
struct VaeMidBlock {
    attentions: Vec<VaeAttention>,
    resnets: Vec<ResnetBlock2d>,
}

/// Residual blocks, then twice the size.
#[derive(Module, Debug)]
struct VaeUpBlock {
    resnets: Vec<ResnetBlock2d>,
    upsamplers: Option<Vec<Resampler>>,
}

/// Attention of one head among all pixels, added to the picture.
#[derive(Module, Debug)]
struct VaeAttention {
    group_norm: PictureNorm,
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    /// One layer.
    to_out: Vec<Linear>,
}

impl Architecture for AutoencoderKl {
    type Config = AutoencoderKlConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] = &[
        ("AutoencoderKL", "AutoencoderKL"),
        (FLUX2, "AutoencoderKL"),
        (QWEN_IMAGE, "AutoencoderKL"),
    ];
    const CLASS_PREFIX: &'static str = "AutoencoderKl";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("VaeDecoder", "Decoder"),
        ("VaeMidBlock", "UNetMidBlock2D"),
        ("VaeUpBlock", "UpDecoderBlock2D"),
        ("VaeAttention", "Attention"),
        ("LatentNorm", "BatchNorm2d"),
        ("Resampler", "Upsample2D"),
        ("ResnetBlock2d", "ResnetBlock2D"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["ResnetBlock2d", "VaeAttention"];

    fn fields(class: &str) -> &'static [&'static [KnownField]] {
        fields(class)
    }

    fn read(class: &'static str, fields: &Fields<'_>) -> Result<AutoencoderKlConfig, Error> {
        AutoencoderKlConfig::read(class, fields)
    }

    fn new(config: &AutoencoderKlConfig, init: &Init) -> Self {
        let latent = config.latent_channels;
        let norm = |channels| PictureNorm::new(config.norm, channels, EPSILON, init);
        let resnet = |inputs, outputs| {
            let channels = [inputs, outputs];
            let sizes = ResnetSizes { channels, time: None, norm: config.norm, epsilon: EPSILON };
            ResnetBlock2d::new(sizes, init)
        };
        // From the lowest level up.
        let levels: Vec<usize> = config.decoder_channels.iter().rev().copied().collect();
        let (lowest, highest) = (levels[0], config.decoder_channels[0]);
        let attention = || VaeAttention::new(norm(lowest), lowest, init);
        let up_block = |(level, &channels): (usize, &usize)| {
            let inputs = match level {
                0 => lowest,
                level => config.doubled_channels(levels[level - 1]),
            };
            let first = resnet(inputs, channels);
            let doubled = config.doubled_channels(channels);
            let conv = || vec![Resampler { conv: Conv2d::new(channels, doubled, 1, init) }];
            VaeUpBlock {
                resnets: std::iter::once(first)
                    .chain((0..config.layers).map(|_| resnet(channels, channels)))
                    .collect(),
                upsamplers: (level + 1 < levels.len()).then(conv),
            }
        };
        Self {
            bn: config.batch_norm_eps.map(|epsilon| LatentNorm::new(latent, epsilon, init)),
            post_quant_conv: config
                .use_post_quant_conv
                .then(|| Linear::new(latent, latent, true, init)),
            decoder: VaeDecoder {
                conv_in: Conv2d::new(latent, lowest, 1, init),
                mid_block: VaeMidBlock {
                    attentions: config
                        .mid_block_add_attention
                        .then(attention)
                        .into_iter()
                        .collect(),
                    resnets: (0..2).map(|_| resnet(lowest, lowest)).collect(),
                },
                up_blocks: levels.iter().enumerate().map(up_block).collect(),
                conv_norm_out: norm(highest),
                conv_out: Conv2d::new(highest, config.out_channels, 1, init),
            },
            band_bytes: BAND_BYTES,
        }
    }
}

impl Component for AutoencoderKl {
    fn names(config: &AutoencoderKlConfig, tensors: &[TensorInfo]) -> Names {
        stored::names(config, tensors)
    }

    fn is_unused(config: &AutoencoderKlConfig, tensor: &str) -> bool {
        ["encoder.", "quant_conv.", COUNT].iter().any(|part| tensor.starts_with(part))
            || stored::is_for_frames(config, tensor)
    }

    fn stored_shape(config: &AutoencoderKlConfig, path: &str, shape: Vec<usize>) -> Vec<usize> {
        stored::shape(config, path, shape)
    }

    fn weight_use(config: &AutoencoderKlConfig, path: &str, pass: &PicturePass) -> WeightUse {
        let number =
            |after: &str| path.split_once(after)?.1.split('.').next()?.parse::<usize>().ok();
        // Each level but the last doubles the picture at its end.
        let doublings = match number("decoder.up_blocks.") {
            Some(block) => block + usize::from(path.contains(".upsamplers.")),
            None if path.starts_with("decoder.conv_out") => config.channels.len() - 1,
            None => 0,
        };
        let rows = (0..doublings).fold(pass.latents, |size, _| size.doubled()).pixels();
        let pixels = rows / (pass.latents.batch as u64).max(1);
        WeightUse { rows, attended: if path.contains(".to_q.") { pixels } else { 0 } }
    }

    fn access(weight: &WeightSpec) -> Access {
        // Held while all bands of a picture pass them.
        match weight.access {
            Access::Tiles => Access::Whole,
            access => access,
        }
    }
}

impl AutoencoderKl {
    /// The same with bands of about so many bytes: of at least one row, or of the whole picture if
    /// there is room for it.
    pub fn with_band_bytes(self, band_bytes: usize) -> Self {
        Self { band_bytes, ..self }
    }

    /// Latents `[1, rows, columns, latent]` f32, divided by the scaling factor and shifted, or
    /// normalised and of even sides, to a picture with values from -1 to 1, about: calls `rows`
    /// with some rows of it after others, `[1, some, width, channels]` f32.
    pub fn decode(&self, latents: Tensor<4>, mut rows: impl FnMut(Tensor<4>)) {
        let latents = match &self.bn {
            Some(norm) => norm.restored(latents),
            None => latents,
        };
        let latents = match &self.post_quant_conv {
            Some(conv) => conv.forward_pixels(latents),
            None => latents,
        };
        let decoder = &self.decoder;
        let x = fetched(decoder.conv_in.forward(latents), &decoder.conv_in.weight);
        let mut x = Bands::whole(decoder.mid_block.forward(x));
        for block in &decoder.up_blocks {
            for resnet in &block.resnets {
                x = in_bands(resnet, x);
            }
            for sampler in block.upsamplers.iter().flatten() {
                x = self.upsample(&sampler.conv, x);
            }
        }
        let moments = decoder.conv_norm_out.moments(x.iter());
        let weight = decoder.conv_out.matrix();
        x.for_each(usize::MAX, |band| {
            let normed = decoder.conv_norm_out.rows_silu(band.with_neighbours, &moments);
            rows(decoder.conv_out.forward_rows(normed, band.ends, &weight));
        });
    }

    /// Twice the rows and columns, then a convolution.
    fn upsample(&self, conv: &Conv2d, x: Bands) -> Bands {
        let [_, _, columns, channels] = x.dims();
        let doubled_row = 2 * columns * channels * size_of::<f32>();
        let step = (self.band_bytes / doubled_row.max(1) / 2).max(1);
        let (weight, mut made) = (conv.matrix(), Bands::default());
        x.for_each(step, |band| {
            let mut doubled = upsample_nearest(entered(band.with_neighbours, &conv.weight));
            // A neighbour has become two rows, of which one is seen.
            let [above, below] = band.ends.map(|end| usize::from(!end));
            let rows = doubled.dims()[1];
            if above + below > 0 {
                doubled = doubled.narrow(1, above, rows - above - below);
            }
            made.push(conv.forward_rows(doubled, band.ends, &weight));
        });
        made
    }

    /// An upper bound on the bytes of activations that decoding latents of that size holds at once,
    /// with the scratch memory of attention on so many threads. What is made of the rows given is
    /// not counted.
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
        let decoder = &self.decoder;
        let mut size = latents;
        let mut most = decoder.conv_in.activations(size);
        for resnet in &decoder.mid_block.resnets {
            most = most.or(resnet.activations(size));
        }
        for attention in &decoder.mid_block.attentions {
            most = most.or(attention.activations(size, threads));
        }
        let mut band = size;
        for block in &decoder.up_blocks {
            for resnet in &block.resnets {
                most = most.or(both(held(resnet, size), block_work(resnet, band)));
            }
            for sampler in block.upsamplers.iter().flatten() {
                let [outputs, inputs] = sampler.conv.shape();
                size = size.doubled();
                let row = size.columns.saturating_mul(inputs * size_of::<f32>());
                let rows = 2 * (self.band_bytes / row.max(1) / 2).max(1);
                band = PictureSize { rows: rows.min(size.rows), ..size };
                most = most.or(both(size.values(outputs), work(&sampler.conv, band)));
            }
        }
        let last = size.values(decoder.conv_out.shape()[1]);
        most.or(both(last, work(&decoder.conv_out, band))).bytes()
    }
}

/// What waits of a picture in bands while a residual block is at work on one.
fn held(block: &ResnetBlock2d, size: PictureSize) -> Activations {
    let [outputs, inputs] = block.conv1.shape();
    // What goes in is freed as the shortcut and the result of the first convolution are made.
    size.values(inputs.max(2 * outputs))
}

/// What a residual block's convolutions of a band hold at most.
fn block_work(block: &ResnetBlock2d, band: PictureSize) -> Activations {
    work(&block.conv1, band).or(work(&block.conv2, band))
}

/// What a convolution of a band holds at most: the band, twice with its neighbours before it is
/// copied, and the result with a shortcut.
fn work(conv: &Conv2d, band: PictureSize) -> Activations {
    let band = band.padded();
    let [outputs, inputs] = conv.shape();
    band.values(2 * inputs + 2 * outputs).and(conv.activations(band))
}

/// A residual block over a picture in bands.
fn in_bands(block: &ResnetBlock2d, x: Bands) -> Bands {
    let moments = block.norm1.moments(x.iter());
    let weight = block.conv1.matrix();
    let (mut h, mut shortcut) = (Bands::default(), Bands::default());
    x.for_each(usize::MAX, |band| {
        let normed = block.norm1.rows_silu(band.with_neighbours, &moments);
        h.push(block.conv1.forward_rows(normed, band.ends, &weight));
        shortcut.push(fetched(block.shortcut(band.rows), &block.conv1.weight));
    });
    drop(weight);
    let moments = block.norm2.moments(h.iter());
    let (weight, mut y) = (block.conv2.matrix(), Bands::default());
    h.for_each(usize::MAX, |band| {
        let normed = block.norm2.rows_silu(band.with_neighbours, &moments);
        let more = block.conv2.forward_rows(normed, band.ends, &weight);
        y.push(match shortcut.pop() {
            Some(rows) => more + rows,
            None => more,
        });
    });
    y
}

impl VaeMidBlock {
    /// `[batch, rows, columns, channels]` f32 to the same.
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let layers = self.resnets.iter().enumerate();
        layers.fold(x, |x, (index, resnet)| {
            let x = in_bands(resnet, Bands::whole(x)).joined();
            match self.attentions.get(index) {
                Some(attention) => attention.forward(x),
                None => x,
            }
        })
    }
}

impl VaeAttention {
    fn new(group_norm: PictureNorm, channels: usize, init: &Init) -> Self {
        let square = || Linear::new(channels, channels, true, init);
        let (to_q, to_k, to_v, to_out) = (square(), square(), square(), vec![square()]);
        Self { group_norm, to_q, to_k, to_v, to_out }
    }

    /// `[batch, rows, columns, channels]` f32 to the same.
    fn forward(&self, picture: Tensor<4>) -> Tensor<4> {
        let picture = entered(picture, &self.to_q.weight);
        let [batch, rows, columns, channels] = picture.dims();
        let pixels = self.group_norm.forward(picture.clone());
        let pixels = pixels.reshape([batch, rows * columns, channels]);
        let heads = [&self.to_q, &self.to_k, &self.to_v]
            .map(|linear| linear.forward_pixels(pixels.clone()))
            .map(|y| y.reshape([batch, rows * columns, 1, channels]));
        drop(pixels);
        let mixed = attend_pixels(self.to_q.compute, heads, (channels as f32).sqrt().recip());
        let mixed = mixed.reshape([batch, rows * columns, channels]);
        let mixed = self.to_out.iter().fold(mixed, |x, linear| linear.forward_pixels(x));
        let mixed = mixed.reshape([batch, rows, columns, channels]) + picture;
        fetched(mixed, &self.to_q.weight)
    }

    fn activations(&self, size: PictureSize, threads: usize) -> Activations {
        let [channels, _]: [usize; 2] = self.to_q.weight.lazy_shape().dims();
        let pixels = size.rows.saturating_mul(size.columns);
        // The picture, its norm with a copy, queries, keys and values; or attention's result beside
        // these.
        let scratch = pixel_attention_scratch([size.batch, pixels, pixels], 1, channels, threads);
        size.values(6 * channels).with_scratch(scratch)
    }
}
