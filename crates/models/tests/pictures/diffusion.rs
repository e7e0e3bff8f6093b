//! The modules of Stable Diffusion against what `transformers` and `diffusers` compute in float32
//! (`scripts/fixtures/diffusion.py`), dispatched from their checkpoints.

use crate::common::components::{
    CLIPS, UNETS, VAES, assert_reads_once, config, decode, denoise, encode, encode_all,
    encode_picture, expected, folder, load, placed, refused, rounded, tensor, values,
};
use crate::common::reference::assert_close;
use burn::tensor::{DType, Device, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_models::arch::{
    AutoencoderKl, AutoencoderKlEncoder, ClipTextModel, Unet2dConditionModel,
};
use outsize_models::{Component, Error, PicturePass, PictureSize};
use serde_json::json;

#[test]
fn text_encoders_give_the_reference() {
    for name in CLIPS {
        let found = load(name).run(|model| encode(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn text_encoders_of_xl_give_texts_as_a_whole_and_states_before_the_last_layer() {
    for name in ["clip-text-xl", "clip-text-eos"] {
        let found = load(name).run(|model| encode_all(name, model)).unwrap();
        for (found, what) in found.iter().zip(["output", "penultimate", "pooled"]) {
            assert_close(found, &expected(name, what).0, &format!("{name}: {what}"));
        }
    }
}

#[test]
fn denoisers_give_the_reference() {
    for name in UNETS {
        let found = load(name).run(|model| denoise(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn autoencoders_give_the_reference() {
    for name in VAES {
        let found = load(name).run(|model| decode(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn encoders_of_pictures_give_the_reference() {
    for name in VAES {
        let model = load::<AutoencoderKlEncoder>(name);
        let found = model.run(|model| encode_picture(name, model)).unwrap();
        assert_close(&found, &expected(name, "moments").0, name);
    }
}

#[test]
fn bands_of_any_height_give_the_same_latents() {
    for name in VAES {
        let model = load::<AutoencoderKlEncoder>(name);
        let run = |band_bytes| {
            let encode = |model: &AutoencoderKlEncoder| {
                encode_picture(name, &model.clone().with_band_bytes(band_bytes))
            };
            model.run(encode).unwrap()
        };
        let whole = run(usize::MAX);
        for band_bytes in [1, 1500, 3000, 5000, 8000] {
            let found = run(band_bytes);
            let same = found.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && found.len() == whole.len(), "{name} in bands of {band_bytes} bytes");
        }
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    CLIPS.iter().for_each(|name| placed(name, encode));
    UNETS.iter().for_each(|name| placed(name, denoise));
    VAES.iter().for_each(|name| placed(name, decode));
    VAES.iter().for_each(|name| placed(name, encode_picture));
}

#[test]
fn a_pass_reads_each_streamed_weight_once() {
    let text = r#"{"_class_name": "UNet2DConditionModel", "block_out_channels": [64, 256], "cross_attention_dim": 64,
        "down_block_types": ["CrossAttnDownBlock2D", "DownBlock2D"],
        "up_block_types": ["UpBlock2D", "CrossAttnUpBlock2D"]}"#;
    let ones = |sides| Tensor::<4>::ones(sides, (&Device::flex(), DType::F32));
    assert_reads_once(text, |model: &Unet2dConditionModel| {
        drop(model.forward(
            ones([2, 8, 8, 4]),
            7.0,
            None,
            ones([2, 9, 64, 1]).squeeze_dim(3),
            None,
        ));
    });
}

#[test]
fn rounded_activations_stay_near_the_reference() {
    CLIPS.iter().for_each(|name| rounded(name, encode));
    UNETS.iter().for_each(|name| rounded(name, denoise));
    VAES.iter().for_each(|name| rounded(name, decode));
}

#[test]
fn bands_of_any_height_give_the_same_bits() {
    for name in VAES {
        let model = load::<AutoencoderKl>(name);
        let run = |band_bytes| {
            let decode = |model: &AutoencoderKl| {
                let (mut picture, mut bands) = (Vec::new(), 0);
                let latents = tensor(name, "latents", &Device::flex());
                model.clone().with_band_bytes(band_bytes).decode(latents, |rows| {
                    picture.extend(values(rows));
                    bands += 1;
                });
                (picture, bands)
            };
            model.run(decode).unwrap()
        };
        let (whole, bands) = run(usize::MAX);
        assert_eq!(bands, 1);
        let mut most = 0;
        for band_bytes in [1, 600, 1500, 3000, 5000] {
            let (picture, bands) = run(band_bytes);
            let same = picture.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same && picture.len() == whole.len(), "{name} in bands of {band_bytes} bytes");
            most = most.max(bands);
        }
        assert!(most > 4, "{most} bands");
    }
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let huge = PictureSize { batch: usize::MAX, rows: usize::MAX, columns: usize::MAX };
    let unet = config::<Unet2dConditionModel>("unet-v1");
    assert!(unet.model().activation_bytes(huge, usize::MAX, 2) > 1 << 60);
    assert!(config::<AutoencoderKl>("vae").model().activation_bytes(huge, 2) > 1 << 60);
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    for (field, value) in [
        ("_class_name", json!("UNet3DConditionModel")),
        ("act_fn", json!("gelu")),
        ("addition_embed_type", json!("text")),
        ("attention_head_dim", json!(3)),
        ("attention_head_dim", json!([2])),
        ("attention_head_dim", json!(0)),
        ("block_out_channels", json!([])),
        ("norm_num_groups", json!(5)),
        ("class_embed_type", json!("timestep")),
        ("conv_in_kernel", json!(1)),
        ("cross_attention_dim", json!([6, 6])),
        ("down_block_types", json!(["DownBlock2D"])),
        ("down_block_types", json!(["AttnDownBlock2D", "DownBlock2D"])),
        ("encoder_hid_dim", json!(4)),
        ("freq_shift", json!(4)),
        ("layers_per_block", json!([1, 2])),
        ("mid_block_type", json!("UNetMidBlock2D")),
        ("mid_block_type", json!(null)),
        ("norm_num_groups", json!(null)),
        ("num_class_embeds", json!(10)),
        ("only_cross_attention", json!(true)),
        ("resnet_time_scale_shift", json!("scale_shift")),
        ("time_embedding_type", json!("fourier")),
        ("up_block_types", json!(["UpBlock2D", "AttnUpBlock2D"])),
    ] {
        refused::<Unet2dConditionModel>("unet-v1", field, value);
    }
    for (field, value) in [
        ("block_out_channels", json!("8")),
        ("latents_mean", json!([0.1])),
        ("norm_num_groups", json!(5)),
        ("scaling_factor", json!(0)),
        ("shift_factor", json!("0.1")),
        ("up_block_types", json!(["UpDecoderBlock2D", "AttnUpDecoderBlock2D"])),
    ] {
        refused::<AutoencoderKl>("vae", field, value);
    }
    let blocks = json!(["DownEncoderBlock2D", "AttnDownEncoderBlock2D"]);
    refused::<AutoencoderKlEncoder>("vae", "down_block_types", blocks);
    refused::<ClipTextModel>("clip-text-v1", "hidden_act", json!("tanh"));
    refused::<ClipTextModel>("clip-text-v1", "num_attention_heads", json!(5));
}

#[test]
fn ids_that_a_text_encoder_cannot_run_are_refused() {
    let model = load::<ClipTextModel>("clip-text-v1");
    let forward = |ids: &[u32], rows| {
        model.run(|model| model.forward(ids, rows).map(|_| ())).unwrap().unwrap_err()
    };
    assert!(matches!(forward(&[1, 50], 1), Error::TokenId { id: 50, index: 1, vocab_size: 50 }));
    assert!(matches!(forward(&[1; 14], 1), Error::Context { context: 14, max: 13 }));
    assert!(matches!(forward(&[], 1), Error::NoTokens));
    assert!(matches!(forward(&[1; 3], 2), Error::NoTokens));
}

#[test]
fn work_is_counted_weight_by_weight() {
    let unet = config::<Unet2dConditionModel>("unet-v1");
    let checkpoint = Checkpoint::open(folder("unet-v1").join("model.safetensors")).unwrap();
    let mut tree = unet.tree("unet-v1", checkpoint.tensors()).unwrap();
    // Latents of 7 x 5, halved to 4 x 3; two levels of 8 and 12 channels.
    let latents = PictureSize { batch: 2, rows: 7, columns: 5 };
    let pass = PicturePass { latents, tokens: 11 };
    unet.add_work(&mut tree, &pass);
    let rows = |path: &str| {
        let used = Unet2dConditionModel::weight_use(&unet.config, path, &pass);
        (used.rows, used.attended)
    };
    let (large, small) = (2 * 7 * 5, 2 * 4 * 3);
    for (path, expected) in [
        ("time_embedding.linear_1.weight", (1, 0)),
        ("down_blocks.1.resnets.0.time_emb_proj.weight", (1, 0)),
        ("conv_in.weight", (large, 0)),
        ("down_blocks.0.resnets.0.conv1.weight", (large, 0)),
        ("down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight", (large, 35)),
        ("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_q.weight", (large, 11)),
        ("down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight", (22, 0)),
        ("down_blocks.0.downsamplers.0.conv.weight", (small, 0)),
        ("down_blocks.1.resnets.0.conv1.weight", (small, 0)),
        ("mid_block.attentions.0.transformer_blocks.0.attn1.to_q.weight", (small, 12)),
        ("up_blocks.0.resnets.0.conv1.weight", (small, 0)),
        ("up_blocks.0.upsamplers.0.conv.weight", (large, 0)),
        ("up_blocks.1.resnets.0.conv1.weight", (large, 0)),
    ] {
        assert_eq!(rows(path), expected, "{path}");
    }
    let flops: u64 = tree.blocks.iter().map(|block| block.work.pass.unwrap().flops).sum();
    let counted = unet.weights().into_iter().filter(|weight| weight.shape.len() >= 2);
    let counted = counted.map(|weight| 2 * weight.elements() * rows(&weight.name).0);
    assert_eq!(flops, counted.sum::<u64>());
    // The decoder doubles the latents at the end of each level but the last.
    let vae = config::<AutoencoderKl>("vae");
    let rows = |path: &str| {
        let used = AutoencoderKl::weight_use(&vae.config, path, &pass);
        (used.rows, used.attended)
    };
    assert_eq!(rows("post_quant_conv.weight"), (large, 0));
    assert_eq!(rows("decoder.mid_block.attentions.0.to_q.weight"), (large, 35));
    assert_eq!(rows("decoder.up_blocks.0.resnets.1.conv1.weight"), (large, 0));
    assert_eq!(rows("decoder.up_blocks.0.upsamplers.0.conv.weight"), (4 * large, 0));
    assert_eq!(rows("decoder.up_blocks.1.resnets.0.conv_shortcut.weight"), (4 * large, 0));
    assert_eq!(rows("decoder.conv_out.weight"), (4 * large, 0));
    // The encoder halves the picture at the end of each level but the last.
    let rows = |path: &str| {
        let used = AutoencoderKlEncoder::weight_use(&vae.config, path, &pass);
        (used.rows, used.attended)
    };
    assert_eq!(rows("encoder.conv_in.weight"), (4 * large, 0));
    assert_eq!(rows("encoder.down_blocks.0.resnets.0.conv1.weight"), (4 * large, 0));
    assert_eq!(rows("encoder.down_blocks.0.downsamplers.0.conv.weight"), (large, 0));
    assert_eq!(rows("encoder.down_blocks.1.resnets.0.conv_shortcut.weight"), (large, 0));
    assert_eq!(rows("encoder.mid_block.attentions.0.to_q.weight"), (large, 35));
    assert_eq!(rows("quant_conv.weight"), (large, 0));
}
