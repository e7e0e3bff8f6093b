//! What is Z-Image's own.

use super::*;

#[test]
fn what_z_image_cannot_do_is_named() {
    for (file, field, value, named) in [
        ("transformer/config.json", "cap_feat_dim", 8.into(), "cap_embedder.0.weight"),
        ("transformer/config.json", "in_channels", 16.into(), "all_x_embedder.2-1.weight"),
        ("transformer/config.json", "siglip_feat_dim", 8.into(), "`siglip_feat_dim`"),
        ("text_encoder/config.json", "hidden_size", 16.into(), "embed_tokens.weight"),
        ("text_encoder/config.json", "model_type", "qwen3_moe".into(), "qwen3_moe"),
        ("vae/config.json", "latents_mean", 1.into(), "`latents_mean`"),
        (
            "scheduler/scheduler_config.json",
            "_class_name",
            "PNDMScheduler".into(),
            "PNDMScheduler is for",
        ),
        ("model_index.json", "_class_name", "ZImageOmniPipeline".into(), "\"ZImagePipeline\""),
        (
            "model_index.json",
            "_class_name",
            "FluxPipeline".into(),
            "`text_encoder` is \"Qwen3ForCausalLM\"",
        ),
        ("tokenizer/tokenizer_config.json", "chat_template", Value::Null, "chat template"),
    ] {
        let error = refusal("pipeline-z-image", file, field, value);
        assert!(error.contains(named), "{field}: {error}");
    }
    let folder = copied("pipeline-z-image");
    fs::remove_file(folder.path().join("tokenizer/tokenizer.json")).unwrap();
    let error = ImageModel::open(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains("has no tokenizer/tokenizer.json"), "{error}");
}

#[test]
fn z_image_hears_a_prompt_as_far_as_its_text_encoder_reads() {
    let folder = copied("pipeline-z-image");
    let pipeline = open(folder.path(), "cpu=1GB");
    let request = |prompt: String| ImageRequest {
        steps: Some(1),
        width: Some(16),
        height: Some(16),
        guidance_scale: Some(0.0),
        ..ImageRequest::new(prompt)
    };
    let cut = |prompt: String| {
        let mut found = None;
        let made = pipeline.generate_watched(&request(prompt), |progress| {
            if let ImageProgress::Cut { text } = progress {
                found = Some(text.to_owned());
            }
        });
        (made.unwrap(), found)
    };
    // Bytes are tokens, and the template writes some.
    let (short, none) = cut("x".repeat(400));
    assert_eq!(none, None);
    let (long, rest) = cut("x".repeat(600));
    let rest = rest.unwrap();
    assert!((89..140).contains(&rest.len()) && rest.bytes().all(|byte| byte == b'x'), "{rest}");
    let (longer, _) = cut("x".repeat(700));
    assert_eq!(longer, long);
    assert_ne!(long, short);
    let usual = ImageRequest::new("");
    assert!(pipeline.model().looks_at_negative_prompts(&usual));
    assert!(!pipeline.model().looks_at_negative_prompts(&request(String::new())));
    assert_eq!(pipeline.model().steps(&usual), 50);
}

#[test]
fn z_image_gives_the_same_bits_in_any_budget() {
    let folder = copied("pipeline-z-image");
    let request = ImageRequest {
        steps: Some(2),
        width: Some(24),
        height: Some(16),
        negative_prompt: "the cat".to_owned(),
        ..ImageRequest::new("a photo of an astronaut riding a horse")
    };
    assert_same_bits_in_little(folder.path(), &request, &["text_encoder", "transformer", "vae"]);
}
