//! The transformer of FLUX.2: attention among the tokens of pictures and of a text, whose norms the
//! time scales and shifts, in all blocks of a kind alike. Black Forest Labs 2025.

mod attention;
mod blocks;
mod config;
mod positions;
mod work;

use burn::module::Module;
use burn::tensor::activation::silu;
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use self::blocks::{Branch, Flux2SingleTransformerBlock, Flux2TransformerBlock};
use self::config::FIELDS;
pub use self::config::Flux2Transformer2dConfig;
use self::positions::rotation;
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    AdaLayerNorm, Linear, Sinusoids, TimestepEmbedding, fetched, joined, names_with_shift_first,
};
use crate::pass_shape::pixel_attention_scratch;
use crate::{Activations, Error, PicturePass, PictureSize, WeightUse};

/// How sines and cosines tell a time.
const SINUSOIDS: Sinusoids = Sinusoids { cosines_first: true, freq_shift: 0.0 };

/// What guidance is multiplied by, so that it is told as a time is.
const GUIDANCE_SCALE: f32 = 1000.0;

/// A denoiser of packed latents, four of which make a token, beside pictures to go by.
#[derive(Module, Debug)]
pub struct Flux2Transformer2dModel {
    // In the order of use.
    /// `[hidden, in]`.
    x_embedder: Linear,
    time_guidance_embed: TimeGuidanceEmbedding,
    double_stream_modulation_img: AdaLayerNorm,
    double_stream_modulation_txt: AdaLayerNorm,
    single_stream_modulation: AdaLayerNorm,
    /// `[hidden, text]`.
    context_embedder: Linear,
    /// In order of execution.
    transformer_blocks: Vec<Flux2TransformerBlock>,
    /// In order of execution, behind the others.
    single_transformer_blocks: Vec<Flux2SingleTransformerBlock>,
    norm_out: AdaLayerNorm,
    /// `[out, hidden]`.
    proj_out: Linear,
    #[module(skip)]
    config: Flux2Transformer2dConfig,
}

/// What all tokens have in common.
#[derive(Module, Debug)]
struct TimeGuidanceEmbedding {
    timestep_embedder: TimestepEmbedding,
    /// `None` if it cannot be told how closely to follow the text.
    guidance_embedder: Option<TimestepEmbedding>,
}

impl Architecture for Flux2Transformer2dModel {
    type Config = Flux2Transformer2dConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("Flux2Transformer2DModel", "Flux2")];
    const CLASS_PREFIX: &'static str = "Flux2";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("AdaLayerNorm", "Flux2Modulation"),
        ("JointAttention", "Flux2Attention"),
        ("RmsNorm", "RMSNorm"),
        ("TimeGuidanceEmbedding", "Flux2TimestepGuidanceEmbeddings"),
    ];
    const NO_SPLIT: &'static [&'static str] =
        &["Flux2TransformerBlock", "Flux2SingleTransformerBlock"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<Flux2Transformer2dConfig, Error> {
        Flux2Transformer2dConfig::read(fields)
    }

    fn new(config: &Flux2Transformer2dConfig, init: &Init) -> Self {
        let hidden = config.hidden();
        let channels = config.timestep_guidance_channels;
        let linear = |inputs, outputs| Linear::new(inputs, outputs, false, init);
        let modulation = |parts| AdaLayerNorm::new(hidden, parts, false, init);
        let time = || TimestepEmbedding::with_bias(channels, hidden, false, init);
        Self {
            x_embedder: linear(config.in_channels, hidden),
            time_guidance_embed: TimeGuidanceEmbedding {
                timestep_embedder: time(),
                guidance_embedder: config.guidance_embeds.then(time),
            },
            double_stream_modulation_img: modulation(6),
            double_stream_modulation_txt: modulation(6),
            single_stream_modulation: modulation(3),
            context_embedder: linear(config.joint_attention_dim, hidden),
            transformer_blocks: (0..config.num_layers)
                .map(|_| Flux2TransformerBlock::new(config, init))
                .collect(),
            single_transformer_blocks: (0..config.num_single_layers)
                .map(|_| Flux2SingleTransformerBlock::new(config, init))
                .collect(),
            norm_out: modulation(2),
            proj_out: linear(hidden, config.out_channels),
            config: config.clone(),
        }
    }
}

impl Component for Flux2Transformer2dModel {
    fn names(_: &Flux2Transformer2dConfig, _: &[TensorInfo]) -> Names {
        names_with_shift_first()
    }

    fn weight_use(config: &Flux2Transformer2dConfig, path: &str, pass: &PicturePass) -> WeightUse {
        work::weight_use(config, path, pass)
    }
}

impl Flux2Transformer2dModel {
    /// The velocity of noisy packed latents at a time of the training's schedule, from 0 to 1000,
    /// for texts `[batch, tokens, text]` f32. `latents [batch, tokens, in]` f32 has the tokens of a
    /// picture of `sizes[0]` rows and columns and, behind them, of pictures of the other sizes,
    /// which the first one is to go by. `guidance` is told if there is any and the model [embeds
    /// it](Flux2Transformer2dConfig::guidance_embeds). To `[batch, rows · columns, out]` f32 of the
    /// first picture, in main memory.
    ///
    /// # Panics
    /// If the latents have other channels or are not as many as `sizes` says, if there is no size,
    /// or if the texts have another width or number.
    pub fn forward(
        &self,
        latents: Tensor<3>,
        sizes: &[[usize; 2]],
        timestep: f32,
        guidance: Option<f32>,
        context: Tensor<3>,
    ) -> Tensor<3> {
        let device = latents.device();
        let ([_, tokens, _], [_, image_tokens, _]) = (context.dims(), latents.dims());
        let tokens_of = |&[rows, columns]: &[usize; 2]| rows * columns;
        let all: usize = sizes.iter().map(tokens_of).sum();
        assert_eq!(image_tokens, all, "latents do not fit the sizes {sizes:?}");
        let image = self.x_embedder.forward_pixels(latents);
        let conditioning = silu(self.time_guidance_embed.forward(timestep, guidance, &device));
        // Once for all blocks.
        let epsilon = self.config.eps;
        let two = [&self.double_stream_modulation_img, &self.double_stream_modulation_txt]
            .map(|modulation| Branch::two(modulation.parts(&conditioning), epsilon));
        let one = Branch::new(self.single_stream_modulation.parts(&conditioning), epsilon);
        let text = self.context_embedder.forward_pixels(context);
        let rotation = rotation(&self.config, tokens, sizes, &device);
        let blocks = self.transformer_blocks.iter();
        let [image, text] =
            blocks.fold([image, text], |streams, block| block.forward(streams, &two, &rotation));
        let text = text.to_device(&image.device());
        let both = joined(vec![text, image], 1);
        let blocks = self.single_transformer_blocks.iter();
        let both = blocks.fold(both, |x, block| block.forward(x, &one, &rotation));
        let image = self.norm_out.entered(both).narrow(1, tokens, tokens_of(&sizes[0]));
        let modulation = self.norm_out.modulation(&conditioning, self.config.shift_first);
        let normed = modulation.norm(&image, epsilon);
        fetched(self.proj_out.forward_pixels(normed), &self.proj_out.weight)
    }

    /// An upper bound on the bytes of activations that a pass over packed latents holds at once, of
    /// which there are as many as `size` says in all pictures, beside texts of so many `tokens`;
    /// with the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, size: PictureSize, tokens: usize, threads: usize) -> u64 {
        let (hidden, inner) = (self.config.hidden(), self.config.inner);
        let positions = size.rows.saturating_mul(size.columns).saturating_add(tokens);
        let rows = (size.batch as u64).saturating_mul(positions as u64);
        // In a block of the second kind the residual stream, what the norm gives of it and the copy
        // that is multiplied, beside all that the projection gives. Blocks of the first kind hold
        // less.
        let most = 6 * hidden + 2 * inner;
        let width = self.config.attention_head_dim;
        let heads = self.config.num_attention_heads;
        let scratch =
            pixel_attention_scratch([size.batch, positions, positions], heads, width, threads);
        let rotations = (positions as u64).saturating_mul(width as u64);
        let values = rows.saturating_mul(most as u64);
        Activations::values(values.saturating_add(rotations)).with_scratch(scratch).bytes()
    }
}

impl TimeGuidanceEmbedding {
    /// The sum of all embeddings: `[1, hidden]` f32.
    fn forward(&self, timestep: f32, guidance: Option<f32>, device: &Device) -> Tensor<2> {
        let time = self.timestep_embedder.embed(timestep, SINUSOIDS, device);
        match (&self.guidance_embedder, guidance) {
            (Some(embedder), Some(guidance)) => {
                let more = embedder.embed(guidance * GUIDANCE_SCALE, SINUSOIDS, device);
                time.to_device(&more.device()) + more
            }
            _ => time,
        }
    }
}
