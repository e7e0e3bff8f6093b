//! The modules of FLUX.2 against what `diffusers` and `transformers` compute in float32
//! (`scripts/fixtures/flux2.py`), dispatched from their checkpoints.

use crate::common::components::{
    FLUX2_VAES, FLUX2S, STATES, assert_reads_once, assert_writes_saved_names, checkpoint, config,
    config_of_states, decode, denoise_flux2, encode_filled, encode_picture, expected, filling,
    load, load_of, placed, placed_of, refused, rounded, rounded_of, tensor, texts, values,
};
use crate::common::reference::assert_close;
use burn::tensor::{DType, Device, Tensor};
use outsize_models::arch::{
    AutoencoderKl, AutoencoderKlEncoder, DecoderTextEncoder, Flux2Transformer2dModel,
};
use outsize_models::{Component, ComponentConfig, Error, PicturePass, PictureSize};
use serde_json::json;

fn encode_mean(name: &str, model: &AutoencoderKlEncoder) -> Vec<f32> {
    values(model.encode_mean(tensor(name, "picture", &Device::flex())))
}

#[test]
fn transformers_give_the_reference() {
    for name in FLUX2S {
        let found = load(name).run(|model| denoise_flux2(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn hidden_states_of_texts_and_of_padding_are_the_reference() {
    for name in STATES {
        let model = load_of(name, &config_of_states(name));
        let found = model.run(|model| encode_filled(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
    }
}

#[test]
fn autoencoders_give_the_reference() {
    for name in FLUX2_VAES {
        let found = load(name).run(|model| decode(name, model)).unwrap();
        assert_close(&found, &expected(name, "output").0, name);
        let encoder = load::<AutoencoderKlEncoder>(name);
        let found = encoder.run(|model| encode_picture(name, model)).unwrap();
        assert_close(&found, &expected(name, "moments").0, name);
        let found = encoder.run(|model| encode_mean(name, model)).unwrap();
        assert_close(&found, &expected(name, "mean").0, name);
    }
}

#[test]
fn streamed_or_resident_the_bits_are_the_same() {
    FLUX2S.iter().for_each(|name| placed(name, denoise_flux2));
    STATES.iter().for_each(|name| placed_of(name, &config_of_states(name), encode_filled));
    placed(FLUX2_VAES[0], decode);
    placed(FLUX2_VAES[0], encode_mean);
}

#[test]
fn rounded_activations_stay_near_the_reference() {
    FLUX2S.iter().for_each(|name| rounded(name, denoise_flux2));
    STATES.iter().for_each(|name| rounded_of(name, &config_of_states(name), encode_filled));
    FLUX2_VAES.iter().for_each(|name| rounded(name, decode));
}

fn ones<const D: usize>(sides: [usize; D]) -> Tensor<D> {
    Tensor::ones(sides, (&Device::flex(), DType::F32))
}

#[test]
fn a_pass_reads_each_streamed_weight_once() {
    let text = r#"{"_class_name": "Flux2Transformer2DModel", "num_layers": 3, "num_single_layers": 11,
        "num_attention_heads": 4, "attention_head_dim": 64, "axes_dims_rope": [16, 16, 16, 16],
        "joint_attention_dim": 96, "in_channels": 64}"#;
    assert_reads_once(text, |model: &Flux2Transformer2dModel| {
        let (latents, context) = (ones([2, 18, 64]), ones([2, 5, 96]));
        drop(model.forward(latents, &[[4, 3], [2, 3]], 7.0, Some(3.5), context));
    });
}

#[test]
fn what_is_side_by_side_has_the_bits_that_it_has_alone() {
    let name = "flux2-references";
    let model = load::<Flux2Transformer2dModel>(name);
    let both = model.run(|model| denoise_flux2(name, model)).unwrap();
    let one = |picture: usize| {
        let input = |what| tensor::<3>(name, what, &Device::flex()).narrow(0, picture, 1);
        let (latents, context) = (input("latents"), input("context"));
        let sizes = [[2, 3], [4, 1], [3, 3]];
        let forward = |model: &Flux2Transformer2dModel| {
            model.forward(latents, &sizes, 641.25, Some(3.5), context)
        };
        values(model.run(forward).unwrap())
    };
    same_bits(&[one(0), one(1)].concat(), &both);
    for name in STATES {
        let model = load_of::<DecoderTextEncoder>(name, &config_of_states(name));
        let all = texts(name);
        let states = |texts: &[Vec<u32>]| {
            let forward = |model: &DecoderTextEncoder| {
                model.forward_filled(texts, filling(name, 37)).unwrap()
            };
            values(model.run(forward).unwrap())
        };
        let alone: Vec<_> =
            all.iter().flat_map(|text| states(std::slice::from_ref(text))).collect();
        same_bits(&alone, &states(&all));
    }
}

fn same_bits(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits()));
}

#[test]
fn pictures_to_go_by_and_padding_count() {
    let name = "flux2-references";
    let model = load::<Flux2Transformer2dModel>(name);
    let input = |what| tensor::<3>(name, what, &Device::flex());
    let alone = model.run(|model| {
        let latents = input("latents").narrow(1, 0, 6);
        values(model.forward(latents, &[[2, 3]], 641.25, None, input("context")))
    });
    let difference: f32 =
        alone.unwrap().iter().zip(expected(name, "output").0).map(|(a, b)| (a - b).abs()).sum();
    assert!(difference > 1.0, "{difference}");
    // What stands behind a text differs from place to place.
    let (states, shape) = expected(STATES[0], "output");
    let second = &states[shape[1] * shape[2]..2 * shape[1] * shape[2]];
    let place = |at: usize| &second[at * shape[2]..(at + 1) * shape[2]];
    assert!(place(20).iter().zip(place(30)).any(|(a, b)| (a - b).abs() > 1e-2));
}

#[test]
fn guidance_is_told_to_models_that_embed_it() {
    let run = |name: &str, guidance| {
        let input = |what| tensor::<3>(name, what, &Device::flex());
        let sizes = expected(name, "sizes").0;
        let sizes = [[sizes[0] as usize, sizes[1] as usize]];
        let model = load::<Flux2Transformer2dModel>(name);
        let made = model.run(|model| {
            values(model.forward(input("latents"), &sizes, 641.25, guidance, input("context")))
        });
        made.unwrap()
    };
    assert_ne!(run("flux2-guided", Some(3.5)), run("flux2-guided", Some(1.0)));
    assert_ne!(run("flux2-guided", Some(3.5)), run("flux2-guided", None));
    assert_eq!(run("flux2", Some(3.5)), run("flux2", None));
}

#[test]
fn layers_behind_the_last_hidden_state_are_passed_over() {
    for name in STATES {
        let (config, checkpoint) = (config_of_states(name), checkpoint(name));
        let tree = config.tree(name, checkpoint.tensors()).unwrap();
        let tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
        let names: Vec<_> = tensors.map(|tensor| &tensor.name).collect();
        assert!(names.iter().any(|name| name.contains("layers.3.")), "{names:?}");
        for other in ["layers.4.", "vision", "projector", "head"] {
            assert!(!names.iter().any(|name| name.contains(other)), "{names:?}");
        }
    }
    let whole = crate::common::components::config::<DecoderTextEncoder>(STATES[0]);
    let error = whole.config.with_states(&[2, 6]).unwrap_err().to_string();
    assert!(error.contains("`num_hidden_layers` is 6"), "{error}");
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    for (field, value) in [
        ("_class_name", json!("FluxTransformer2DModel")),
        ("axes_dims_rope", json!([2, 2, 4])),
        ("axes_dims_rope", json!([1, 1, 3, 3])),
        ("axes_dims_rope", json!([4, 4, 4, 4])),
        ("attention_head_dim", json!(0)),
        ("eps", json!(0)),
        ("guidance_embeds", json!("yes")),
        ("mlp_ratio", json!(0)),
        ("mlp_ratio", json!("3")),
        ("num_attention_heads", json!(1.5)),
        ("num_layers", json!(0)),
        ("patch_size", json!(2)),
        ("rope_theta", json!(-1)),
        ("timestep_guidance_channels", json!(15)),
    ] {
        refused::<Flux2Transformer2dModel>("flux2", field, value);
    }
    for (field, value) in [
        ("_class_name", json!("AutoencoderKLWan")),
        ("batch_norm_eps", json!(-1)),
        ("decoder_block_out_channels", json!([8])),
        ("patch_size", json!([1, 1])),
        ("up_block_types", json!(["UpDecoderBlock2D"])),
    ] {
        refused::<AutoencoderKl>("vae-flux2", field, value);
    }
    refused::<AutoencoderKlEncoder>("vae-flux2", "down_block_types", json!(["DownBlock2D"]));
}

#[test]
fn configurations_are_read() {
    let [plain, others, guided] = FLUX2S.map(|name| config::<Flux2Transformer2dModel>(name).config);
    assert!(!plain.guidance_embeds && guided.guidance_embeds);
    assert_eq!([plain.out_channels, others.out_channels, guided.out_channels], [12, 8, 6]);
    assert_eq!([plain.inner, others.inner], [48, 60]);
    let defaults = r#"{"_class_name": "AutoencoderKLFlux2"}"#;
    let vae = ComponentConfig::<AutoencoderKlEncoder>::from_json(defaults).unwrap().config;
    assert_eq!((vae.latent_channels, vae.layers, vae.scaling_factors), (32, 2, vec![1.0; 32]));
    assert_eq!((vae.channels, vae.batch_norm_eps), (vec![128, 256, 512, 512], Some(1e-4)));
    let small = config::<AutoencoderKl>("vae-flux2-small").config;
    assert_eq!((small.channels, small.decoder_channels), (vec![4, 8], vec![8, 4]));
}

#[test]
fn tensors_of_a_checkpoint_that_is_written_have_the_names_of_diffusers() {
    FLUX2S.into_iter().for_each(assert_writes_saved_names::<Flux2Transformer2dModel>);
}

#[test]
fn texts_that_cannot_be_run_are_refused() {
    for name in STATES {
        let model = load_of::<DecoderTextEncoder>(name, &config_of_states(name));
        let forward = |texts: &[Vec<u32>]| {
            let filled = |model: &DecoderTextEncoder| {
                model.forward_filled(texts, filling(name, 9)).map(|_| ())
            };
            model.run(filled).unwrap().unwrap_err()
        };
        let error = forward(&[vec![1, 2, 3], vec![1, 60]]);
        assert!(matches!(error, Error::TokenId { id: 60, index: 1, vocab_size: 60 }), "{error}");
        assert!(matches!(forward(&[]), Error::NoTokens));
        assert!(matches!(forward(&[vec![1], vec![]]), Error::NoTokens));
    }
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let huge = PictureSize { batch: usize::MAX, rows: usize::MAX, columns: usize::MAX };
    let flux2 = config::<Flux2Transformer2dModel>("flux2");
    assert!(flux2.model().activation_bytes(huge, usize::MAX, 2) > 1 << 60);
}

#[test]
fn work_is_counted_weight_by_weight() {
    let flux2 = config::<Flux2Transformer2dModel>("flux2");
    let pass = PicturePass { latents: PictureSize { batch: 2, rows: 3, columns: 5 }, tokens: 7 };
    let (image, text) = (2 * 15, 2 * 7);
    for (path, expected) in [
        ("x_embedder.weight", (image, 0)),
        ("time_guidance_embed.timestep_embedder.linear_1.weight", (1, 0)),
        ("double_stream_modulation_img.linear.weight", (1, 0)),
        ("double_stream_modulation_txt.linear.weight", (1, 0)),
        ("single_stream_modulation.linear.weight", (1, 0)),
        ("context_embedder.weight", (text, 0)),
        ("transformer_blocks.0.attn.to_q.weight", (image, 22)),
        ("transformer_blocks.0.attn.add_q_proj.weight", (text, 22)),
        ("transformer_blocks.0.attn.add_v_proj.weight", (text, 0)),
        ("transformer_blocks.0.attn.to_out.0.weight", (image, 0)),
        ("transformer_blocks.0.attn.to_add_out.weight", (text, 0)),
        ("transformer_blocks.1.ff.linear_in.weight", (image, 0)),
        ("transformer_blocks.1.ff_context.linear_out.weight", (text, 0)),
        // A ninth of what it gives are queries.
        ("single_transformer_blocks.0.attn.to_qkv_mlp_proj.weight", (image + text, 2)),
        ("single_transformer_blocks.1.attn.to_out.weight", (image + text, 0)),
        ("norm_out.linear.weight", (1, 0)),
        ("proj_out.weight", (image, 0)),
    ] {
        assert!(flux2.weights().iter().any(|weight| weight.name == path), "{path}");
        let used = Flux2Transformer2dModel::weight_use(&flux2.config, path, &pass);
        assert_eq!((used.rows, used.attended), expected, "{path}");
    }
}
