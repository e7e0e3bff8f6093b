//! Images in prompts: as their processor of `transformers` has them (`scripts/fixtures/vision.py`),
//! and in conversations.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::checkpoint::{fixture, vision_fixtures};
use crate::common::conversations::pipeline;
use crate::common::least;
use outsize_checkpoint::Checkpoint;
use outsize_generate::{
    ChatAnswer, ChatImages, ChatMessage, ChatOptions, ChatPrompt, ChatSession, ChatTemplates,
    EncodedImage, Error, GenerateError, ImageInput, PipelineError, Tokenizer, VisionEncoder,
};
use outsize_models::CacheOptions;
use serde_json::{Value, json};

const QWEN3: &str = "vision-qwen3_vl";
const QWEN2: &str = "vision-qwen2_vl";
const KIMI: &str = "vision-kimi_k25";
const FILES: [&str; 3] = ["image-0.png", "image-1.png", "image-2.jpg"];

fn expected(name: &str) -> Value {
    let text = std::fs::read_to_string(fixture(name).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn tensor(name: &str, tensor: &str) -> Vec<f32> {
    let file = Checkpoint::open(fixture(name).join("expected.safetensors")).unwrap();
    let bytes = file.read(file.get(tensor).unwrap()).unwrap();
    bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
}

/// The GGUF file of the language model, beside that of the vision encoder
/// (`scripts/fixtures/gguf_vision.py`).
fn gguf(name: &str) -> PathBuf {
    fixture(&name.replace("vision-", "vision-gguf-")).join("model.gguf")
}

/// Those of which there are such files.
fn ggufs() -> impl Iterator<Item = String> {
    vision_fixtures().into_iter().filter(|name| gguf(name).exists())
}

fn encoder(name: &str) -> VisionEncoder {
    VisionEncoder::open(&fixture(name), 1000).unwrap().unwrap()
}

/// Those that the reference saw.
fn images(name: &str) -> Vec<ImageInput> {
    FILES[..2].iter().map(|file| ImageInput::read(fixture(name).join(file)).unwrap()).collect()
}

fn embeddings(images: Vec<EncodedImage>) -> Vec<Vec<f32>> {
    let values = |image: EncodedImage| image.features.embeddings.into_data().try_to_vec().unwrap();
    images.into_iter().map(values).collect()
}

fn session(name: &str, most_tokens: usize) -> ChatSession {
    session_of(&fixture(name), encoder(name), most_tokens)
}

fn session_of(folder: &Path, encoder: VisionEncoder, most_tokens: usize) -> ChatSession {
    let template = ChatTemplates::open(folder).unwrap().default_template().unwrap();
    let cache = CacheOptions { snapshot: true, ..CacheOptions::new(400) };
    let tokenizer = Tokenizer::open(folder).unwrap();
    let session = ChatSession::new(pipeline(folder, cache, None), tokenizer, template, 264);
    session.with_images(ChatImages::new(encoder, most_tokens).unwrap())
}

fn options(tokens: usize) -> ChatOptions {
    ChatOptions { max_new_tokens: Some(tokens), eos: vec![258], ..ChatOptions::default() }
}

fn answer(
    session: &mut ChatSession,
    message: ChatMessage,
) -> Result<ChatAnswer, GenerateError<PipelineError>> {
    session.answer_message(message, &options(16), |_| ControlFlow::Continue(()))
}

/// The fixture's question.
fn question(name: &str) -> ChatMessage {
    let [first, second] = images(name).try_into().unwrap();
    let mut message = ChatMessage::new("user", "First ").with_image(first);
    message.content.push_str(", then ");
    message = message.with_image(second);
    message.content.push_str(": what is it?");
    message
}

#[test]
fn pixels_are_those_of_pillow() {
    // With the least deviation of a colour, by which the others are divided less.
    let clip = 0.2613;
    for (name, deviation) in [
        (QWEN3, 0.5),
        ("vision-mistral3", clip),
        ("vision-gemma3", 0.5),
        (QWEN2, clip),
        ("vision-qwen2_5_vl", clip),
        ("vision-gemma4", 0.5),
        ("vision-gemma4_unified", 0.5),
        ("vision-glm4v", clip),
        ("vision-muse_glimmer", 0.5),
        (KIMI, 0.5),
        ("vision-llama4", 0.5),
        ("vision-internvl", clip),
        ("vision-cohere2_vision", clip),
        ("vision-aya_vision", 0.5),
        ("vision-smolvlm", 0.5),
        ("vision-idefics3", 0.5),
    ] {
        let (encoder, step) = (encoder(name), 1.0 / 255.0 / deviation);
        for (number, file) in FILES.iter().enumerate() {
            let image = ImageInput::read(fixture(name).join(file)).unwrap();
            let found = encoder.processor().patches(&image.decode().unwrap()).unwrap();
            let expected = tensor(name, &format!("pixels.{number}"));
            assert_eq!(found.len(), expected.len());
            let differences = || found.iter().zip(&expected).map(|(a, b)| (a - b).abs() / step);
            let most = differences().fold(0.0, f32::max);
            let mean = differences().sum::<f32>() / found.len() as f32;
            println!("{name}, {file}: {most:.3} steps at most, {mean:.3} in the mean");
            // Decoders of JPEG round otherwise.
            let (most_steps, mean_steps) = if number == 2 { (4.01, 0.51) } else { (1e-3, 1e-3) };
            assert!(most <= most_steps && mean <= mean_steps);
        }
    }
}

#[test]
fn features_have_the_same_bits_in_any_budget() {
    let of_gguf = |name: &str| VisionEncoder::open(&gguf(name), 1000).unwrap().unwrap();
    let folders = vision_fixtures().into_iter().map(|name| (encoder(&name), name));
    for (encoder, name) in folders.chain(ggufs().map(|name| (of_gguf(&name), name))) {
        let images = images(&name);
        let encode = |budget| encoder.encode(&images, (budget, 0), |_| {});
        let least = least(encode(1).unwrap_err());
        let ample = embeddings(encode(1 << 30).unwrap());
        for budget in [least, least + 20_000, least + 60_000] {
            assert_eq!(embeddings(encode(budget).unwrap()), ample, "{name} in {budget}");
        }
        for (number, found) in ample.iter().enumerate() {
            let expected = tensor(&name, &format!("features.{number}"));
            let largest = expected.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
            let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            println!("{name}, {}: off by {:.1e}", FILES[number], off / largest);
            assert!(off <= 1e-4 * largest, "{name}: {off} of {largest}");
        }
    }
}

#[test]
fn a_conversation_about_images_is_that_of_the_reference() {
    for name in &vision_fixtures() {
        let mut session = session(name, 100);
        let answer = answer(&mut session, question(name)).unwrap();
        let expected = expected(name);
        assert_eq!(answer.prompt_tokens, expected["ids"].as_array().unwrap().len());
        let tokens: Vec<u32> = serde_json::from_value(expected["greedy"].clone()).unwrap();
        assert_eq!(answer.outcome.outcome.tokens, tokens, "{name}");
        assert_eq!(answer.outcome.text, expected["text"].as_str().unwrap(), "{name}");
    }
}

#[test]
fn conversations_with_gguf_files_are_those_of_the_reference() {
    for name in &ggufs().collect::<Vec<_>>() {
        let model = gguf(name);
        let encoder = model.with_file_name("mmproj.gguf");
        let encoder = VisionEncoder::open_gguf(&model, &encoder, 1000).unwrap();
        let mut session = session_of(&model, encoder, 100);
        let answer = answer(&mut session, question(name)).unwrap();
        let expected = expected(name);
        assert_eq!(answer.prompt_tokens, expected["ids"].as_array().unwrap().len(), "{name}");
        let tokens: Vec<u32> = serde_json::from_value(expected["greedy"].clone()).unwrap();
        assert_eq!(answer.outcome.outcome.tokens, tokens, "{name}");
    }
}

#[test]
fn what_was_seen_is_not_run_again() {
    for name in &vision_fixtures() {
        let mut session = session(name, 100);
        let first = answer(&mut session, question(name)).unwrap();
        let second = answer(&mut session, ChatMessage::new("user", "And?")).unwrap();
        assert!(
            second.reused_tokens >= first.prompt_tokens - 12,
            "{name}: {}",
            second.reused_tokens
        );
        // The same conversation at once, and from a client that sends it anew.
        for fresh in [true, false] {
            let mut other = self::session(name, 100);
            let again = if fresh { &mut other } else { &mut session };
            let mut messages = vec![question(name)];
            messages.push(ChatMessage::new("assistant", &first.outcome.text));
            messages.push(ChatMessage::new("user", "And?"));
            again.set_messages(messages).unwrap();
            let found = again.reply(&options(16), |_| ControlFlow::Continue(())).unwrap();
            assert_eq!(found.outcome.text, second.outcome.text, "{name}");
            assert_eq!(found.reused_tokens == 0, fresh, "{name}");
        }
        // Another image in its place is another text.
        let mut other = question(name);
        other.images[0].1 = images(name).remove(1);
        session.set_messages(Vec::new()).unwrap();
        let other = answer(&mut session, other).unwrap();
        // What is before the image.
        assert!(other.reused_tokens <= 20, "{name}: {}", other.reused_tokens);
        assert_ne!(other.outcome.outcome.tokens, first.outcome.outcome.tokens);
    }
}

#[test]
fn images_that_cannot_be_seen_are_refused_and_the_conversation_goes_on() {
    let name = QWEN3;
    let text = || ChatMessage::new("user", "Hello");
    let refused = |session: &mut ChatSession, message: ChatMessage| match answer(session, message) {
        Err(GenerateError::Request(error)) => error,
        other => panic!("{other:?}"),
    };
    let mut small = session(name, 20);
    let error = refused(&mut small, question(name));
    assert!(matches!(error, Error::ImageTokens { tokens: 24, most: 20 }), "{error}");
    assert_eq!(small.messages().len(), 0);
    answer(&mut small, text().with_image(images(name).remove(0))).unwrap();
    // The text itself has the token of an image.
    let error = refused(&mut small, {
        let mut message = text().with_image(images(name).remove(0));
        message.content.push_str("<|image_pad|>");
        message
    });
    assert!(matches!(error, Error::ImagePlaces { places: 3, images: 2 }), "{error}");
    answer(&mut small, text()).unwrap();

    let folder = fixture(name);
    let template = ChatTemplates::open(&folder).unwrap().default_template().unwrap();
    let tokenizer = || Tokenizer::open(&folder).unwrap();
    let model = |cache| pipeline(&folder, cache, None);
    let cache = CacheOptions::new(100);
    let mut blind = ChatSession::new(model(cache), tokenizer(), template.clone(), 264);
    let error = refused(&mut blind, question(name));
    assert!(matches!(error, Error::NoImages { .. }), "{error}");
    let mut many =
        ChatSession::new(model(CacheOptions { batch: 2, ..cache }), tokenizer(), template, 264);
    let begun = many.side_by_side(|batch| {
        let prompt = ChatPrompt::Messages(vec![question(name)]);
        batch.begin(&prompt, &options(4)).map(drop)
    });
    assert!(matches!(begun, Err(GenerateError::Request(Error::NoImages { .. }))), "{begun:?}");
}

#[test]
fn files_that_are_no_images_and_broken_configurations_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.png");
    let png = std::fs::read(fixture(QWEN3).join(FILES[0])).unwrap();
    for bytes in [&b"no image"[..], &[], &png[..20]] {
        std::fs::write(&path, bytes).unwrap();
        let error = ImageInput::read(&path).unwrap_err().to_string();
        assert!(error.contains("image.png"), "{error}");
    }
    // The header is there, and the rest is not.
    let cut = ImageInput::new("cut.png", &png[..png.len() / 2]).unwrap();
    assert!(cut.decode().unwrap_err().to_string().contains("cut.png"));
    assert!(ImageInput::read(folder.path().join("none.png")).is_err());

    let copy = |name: &str| {
        let copy: PathBuf = folder.path().join(name);
        std::fs::copy(fixture(QWEN3).join(name), &copy).unwrap();
        copy
    };
    copy("config.json");
    let error = VisionEncoder::open(folder.path(), 9).unwrap_err().to_string();
    assert!(error.contains("preprocessor_config.json"), "{error}");
    let processor = copy("preprocessor_config.json");
    VisionEncoder::open(folder.path(), 9).unwrap().unwrap();
    let text = std::fs::read_to_string(&processor).unwrap();
    for (key, value) in [
        ("patch_size", json!(5)),
        ("image_mean", json!([0.5])),
        ("image_std", json!([0.5, 0.0, 0.5])),
        ("resample", json!(9)),
        ("do_resize", json!(false)),
        ("rescale_factor", json!("x")),
        ("size", json!({ "shortest_edge": -1, "longest_edge": 9 })),
        ("min_pixels", json!(0)),
        ("max_pixels", json!("many")),
    ] {
        let mut object: Value = serde_json::from_str(&text).unwrap();
        object[key] = value;
        std::fs::write(&processor, object.to_string()).unwrap();
        let error = VisionEncoder::open(folder.path(), 9).unwrap_err().to_string();
        let key = if key == "size" { "shortest_edge" } else { key };
        assert!(error.contains(key) && error.contains("preprocessor_config.json"), "{error}");
    }
    // As newer checkpoints have it.
    std::fs::remove_file(&processor).unwrap();
    let object: Value = serde_json::from_str(&text).unwrap();
    let newer = json!({ "processor_class": "Qwen3VLProcessor", "image_processor": object });
    std::fs::write(folder.path().join("processor_config.json"), newer.to_string()).unwrap();
    let newer = VisionEncoder::open(folder.path(), 1000).unwrap().unwrap();
    assert_eq!(newer.processor(), encoder(QWEN3).processor());
    // Without colours of its own it has those of CLIP, as its processor has; and the old names of
    // its sizes count.
    let source = fixture(QWEN2);
    std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
    let text = std::fs::read_to_string(source.join("preprocessor_config.json")).unwrap();
    let mut object: Value = serde_json::from_str(&text).unwrap();
    for key in ["image_mean", "image_std"] {
        object.as_object_mut().unwrap().remove(key).unwrap();
    }
    object["size"] = json!({ "shortest_edge": 1, "longest_edge": 9 });
    std::fs::write(&processor, object.to_string()).unwrap();
    let plain = VisionEncoder::open(folder.path(), 1000).unwrap().unwrap();
    assert_eq!(plain.processor(), encoder(QWEN2).processor());
    // Those of Kimi K2.5 are in an object of their own.
    for name in ["config.json", "preprocessor_config.json"] {
        std::fs::copy(fixture(KIMI).join(name), folder.path().join(name)).unwrap();
    }
    let text = std::fs::read_to_string(&processor).unwrap();
    for (key, value) in [
        ("patch_size", json!(5)),
        ("merge_kernel_size", json!(3)),
        ("in_patch_limit", json!(0)),
        ("patch_limit_on_one_side", json!("many")),
        ("fixed_output_tokens", json!(64)),
    ] {
        let mut object: Value = serde_json::from_str(&text).unwrap();
        object["media_proc_cfg"][key] = value;
        std::fs::write(&processor, object.to_string()).unwrap();
        let error = VisionEncoder::open(folder.path(), 9).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("preprocessor_config.json"), "{error}");
    }
    // Models of texts see none.
    assert!(VisionEncoder::open(&fixture("gqa"), 9).unwrap().is_none());
}

#[test]
fn an_image_that_is_not_split_is_one_tile() {
    let (folder, source) = (tempfile::tempdir().unwrap(), fixture("vision-smolvlm"));
    std::fs::copy(source.join("config.json"), folder.path().join("config.json")).unwrap();
    let text = std::fs::read_to_string(source.join("preprocessor_config.json")).unwrap();
    let with = |key: &str, value: Value| {
        let mut object: Value = serde_json::from_str(&text).unwrap();
        object[key] = value;
        std::fs::write(folder.path().join("preprocessor_config.json"), object.to_string()).unwrap();
        VisionEncoder::open(folder.path(), 1000)
    };
    let encoder = with("do_image_splitting", json!(false)).unwrap().unwrap();
    let image = ImageInput::read(source.join(FILES[1])).unwrap();
    let pixels = encoder.processor().patches(&image.decode().unwrap()).unwrap();
    assert_eq!((encoder.processor().tiles(image.size()), pixels.len()), (1, 3 * 16 * 16));
    // What `SmolVLMImageProcessorPil` makes of it then.
    for (found, expected) in pixels.iter().zip([0.223_529_46_f32, -0.639_215_7, -0.309_803_9]) {
        assert!((found - expected).abs() < 1e-6, "{found}");
    }
    let squares = pixels.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    assert!((squares / 768.0 - 0.252_127_883).abs() < 1e-6, "{squares}");
    for (key, value) in [
        ("do_image_splitting", json!("no")),
        ("max_image_size", json!({ "longest_edge": 15 })),
        ("size", json!({ "longest_edge": 129 })),
    ] {
        let error = with(key, value).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains("preprocessor_config.json"), "{error}");
    }
}
