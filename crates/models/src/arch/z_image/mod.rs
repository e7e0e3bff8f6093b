//! The transformer of Z-Image: attention among the tokens of a picture and of a text in one stream,
//! whose norms the time scales. Z-Image Team 2025 (arXiv:2511.22699).

mod blocks;
mod config;
mod embeddings;
mod sequences;
mod work;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use self::blocks::ZImageTransformerBlock;
pub use self::config::ZImageTransformer2dConfig;
use self::config::{AXES, FIELDS};
use self::embeddings::{ZImageFinalLayer, ZImageTimestepEmbedder};
use self::sequences::{Places, fill, filled, split};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::layers::{AxialRope, Linear, RmsNorm, joined, lazy};
use crate::pass_shape::pixel_attention_scratch;
use crate::{Activations, Error, PicturePass, PictureSize, WeightUse};

/// The most values of a time's embedding.
const MAX_TIME: usize = 256;

/// A denoiser of tokens of two by two latents.
#[derive(Module, Debug)]
pub struct ZImageTransformer2dModel {
    // In the order of use.
    /// `[hidden, 4 · in]`.
    all_x_embedder: Linear,
    /// `[1, hidden]`: what fills up the tokens of a picture.
    x_pad_token: Param<Tensor<2>>,
    /// `[text]`, and `[hidden, text]`.
    cap_embedder: (RmsNorm, Linear),
    /// `[1, hidden]`: what fills up the tokens of a text.
    cap_pad_token: Param<Tensor<2>>,
    t_embedder: ZImageTimestepEmbedder,
    /// Over the tokens of pictures, in order of execution.
    noise_refiner: Vec<ZImageTransformerBlock>,
    /// Over the tokens of texts, in order of execution.
    context_refiner: Vec<ZImageTransformerBlock>,
    /// Over all tokens, in order of execution.
    layers: Vec<ZImageTransformerBlock>,
    all_final_layer: ZImageFinalLayer,
    #[module(skip)]
    config: ZImageTransformer2dConfig,
}

impl Architecture for ZImageTransformer2dModel {
    type Config = ZImageTransformer2dConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("ZImageTransformer2DModel", "ZImage")];
    const CLASS_PREFIX: &'static str = "ZImage";
    const CLASSES: &'static [(&'static str, &'static str)] = &[
        ("Parameterless", "SiLU"),
        ("RmsNorm", "RMSNorm"),
        ("Tuple", "Sequential"),
        ("ZImageAttention", "Attention"),
        ("ZImageFeedForward", "FeedForward"),
        ("ZImageFinalLayer", "FinalLayer"),
        ("ZImageTimestepEmbedder", "TimestepEmbedder"),
    ];
    const NO_SPLIT: &'static [&'static str] = &["ZImageTransformerBlock"];

    fn fields(_: &str) -> &'static [&'static [KnownField]] {
        &[FIELDS]
    }

    fn read(_: &'static str, fields: &Fields<'_>) -> Result<ZImageTransformer2dConfig, Error> {
        ZImageTransformer2dConfig::read(fields)
    }

    fn new(config: &ZImageTransformer2dConfig, init: &Init) -> Self {
        let (hidden, packed) = (config.dim, config.packed_channels());
        let time = hidden.min(MAX_TIME);
        let token =
            || lazy([1, hidden], &init.device, |shape, device| Tensor::zeros(shape, device));
        let blocks = |count, time| {
            (0..count).map(|_| ZImageTransformerBlock::new(config, time, init)).collect()
        };
        Self {
            all_x_embedder: Linear::new(packed, hidden, true, init),
            x_pad_token: token(),
            cap_embedder: (
                RmsNorm::new(config.cap_feat_dim, config.norm_eps, init),
                Linear::new(config.cap_feat_dim, hidden, true, init),
            ),
            cap_pad_token: token(),
            t_embedder: ZImageTimestepEmbedder::new(time, init),
            noise_refiner: blocks(config.n_refiner_layers, Some(time)),
            context_refiner: blocks(config.n_refiner_layers, None),
            layers: blocks(config.n_layers, Some(time)),
            all_final_layer: ZImageFinalLayer::new([hidden, packed], time, init),
            config: config.clone(),
        }
    }
}

impl Component for ZImageTransformer2dModel {
    fn names(_: &ZImageTransformer2dConfig, _: &[TensorInfo]) -> Names {
        // Of modules by the size of a token, of which there is one.
        let names = Names::default();
        names.rename(r"^all_(x_embedder|final_layer)\.", "all_$1.2-1.").unwrap_or_default()
    }

    fn is_bias_first(path: &str) -> bool {
        // What has a row for the time is a matmul.
        !path.starts_with("t_embedder.") && !path.contains("adaLN_modulation.")
    }

    fn weight_use(_: &ZImageTransformer2dConfig, path: &str, pass: &PicturePass) -> WeightUse {
        work::weight_use(path, pass)
    }
}

impl ZImageTransformer2dModel {
    /// The velocity from noise to pictures of noisy latents in tokens,
    /// `[batch, rows · columns, 4 · in]` f32, each of two by two pixels: row by row, all channels
    /// of a pixel side by side. `time` is 0 where all is noise and 1 at the end. Of each text,
    /// `context [batch, tokens, text]` f32 has the last `lengths` tokens. To the shape of the
    /// latents, in main memory.
    ///
    /// # Panics
    /// If the latents have other channels or are not as many as `[rows, columns]` says, or the
    /// texts another width, another number or fewer tokens than said.
    pub fn forward(
        &self,
        latents: Tensor<3>,
        [rows, columns]: [usize; 2],
        time: f32,
        context: Tensor<3>,
        lengths: &[usize],
    ) -> Tensor<3> {
        let device = latents.device();
        let ([batch, tokens, _], [texts, longest, _]) = (latents.dims(), context.dims());
        assert_eq!((batch, tokens), (lengths.len(), rows * columns), "latents do not fit");
        assert_eq!(texts, lengths.len(), "there is not one text for each picture");
        let image = self.all_x_embedder.forward_pixels(latents);
        let [.., hidden] = image.dims();
        let image = image.reshape([1, batch * tokens, hidden]);
        let image = fill(image, &vec![tokens; batch], &self.x_pad_token);
        let texts = lengths.iter().enumerate().map(|(row, &length)| {
            context.clone().narrow(0, row, 1).narrow(1, longest - length, length)
        });
        let text = joined(texts.collect(), 1);
        drop(context);
        let text = self.cap_embedder.1.forward_pixels(self.cap_embedder.0.forward(text));
        let text = fill(text, lengths, &self.cap_pad_token);
        let time = self.t_embedder.embed(time * self.config.t_scale as f32, &device);
        // Once for all blocks.
        let (places, rope) = (Places::new([rows, columns], lengths), self.rope());
        let through = |blocks: &[ZImageTransformerBlock], x, sequences| {
            blocks.iter().fold(x, |x, block| block.forward(x, &time, &sequences))
        };
        let image = through(&self.noise_refiner, image, places.images(rope, &device));
        let text = through(&self.context_refiner, text, places.texts(rope, &device));
        let text = text.to_device(&image.device());
        let image_tokens = vec![places.image_tokens(); batch];
        let parts = split(&image, &image_tokens).zip(split(&text, &places.texts));
        let both = joined(parts.flat_map(|(image, text)| [image, text]).collect(), 1);
        drop((image, text));
        let sequences = places.both(rope, &device);
        let pictures = sequences.lengths.clone();
        let both = through(&self.layers, both, sequences);
        let parts = split(&both, &pictures).map(|part| part.narrow(1, 0, tokens));
        let image = joined(parts.collect(), 0);
        drop(both);
        self.all_final_layer.forward(image, time)
    }

    fn rope(&self) -> AxialRope<AXES> {
        let ZImageTransformer2dConfig { rope_theta, axes_dims, .. } = self.config;
        AxialRope::new(rope_theta, axes_dims).rounding_angles()
    }

    /// An upper bound on the bytes of activations that a pass over latents of that size in tokens
    /// holds at once, beside texts of up to so many `tokens`; with the scratch memory of attention
    /// on so many threads.
    pub fn activation_bytes(&self, size: PictureSize, tokens: usize, threads: usize) -> u64 {
        let ZImageTransformer2dConfig { dim, n_heads, .. } = self.config;
        let image = PictureSize { batch: 1, ..size }.pixels();
        let positions = filled(image).saturating_add(filled(tokens as u64));
        let rows = (size.batch as u64).saturating_mul(positions);
        // In the MLP the residual stream, what the norm gives of it and the copy that is
        // multiplied, beside both inner layers.
        let most = 3 * dim + 2 * self.config.inner();
        let width = dim / n_heads;
        let seen = usize::try_from(positions).unwrap_or(usize::MAX);
        let scratch = pixel_attention_scratch([1, seen, seen], n_heads, width, threads);
        let values = rows.saturating_mul((most + width) as u64);
        Activations::values(values).with_scratch(scratch).bytes()
    }
}
