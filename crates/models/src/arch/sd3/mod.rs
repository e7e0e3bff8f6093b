//! The transformer of Stable Diffusion 3 and 3.5: attention among the tokens of a picture and of a
//! text, whose norms the time and the text as a whole scale and shift. Esser et al. 2024
//! (arXiv:2403.03206).

mod blocks;
mod config;
mod work;

use burn::module::Module;
use burn::tensor::Tensor;
use burn::tensor::activation::silu;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use self::blocks::{EXPANSION, Sd3TransformerBlock};
pub use self::config::Sd3Transformer2dConfig;
use self::config::{EPSILON, FIELDS};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{AdaLayerNorm, Embedding, Linear, TimeTextEmbedding, fetched};
use crate::pass_shape::pixel_attention_scratch;
use crate::{Activations, Error, PicturePass, PictureSize, WeightUse};

/// A denoiser of packed latents, four of which make a token.
#[derive(Module, Debug)]
pub struct Sd3Transformer2dModel {
    pos_embed: Sd3PatchEmbed,
    time_text_embed: TimeTextEmbedding,
    /// `[hidden, text]`.
    context_embedder: Linear,
    /// In order of execution.
    transformer_blocks: Vec<Sd3TransformerBlock>,
    norm_out: AdaLayerNorm,
    /// `[4 · out, hidden]`.
    proj_out: Linear,
    #[module(skip)]
    config: Sd3Transformer2dConfig,
}

/// Latents to tokens, with where they are.
#[derive(Module, Debug)]
struct Sd3PatchEmbed {
    /// `[hidden, 4 · in]`; a convolution of two by two latents.
    proj: Linear,
    /// `[rows · columns, hidden]`, of the largest picture.
    pos_embed: Embedding,
}

impl Architecture for Sd3Transformer2dModel {
    type Config = Sd3Transformer2dConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("SD3Transformer2DModel", "SD3")];
    const CLASS_PREFIX: &'static str = "Sd3";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("AdaLayerNorm", "AdaLayerNormZero"),
        ("GeluFeedForward", "FeedForward"),
        ("GeluProjection", "GELU"),
        ("JointAttention", "Attention"),
        ("Parameterless", "Dropout"),
        ("RmsNorm", "RMSNorm"),
        ("Sd3Attention", "Attention"),
        ("Sd3PatchEmbed", "PatchEmbed"),
        ("Sd3TransformerBlock", "JointTransformerBlock"),
        ("TimeTextEmbedding", "CombinedTimestepTextProjEmbeddings"),
        ("Tuple", "ModuleList"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["Sd3TransformerBlock"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<Sd3Transformer2dConfig, Error> {
        Sd3Transformer2dConfig::read(fields)
    }

    fn new(config: &Sd3Transformer2dConfig, init: &Init) -> Self {
        let hidden = config.hidden();
        let [packed_in, packed_out] = config.packed_channels();
        let places = config.pos_embed_max_size.pow(2);
        Self {
            pos_embed: Sd3PatchEmbed {
                proj: Linear::new(packed_in, hidden, true, init),
                pos_embed: Embedding::new(places, hidden, init),
            },
            time_text_embed: TimeTextEmbedding::new(
                [config.pooled_projection_dim, hidden],
                false,
                init,
            ),
            context_embedder: Linear::new(config.joint_attention_dim, hidden, true, init),
            transformer_blocks: (0..config.num_layers)
                .map(|index| Sd3TransformerBlock::new(config, index, init))
                .collect(),
            norm_out: AdaLayerNorm::new(hidden, 2, true, init),
            proj_out: Linear::new(hidden, packed_out, true, init),
            config: config.clone(),
        }
    }
}

impl Component for Sd3Transformer2dModel {
    fn names(_: &Sd3Transformer2dConfig, _: &[TensorInfo]) -> Names {
        // A table without a module of its own. The expression is ours, and valid.
        let names = Names::default();
        names.rename(r"^pos_embed\.pos_embed\.weight$", "pos_embed.pos_embed").unwrap_or_default()
    }

    fn stored_shape(config: &Sd3Transformer2dConfig, path: &str, shape: Vec<usize>) -> Vec<usize> {
        match path {
            "pos_embed.pos_embed.weight" => [&[1], &shape[..]].concat(),
            "pos_embed.proj.weight" => vec![shape[0], config.in_channels, 2, 2],
            _ => shape,
        }
    }

    fn is_bias_first(path: &str) -> bool {
        // Layers of what all tokens have in common have a row for each picture, and are matmuls.
        !path.starts_with("time_text_embed.") && !path.ends_with(".linear.bias")
    }

    fn weight_use(_: &Sd3Transformer2dConfig, path: &str, pass: &PicturePass) -> WeightUse {
        work::weight_use(path, pass)
    }
}

impl Sd3Transformer2dModel {
    /// The velocity of noisy packed latents `[batch, rows · columns, 4 · in]` f32 at a time of the
    /// training's schedule, from 0 to 1000, for texts `[batch, tokens, text]` f32 and what is known
    /// of each as a whole, `pooled [batch, p]` f32. All values of a channel of a token are side by
    /// side. To `[batch, rows · columns, 4 · out]` f32, all channels of a latent side by side, in
    /// main memory.
    ///
    /// # Panics
    /// If the latents have other channels or are not as many as `[rows, columns]` says, if these
    /// are more than the table of places has, or if the texts have another width or number.
    pub fn forward(
        &self,
        latents: Tensor<3>,
        [rows, columns]: [usize; 2],
        timestep: f32,
        pooled: Tensor<2>,
        context: Tensor<3>,
    ) -> Tensor<3> {
        let device = latents.device();
        let most = self.config.pos_embed_max_size;
        assert!(rows.max(columns) <= most, "{rows} rows and {columns} columns, of {most}");
        assert_eq!(latents.dims()[1], rows * columns, "latents do not fit");
        // Of the largest picture its middle.
        let [top, left] = [rows, columns].map(|side| (most - side) / 2);
        let places = (top..top + rows)
            .flat_map(|row| (left..left + columns).map(move |column| (row * most + column) as u32));
        let image = self.pos_embed.proj.forward_pixels(latents);
        let places = self.pos_embed.pos_embed.forward(&places.collect::<Vec<_>>());
        let image = image.clone() + places.to_device(&image.device());
        let conditioning = silu(self.time_text_embed.forward(timestep, None, pooled, &device));
        let text = self.context_embedder.forward_pixels(context);
        let blocks = self.transformer_blocks.iter();
        let [image, _] =
            blocks.fold([image, text], |streams, block| block.forward(streams, &conditioning));
        let image = self.norm_out.entered(image);
        let modulation = self.norm_out.modulation(&conditioning, false);
        let normed = modulation.norm(&image, EPSILON);
        fetched(self.proj_out.forward_pixels(normed), &self.proj_out.weight)
    }

    /// An upper bound on the bytes of activations that a pass over packed latents of that size
    /// holds at once, beside texts of so many `tokens`; with the scratch memory of attention on so
    /// many threads.
    pub fn activation_bytes(&self, size: PictureSize, tokens: usize, threads: usize) -> u64 {
        let (hidden, heads) = (self.config.hidden(), self.config.num_attention_heads);
        let image = size.rows.saturating_mul(size.columns);
        let positions = image.saturating_add(tokens);
        let scratch = pixel_attention_scratch(
            [size.batch, positions, positions],
            heads,
            self.config.attention_head_dim,
            threads,
        );
        let values = |tokens: usize, of_token: usize| {
            let rows = (size.batch as u64).saturating_mul(tokens as u64);
            Activations::values(rows.saturating_mul(of_token as u64))
        };
        // Both residual streams, and in an MLP its inner layer with the copy that is multiplied and
        // what comes of it; or in attention what norms give, with a copy of a projection, queries,
        // keys and values; of several pictures, each part of a result is copied.
        let copies = usize::from(size.batch > 1);
        let mlp = values(image.max(tokens), (2 * EXPANSION + 1 + copies) * hidden);
        let attention = values(positions, (6 + copies) * hidden)
            .and(values(image, hidden))
            .with_scratch(scratch);
        values(positions, hidden).and(mlp.or(attention)).bytes()
    }
}
