//! The modules of Qwen-Image besides its autoencoder against what `diffusers` and `transformers`
//! compute in float32 (`scripts/fixtures/qwen_image.py`), dispatched from their checkpoints.

use crate::common::components::{
    PackedInputs, QWEN_IMAGES, QWEN_VL_ENCODERS, QWEN_VL_SEEING, assert_reads_once,
    assert_writes_saved_names, checkpoint, config, denoise_qwen_image, encode_qwen3, encode_seeing,
    expected, load, placed, refused, rounded, see,
};
use crate::common::reference::assert_close;
use burn::tensor::{DType, Device, Tensor};
use outsize_checkpoint::Dtype;
use outsize_models::arch::{
    AutoencoderKl, AutoencoderKlEncoder, DecoderTextEncoder, QwenImageTransformer2dModel,
    QwenVisionModel,
};
use outsize_models::{Component, ComponentConfig, FIRST_IMAGE_ID, PicturePass, PictureSize};
use serde_json::json;
use std::collections::HashSet;

#[test]
fn transformers_give_the_reference() {
    for name in QWEN_IMAGES {
        let found = load(name).run(|model| denoise_qwen_image(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn last_hidden_states_of_texts_are_the_reference() {
    for name in QWEN_VL_ENCODERS {
        let found = load(name).run(|model| encode_qwen3(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    QWEN_IMAGES.iter().for_each(|name| placed(name, denoise_qwen_image));
    QWEN_VL_ENCODERS.iter().for_each(|name| placed(name, encode_qwen3));
}

#[test]
fn rounded_activations_stay_near_the_reference() {
    QWEN_IMAGES.iter().for_each(|name| rounded(name, denoise_qwen_image));
    QWEN_VL_ENCODERS.iter().for_each(|name| rounded(name, encode_qwen3));
}

fn ones<const D: usize>(sides: [usize; D]) -> Tensor<D> {
    Tensor::ones(sides, (&Device::flex(), DType::F32))
}

#[test]
fn a_pass_reads_each_streamed_weight_once() {
    let text = r#"{"_class_name": "QwenImageTransformer2DModel", "num_layers": 8, "num_attention_heads": 4,
        "attention_head_dim": 64, "axes_dims_rope": [16, 24, 24], "joint_attention_dim": 96}"#;
    assert_reads_once(text, |model: &QwenImageTransformer2dModel| {
        let (latents, context) = (ones([2, 12, 64]), ones([2, 9, 96]));
        drop(model.forward(latents, &[[4, 3]], 7.0, context, &[9, 5]));
    });
    // Two times are embedded at once.
    let text = text.replacen('{', r#"{"zero_cond_t": true, "#, 1);
    assert_reads_once(&text, |model: &QwenImageTransformer2dModel| {
        let (latents, context) = (ones([1, 18, 64]), ones([1, 9, 96]));
        drop(model.forward(latents, &[[4, 3], [2, 3]], 7.0, context, &[9]));
    });
}

#[test]
fn pictures_of_a_batch_have_the_bits_that_they_have_alone() {
    for name in ["qwen-image", "qwen-image-edit", "qwen-image-edit-zero"] {
        let model = load::<QwenImageTransformer2dModel>(name);
        let both = model.run(|model| denoise_qwen_image(name, model)).unwrap();
        let one = |picture: usize| {
            let mut inputs = PackedInputs::of(name, "timestep");
            inputs.lengths = vec![inputs.lengths[picture]];
            inputs.latents = inputs.latents.narrow(0, picture, 1);
            inputs.context = inputs.context.narrow(0, picture, 1);
            model.run(|model| inputs.run_qwen_image(model)).unwrap()
        };
        let alone = [one(0), one(1)].concat();
        assert_eq!(alone.len(), both.len(), "{name}");
        assert!(alone.iter().zip(&both).all(|(a, b)| a.to_bits() == b.to_bits()), "{name}");
    }
}

#[test]
fn texts_with_images_give_the_reference() {
    let name = QWEN_VL_SEEING;
    let image = config::<QwenVisionModel>(name).config.image_token;
    let images = load(name).run(|model| see(name, model)).unwrap();
    let model = load::<DecoderTextEncoder>(name);
    let found = model.run(|model| encode_seeing(name, model, image, &images)).unwrap().unwrap();
    assert_close(&found, &expected(name, "output").0, name);
    // An image that the text has not.
    let known = [(FIRST_IMAGE_ID, images[0].clone())];
    let unknown = [FIRST_IMAGE_ID + images[0].tokens() as u32];
    let refused = model.run(|model| model.forward_seeing(&unknown, &known)).unwrap();
    assert!(matches!(refused, Err(outsize_models::Error::ImageToken { .. })), "{refused:?}");
}

#[test]
fn what_sees_pictures_and_the_head_are_passed_over() {
    for name in QWEN_VL_ENCODERS {
        let (config, checkpoint) = (config::<DecoderTextEncoder>(name), checkpoint(name));
        let tree = config.tree(name, checkpoint.tensors()).unwrap();
        let placed: usize = tree.blocks.iter().map(|block| block.tensors.len()).sum();
        let unused = |name: &str| name.contains("visual.") || name.starts_with("lm_head.");
        let tensors = checkpoint.tensors().iter();
        let count = tensors.filter(|tensor| !unused(&tensor.name)).count();
        assert_eq!(placed, count, "{name}");
        assert!(count < checkpoint.tensors().len(), "{name}");
    }
}

#[test]
fn tensors_of_a_checkpoint_that_is_written_have_the_names_of_diffusers() {
    QWEN_IMAGES.into_iter().for_each(assert_writes_saved_names::<QwenImageTransformer2dModel>);
    // Both halves of an autoencoder, without what is for several frames.
    for name in ["vae-qwen-image", "vae-qwen-image-wide"] {
        let decoder = config::<AutoencoderKl>(name).tensors(Dtype::F32);
        let encoder = config::<AutoencoderKlEncoder>(name).tensors(Dtype::F32);
        let written: HashSet<_> =
            decoder.into_iter().chain(encoder).map(|(name, _, shape)| (name, shape)).collect();
        let saved = checkpoint(name);
        let saved = saved.tensors().iter().filter(|tensor| !tensor.name.contains(".time_conv."));
        let saved: HashSet<_> =
            saved.map(|tensor| (tensor.name.clone(), tensor.shape.clone())).collect();
        assert_eq!(written, saved);
    }
}

#[test]
fn of_each_convolution_of_films_one_frame_is_held() {
    let name = "vae-qwen-image";
    let (config, checkpoint) = (config::<AutoencoderKl>(name), checkpoint(name));
    let tree = config.tree(name, checkpoint.tensors()).unwrap();
    let mut tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
    let conv = tensors.find(|tensor| tensor.name == "decoder.conv_in.weight").unwrap();
    assert_eq!(conv.shape, [8, 3, 3, 3]);
    assert_eq!([conv.bytes, conv.stored_bytes], [8 * 27 * 2, 3 * 8 * 27 * 2]);
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    for (field, value) in [
        ("_class_name", json!("FluxTransformer2DModel")),
        ("attention_head_dim", json!(0)),
        ("axes_dims_rope", json!([2, 2, 2])),
        ("axes_dims_rope", json!([1, 3, 4])),
        ("guidance_embeds", json!(true)),
        ("num_attention_heads", json!(1.5)),
        ("num_layers", json!(0)),
        ("out_channels", json!("3")),
        ("patch_size", json!(1)),
        ("use_additional_t_cond", json!(true)),
        ("use_layer3d_rope", json!(true)),
        ("zero_cond_t", json!("true")),
    ] {
        refused::<QwenImageTransformer2dModel>("qwen-image", field, value);
    }
    for (field, value) in [
        ("attn_scales", json!([1.0])),
        ("base_dim", json!(0)),
        ("dim_mult", json!([2, 4, 8])),
        ("dim_mult", json!([1, 1 << 20])),
        ("dim_mult", json!([])),
        ("input_channels", json!(-3)),
        ("latents_mean", json!([0.0])),
        ("latents_mean", json!("0")),
        ("latents_std", json!([1.0, 0.0, 1.0])),
        ("num_res_blocks", json!(0)),
        ("temperal_downsample", json!([true])),
        ("temperal_downsample", json!([1, 0])),
        ("z_dim", json!(4)),
    ] {
        let field_of = if field == "z_dim" { "latents_mean" } else { field };
        let error = |refusal: outsize_models::Error| refusal.to_string();
        let text = std::fs::read_to_string(
            crate::common::components::folder("vae-qwen-image").join("config.json"),
        );
        let mut fields: serde_json::Value = serde_json::from_str(&text.unwrap()).unwrap();
        fields[field] = value;
        let text = fields.to_string();
        for refusal in [
            ComponentConfig::<AutoencoderKl>::from_json(&text).map(|_| ()).map_err(error),
            ComponentConfig::<AutoencoderKlEncoder>::from_json(&text).map(|_| ()).map_err(error),
        ] {
            let refusal = refusal.unwrap_err();
            assert!(refusal.contains(field_of), "{field}: {refusal}");
        }
    }
}

#[test]
fn configurations_are_read() {
    let [both, alone, edit, zero] =
        QWEN_IMAGES.map(|name| config::<QwenImageTransformer2dModel>(name).config);
    assert_eq!([both.packed_out_channels(), alone.packed_out_channels()], [12, 32]);
    assert_eq!([edit.zero_cond_t, zero.zero_cond_t], [false, true]);
    let defaults = r#"{"_class_name": "QwenImageTransformer2DModel"}"#;
    let usual = ComponentConfig::<QwenImageTransformer2dModel>::from_json(defaults).unwrap();
    assert_eq!((usual.config.num_layers, usual.config.packed_out_channels()), (60, 64));
    let defaults = r#"{"_class_name": "AutoencoderKLQwenImage"}"#;
    let vae = ComponentConfig::<AutoencoderKl>::from_json(defaults).unwrap().config;
    assert_eq!((vae.latent_channels, vae.channels), (16, vec![96, 192, 384, 384]));
    assert_eq!([vae.shift_factors[0], vae.scaling_factors[0].recip()], [-0.7571, 2.8184]);
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let huge = PictureSize { batch: usize::MAX, rows: usize::MAX, columns: usize::MAX };
    let transformer = config::<QwenImageTransformer2dModel>("qwen-image");
    assert!(transformer.model().activation_bytes(huge, usize::MAX, 2) > 1 << 60);
}

#[test]
fn work_is_counted_weight_by_weight() {
    let transformer = config::<QwenImageTransformer2dModel>("qwen-image");
    let pass = PicturePass { latents: PictureSize { batch: 2, rows: 3, columns: 5 }, tokens: 7 };
    let (image, text) = (2 * 15, 2 * 7);
    for (path, expected) in [
        ("img_in.weight", (image, 0)),
        ("time_text_embed.timestep_embedder.linear_1.weight", (1, 0)),
        ("txt_in.weight", (text, 0)),
        ("transformer_blocks.0.img_mod.1.weight", (1, 0)),
        ("transformer_blocks.0.txt_mod.1.weight", (1, 0)),
        ("transformer_blocks.0.attn.to_q.weight", (image, 22)),
        ("transformer_blocks.0.attn.add_q_proj.weight", (text, 22)),
        ("transformer_blocks.0.attn.add_v_proj.weight", (text, 0)),
        ("transformer_blocks.0.attn.to_out.0.weight", (image, 0)),
        ("transformer_blocks.0.attn.to_add_out.weight", (text, 0)),
        ("transformer_blocks.1.img_mlp.net.0.proj.weight", (image, 0)),
        ("transformer_blocks.1.txt_mlp.net.2.weight", (text, 0)),
        ("norm_out.linear.weight", (1, 0)),
        ("proj_out.weight", (image, 0)),
    ] {
        assert!(transformer.weights().iter().any(|weight| weight.name == path), "{path}");
        let used = QwenImageTransformer2dModel::weight_use(&transformer.config, path, &pass);
        assert_eq!((used.rows, used.attended), expected, "{path}");
    }
}
