//! What is FLUX.2's own.

use super::*;

#[test]
fn what_flux_2_cannot_do_is_named() {
    for (file, field, value, named) in [
        ("transformer/config.json", "joint_attention_dim", 8.into(), "context_embedder.weight"),
        ("transformer/config.json", "in_channels", 8.into(), "x_embedder.weight"),
        ("transformer/config.json", "patch_size", 2.into(), "`patch_size`"),
        ("text_encoder/config.json", "hidden_size", 16.into(), "embed_tokens.weight"),
        ("vae/config.json", "latent_channels", 5.into(), "running_mean"),
        ("vae/config.json", "_class_name", "AutoencoderKL".into(), "bn.running_mean"),
        (
            "scheduler/scheduler_config.json",
            "_class_name",
            "PNDMScheduler".into(),
            "PNDMScheduler is for",
        ),
        ("model_index.json", "_class_name", "Flux2KVPipeline".into(), "\"Flux2KleinPipeline\""),
        (
            "model_index.json",
            "_class_name",
            "Flux2Pipeline".into(),
            "`text_encoder` is \"Qwen3ForCausalLM\"",
        ),
        (
            "model_index.json",
            "_class_name",
            "ZImagePipeline".into(),
            "`transformer` is \"Flux2Transformer2DModel\"",
        ),
        ("tokenizer/tokenizer_config.json", "pad_token", "<none>".into(), "\"<none>\" is not in"),
    ] {
        let error = refusal("pipeline-klein", file, field, value);
        assert!(error.contains(named), "{field}: {error}");
    }
}

#[test]
fn a_text_encoder_that_ends_where_flux_2_takes_hidden_states_is_refused() {
    let folder = copied("pipeline-klein");
    let path = folder.path().join("text_encoder/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["num_hidden_layers"] = 27.into();
    config["layer_types"].as_array_mut().unwrap().pop();
    fs::write(&path, config.to_string()).unwrap();
    let error = ImageModel::open(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains("`num_hidden_layers` is 27, but hidden states are taken"), "{error}");
}

#[test]
fn pictures_that_flux_2_goes_by_are_checked() {
    let folder = copied("pipeline-klein");
    let pipeline = open(folder.path(), "cpu=1GB");
    let picture = Picture::read(folder.path().join("reference.png")).unwrap();
    let by = |references: Vec<Picture>| ImageRequest {
        references,
        steps: Some(1),
        ..ImageRequest::new("a cat")
    };
    let message = |pipeline: &ImagePipeline, request: &ImageRequest| {
        pipeline.generate(request).unwrap_err().to_string()
    };
    let image = InitialImage { picture: picture.clone(), mask: None, strength: None };
    let begun = ImageRequest { image: Some(image), ..by(Vec::new()) };
    assert!(message(&pipeline, &begun).contains("neither a strength nor a mask"));
    for [width, height] in [[63, 80], [64, 513], [600, 64]] {
        let error =
            message(&pipeline, &by(vec![picture.resized(width, height, PictureFilter::Lanczos)]));
        assert!(error.contains(&format!("{width} x {height} pixels")), "{error}");
    }
    let others = open(&fixture("pipeline"), "cpu=1GB");
    assert!(message(&others, &by(vec![picture.clone()])).contains("give one"));
    // Of what is seen, whole tokens count.
    let model = pipeline.model();
    assert_eq!(model.size(&by(vec![picture.clone()])).unwrap(), [68, 64]);
    assert_eq!(
        model.size(&by(vec![picture.resized(2000, 1500, PictureFilter::Lanczos)])).unwrap(),
        [1180, 884]
    );
    // They cost time and memory.
    let small = |references| ImageRequest { width: Some(16), height: Some(16), ..by(references) };
    let predicted = |request: &ImageRequest| {
        let plans = model.plan(pipeline.settings(), request).unwrap();
        (model.predict(&plans, request).unwrap(), plans.len())
    };
    let (alone, parts) = predicted(&small(Vec::new()));
    let (beside, more) = predicted(&small(vec![picture.clone(), picture]));
    assert_eq!([parts, more], [3, 4]);
    assert!(beside.seconds_per_step > alone.seconds_per_step);
    assert!(beside.vae_seconds > alone.vae_seconds);
}

#[test]
fn flux_2_that_was_distilled_needs_few_steps_and_no_guidance() {
    let folder = copied("pipeline-klein");
    let usual = ImageRequest::new("");
    let plain = ImageModel::open(folder.path(), None).unwrap();
    assert!(plain.looks_at_negative_prompts(&usual));
    assert_eq!((plain.steps(&usual), plain.guidance_scale(&usual)), (50, 4.0));
    let unguided = ImageRequest { guidance_scale: Some(1.0), ..usual.clone() };
    assert!(!plain.looks_at_negative_prompts(&unguided));
    distilled(folder.path(), true);
    let pipeline = open(folder.path(), "cpu=1GB");
    assert!(!pipeline.model().looks_at_negative_prompts(&usual));
    assert_eq!(pipeline.model().steps(&usual), 4);
    let negative = ImageRequest { negative_prompt: "a dog".into(), ..usual };
    let error = pipeline.generate(&negative).unwrap_err().to_string();
    assert!(error.contains("negative prompt"), "{error}");
}

#[test]
fn flux_2_gives_the_same_bits_in_any_budget() {
    let folder = copied("pipeline-klein");
    let request = ImageRequest {
        steps: Some(2),
        width: Some(24),
        height: Some(16),
        negative_prompt: "the cat".to_owned(),
        references: vec![Picture::read(folder.path().join("other.png")).unwrap()],
        ..ImageRequest::new("a photo of an astronaut riding a horse")
    };
    assert_same_bits_in_little(
        folder.path(),
        &request,
        &["text_encoder", "vae_encoder", "transformer", "vae"],
    );
}
