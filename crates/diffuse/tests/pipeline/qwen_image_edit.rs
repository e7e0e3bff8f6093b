//! What is the own of those Qwen-Images that change pictures.

use super::*;

const BOTH: [&str; 2] = ["pipeline-qwen-edit", "pipeline-qwen-edit-plus"];

fn picture(name: &str, file: &str) -> Picture {
    Picture::read(fixture(name).join(file)).unwrap()
}

/// A small picture by others, in few steps.
fn small(references: Vec<Picture>) -> ImageRequest {
    let (side, prompt) = (Some(32), "a photo of an astronaut riding a horse");
    ImageRequest {
        references,
        steps: Some(2),
        width: side,
        height: side,
        ..ImageRequest::new(prompt)
    }
}

#[test]
fn pictures_by_others_are_those_of_diffusers() {
    BOTH.into_iter().for_each(assert_recorded);
}

#[test]
fn what_a_picture_is_changed_by_is_checked() {
    let [edit, plus] = BOTH.map(|name| open(&fixture(name), "cpu=1GB"));
    let one = picture(BOTH[0], "reference.png");
    let message = |pipeline: &ImagePipeline, request: &ImageRequest| {
        pipeline.generate(request).unwrap_err().to_string()
    };
    let error = message(&edit, &small(Vec::new()));
    assert!(error.contains("give one picture, not 0"), "{error}");
    let error = message(&edit, &small(vec![one.clone(); 2]));
    assert!(error.contains("give one picture, not 2"), "{error}");
    let error = message(&plus, &small(Vec::new()));
    assert!(error.contains("give one picture or more, not 0"), "{error}");
    let image = InitialImage { picture: one.clone(), mask: None, strength: None };
    let begun = ImageRequest { image: Some(image), ..small(vec![one.clone()]) };
    assert!(message(&plus, &begun).contains("neither a strength nor a mask"));
    let long = one.resized(300, 2, PictureFilter::Lanczos);
    let error = message(&plus, &small(vec![long]));
    assert!(error.contains("300 x 2 pixels"), "{error}");
    // What marks a picture's place, in a prompt.
    let marked = ImageRequest { prompt: "a <|image_pad|>".to_owned(), ..small(vec![one]) };
    let error = message(&edit, &marked);
    assert!(error.contains('2') && error.contains('1'), "{error}");
}

#[test]
fn pictures_are_as_large_as_those_of_diffusers() {
    let [edit, plus] = BOTH.map(|name| ImageModel::open(&fixture(name), None).unwrap());
    let whole = |references| ImageRequest { width: None, height: None, ..small(references) };
    let of = |width, height| {
        picture(BOTH[0], "other.png").resized(width, height, PictureFilter::Lanczos)
    };
    for (width, height, expected) in [
        (70, 66, [1056, 992]),
        (30, 90, [576, 1760]),
        (1, 1, [1024, 1024]),
        (1, 128, [96, 11_584]),
        (128, 1, [11_584, 96]),
        (640, 481, [1184, 896]),
        (1000, 777, [1152, 896]),
    ] {
        assert_eq!(edit.size(&whole(vec![of(width, height)])).unwrap(), expected);
        // The last one says it.
        let both = vec![of(50, 50), of(width, height)];
        assert_eq!(plus.size(&whole(both)).unwrap(), expected);
    }
    assert_eq!(edit.size(&edit.usual_request()).unwrap(), [1024; 2]);
}

#[test]
fn they_cost_time_and_memory() {
    let pipeline = open(&fixture(BOTH[1]), "cpu=1GB");
    let model = pipeline.model();
    let predicted = |request: &ImageRequest| {
        let plans = model.plan(pipeline.settings(), request).unwrap();
        let parts: Vec<_> = plans.iter().map(|plan| plan.part.name()).collect();
        assert_eq!(parts, ["vision_encoder", "text_encoder", "vae_encoder", "transformer", "vae"]);
        model.predict(&plans, request).unwrap()
    };
    let one = picture(BOTH[1], "reference.png");
    let (alone, beside) =
        (predicted(&small(vec![one.clone()])), predicted(&small(vec![one.clone(), one.clone()])));
    assert!(beside.seconds_per_step > alone.seconds_per_step);
    assert!(beside.vae_seconds > alone.vae_seconds);
    assert!(beside.text_encoder_seconds > alone.text_encoder_seconds);
    let negative = ImageRequest { negative_prompt: " ".to_owned(), ..small(vec![one]) };
    assert!(predicted(&negative).text_encoder_seconds > alone.text_encoder_seconds);
}

#[test]
fn what_cannot_be_seen_is_named() {
    for (file, field, value, named) in [
        ("processor/preprocessor_config.json", "patch_size", 3.into(), "patch_size is 3"),
        ("processor/preprocessor_config.json", "image_std", 0.into(), "image_std is 0"),
        ("text_encoder/config.json", "image_token_id", "x".into(), "`image_token_id`"),
        ("text_encoder/config.json", "image_token_id", 5.into(), "images"),
        ("model_index.json", "_class_name", "QwenImagePipeline".into(), "does not go by several"),
    ] {
        let folder = copied(BOTH[0]);
        set_field(folder.path(), file, field, value);
        let made = ImagePipeline::open(folder.path(), None, settings("cpu=1GB"))
            .and_then(|model| model.generate(&small(vec![picture(BOTH[0], "other.png")])));
        let error = made.unwrap_err().to_string();
        assert!(error.contains(named), "{field}: {error}");
    }
    let folder = copied(BOTH[0]);
    fs::remove_file(folder.path().join("processor/preprocessor_config.json")).unwrap();
    let error = ImageModel::open(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains("has no processor/preprocessor_config.json"), "{error}");
}

#[test]
fn its_bits_are_the_same_in_any_budget() {
    let folder = copied(BOTH[1]);
    let pictures = ["reference.png", "other.png"].map(|file| picture(BOTH[1], file));
    let request = ImageRequest { negative_prompt: "the cat".to_owned(), ..small(pictures.into()) };
    assert_same_bits_in_little(
        folder.path(),
        &request,
        &["vision_encoder", "text_encoder", "vae_encoder", "transformer", "vae"],
    );
}
