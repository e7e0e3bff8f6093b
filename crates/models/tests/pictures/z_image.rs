//! The transformer and the text encoder of Z-Image against what `diffusers` and `transformers`
//! compute in float32 (`scripts/fixtures/z_image.py`), dispatched from their checkpoints.

use std::fs;

use crate::common::components::{
    PackedInputs, QWEN3_ENCODERS, Z_IMAGES, assert_reads_once, assert_writes_saved_names,
    checkpoint, config, denoise_z_image, encode_qwen3, expected, folder, load, placed, refused,
    rounded, texts, values,
};
use crate::common::reference::assert_close;
use burn::tensor::{DType, Device, Tensor};
use outsize_models::arch::{DecoderTextEncoder, ZImageTransformer2dModel};
use outsize_models::{Component, ComponentConfig, Error, PicturePass, PictureSize};
use serde_json::json;

#[test]
fn transformers_give_the_reference() {
    for name in Z_IMAGES {
        let found = load(name).run(|model| denoise_z_image(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn text_encoders_give_the_reference() {
    for name in QWEN3_ENCODERS {
        let found = load(name).run(|model| encode_qwen3(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    Z_IMAGES.iter().for_each(|name| placed(name, denoise_z_image));
    QWEN3_ENCODERS.iter().for_each(|name| placed(name, encode_qwen3));
}

#[test]
fn rounded_activations_stay_near_the_reference() {
    Z_IMAGES.iter().for_each(|name| rounded(name, denoise_z_image));
    QWEN3_ENCODERS.iter().for_each(|name| rounded(name, encode_qwen3));
}

fn ones<const D: usize>(sides: [usize; D]) -> Tensor<D> {
    Tensor::ones(sides, (&Device::flex(), DType::F32))
}

#[test]
fn a_pass_reads_each_streamed_weight_once() {
    let text = r#"{"_class_name": "ZImageTransformer2DModel", "dim": 384, "n_heads": 6, "axes_dims": [16, 24, 24],
        "n_layers": 5, "n_refiner_layers": 1, "cap_feat_dim": 96}"#;
    assert_reads_once(text, |model: &ZImageTransformer2dModel| {
        let (latents, context) = (ones([2, 12, 64]), ones([2, 40, 96]));
        drop(model.forward(latents, [4, 3], 0.3, context, &[40, 5]));
    });
    let text = r#"{"model_type": "qwen3", "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 11,
        "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 100}"#;
    assert_reads_once(text, |model: &DecoderTextEncoder| {
        drop(model.forward(&[vec![3; 18], vec![5; 7]]).unwrap());
    });
}

#[test]
fn pictures_and_texts_of_a_batch_have_the_bits_that_they_have_alone() {
    let name = "z-image";
    let model = load::<ZImageTransformer2dModel>(name);
    let both = model.run(|model| denoise_z_image(name, model)).unwrap();
    let one = |picture: usize| {
        let mut inputs = PackedInputs::of(name, "time");
        inputs.lengths = vec![inputs.lengths[picture]];
        inputs.latents = inputs.latents.narrow(0, picture, 1);
        inputs.context = inputs.context.narrow(0, picture, 1);
        model.run(|model| inputs.run(model)).unwrap()
    };
    same_bits(&[one(0), one(1)].concat(), &both);
    let name = "qwen3-encoder";
    let model = load::<DecoderTextEncoder>(name);
    let texts = texts(name);
    let states = |texts: &[Vec<u32>]| model.run(|model| model.forward(texts)).unwrap().unwrap();
    let short = states(&texts[1..]);
    let [_, tokens, _] = short.dims();
    let both = states(&texts);
    let padding = both.dims()[1] - tokens;
    same_bits(&values(short), &values(both.narrow(0, 1, 1).narrow(1, padding, tokens)));
}

fn same_bits(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn the_last_layer_and_the_head_are_passed_over() {
    for name in QWEN3_ENCODERS {
        let (config, checkpoint) = (config::<DecoderTextEncoder>(name), checkpoint(name));
        let tree = config.tree(name, checkpoint.tensors()).unwrap();
        let placed: usize = tree.blocks.iter().map(|block| block.tensors.len()).sum();
        let last = format!("layers.{}.", config.config.layers());
        let unused = ["lm_head.weight", "model.norm.weight", "norm.weight"];
        let mut tensors = checkpoint.tensors().iter();
        let count = tensors
            .by_ref()
            .filter(|tensor| !tensor.name.contains(&last) && !unused.contains(&&*tensor.name))
            .count();
        assert_eq!(placed, count, "{name}");
        assert!(count < checkpoint.tensors().len(), "{name}");
    }
}

#[test]
fn tensors_of_a_checkpoint_that_is_written_have_the_names_of_diffusers() {
    Z_IMAGES.into_iter().for_each(assert_writes_saved_names::<ZImageTransformer2dModel>);
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    for (field, value) in [
        ("_class_name", json!("FluxTransformer2DModel")),
        ("all_f_patch_size", json!([2])),
        ("all_patch_size", json!([2, 4])),
        ("axes_dims", json!([2, 2, 2])),
        ("axes_dims", json!([1, 3, 4])),
        ("axes_dims", json!([4, 4])),
        ("cap_feat_dim", json!(0)),
        ("n_heads", json!(3)),
        ("n_layers", json!(1.5)),
        ("norm_eps", json!(0)),
        ("qk_norm", json!(false)),
        ("rope_theta", json!(-1)),
        ("siglip_feat_dim", json!(1152)),
        ("t_scale", json!("1000")),
    ] {
        refused::<ZImageTransformer2dModel>("z-image", field, value);
    }
    refused::<DecoderTextEncoder>("qwen3-encoder", "hidden_act", json!("tanh"));
    let text = fs::read_to_string(folder("qwen3-encoder").join("config.json")).unwrap();
    let mut fields: serde_json::Value = serde_json::from_str(&text).unwrap();
    fields["num_hidden_layers"] = 1.into();
    fields["layer_types"] = json!(["full_attention"]);
    let error = ComponentConfig::<DecoderTextEncoder>::from_json(&fields.to_string()).unwrap_err();
    assert!(error.to_string().contains("`num_hidden_layers` is 1"), "{error}");
}

#[test]
fn texts_that_cannot_be_run_are_refused() {
    let model = load::<DecoderTextEncoder>("qwen3-encoder");
    let forward = |texts: &[Vec<u32>]| {
        model.run(|model| model.forward(texts).map(|_| ())).unwrap().unwrap_err()
    };
    let error = forward(&[vec![1, 2, 3], vec![1, 60]]);
    assert!(matches!(error, Error::TokenId { id: 60, index: 1, vocab_size: 60 }), "{error}");
    assert!(matches!(forward(&[]), Error::NoTokens));
    assert!(matches!(forward(&[vec![1], vec![]]), Error::NoTokens));
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let huge = PictureSize { batch: usize::MAX, rows: usize::MAX, columns: usize::MAX };
    let transformer = config::<ZImageTransformer2dModel>("z-image");
    assert!(transformer.model().activation_bytes(huge, usize::MAX, 2) > 1 << 60);
    let encoder = config::<DecoderTextEncoder>("qwen3-encoder");
    assert!(encoder.model().activation_bytes(usize::MAX, usize::MAX, 2) > 1 << 36);
}

#[test]
fn work_is_counted_weight_by_weight() {
    let transformer = config::<ZImageTransformer2dModel>("z-image");
    let pass = PicturePass { latents: PictureSize { batch: 2, rows: 3, columns: 13 }, tokens: 7 };
    // Filled up to multiples of 32.
    let (image, text) = (64, 32);
    for (path, expected) in [
        ("all_x_embedder.weight", (2 * 39, 0)),
        ("x_pad_token", (0, 0)),
        ("cap_embedder.1.weight", (2 * 7, 0)),
        ("t_embedder.mlp.0.weight", (1, 0)),
        ("noise_refiner.0.adaLN_modulation.0.weight", (1, 0)),
        ("noise_refiner.1.attention.to_q.weight", (2 * image, image)),
        ("noise_refiner.1.attention.to_k.weight", (2 * image, 0)),
        ("context_refiner.0.attention.to_q.weight", (2 * text, text)),
        ("context_refiner.0.feed_forward.w2.weight", (2 * text, 0)),
        ("layers.0.adaLN_modulation.0.weight", (1, 0)),
        ("layers.1.attention.to_q.weight", (2 * (image + text), image + text)),
        ("layers.1.attention.to_out.0.weight", (2 * (image + text), 0)),
        ("layers.1.feed_forward.w3.weight", (2 * (image + text), 0)),
        ("all_final_layer.adaLN_modulation.1.weight", (1, 0)),
        ("all_final_layer.linear.weight", (2 * 39, 0)),
    ] {
        assert!(transformer.weights().iter().any(|weight| weight.name == path), "{path}");
        let used = ZImageTransformer2dModel::weight_use(&transformer.config, path, &pass);
        assert_eq!((used.rows, used.attended), expected, "{path}");
    }
    let encoder = config::<DecoderTextEncoder>("qwen3-encoder");
    for (path, attended) in [("q_proj", 3), ("k_proj", 0)] {
        let path = format!("model.layers.0.self_attn.{path}.weight");
        let used = DecoderTextEncoder::weight_use(&encoder.config, &path, &pass);
        assert_eq!((used.rows, used.attended), (14, attended));
    }
}
