//! The budget holds for images: peaks of memory, each measured in a process of its own.

mod common;

use std::path::Path;
use std::process::Command;

use common::checkpoint::fixture;
use common::least;
use image::{ImageFormat, RgbImage};
use outsize_checkpoint::{Dtype, ShardWriter, TensorSpec};
use outsize_core::process_bytes;
use outsize_generate::{
    ChatImages, ChatMessage, ChatOptions, ChatSession, ChatTemplates, GenerationWorkload, ImageIds,
    ImageInput, OpenedModel, PipelineSettings, Tokenizer, VisionEncoder, read_config,
};
use outsize_models::arch::{
    Gemma4UnifiedVisionModel, Gemma4VisionModel, GlmVisionModel, KimiVisionModel,
    Llama4VisionModel, PixtralVisionModel, QwenVisionModel, SiglipVisionModel,
};
use outsize_models::{CacheOptions, ComponentConfig, ModelConfig, RandomWeights, WeightKind};
use outsize_plan::{Budget, Tier};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Tokens of images.
const TOKENS: usize = 256;

/// Models of Cohere, which see images as tiles.
const COHERES: [&str; 2] = ["vision-cohere2_vision", "vision-aya_vision"];

/// One that makes an image a certain length first, and then tiles.
const SMOL: &str = "vision-smolvlm";

/// A fixture's files with a larger model: some 25 MB of vision model and 20 MB of language model,
/// in bf16.
fn checkpoint(name: &str, folder: &Path) {
    let source = fixture(name);
    let text = std::fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let sizes = json!({
        "hidden_size": 256, "intermediate_size": 1024, "depth": 10, "num_hidden_layers": 10, "num_heads": 4,
        "num_attention_heads": 4, "head_dim": 64, "out_hidden_size": 256, "patch_size": 16, "num_position_embeddings": 2304,
        "window_size": 128, "image_size": 336, "fullatt_block_indexes": [4, 9], "num_key_value_heads": 4
    });
    let vision = config["vision_config"].as_object_mut().unwrap();
    for (key, value) in sizes.as_object().unwrap() {
        if vision.contains_key(key) {
            vision[key] = value.clone();
        }
    }
    if name == "vision-llama4" {
        // Sixteen tiles.
        vision["image_size"] = json!(128);
    }
    if name == "vision-gemma4_unified" {
        for (key, value) in
            [("mm_embed_dim", 2048), ("output_proj_dims", 2048), ("mm_posemb_size", 1120)]
        {
            vision[key] = json!(value);
        }
    }
    if COHERES.contains(&name) {
        // Of the latter an image has as many tiles as suit its shape.
        vision["image_size"] = json!(if name == COHERES[0] { 256 } else { 128 });
    }
    if name == SMOL {
        vision["image_size"] = json!(256);
    }
    if name == "vision-muse_glimmer" {
        vision["layer_types"] =
            json!([["window_attention"; 9].as_slice(), &["full_attention"]].concat());
        config["out_hidden_size"] = json!(1024);
    }
    if COHERES.contains(&name) {
        config["alignment_intermediate_size"] = json!(2048);
    }
    if name == SMOL {
        config["scale_factor"] = json!(4);
    }
    let text = config["text_config"].as_object_mut().unwrap();
    let sizes = json!({"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8});
    text.extend(sizes.as_object().unwrap().clone());
    if name == "vision-qwen2_5_vl" {
        text["rope_parameters"]["mrope_section"] = json!([8, 12, 12]);
    }
    if COHERES.contains(&name) || name == SMOL {
        text["head_dim"] = json!(64);
    }
    text.remove("layer_rope_theta");
    for key in ["layer_types", "no_rope_layers"] {
        if let Some(layers) = text.get_mut(key).and_then(Value::as_array_mut) {
            *layers = layers.iter().cycle().take(8).cloned().collect();
        }
    }
    if text.contains_key("per_layer_config") {
        let wide = json!({"head_dim": 12});
        text["per_layer_config"] = json!({"1": wide, "3": wide, "5": wide, "7": wide});
    }
    config["dtype"] = json!("bfloat16");
    let config = config.to_string();
    let language = ModelConfig::from_json(&config).unwrap();
    let vision = match name {
        "vision-mistral3" => {
            ComponentConfig::<PixtralVisionModel>::from_json(&config).unwrap().tensors(Dtype::BF16)
        }
        "vision-gemma4-clipped" => {
            ComponentConfig::<Gemma4VisionModel>::from_json(&config).unwrap().tensors(Dtype::BF16)
        }
        "vision-gemma4_unified" => {
            let vision = ComponentConfig::<Gemma4UnifiedVisionModel>::from_json(&config).unwrap();
            vision.tensors(Dtype::BF16)
        }
        _ if COHERES.contains(&name) || name == SMOL => {
            ComponentConfig::<SiglipVisionModel>::from_json(&config).unwrap().tensors(Dtype::BF16)
        }
        "vision-glm4v_moe" => {
            ComponentConfig::<GlmVisionModel>::from_json(&config).unwrap().tensors(Dtype::BF16)
        }
        "vision-muse_glimmer" => {
            ComponentConfig::<KimiVisionModel>::from_json(&config).unwrap().tensors(Dtype::BF16)
        }
        "vision-llama4" => {
            ComponentConfig::<Llama4VisionModel>::from_json(&config).unwrap().tensors(Dtype::BF16)
        }
        _ => ComponentConfig::<QwenVisionModel>::from_json(&config).unwrap().tensors(Dtype::BF16),
    };
    let weights = language.weights();
    let part = if name == SMOL { "text_model" } else { "language_model" };
    let named = |name: &str| format!("model.{part}.{}", name.trim_start_matches("model."));
    // Llama 4 has its two parts beside each other.
    let is_apart = name == "vision-llama4";
    let named = |name: &str| match name {
        _ if is_apart => format!("language_model.{name}"),
        "lm_head.weight" => name.to_owned(),
        _ => named(name),
    };
    let language = weights.iter().map(|weight| (named(&weight.name), weight.shape.clone()));
    let vision = vision.into_iter().map(|(name, _, shape)| {
        let is_named = is_apart || name.starts_with("model.");
        (if is_named { name } else { format!("model.{name}") }, shape)
    });
    let all: Vec<_> = language.chain(vision).collect();
    let specs = all.iter().map(|(name, shape)| TensorSpec::new(name, Dtype::BF16, shape.clone()));
    let mut writer = ShardWriter::create(folder, specs.collect(), 20_000_000).unwrap();
    writer.add_file("config.json", config.as_bytes()).unwrap();
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        writer.add_file(file, &std::fs::read(source.join(file)).unwrap()).unwrap();
    }
    let size = match name {
        "vision-mistral3" => json!({ "longest_edge": 1540 }),
        // As many tokens as there may be.
        "vision-gemma4-clipped"
        | "vision-gemma4_unified"
        | "vision-cohere2_vision"
        | "vision-aya_vision"
        | "vision-muse_glimmer"
        | "vision-llama4" => json!(null),
        SMOL => json!({ "longest_edge": 1024 }),
        _ => json!({ "shortest_edge": 65_536, "longest_edge": 16_777_216 }),
    };
    let processor = json!({ "size": size });
    writer.add_file("preprocessor_config.json", processor.to_string().as_bytes()).unwrap();
    let random = RandomWeights::new(3);
    for (name, shape) in &all {
        let kind = if shape.len() == 1 { WeightKind::Norm } else { WeightKind::Linear };
        let weight = outsize_models::WeightSpec {
            name: name.clone(),
            shape: shape.clone(),
            kind,
            access: outsize_models::Access::Whole,
        };
        let mut values = vec![0.0; shape.iter().product()];
        random.fill(&weight, 0, &mut values);
        let bytes = values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes());
        writer.write(name, &bytes.collect::<Vec<u8>>()).unwrap();
    }
    writer.finish().unwrap();
}

/// A photograph of 12 megapixels.
fn photograph(path: &Path) {
    let pixel =
        |x: u32, y: u32| image::Rgb([(x / 8) as u8, (y / 8) as u8, ((x / 16) ^ (y / 16)) as u8]);
    RgbImage::from_fn(4080, 3072, pixel).save_with_format(path, ImageFormat::Jpeg).unwrap();
}

fn settings(max_memory: u64, images: u64) -> PipelineSettings {
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, max_memory);
    let cache = CacheOptions::new(500);
    let workload = GenerationWorkload { images, ..GenerationWorkload::new(cache, 400) };
    PipelineSettings { max_memory: budget, workload, planning: Default::default(), stop: None }
}

#[test]
fn child() {
    let Ok(folder) = std::env::var("OUTSIZE_CHILD_CHECKPOINT") else {
        return; // an ordinary test run: this is no test of its own
    };
    let (folder, in_chat) = (Path::new(&folder), std::env::var("OUTSIZE_CHILD_CHAT").is_ok());
    let extra = std::env::var("OUTSIZE_CHILD_EXTRA").unwrap().parse::<u64>().unwrap();
    let encoder = VisionEncoder::open(folder, TOKENS).unwrap().unwrap();
    let image = ImageInput::read(folder.with_file_name("photograph.jpg")).unwrap();
    let model = OpenedModel::new(folder, read_config(folder).unwrap()).unwrap();
    let go_on = |_: &str| std::ops::ControlFlow::Continue(());
    let budget = if in_chat {
        let images = ChatImages::new(encoder, TOKENS).unwrap();
        let mut asked = settings(1, images.bytes());
        let file = model.tokenizer_file(folder, &mut settings(1 << 40, 0)).unwrap().unwrap();
        asked.workload.tokenizer = file.memory();
        let budget = least(model.check(&asked).unwrap_err()) + (1 << 20) + extra;
        asked.max_memory.set(Tier::Cpu, budget);
        let pipeline = model.dispatch(&asked, |_| {}).unwrap();
        let template = ChatTemplates::open(folder).unwrap().default_template().unwrap();
        let tokenizer = Tokenizer::load(file).unwrap();
        let session = ChatSession::new(pipeline, tokenizer, template, 264);
        let mut session = session.with_images(images);
        for said in ["What is it?", "And now?"] {
            // The second time it is seen anew.
            session.set_messages(Vec::new()).unwrap();
            let message = ChatMessage::new("user", said).with_image(image.clone());
            let options = ChatOptions { max_new_tokens: Some(8), ..ChatOptions::default() };
            let on_part = |_: outsize_generate::ChatPart<'_>| go_on("");
            let answer = session.answer_message(message, &options, on_part).unwrap();
            assert!(answer.prompt_tokens > 150, "{}", answer.prompt_tokens);
            session.set_messages(vec![ChatMessage::new("user", "Hello")]).unwrap();
            session.reply(&options, on_part).unwrap();
        }
        budget
    } else {
        let process = process_bytes(outsize_machine::begun_rss().unwrap());
        let images = std::slice::from_ref(&image);
        let held = encoder.held_bytes(encoder.tokens(images).unwrap());
        let of_encoder = least(encoder.encode(images, (1, process), |_| {}).unwrap_err());
        let of_model = least(model.check(&settings(1, held)).unwrap_err());
        let budget = of_encoder.max(of_model) + (1 << 20) + extra;
        println!("encoder={of_encoder} model={of_model}");
        let encoded = encoder.encode(images, (budget, process), |_| {}).unwrap().remove(0);
        let mut pipeline = model.dispatch(&settings(budget, held), |_| {}).unwrap();
        let ids = ImageIds::default().take(encoded.features.tokens()).unwrap();
        pipeline.add_image(ids.start, encoded.features).unwrap();
        let ids = ids.chain([5; 100]).collect();
        let request = outsize_generate::Request {
            ids,
            max_new_tokens: 8,
            eos: Vec::new(),
            sampling: Default::default(),
        };
        let found = outsize_generate::generate(&mut pipeline, &request, |_| go_on("")).unwrap();
        assert_eq!(found.tokens.len(), 8);
        budget
    };
    println!("budget={budget} peak={}", outsize_machine::peak_rss().unwrap());
}

// Tests that run side by side: they take long.
#[test]
fn images_stay_within_the_budget() {
    stay_within_the_budget([
        "vision-qwen3_vl",
        "vision-mistral3",
        "vision-qwen2_5_vl",
        "vision-muse_glimmer",
    ]);
}

#[test]
fn images_of_other_models_stay_within_the_budget() {
    stay_within_the_budget([
        "vision-gemma4-clipped",
        "vision-gemma4_unified",
        "vision-glm4v_moe",
        "vision-llama4",
    ]);
}

#[test]
fn images_that_are_seen_as_stretched_tiles_stay_within_the_budget() {
    stay_within_the_budget([COHERES[0], COHERES[1], SMOL]);
}

fn stay_within_the_budget<const N: usize>(names: [&str; N]) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    photograph(&dir.path().join("photograph.jpg"));
    for name in names {
        let folder = dir.path().join(name);
        checkpoint(name, &folder);
        for (in_chat, extra) in [(false, 0), (false, 15 << 20), (true, 0), (true, 15 << 20)] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
            command.env("OUTSIZE_CHILD_CHECKPOINT", &folder);
            command.env("OUTSIZE_CHILD_EXTRA", extra.to_string());
            if in_chat {
                command.env("OUTSIZE_CHILD_CHAT", "1");
            }
            let output = command.output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            let [budget, peak] = ["budget=", "peak="].map(|name| {
                let (_, rest) = text.split_once(name).unwrap();
                rest.split_whitespace().next().unwrap().parse::<u64>().unwrap()
            });
            eprintln!("{name}, in a chat {in_chat}, {extra} more: budget {budget}, peak {peak}");
            assert!(peak <= budget, "{name}, {in_chat}: {peak} > {budget}");
            // Honest also means not far above.
            assert!(2 * peak >= budget, "{name}, {in_chat}: {peak} of {budget}");
        }
    }
}
