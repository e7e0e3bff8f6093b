//! Models that see images against what `transformers` computes in float32
//! (`scripts/fixtures/vision.py`): the features that the vision encoder makes of an image, and what
//! the language model makes of a text with images.

use crate::common::components::{self, expected as tensor_of, tensor};
use crate::common::dispatched::{assert_same_streamed, load, placed_in};
use crate::common::reference::*;
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::{Checkpoint, ShardWriter, TensorInfo, TensorSpec};
use outsize_models::arch::{
    Gemma4UnifiedVisionModel, Gemma4VisionModel, GlmVisionModel, InternVlVisionModel,
    KimiVisionModel, Llama4VisionModel, PixtralVisionModel, QwenVisionModel, SiglipVisionModel,
};
use outsize_models::{
    ActivationDtype, Batch, CacheOptions, ComponentConfig, DispatchedDecoder, Error,
    FIRST_IMAGE_ID, ImageFeatures, Init, KvCache, Logits, ModelConfig, VisionModel, WhenFull,
};

const QWENS: [&str; 8] = [
    "vision-qwen3_vl",
    "vision-qwen3_vl_moe",
    "vision-qwen3_5",
    "vision-qwen2_vl",
    "vision-qwen2_5_vl",
    "vision-qwen3_omni_moe",
    "vision-qwen2_5_omni",
    "vision-exaone4_5",
];
const MISTRALS: [&str; 2] = ["vision-mistral3", "vision-mistral_large4"];
const SIGLIPS: [&str; 5] = [
    "vision-gemma3",
    "vision-cohere2_vision",
    "vision-aya_vision",
    "vision-smolvlm",
    "vision-idefics3",
];
const GEMMA4S: [&str; 2] = ["vision-gemma4", "vision-gemma4-clipped"];
const UNIFIED: &str = "vision-gemma4_unified";
const GLMS: [&str; 2] = ["vision-glm4v", "vision-glm4v_moe"];
const KIMIS: [&str; 3] = ["vision-kimi_k25", "vision-muse_glimmer", "vision-muse_spark"];
const LLAMAS: [&str; 1] = ["vision-llama4"];
const INTERNS: [&str; 2] = ["vision-internvl", "vision-internvl-experts"];

/// All of them.
fn fixtures() -> impl Iterator<Item = &'static str> {
    let images = QWENS.into_iter().chain(MISTRALS).chain(SIGLIPS).chain(GEMMA4S).chain([UNIFIED]);
    images.chain(GLMS).chain(KIMIS).chain(LLAMAS).chain(INTERNS)
}

/// Several tiles for each matrix.
const TILE: u64 = 700;

/// Where the fixture is as a component.
fn component(name: &str) -> String {
    format!("../fixtures/{name}")
}

/// Rows and columns of patches of each image.
fn grids(name: &str) -> Vec<[usize; 2]> {
    let text = std::fs::read_to_string(crate::common::folder(name).join("expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&text).unwrap();
    let side = |grid: &serde_json::Value, side: usize| grid[side].as_u64().unwrap() as usize;
    let grids = expected["grids"].as_array().unwrap().iter();
    grids.map(|grid| [side(grid, 0), side(grid, 1)]).collect()
}

fn see<M: VisionModel>(name: &str, model: &M) -> Vec<ImageFeatures> {
    let image = |(number, grid)| {
        let pixels = tensor(&component(name), &format!("pixels.{number}"), &Device::flex());
        model.see(pixels, grid)
    };
    grids(name).into_iter().enumerate().map(image).collect()
}

/// All values of all features.
fn flat(features: Vec<ImageFeatures>) -> Vec<f32> {
    let tensors = features.into_iter().flat_map(|image| {
        std::iter::once(image.embeddings).chain(image.deepstack).collect::<Vec<_>>()
    });
    tensors.flat_map(components::values).collect()
}

/// Both images of a fixture, and the token that stands for one.
fn seen(name: &str) -> (Vec<ImageFeatures>, u32) {
    fn of<M: VisionModel>(name: &str) -> (Vec<ImageFeatures>, u32) {
        let config = components::config::<M>(&component(name));
        let model = components::load_of(&component(name), &config);
        let images = model.run(|model| see(name, model)).unwrap();
        (images, M::layout(&config.config).image_token)
    }
    match name {
        "vision-mistral3" | "vision-mistral_large4" => of::<PixtralVisionModel>(name),
        _ if SIGLIPS.contains(&name) => of::<SiglipVisionModel>(name),
        "vision-gemma4" | "vision-gemma4-clipped" => of::<Gemma4VisionModel>(name),
        UNIFIED => of::<Gemma4UnifiedVisionModel>(name),
        "vision-glm4v" | "vision-glm4v_moe" => of::<GlmVisionModel>(name),
        "vision-llama4" => of::<Llama4VisionModel>(name),
        _ if INTERNS.contains(&name) => of::<InternVlVisionModel>(name),
        _ if KIMIS.contains(&name) => of::<KimiVisionModel>(name),
        _ => of::<QwenVisionModel>(name),
    }
}

/// A cache that has the fixture's images, and the ids of its text.
fn cache_of_images(
    name: &str,
    config: &ModelConfig,
    options: &CacheOptions,
) -> (KvCache, Vec<u32>) {
    let mut cache = cache_of(config, options);
    let (images, place) = seen(name);
    let mut images = images
        .into_iter()
        .scan(FIRST_IMAGE_ID, |first, image| {
            let ids = cache.add_image(*first, image).unwrap();
            *first = ids.end;
            Some(ids)
        })
        .flatten();
    let mut ids = expected(name).ids;
    for id in ids.iter_mut().filter(|id| **id == place) {
        *id = images.next().unwrap();
    }
    assert!(images.next().is_none());
    (cache, ids)
}

fn forward(model: &DispatchedDecoder, ids: &[u32], cache: &mut KvCache) -> Result<Vec<f32>, Error> {
    let batch = Batch::left_padded(&[ids])?;
    Ok(values(model.forward_batch(&batch, cache, Logits::All).unwrap()?))
}

fn in_passes(model: &DispatchedDecoder, ids: &[u32], step: usize, cache: &mut KvCache) -> Vec<f32> {
    let (mut logits, mut start) = (Vec::new(), 0);
    let uncut = cache.uncut(&Batch::left_padded(&[ids]).unwrap());
    while start < ids.len() {
        let end = ids.len().min(start + step);
        // Images whose tokens see each other are run at once.
        let cut = uncut.iter().find(|image| image.start < end && end < image.end);
        let end = match cut {
            Some(image) if image.start > start => image.start,
            Some(image) => image.end,
            None => end,
        };
        logits.extend(forward(model, &ids[start..end], cache).unwrap());
        start = end;
    }
    logits
}

#[test]
fn the_last_positions_logits_are_those_of_all() {
    for name in fixtures() {
        let (config, model) = load(name, TILE);
        let (mut cache, ids) = cache_of_images(name, &config, &CacheOptions::new(200));
        let batch = Batch::left_padded(&[&ids[..]]).unwrap();
        // One ends with an image, as the text does not.
        let image = ids.iter().rposition(|id| *id >= FIRST_IMAGE_ID).unwrap() + 1;
        for end in [image, ids.len()] {
            let mut run = |logits| {
                cache.clear();
                let batch = batch.columns(0..end);
                model.forward_batch(&batch, &mut cache, logits).unwrap().unwrap()
            };
            let all = run(Logits::All).narrow(1, end - 1, 1);
            assert_eq!(values(run(Logits::Last)), values(all), "{name}");
        }
    }
}

#[test]
fn features_are_those_of_the_reference() {
    for name in fixtures() {
        let (images, _) = seen(name);
        assert_eq!(images.len(), 2);
        for (number, image) in images.into_iter().enumerate() {
            let features = |tensor: String| tensor_of(&component(name), &tensor).0;
            let found = components::values(image.embeddings);
            assert_close(&found, &features(format!("features.{number}")), name);
            for (behind, found) in image.deepstack.into_iter().enumerate() {
                let what = format!("deepstack.{number}.{behind}");
                assert_close(&components::values(found), &features(what.clone()), &what);
            }
        }
    }
}

#[test]
fn weights_of_another_part_in_other_types_change_no_features() {
    let name = QWENS[0];
    let own = Checkpoint::open(crate::common::folder(name).join("model.safetensors")).unwrap();
    let mut tensors: Vec<_> = own.tensors().iter().collect();
    let scale = TensorInfo {
        name: "model.language_model.layers.0.mlp.gate_proj.weight_scale".to_owned(),
        ..own.get("model.language_model.norm.weight").unwrap().clone()
    };
    tensors.push(&scale);
    let specs = tensors
        .iter()
        .map(|tensor| TensorSpec::new(&tensor.name, tensor.dtype, tensor.shape.clone()));
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("model");
    let mut writer = ShardWriter::create(&folder, specs.collect(), u64::MAX).unwrap();
    for tensor in tensors {
        writer.write(&tensor.name, &own.read(tensor).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    let quantised = Checkpoint::open(&folder).unwrap();
    let config = components::config::<QwenVisionModel>(&component(name));
    let tree = config.tree(name, quantised.tensors()).unwrap();
    let options = config.options(quantised.tensors());
    let (map, options) = placed_in(&tree, options, 300, "16MiB").unwrap();
    let init = Init::new(&Device::flex());
    let model = config.dispatch(&init, &quantised, &map, &options).unwrap();
    let found = flat(model.run(|model| see(name, model)).unwrap());
    assert_eq!(found, flat(seen(name).0));
}

#[test]
fn features_have_the_same_bits_streamed() {
    for name in QWENS {
        components::placed::<QwenVisionModel>(&component(name), |_, model| flat(see(name, model)));
    }
    for name in MISTRALS {
        let see = |_: &str, model: &PixtralVisionModel| flat(see(name, model));
        components::placed(&component(name), see);
    }
    for name in SIGLIPS {
        let see = |_: &str, model: &SiglipVisionModel| flat(see(name, model));
        components::placed(&component(name), see);
    }
    for name in GEMMA4S {
        let see = |_: &str, model: &Gemma4VisionModel| flat(see(name, model));
        components::placed(&component(name), see);
    }
    let of_unified = |_: &str, model: &Gemma4UnifiedVisionModel| flat(see(UNIFIED, model));
    components::placed(&component(UNIFIED), of_unified);
    for name in GLMS {
        let see = |_: &str, model: &GlmVisionModel| flat(see(name, model));
        components::placed(&component(name), see);
    }
    for name in KIMIS {
        let see = |_: &str, model: &KimiVisionModel| flat(see(name, model));
        components::placed(&component(name), see);
    }
    for name in LLAMAS {
        let see = |_: &str, model: &Llama4VisionModel| flat(see(name, model));
        components::placed(&component(name), see);
    }
    for name in INTERNS {
        let see = |_: &str, model: &InternVlVisionModel| flat(see(name, model));
        components::placed(&component(name), see);
    }
}

#[test]
fn features_of_rounded_activations_stay_near() {
    fn of<M: VisionModel>(name: &str) {
        let config = components::config::<M>(&component(name));
        let compute = ActivationDtype::Bf16;
        let model = components::load_in(&component(name), &config, "16MiB", compute).unwrap().0;
        let found = model.run(|model| see(name, model)).unwrap().remove(1);
        let (expected, _) = tensor_of(&component(name), "features.1");
        let found = components::values(found.embeddings);
        assert_within(2.0 * ROUNDED_TOLERANCE, &found, &expected, name);
    }
    QWENS.into_iter().for_each(of::<QwenVisionModel>);
    MISTRALS.into_iter().for_each(of::<PixtralVisionModel>);
    SIGLIPS.into_iter().for_each(of::<SiglipVisionModel>);
    GEMMA4S.into_iter().for_each(of::<Gemma4VisionModel>);
    of::<Gemma4UnifiedVisionModel>(UNIFIED);
    GLMS.into_iter().for_each(of::<GlmVisionModel>);
    KIMIS.into_iter().for_each(of::<KimiVisionModel>);
    LLAMAS.into_iter().for_each(of::<Llama4VisionModel>);
    INTERNS.into_iter().for_each(of::<InternVlVisionModel>);
}

#[test]
fn passes_of_any_length_give_the_reference_logits() {
    for name in fixtures() {
        let (config, model) = load(name, TILE);
        assert_eq!(config.unknown_fields, [""; 0], "{name}");
        let (mut cache, ids) = cache_of_images(name, &config, &CacheOptions::new(150));
        for step in [150, 1, 3, 20, 41] {
            cache.clear();
            let found = in_passes(&model, &ids, step, &mut cache);
            assert_close(&found, &expected(name).logits, &format!("{name} by {step}"));
        }
    }
}

#[test]
fn greedy_tokens_are_the_references() {
    for name in fixtures() {
        let (config, model) = load(name, TILE);
        let (mut cache, mut ids) = cache_of_images(name, &config, &CacheOptions::new(160));
        let expected = expected(name);
        let mut found = Vec::<u32>::new();
        while found.len() < expected.greedy.len() {
            let logits = forward(&model, &ids, &mut cache).unwrap();
            ids = vec![first_maximum(&logits[logits.len() - config.vocab_size()..])];
            found.extend(&ids);
        }
        assert_eq!(found, expected.greedy, "{name}");
    }
}

#[test]
fn a_text_that_goes_back_has_the_bits_of_a_new_one() {
    // Linear attention, windows and chunks cannot go back.
    let cannot = ["qwen3_5", "gemma", "muse", "llama4", "exaone", "cohere2", "aya"];
    let can_go_back = |name: &&str| !cannot.iter().any(|part| name.contains(part));
    for name in fixtures().filter(can_go_back) {
        let (config, model) = load(name, TILE);
        let (mut cache, ids) = cache_of_images(name, &config, &CacheOptions::new(150));
        let whole = in_passes(&model, &ids, 9, &mut cache);
        let of_one = whole.len() / ids.len();
        // Behind all images, within the second, between both, within the first, and before all.
        for position in [ids.len() - 3, 40, 25, 18, 5] {
            cache.truncate(position).unwrap();
            let again = in_passes(&model, &ids[position..], 9, &mut cache);
            let same =
                again.iter().zip(&whole[position * of_one..]).all(|(a, b)| (a - b).abs() < 1e-4);
            assert!(same, "{name} from {position}");
        }
        // Images that are forgotten stay in the text, and are not run again.
        cache.truncate(ids.len() - 3).unwrap();
        cache.retain_images(|_| false);
        let again = in_passes(&model, &ids[ids.len() - 3..], 9, &mut cache);
        let expected = &whole[(ids.len() - 3) * of_one..];
        assert!(again.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{name}");
        cache.clear();
        let error = forward(&model, &ids, &mut cache).unwrap_err();
        assert!(matches!(error, Error::ImageToken { id } if id >= FIRST_IMAGE_ID), "{error}");
    }
}

#[test]
fn a_text_with_images_slides_and_has_the_same_bits_streamed() {
    for name in fixtures() {
        let (config, model) = load(name, TILE);
        let options = match name {
            // A state cannot slide.
            "vision-qwen3_5" => CacheOptions::new(150),
            _ => CacheOptions { when_full: WhenFull::Slide, ..CacheOptions::new(60) },
        };
        let run = |model: &DispatchedDecoder| {
            let (mut cache, ids) = cache_of_images(name, &config, &options);
            in_passes(model, &ids, 20, &mut cache)
        };
        let resident = run(&model);
        assert_same_streamed(name, TILE, &resident, run);
    }
}

#[test]
fn a_text_with_images_runs_alone() {
    let name = QWENS[0];
    let (config, model) = load(name, TILE);
    let options = CacheOptions { batch: 2, ..CacheOptions::new(150) };
    let (mut cache, ids) = cache_of_images(name, &config, &options);
    let batch = Batch::left_padded(&[&ids[..], &[1, 2]]).unwrap();
    let error = model.forward_batch(&batch, &mut cache, Logits::Last).unwrap().unwrap_err();
    assert!(matches!(error, Error::ImageBatch { rows: 2 }), "{error}");
    let ids: Tensor<3> = model
        .forward_batch(&Batch::left_padded(&[&ids[..]]).unwrap(), &mut cache, Logits::Last)
        .unwrap()
        .unwrap();
    assert_eq!(ids.dims()[1], 1);
}

#[test]
fn an_image_whose_tokens_see_each_other_is_not_cut() {
    let name = SIGLIPS[0];
    let (config, model) = load(name, TILE);
    let (mut cache, ids) = cache_of_images(name, &config, &CacheOptions::new(150));
    let first = ids.iter().position(|id| *id >= FIRST_IMAGE_ID).unwrap();
    for cut in [&ids[..first + 1], &ids[..first + 8], &ids[first + 1..]] {
        let error = forward(&model, cut, &mut cache).unwrap_err();
        assert!(matches!(error, Error::ImageCut { .. }), "{error}");
    }
    forward(&model, &ids[..first + 9], &mut cache).unwrap();
}

#[test]
fn configurations_that_are_not_built_in_are_refused() {
    fn refused<M: VisionModel>(
        name: &str,
        change: impl Fn(&mut serde_json::Value),
        field: &'static str,
    ) {
        let text =
            std::fs::read_to_string(crate::common::folder(name).join("config.json")).unwrap();
        let mut fields: serde_json::Value = serde_json::from_str(&text).unwrap();
        change(&mut fields);
        let error = ComponentConfig::<M>::from_json(&fields.to_string()).unwrap_err().to_string();
        assert!(error.contains(field), "{error}");
    }
    fn refused_value<M: VisionModel>(name: &str, place: &'static str, value: serde_json::Value) {
        let (object, field) = place.rsplit_once('/').unwrap();
        let change = |fields: &mut serde_json::Value| {
            fields.pointer_mut(object).unwrap()[field] = value.clone();
        };
        refused::<M>(name, change, field);
    }
    let mistral = |place, value| refused_value::<PixtralVisionModel>(MISTRALS[0], place, value);
    mistral("/vision_config/num_attention_heads", 3.into());
    mistral("/vision_config/head_dim", 8.into());
    mistral("/vision_config/model_type", "siglip".into());
    mistral("/vision_config/num_channels", 1.into());
    mistral("/vision_feature_layer", (-2).into());
    mistral("/projector_hidden_act", "nothing".into());
    mistral("/image_token_index", "[IMG]".into());
    let gemma = |place, value| refused_value::<SiglipVisionModel>(SIGLIPS[0], place, value);
    gemma("/vision_config/num_attention_heads", 3.into());
    gemma("/vision_config/patch_size", 5.into());
    gemma("/vision_config/vision_use_head", true.into());
    gemma("/mm_tokens_per_image", 8.into());
    gemma("/mm_tokens_per_image", 16.into());
    let command = |place, value| refused_value::<SiglipVisionModel>(SIGLIPS[1], place, value);
    command("/downsample_factor", 3.into());
    command("/alignment_intermediate_size", 21.into());
    command("/vision_config/image_size", 15.into());
    let aya = |place, value| refused_value::<SiglipVisionModel>(SIGLIPS[2], place, value);
    aya("/adapter_layer_norm_eps", (-1).into());
    aya("/vision_feature_layer", (-2).into());
    aya("/vision_feature_select_strategy", "default".into());
    refused_value::<SiglipVisionModel>("vision-smolvlm", "/scale_factor", 3.into());
    let gemma4 = |place, value| refused_value::<Gemma4VisionModel>(GEMMA4S[0], place, value);
    gemma4("/vision_config/num_key_value_heads", 1.into());
    gemma4("/vision_config/head_dim", 10.into());
    gemma4("/vision_config/position_embedding_size", 2.into());
    gemma4("/vision_config/attention_bias", true.into());
    gemma4("/text_config/pad_token_id", 1.into());
    let unified = |place, value| refused_value::<Gemma4UnifiedVisionModel>(UNIFIED, place, value);
    unified("/vision_config/output_proj_dims", 24.into());
    unified("/vision_config/mm_posemb_size", 0.into());
    unified("/vision_config/model_type", "gemma4_vision".into());
    unified("/boi_token_id", "<|image>".into());
    let glm = |place, value| refused_value::<GlmVisionModel>(GLMS[0], place, value);
    glm("/vision_config/num_heads", 3.into());
    glm("/vision_config/image_size", 3.into());
    glm("/vision_config/out_hidden_size", 32.into());
    glm("/vision_config/in_channels", 1.into());
    glm("/vision_config/rope_parameters/rope_type", "default".into());
    glm("/text_config/rope_parameters/mrope_section", serde_json::json!([1, 1, 2]));
    let kimi = |place, value| refused_value::<KimiVisionModel>(KIMIS[0], place, value);
    kimi("/vision_config/vt_num_attention_heads", 3.into());
    kimi("/vision_config/init_pos_emb_width", 5.into());
    kimi("/vision_config/merge_kernel_size", serde_json::json!([2, 1]));
    kimi("/vision_config/mm_hidden_size", 16.into());
    kimi("/vision_config/text_hidden_size", 32.into());
    kimi("/vision_config/merge_type", "sd2".into());
    kimi("/vision_config/mm_projector_type", "patchmergerv2".into());
    let muse = |place, value| refused_value::<KimiVisionModel>(KIMIS[1], place, value);
    muse("/vision_config/pos_emb_height", 5.into());
    muse("/vision_config/pos_emb_height", 3.into());
    muse("/vision_config/layer_types", serde_json::json!(["full_attention"]));
    muse("/vision_config/merge_size", 3.into());
    muse("/out_hidden_size", 32.into());
    muse("/projector_hidden_act", "tanh".into());
    let llama = |place, value| refused_value::<Llama4VisionModel>(LLAMAS[0], place, value);
    llama("/vision_config/patch_size", 5.into());
    llama("/vision_config/pixel_shuffle_ratio", 0.4.into());
    llama("/vision_config/pixel_shuffle_ratio", 0.125.into());
    llama("/vision_config/intermediate_size", 32.into());
    llama("/vision_config/projector_output_dim", 16.into());
    llama("/vision_config/vision_output_dim", 16.into());
    llama("/vision_config/num_attention_heads", 3.into());
    let intern = |place, value| refused_value::<InternVlVisionModel>(INTERNS[0], place, value);
    intern("/vision_config/patch_size", serde_json::json!([5, 5]));
    intern("/vision_config/image_size", serde_json::json!([16, 32]));
    intern("/vision_config/image_size", serde_json::json!([16]));
    intern("/downsample_ratio", 0.4.into());
    intern("/downsample_ratio", 0.125.into());
    intern("/vision_config/norm_type", "group_norm".into());
    intern("/vision_config/use_mean_pooling", false.into());
    intern("/vision_feature_layer", (-2).into());
    let qwen = |place, value| refused_value::<QwenVisionModel>(QWENS[0], place, value);
    qwen("/vision_config/num_heads", 3.into());
    qwen("/vision_config/num_position_embeddings", 26.into());
    qwen("/vision_config/deepstack_visual_indexes", serde_json::json!([2, 1]));
    qwen("/vision_config/deepstack_visual_indexes", serde_json::json!([3]));
    qwen("/vision_config/hidden_act", "nothing".into());
    qwen("/vision_config/patch_size", 0.into());
    let without = |fields: &mut serde_json::Value| {
        fields.as_object_mut().unwrap().remove("vision_config");
    };
    refused::<QwenVisionModel>(QWENS[0], without, "vision_config");
    qwen("/image_token_id", (-1).into());
    qwen("/vision_config/out_hidden_size", 16.into());
    qwen("/vision_config/rope_parameters/rope_type", "default".into());
    let sections = "/text_config/rope_parameters/mrope_section";
    qwen(sections, serde_json::json!([1, 2]));
    let qwen2 = |place, value| refused_value::<QwenVisionModel>("vision-qwen2_vl", place, value);
    qwen2("/vision_config/hidden_size", 32.into());
    qwen2("/vision_config/mlp_ratio", (1 << 30).into());
    qwen2("/vision_config/in_chans", 1.into());
    qwen2("/rope_scaling/mrope_section", serde_json::json!([1, 1, 1]));
    let exaone = |place, value| refused_value::<QwenVisionModel>("vision-exaone4_5", place, value);
    exaone("/vision_config/num_key_value_heads", 3.into());
    exaone("/vision_config/num_key_value_heads", 8.into());
    let qwen2_5 =
        |place, value| refused_value::<QwenVisionModel>("vision-qwen2_5_vl", place, value);
    qwen2_5("/vision_config/window_size", 7.into());
    qwen2_5("/vision_config/fullatt_block_indexes", "all".into());
    qwen2_5("/vision_config/rope_parameters/rope_theta", 0.into());
    qwen2_5(sections, serde_json::json!([2, 2, 3]));
}
