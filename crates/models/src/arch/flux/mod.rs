//! The transformer of FLUX.1: attention among the tokens of a picture and of a text, whose norms
//! the time and the text as a whole scale and shift. Black Forest Labs 2024; of its two kinds of
//! blocks the first is that of Esser et al. 2024 (arXiv:2403.03206), the second that of Dehghani et
//! al. 2023 (arXiv:2302.05442).

mod attention;
mod blocks;
mod config;
mod positions;
mod work;

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::silu;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use self::blocks::{EXPANSION, FluxSingleTransformerBlock, FluxTransformerBlock};
pub use self::config::FluxTransformer2dConfig;
use self::config::{AXES, EPSILON, FIELDS};
use self::positions::rotation;
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{
    AdaLayerNorm, Linear, TimeTextEmbedding, fetched, joined, names_with_shift_first,
};
use crate::pass_shape::pixel_attention_scratch;
use crate::{Activations, Error, PicturePass, PictureSize, WeightUse};

/// A denoiser of packed latents, four of which make a token.
#[derive(Module, Debug)]
pub struct FluxTransformer2dModel {
    /// `[hidden, in]`.
    x_embedder: Linear,
    time_text_embed: TimeTextEmbedding,
    /// `[hidden, text]`.
    context_embedder: Linear,
    /// In order of execution.
    transformer_blocks: Vec<FluxTransformerBlock>,
    /// In order of execution, behind the others.
    single_transformer_blocks: Vec<FluxSingleTransformerBlock>,
    norm_out: AdaLayerNorm,
    /// `[out, hidden]`.
    proj_out: Linear,
    heads: usize,
    shift_first: bool,
    #[module(skip)]
    axes: [usize; AXES],
}

impl Architecture for FluxTransformer2dModel {
    type Config = FluxTransformer2dConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("FluxTransformer2DModel", "Flux")];
    const CLASS_PREFIX: &'static str = "Flux";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("AdaLayerNorm", "AdaLayerNormZero"),
        ("Parameterless", "Dropout"),
        ("GeluFeedForward", "FeedForward"),
        ("GeluProjection", "GELU"),
        ("JointAttention", "FluxAttention"),
        ("RmsNorm", "RMSNorm"),
        ("TimeTextEmbedding", "CombinedTimestepGuidanceTextProjEmbeddings"),
        ("Tuple", "ModuleList"),
    ];
    const NO_SPLIT: &'static [&'static str] =
        &["FluxTransformerBlock", "FluxSingleTransformerBlock"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<FluxTransformer2dConfig, Error> {
        FluxTransformer2dConfig::read(fields)
    }

    fn new(config: &FluxTransformer2dConfig, init: &Init) -> Self {
        let hidden = config.hidden();
        Self {
            x_embedder: Linear::new(config.in_channels, hidden, true, init),
            time_text_embed: TimeTextEmbedding::new(
                [config.pooled_projection_dim, hidden],
                config.guidance_embeds,
                init,
            ),
            context_embedder: Linear::new(config.joint_attention_dim, hidden, true, init),
            transformer_blocks: (0..config.num_layers)
                .map(|_| FluxTransformerBlock::new(config, init))
                .collect(),
            single_transformer_blocks: (0..config.num_single_layers)
                .map(|_| FluxSingleTransformerBlock::new(config, init))
                .collect(),
            norm_out: AdaLayerNorm::new(hidden, 2, true, init),
            proj_out: Linear::new(hidden, config.out_channels, true, init),
            heads: config.num_attention_heads,
            shift_first: config.shift_first,
            axes: config.axes_dims_rope,
        }
    }
}

impl Component for FluxTransformer2dModel {
    fn names(_: &FluxTransformer2dConfig, _: &[TensorInfo]) -> Names {
        names_with_shift_first()
    }

    fn is_bias_first(path: &str) -> bool {
        // Layers of what all tokens have in common have a row for each picture, and are matmuls.
        !path.starts_with("time_text_embed.") && !path.ends_with(".linear.bias")
    }

    fn weight_use(_: &FluxTransformer2dConfig, path: &str, pass: &PicturePass) -> WeightUse {
        work::weight_use(path, pass)
    }
}

impl FluxTransformer2dModel {
    /// The velocity of noisy packed latents at a time of the training's schedule, from 0 to 1000,
    /// for texts `[batch, tokens, text]` f32 and what is known of each as a whole,
    /// `pooled [batch, p]` f32. `latents [batch, tokens, in]` f32 has the tokens of a picture of
    /// `sizes[0]` rows and columns and, behind them, of pictures of the other sizes, which the
    /// first one is to go by. `guidance` is for models that [embed
    /// it](FluxTransformer2dConfig::guidance_embeds); others pass it over. To
    /// `[batch, rows · columns, out]` f32 of the first picture, in main memory.
    ///
    /// # Panics
    /// If the latents have other channels or are not as many as `sizes` says, if there is no size,
    /// if the texts have another width or number, or if the model embeds guidance and there is
    /// none.
    pub fn forward(
        &self,
        latents: Tensor<3>,
        sizes: &[[usize; 2]],
        timestep: f32,
        guidance: Option<f32>,
        pooled: Tensor<2>,
        context: Tensor<3>,
    ) -> Tensor<3> {
        let device = latents.device();
        let ([_, tokens, _], [_, image_tokens, _]) = (context.dims(), latents.dims());
        let tokens_of = |&[rows, columns]: &[usize; 2]| rows * columns;
        let all: usize = sizes.iter().map(tokens_of).sum();
        assert_eq!(image_tokens, all, "latents do not fit the sizes {sizes:?}");
        let image = self.x_embedder.forward_pixels(latents);
        let conditioning = silu(self.time_text_embed.forward(timestep, guidance, pooled, &device));
        let text = self.context_embedder.forward_pixels(context);
        // Once for all blocks.
        let rotation = rotation(self.axes, tokens, sizes, &device);
        let blocks = self.transformer_blocks.iter();
        let [image, text] = blocks
            .fold([image, text], |streams, block| block.forward(streams, &conditioning, &rotation));
        let both = joined(vec![text, image], 1);
        let blocks = self.single_transformer_blocks.iter();
        let both = blocks.fold(both, |x, block| block.forward(x, &conditioning, &rotation));
        let image = self.norm_out.entered(both).narrow(1, tokens, tokens_of(&sizes[0]));
        let modulation = self.norm_out.modulation(&conditioning, self.shift_first);
        let normed = modulation.norm(&image, EPSILON);
        fetched(self.proj_out.forward_pixels(normed), &self.proj_out.weight)
    }

    /// An upper bound on the bytes of activations that a pass over packed latents holds at once, of
    /// which there are as many as `size` says in all pictures, beside texts of so many `tokens`;
    /// with the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, size: PictureSize, tokens: usize, threads: usize) -> u64 {
        let [hidden, _] = self.x_embedder.widths();
        let image = size.rows.saturating_mul(size.columns);
        let positions = image.saturating_add(tokens);
        let rows = (size.batch as u64).saturating_mul(positions as u64);
        // In a block of the second kind the residual stream, attention's result beside the MLP's
        // inner layer with the copy that is multiplied, and what comes of them. Blocks of the first
        // kind hold less. Of several pictures, each part of attention's result is copied.
        let most = 1 + 2 * (1 + EXPANSION) + 1 + usize::from(size.batch > 1);
        let width = hidden / self.heads;
        let scratch =
            pixel_attention_scratch([size.batch, positions, positions], self.heads, width, threads);
        let rotations = (positions as u64).saturating_mul(width as u64);
        let values = rows.saturating_mul((most * hidden) as u64);
        Activations::values(values.saturating_add(rotations)).with_scratch(scratch).bytes()
    }
}
