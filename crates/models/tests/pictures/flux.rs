//! The modules that FLUX.1 has besides those of Stable Diffusion against what `diffusers` and
//! `transformers` compute in float32 (`scripts/fixtures/flux.py`), dispatched from their
//! checkpoints.

use crate::common::components::{
    FLUXES, T5_ENCODERS, assert_reads_once, config, denoise_packed, encode_t5, expected, load,
    placed, refused, rounded,
};
use crate::common::reference::assert_close;
use burn::tensor::{DType, Device, Tensor};
use outsize_models::arch::{AutoencoderKl, FluxTransformer2dModel, T5EncoderModel};
use outsize_models::{Component, Error, PicturePass, PictureSize};
use serde_json::json;

#[test]
fn transformers_give_the_reference() {
    for name in FLUXES {
        let found = load(name).run(|model| denoise_packed(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn text_encoders_give_the_reference() {
    for name in T5_ENCODERS {
        let found = load(name).run(|model| encode_t5(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    FLUXES.iter().for_each(|name| placed(name, denoise_packed));
    T5_ENCODERS.iter().for_each(|name| placed(name, encode_t5));
}

#[test]
fn rounded_activations_stay_near_the_reference() {
    FLUXES.iter().for_each(|name| rounded(name, denoise_packed));
    T5_ENCODERS.iter().for_each(|name| rounded(name, encode_t5));
}

fn ones<const D: usize>(sides: [usize; D]) -> Tensor<D> {
    Tensor::ones(sides, (&Device::flex(), DType::F32))
}

#[test]
fn a_pass_reads_each_streamed_weight_once() {
    let text = r#"{"_class_name": "FluxTransformer2DModel", "num_layers": 3, "num_single_layers": 6,
        "num_attention_heads": 4, "attention_head_dim": 64, "axes_dims_rope": [16, 24, 24],
        "joint_attention_dim": 96, "pooled_projection_dim": 64, "guidance_embeds": true}"#;
    assert_reads_once(text, |model: &FluxTransformer2dModel| {
        let texts = (ones([2, 64]), ones([2, 5, 96]));
        drop(model.forward(ones([2, 12, 64]), &[[4, 3]], 7.0, Some(3.5), texts.0, texts.1));
    });
    let text = r#"{"model_type": "t5", "d_model": 256, "d_ff": 1024, "num_layers": 12, "d_kv": 64, "num_heads": 4,
        "vocab_size": 100, "feed_forward_proj": "gated-gelu"}"#;
    assert_reads_once(text, |model: &T5EncoderModel| {
        drop(model.forward(&[3; 18], 2).unwrap());
    });
}

#[test]
fn a_picture_of_a_batch_has_the_bits_that_it_has_alone() {
    let name = "flux-dev";
    let model = load::<FluxTransformer2dModel>(name);
    let both = model.run(|model| denoise_packed(name, model)).unwrap();
    let one = |picture: usize| {
        let input = |what| crate::common::components::tensor::<3>(name, what, &Device::flex());
        let pooled = crate::common::components::tensor::<2>(name, "pooled", &Device::flex());
        let [latents, context] =
            ["latents", "context"].map(|what| input(what).narrow(0, picture, 1));
        let pooled = pooled.narrow(0, picture, 1);
        let forward = |model: &FluxTransformer2dModel| {
            model.forward(latents, &[[3, 5]], 641.25, Some(3.5), pooled, context)
        };
        crate::common::components::values(model.run(forward).unwrap())
    };
    let alone = [one(0), one(1)].concat();
    assert!(alone.iter().zip(&both).all(|(a, b)| a.to_bits() == b.to_bits()));
    assert_eq!(alone.len(), both.len());
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    for (field, value) in [
        ("_class_name", json!("SD3Transformer2DModel")),
        ("axes_dims_rope", json!([2, 2, 2])),
        ("axes_dims_rope", json!([1, 3, 4])),
        ("axes_dims_rope", json!([4, 4])),
        ("axes_dims_rope", json!(["2", 2, 4])),
        ("attention_head_dim", json!(0)),
        ("guidance_embeds", json!("yes")),
        ("num_attention_heads", json!(1.5)),
        ("num_layers", json!(0)),
        ("patch_size", json!(2)),
    ] {
        refused::<FluxTransformer2dModel>("flux-dev", field, value);
    }
    for (field, value) in [
        ("feed_forward_proj", json!("gated-tanh")),
        ("num_layers", json!(-1)),
        ("relative_attention_num_buckets", json!(2)),
    ] {
        refused::<T5EncoderModel>("t5-encoder", field, value);
    }
    refused::<AutoencoderKl>("vae-flux", "latents_std", json!([1.0]));
}

#[test]
fn configurations_are_read() {
    let [dev, schnell, _] = FLUXES.map(|name| config::<FluxTransformer2dModel>(name).config);
    assert!(dev.guidance_embeds && !schnell.guidance_embeds);
    assert_eq!([dev.out_channels, schnell.out_channels], [12, 6]);
    let vae = config::<AutoencoderKl>("vae-flux").config;
    assert_eq!([vae.scaling_factors[15], vae.shift_factors[15]], [0.3611, 0.1159]);
    assert_eq!(config::<AutoencoderKl>("vae").config.shift_factors, [0.0; 4]);
}

#[test]
fn ids_that_a_text_encoder_cannot_run_are_refused() {
    let model = load::<T5EncoderModel>("t5-encoder");
    let forward = |ids: &[u32], rows| {
        model.run(|model| model.forward(ids, rows).map(|_| ())).unwrap().unwrap_err()
    };
    assert!(matches!(forward(&[1, 60], 1), Error::TokenId { id: 60, index: 1, vocab_size: 60 }));
    assert!(matches!(forward(&[], 1), Error::NoTokens));
    assert!(matches!(forward(&[1; 3], 2), Error::NoTokens));
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let huge = PictureSize { batch: usize::MAX, rows: usize::MAX, columns: usize::MAX };
    let flux = config::<FluxTransformer2dModel>("flux-dev");
    assert!(flux.model().activation_bytes(huge, usize::MAX, 2) > 1 << 60);
    let t5 = config::<T5EncoderModel>("t5-encoder");
    assert!(t5.model().activation_bytes(usize::MAX, usize::MAX, 2) > 1 << 36);
}

#[test]
fn work_is_counted_weight_by_weight() {
    let flux = config::<FluxTransformer2dModel>("flux-dev");
    let pass = PicturePass { latents: PictureSize { batch: 2, rows: 3, columns: 5 }, tokens: 7 };
    let (image, text) = (2 * 15, 2 * 7);
    for (path, expected) in [
        ("x_embedder.weight", (image, 0)),
        ("time_text_embed.timestep_embedder.linear_1.weight", (1, 0)),
        ("time_text_embed.guidance_embedder.linear_2.weight", (1, 0)),
        ("time_text_embed.text_embedder.linear_1.weight", (2, 0)),
        ("context_embedder.weight", (text, 0)),
        ("transformer_blocks.0.norm1.linear.weight", (2, 0)),
        ("transformer_blocks.0.norm1_context.linear.weight", (2, 0)),
        ("transformer_blocks.0.attn.to_q.weight", (image, 22)),
        ("transformer_blocks.0.attn.add_q_proj.weight", (text, 22)),
        ("transformer_blocks.0.attn.add_v_proj.weight", (text, 0)),
        ("transformer_blocks.0.attn.to_out.0.weight", (image, 0)),
        ("transformer_blocks.0.attn.to_add_out.weight", (text, 0)),
        ("transformer_blocks.1.ff.net.0.proj.weight", (image, 0)),
        ("transformer_blocks.1.ff_context.net.2.weight", (text, 0)),
        ("single_transformer_blocks.0.norm.linear.weight", (2, 0)),
        ("single_transformer_blocks.1.attn.to_q.weight", (image + text, 22)),
        ("single_transformer_blocks.1.proj_mlp.weight", (image + text, 0)),
        ("single_transformer_blocks.1.proj_out.weight", (image + text, 0)),
        ("norm_out.linear.weight", (2, 0)),
        ("proj_out.weight", (image, 0)),
    ] {
        assert!(flux.weights().iter().any(|weight| weight.name == path), "{path}");
        let used = FluxTransformer2dModel::weight_use(&flux.config, path, &pass);
        assert_eq!((used.rows, used.attended), expected, "{path}");
    }
    let t5 = config::<T5EncoderModel>("t5-encoder");
    let path = "encoder.block.0.layer.0.SelfAttention.q.weight";
    let used = T5EncoderModel::weight_use(&t5.config, path, &pass);
    assert_eq!((used.rows, used.attended), (text, 7));
}
