//! What is FLUX.2 dev's own.

use super::*;
use outsize_diffuse::{ChatAround, PromptTokenizerFiles};

const NAME: &str = "pipeline-flux2";

#[test]
fn pictures_of_flux_2_dev_are_those_of_diffusers() {
    assert_recorded(NAME);
}

#[test]
fn what_flux_2_dev_cannot_do_is_named() {
    for (file, field, value, named) in [
        ("text_encoder/config.json", "model_type", "qwen3".into(), "`text_config`"),
        ("text_encoder/config.json", "model_type", "pixtral".into(), "pixtral"),
        ("transformer/config.json", "joint_attention_dim", 8.into(), "context_embedder.weight"),
        ("tokenizer/tokenizer_config.json", "pad_token", "<none>".into(), "\"<none>\" is not in"),
        (
            "model_index.json",
            "_class_name",
            "Flux2KleinPipeline".into(),
            "`text_encoder` is \"Mistral3ForConditionalGeneration\"",
        ),
    ] {
        let error = refusal(NAME, file, field, value);
        assert!(error.contains(named), "{field}: {error}");
    }
    let folder = copied(NAME);
    fs::remove_file(folder.path().join("tokenizer/chat_template.jinja")).unwrap();
    let request =
        ImageRequest { steps: Some(1), width: Some(16), height: Some(16), ..ImageRequest::new("") };
    let error = open(folder.path(), "cpu=1GB").generate(&request).unwrap_err().to_string();
    assert!(error.contains("template"), "{error}");
}

#[test]
fn flux_2_dev_is_told_how_closely_to_follow_the_text() {
    let pipeline = open(&fixture(NAME), "cpu=1GB");
    let (model, usual) = (pipeline.model(), ImageRequest::new(""));
    assert_eq!((model.steps(&usual), model.guidance_scale(&usual)), (50, 4.0));
    assert!(model.takes_guidance() && !model.looks_at_negative_prompts(&usual));
    let negative = ImageRequest { negative_prompt: "a dog".to_owned(), ..usual };
    let error = pipeline.generate(&negative).unwrap_err().to_string();
    assert!(error.contains("negative prompt"), "{error}");
}

#[test]
fn what_stands_for_a_picture_is_no_part_of_a_prompt() {
    let pipeline = open(&fixture(NAME), "cpu=1GB");
    let made = |prompt: &str| {
        let (side, steps) = (Some(16), Some(2));
        let request =
            ImageRequest { steps, width: side, height: side, ..ImageRequest::new(prompt) };
        pipeline.generate(&request).unwrap()
    };
    assert_eq!(made("a [IMG]cat"), made("a cat"));
    assert_ne!(made("a dog"), made("a cat"));
}

#[test]
fn texts_are_filled_up_on_the_side_that_their_tokenizer_says() {
    let folder = copied(NAME);
    let side = |side: Value, class: &str| {
        set_field(folder.path(), "tokenizer/tokenizer_config.json", "padding_side", side);
        let class = class.to_owned().into();
        set_field(folder.path(), "tokenizer/tokenizer_config.json", "tokenizer_class", class);
        let files = PromptTokenizerFiles::read(&folder.path().join("tokenizer")).unwrap();
        let around = ChatAround::System("You see.");
        files.with_length(99).load_filled_chat(around).unwrap().filling().unwrap()
    };
    let before = side("left".into(), "TokenizersBackend");
    assert_eq!((before.tokens, before.before), (99, true));
    assert!(!side("right".into(), "LlamaTokenizer").before);
    assert!(side(Value::Null, "LlamaTokenizerFast").before);
    assert!(!side(Value::Null, "TokenizersBackend").before);
}

#[test]
fn flux_2_dev_gives_the_same_bits_in_any_budget() {
    let folder = copied(NAME);
    assert_same_bits_in_little(
        folder.path(),
        &by_another(folder.path(), [24, 16]),
        &["text_encoder", "vae_encoder", "transformer", "vae"],
    );
}
