//! The transformer of Qwen-Image: attention among the tokens of a picture and of a text, each with weights of its own, whose norms
//! the time scales and shifts. Qwen Team 2025 (arXiv:2508.02324).

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
use crate::layers::{AdaLayerNorm, Linear, RmsNorm, Sinusoids, TimestepEmbedding, fetched, joined};
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
    /// The velocity of noisy packed latents `[batch, rows · columns, in]` f32 at a time of the training's schedule, from 0 to
    /// 1000. Of each text, `context [batch, tokens, text]` f32 has the last `lengths` tokens. To `[batch, rows · columns, 4 · out]`
    /// f32, in main memory.
    ///
    /// # Panics
    /// If the latents have other channels or are not as many as `[rows, columns]` says, or the texts another width, another
    /// number or fewer tokens than said.
    pub fn forward(
        &self,
        latents: Tensor<3>,
        [rows, columns]: [usize; 2],
        timestep: f32,
        context: Tensor<3>,
        lengths: &[usize],
    ) -> Tensor<3> {
        let device = latents.device();
        let ([batch, tokens, channels], [texts, longest, _]) = (latents.dims(), context.dims());
        assert_eq!((batch, tokens), (lengths.len(), rows * columns), "latents do not fit");
        assert_eq!(texts, lengths.len(), "there is not one text for each picture");
        let image = self.img_in.forward_pixels(latents.reshape([1, batch * tokens, channels]));
        let time = self.time_text_embed.timestep_embedder.embed(timestep, SINUSOIDS, &device);
        let conditioning = silu(time);
        let texts = lengths.iter().enumerate().map(|(row, &length)| {
            context.clone().narrow(0, row, 1).narrow(1, longest - length, length)
        });
        let text = joined(texts.collect(), 1);
        drop(context);
        let text = self.txt_in.forward_pixels(self.txt_norm.forward(text));
        // Once for all blocks.
        let rotation = rotation(&self.config, lengths, [rows, columns], &device);
        let places = Places { texts: lengths, rotation };
        let blocks = self.transformer_blocks.iter();
        let [image, _] = blocks
            .fold([image, text], |streams, block| block.forward(streams, &conditioning, &places));
        let image = self.norm_out.entered(image);
        let modulation = self.norm_out.modulation(&conditioning, false);
        let made = self.proj_out.forward_pixels(modulation.norm(&image, EPSILON));
        let made = made.reshape([batch, tokens, self.config.packed_out_channels()]);
        fetched(made, &self.proj_out.weight)
    }

    /// An upper bound on the bytes of activations that a pass over packed latents of that size holds at once, beside texts of up
    /// to so many `tokens`; with the scratch memory of attention on so many threads.
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
        // Both residual streams and the rotations, and in an MLP its inner layer with the copy that is multiplied and what comes
        // of it; or in attention what the norms give, with a copy of a projection, queries, keys and values.
        let mlp = values(image.max(text), (2 * EXPANSION + 1) * hidden);
        let attention = values(all, 6 * hidden).with_scratch(scratch);
        values(all, hidden + width).and(mlp.or(attention)).bytes()
    }
}
