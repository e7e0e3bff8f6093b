//! The transformer of Qwen-Image: attention among the tokens of a picture and of a text, each with
//! weights of its own, whose norms the time scales and shifts. Qwen Team 2025 (arXiv:2508.02324).

mod blocks;
mod config;
mod positions;
mod work;

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::silu;

use self::blocks::{EXPANSION, Places, QwenImageTransformerBlock};
pub use self::config::QwenImageTransformer2dConfig;
use self::config::{EPSILON, FIELDS};
use self::positions::rotation;
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    AdaLayerNorm, Linear, RmsNorm, Run, Sinusoids, TimestepEmbedding, fetched, joined,
};
use crate::pass_shape::pixel_attention_scratch;
use crate::{Activations, Error, PicturePass, PictureSize, WeightUse};

/// Sines and cosines of a time.
const TIME_CHANNELS: usize = 256;

/// How these tell it.
const SINUSOIDS: Sinusoids = Sinusoids { cosines_first: true, freq_shift: 0.0 };

/// A denoiser of packed latents, four of which make a token.
#[derive(Module, Debug)]
pub struct QwenImageTransformer2dModel {
    // In the order of use.
    /// `[hidden, in]`.
    img_in: Linear,
    time_text_embed: QwenImageTimeEmbedding,
    /// `[text]`.
    txt_norm: RmsNorm,
    /// `[hidden, text]`.
    txt_in: Linear,
    /// In order of execution.
    transformer_blocks: Vec<QwenImageTransformerBlock>,
    norm_out: AdaLayerNorm,
    /// `[4 · out, hidden]`.
    proj_out: Linear,
    #[module(skip)]
    config: QwenImageTransformer2dConfig,
}

/// What all tokens have in common.
#[derive(Module, Debug)]
struct QwenImageTimeEmbedding {
    timestep_embedder: TimestepEmbedding,
}

impl Architecture for QwenImageTransformer2dModel {
    type Config = QwenImageTransformer2dConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("QwenImageTransformer2DModel", "QwenImage")];
    const CLASS_PREFIX: &'static str = "QwenImage";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("AdaLayerNorm", "AdaLayerNormContinuous"),
        ("GeluFeedForward", "FeedForward"),
        ("GeluProjection", "GELU"),
        ("JointAttention", "Attention"),
        ("Parameterless", "SiLU"),
        ("QwenImageTimeEmbedding", "QwenTimestepProjEmbeddings"),
        ("RmsNorm", "RMSNorm"),
        ("Tuple", "Sequential"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["QwenImageTransformerBlock"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<QwenImageTransformer2dConfig, Error> {
        QwenImageTransformer2dConfig::read(fields)
    }

    fn new(config: &QwenImageTransformer2dConfig, init: &Init) -> Self {
        let (hidden, text) = (config.hidden(), config.joint_attention_dim);
        Self {
            img_in: Linear::new(config.in_channels, hidden, true, init),
            time_text_embed: QwenImageTimeEmbedding {
                timestep_embedder: TimestepEmbedding::new(TIME_CHANNELS, hidden, init),
            },
            txt_norm: RmsNorm::new(text, EPSILON, init),
            txt_in: Linear::new(text, hidden, true, init),
            transformer_blocks: (0..config.num_layers)
                .map(|_| QwenImageTransformerBlock::new(config, init))
                .collect(),
            norm_out: AdaLayerNorm::new(hidden, 2, true, init),
            proj_out: Linear::new(hidden, config.packed_out_channels(), true, init),
            config: config.clone(),
        }
    }
}

impl Component for QwenImageTransformer2dModel {
    fn is_bias_first(path: &str) -> bool {
        // What has a row for the time is a matmul.
        !["time_text_embed.", "_mod.", "norm_out."].iter().any(|part| path.contains(part))
    }

    fn weight_use(_: &QwenImageTransformer2dConfig, path: &str, pass: &PicturePass) -> WeightUse {
        work::weight_use(path, pass)
    }
}

impl QwenImageTransformer2dModel {
    /// The velocity of noisy packed latents at a time of the training's schedule, from 0 to 1000.
    /// `latents [batch, tokens, in]` f32 has the tokens of a picture of `sizes[0]` rows and columns
    /// and, behind them, of pictures of the other sizes, which the first one is to go by. Of each
    /// text, `context [batch, tokens, text]` f32 has the last `lengths` tokens. To
    /// `[batch, rows · columns, 4 · out]` f32 of the first picture, in main memory.
    ///
    /// # Panics
    /// If the latents have other channels or are not as many as `sizes` says, if there is no size,
    /// or if the texts have another width, another number or fewer tokens than said.
    pub fn forward(
        &self,
        latents: Tensor<3>,
        sizes: &[[usize; 2]],
        timestep: f32,
        context: Tensor<3>,
        lengths: &[usize],
    ) -> Tensor<3> {
        let device = latents.device();
        let ([batch, tokens, channels], [texts, longest, _]) = (latents.dims(), context.dims());
        let tokens_of = |&[rows, columns]: &[usize; 2]| rows * columns;
        let (made, all): (_, usize) = (tokens_of(&sizes[0]), sizes.iter().map(tokens_of).sum());
        assert_eq!((batch, tokens), (lengths.len(), all), "latents do not fit the sizes {sizes:?}");
        assert_eq!(texts, lengths.len(), "there is not one text for each picture");
        let image = self.img_in.forward_pixels(latents.reshape([1, batch * tokens, channels]));
        let given = [Run { tokens: made, row: 0 }, Run { tokens: all - made, row: 1 }];
        let (times, runs) = match self.config.zero_cond_t && all > made {
            true => (vec![timestep, 0.0], given.repeat(batch)),
            false => (vec![timestep], vec![Run { tokens: batch * all, row: 0 }]),
        };
        let times = SINUSOIDS.of(&times, TIME_CHANNELS, &device);
        let conditioning = silu(self.time_text_embed.timestep_embedder.forward(times));
        let texts = lengths.iter().enumerate().map(|(row, &length)| {
            context.clone().narrow(0, row, 1).narrow(1, longest - length, length)
        });
        let text = joined(texts.collect(), 1);
        drop(context);
        let text = self.txt_in.forward_pixels(self.txt_norm.forward(text));
        // Once for all blocks.
        let rotation = rotation(&self.config, lengths, sizes, &device);
        let places = Places { texts: lengths, rotation, runs };
        let blocks = self.transformer_blocks.iter();
        let [image, _] = blocks
            .fold([image, text], |streams, block| block.forward(streams, &conditioning, &places));
        let image = self.norm_out.entered(image);
        let first = (0..batch).map(|picture| image.clone().narrow(1, picture * all, made));
        let first = first.collect::<Vec<_>>();
        drop(image);
        let image = joined(first, 1);
        let modulation = self.norm_out.modulation(&conditioning.narrow(0, 0, 1), false);
        let output = self.proj_out.forward_pixels(modulation.norm(&image, EPSILON));
        let output = output.reshape([batch, made, self.config.packed_out_channels()]);
        fetched(output, &self.proj_out.weight)
    }

    /// An upper bound on the bytes of activations that a pass over packed latents holds at once, of
    /// which there are as many as `size` says in all pictures of a text, beside texts of up to so
    /// many `tokens`; with the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, size: PictureSize, tokens: usize, threads: usize) -> u64 {
        let QwenImageTransformer2dConfig { num_attention_heads, attention_head_dim: width, .. } =
            self.config;
        let (hidden, batch) = (self.config.hidden(), size.batch as u64);
        let (image, text) = (size.pixels(), batch.saturating_mul(tokens as u64));
        let all = image.saturating_add(text);
        let positions = size.rows.saturating_mul(size.columns).saturating_add(tokens);
        let scratch =
            pixel_attention_scratch([1, positions, positions], num_attention_heads, width, threads);
        let values =
            |rows: u64, of_row: usize| Activations::values(rows.saturating_mul(of_row as u64));
        // Both residual streams and the rotations, and in an MLP its inner layer with the copy that
        // is multiplied and what comes of it; or in attention what the norms give, with a copy of a
        // projection, queries, keys and values.
        let mlp = values(image.max(text), (2 * EXPANSION + 1) * hidden);
        let attention = values(all, 6 * hidden).with_scratch(scratch);
        values(all, hidden + width).and(mlp.or(attention)).bytes()
    }
}
