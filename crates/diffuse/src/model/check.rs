//! Whether the parts of a pipeline belong together.

use outsize_models::arch::{
    Flux2Transformer2dConfig, FluxTransformer2dConfig, QwenImageTransformer2dConfig,
    Sd3Transformer2dConfig, TIME_IDS, Unet2dConditionConfig, ZImageTransformer2dConfig,
};

use super::{ImageModel, with_mask};
use crate::denoiser::Denoiser;
use crate::error::Error;
use crate::kind::PipelineKind;
use crate::pipeline_part::PipelinePart;
use crate::text_encoder::TextEncoder;
use outsize_picture::COLOURS;

impl ImageModel {
    /// Whether the parts belong together.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.denoiser {
            Denoiser::Unet(unet) => self.check_unet(&unet.config.config)?,
            Denoiser::Sd3(transformer) => self.check_sd3(&transformer.config.config)?,
            Denoiser::Flux(transformer) => self.check_flux(&transformer.config.config)?,
            Denoiser::ZImage(transformer) => self.check_z_image(&transformer.config.config)?,
            Denoiser::Flux2(transformer, _) => self.check_flux2(&transformer.config.config)?,
            Denoiser::QwenImage(transformer) => {
                self.check_qwen_image(&transformer.config.config)?;
            }
        }
        let vae = &self.vae.config.config;
        let class = self.kind.classes_of(PipelinePart::Vae)[0];
        if vae.class() != class {
            let reason = format!("`_class_name` is that of another autoencoder than {class}");
            return self.refused(PipelinePart::Vae, reason);
        }
        for (field, n) in [("in_channels", vae.in_channels), ("out_channels", vae.out_channels)] {
            if n != COLOURS {
                let reason = format!("`{field}` is {n}, but only 3 is built in");
                return self.refused(PipelinePart::Vae, reason);
            }
        }
        Ok(())
    }

    /// Whether text encoders, autoencoder and a transformer of FLUX.1 belong together.
    fn check_flux(&self, transformer: &FluxTransformer2dConfig) -> Result<(), Error> {
        let width = self.text_encoders.last().map_or(0, TextEncoder::width);
        let pooled = self.text_encoders.first().map_or(0, TextEncoder::pooled_width);
        let latent = self.vae.config.config.latent_channels;
        let tokens = |channels| self.denoiser.packing().pow(2) * channels;
        let (packed, more) = (tokens(latent), self.mask_values().map(|values| latent + values));
        let (of_token, seen) = match more {
            Some(more) => {
                ("what four latents have, with what is kept and the mask", packed + tokens(more))
            }
            None => ("what four latents have", packed),
        };
        self.check_transformer(&[
            (
                "joint_attention_dim",
                transformer.joint_attention_dim,
                "the second text encoder's `d_model`",
                width,
            ),
            (
                "pooled_projection_dim",
                transformer.pooled_projection_dim,
                "the text encoder's `hidden_size`",
                pooled,
            ),
            ("in_channels", transformer.in_channels, of_token, seen),
            ("out_channels", transformer.out_channels, "what four latents have", packed),
        ])
    }

    /// Whether text encoders, autoencoder and a transformer of Stable Diffusion 3 belong together.
    fn check_sd3(&self, transformer: &Sd3Transformer2dConfig) -> Result<(), Error> {
        let widths = self.text_encoders.iter().map(TextEncoder::width);
        let width = self.text_encoders.last().map_or(0, TextEncoder::width);
        let of_clip = widths.sum::<usize>() - width;
        if of_clip > width {
            let reason = format!(
                "`d_model` is {width}, but the `hidden_size` of both other text encoders is {of_clip} together"
            );
            return self.refused(PipelinePart::TextEncoder3, reason);
        }
        let pooled = self.text_encoders.iter().map(TextEncoder::pooled_width).sum();
        let latent = self.vae.config.config.latent_channels;
        self.check_transformer(&[
            (
                "joint_attention_dim",
                transformer.joint_attention_dim,
                "the third text encoder's `d_model`",
                width,
            ),
            (
                "pooled_projection_dim",
                transformer.pooled_projection_dim,
                "the `projection_dim` of both other text encoders together",
                pooled,
            ),
            ("in_channels", transformer.in_channels, "the autoencoder's `latent_channels`", latent),
            (
                "out_channels",
                transformer.out_channels,
                "the autoencoder's `latent_channels`",
                latent,
            ),
        ])
    }

    /// Whether text encoder, autoencoder and a transformer of Z-Image belong together.
    fn check_z_image(&self, transformer: &ZImageTransformer2dConfig) -> Result<(), Error> {
        let width = self.text_encoders.first().map_or(0, TextEncoder::width);
        let latent = self.vae.config.config.latent_channels;
        self.check_transformer(&[
            ("cap_feat_dim", transformer.cap_feat_dim, "the text encoder's `hidden_size`", width),
            ("in_channels", transformer.in_channels, "the autoencoder's `latent_channels`", latent),
        ])
    }

    /// Whether text encoder, autoencoder and a transformer of FLUX.2 belong together.
    fn check_flux2(&self, transformer: &Flux2Transformer2dConfig) -> Result<(), Error> {
        let width = self.text_encoders.first().map_or(0, TextEncoder::width);
        let packed = self.denoiser.packing().pow(2) * self.vae.config.config.latent_channels;
        self.check_transformer(&[
            (
                "joint_attention_dim",
                transformer.joint_attention_dim,
                "three times the text encoder's `hidden_size`",
                width,
            ),
            ("in_channels", transformer.in_channels, "what four latents have", packed),
            ("out_channels", transformer.out_channels, "what four latents have", packed),
        ])
    }

    /// Whether text encoder, autoencoder and a transformer of Qwen-Image belong together.
    fn check_qwen_image(&self, transformer: &QwenImageTransformer2dConfig) -> Result<(), Error> {
        let width = self.text_encoders.first().map_or(0, TextEncoder::width);
        let latent = self.vae.config.config.latent_channels;
        let packed = self.denoiser.packing().pow(2) * latent;
        self.check_transformer(&[
            (
                "joint_attention_dim",
                transformer.joint_attention_dim,
                "the text encoder's `hidden_size`",
                width,
            ),
            ("in_channels", transformer.in_channels, "what four latents have", packed),
            ("out_channels", transformer.out_channels, "the autoencoder's `z_dim`", latent),
        ])
    }

    /// Whether fields of a transformer are what other parts have: the field, its value, whose it
    /// should be, and that.
    fn check_transformer(&self, fields: &[(&str, usize, &str, usize)]) -> Result<(), Error> {
        match fields.iter().find(|(_, found, _, wanted)| found != wanted) {
            Some((field, found, of, wanted)) => {
                let reason = format!("`{field}` is {found}, but {of} is {wanted}");
                self.refused(PipelinePart::Transformer, reason)
            }
            None => Ok(()),
        }
    }

    /// Whether text encoders, autoencoder and a denoiser of Stable Diffusion belong together.
    fn check_unet(&self, unet: &Unet2dConditionConfig) -> Result<(), Error> {
        let vae = &self.vae.config.config;
        let widths = self.text_encoders.iter().map(TextEncoder::width);
        let width: usize = widths.clone().sum();
        if unet.cross_attention_dim != width {
            let widths: Vec<_> = widths.map(|width| width.to_string()).collect();
            return self.refused(
                PipelinePart::Unet,
                format!(
                    "`cross_attention_dim` is {}, but the text encoder's `hidden_size` is {}",
                    unet.cross_attention_dim,
                    widths.join(" and that of the second one ")
                ),
            );
        }
        let pooled = self.text_encoders.last().map_or(0, TextEncoder::pooled_width);
        let wanted = (self.kind == PipelineKind::StableDiffusionXl).then_some(pooled);
        let found = unet.addition.map(|one| (one.inputs, pooled + TIME_IDS * one.size_channels));
        match (wanted, found) {
            (None, None) => {}
            (Some(_), Some((inputs, told))) if inputs == told => {}
            (Some(_), Some((inputs, told))) => {
                return self.refused(
                    PipelinePart::Unet,
                    format!(
                        "`projection_class_embeddings_input_dim` is {inputs}, but a text's {pooled} values and six \
                         sizes are {told}: refiners are not built in"
                    ),
                );
            }
            (wanted, _) => {
                let (value, expected) = match wanted {
                    Some(_) => ("unset", "\"text_time\""),
                    None => ("set", "nothing"),
                };
                return self.refused(
                    PipelinePart::Unet,
                    format!(
                        "`addition_embed_type` is {value}, but a {} has {expected} there",
                        self.kind.class_name()
                    ),
                );
            }
        }
        if self.kind == PipelineKind::LatentConsistency && unet.guidance_channels.is_none() {
            let class = self.kind.class_name();
            let reason =
                format!("`time_cond_proj_dim` is unset, but a {class} is told the guidance");
            return self.refused(PipelinePart::Unet, reason);
        }
        let latent = vae.latent_channels;
        for (field, channels, filling) in [
            ("in_channels", unet.in_channels, with_mask(latent)),
            ("out_channels", unet.out_channels, latent),
        ] {
            if ![latent, filling].contains(&channels) {
                return self.refused(
                    PipelinePart::Unet,
                    format!(
                        "`{field}` is {channels}, but the autoencoder's `latent_channels` is {latent}: other models that \
                         change pictures than those that fill in a mask are not built in"
                    ),
                );
            }
        }
        Ok(())
    }

    /// What is wrong with a part's configuration.
    fn refused(&self, part: PipelinePart, reason: String) -> Result<(), Error> {
        Err(Error::Field { path: self.config_path(part), reason })
    }
}
