//! Pictures are those of diffusers, wherever weights live; scripts/fixtures/text_to_image.py
//! recorded them.

mod adapter;
#[path = "../common/mod.rs"]
mod common;
mod flux2;
mod flux2_dev;
mod flux_fill;
mod flux_kontext;
mod folder;
mod qwen_image;
mod qwen_image_edit;
mod schedulers;
mod single_file;
mod stable_diffusion_3;
mod tokenizer;
mod z_image;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{complete_transformer, fixture};
use outsize_checkpoint::Checkpoint;
use outsize_core::Error as CoreError;
use outsize_diffuse::{
    Error, ImageModel, ImagePipeline, ImageProgress, ImageRequest, ImageSettings, ImageTask,
    InitialImage, Picture, SingleFile,
};
use outsize_generate::pipeline;
use outsize_picture::PictureFilter;
use outsize_plan::{Budget, Error as PlanError, HardwareProfile, ManualMap, Strategy};
use serde_json::Value;
use tempfile::TempDir;

/// Steps of 255 that a colour may be off.
const TOLERANCE: i16 = 1;

fn settings(budget: &str) -> ImageSettings {
    ImageSettings::new(Budget::parse(budget).unwrap())
}

fn request(folder: &Path, prompt: &str, steps: usize, entry: &Value) -> ImageRequest {
    let image = entry["strength"].as_f64().map(|strength| InitialImage {
        picture: Picture::read(folder.join("image.png")).unwrap(),
        mask: entry["mask"].is_boolean().then(|| Picture::read(folder.join("mask.png")).unwrap()),
        strength: Some(strength as f32),
    });
    let side = |name: &str| entry[name].as_u64().map(|side| side as usize);
    ImageRequest {
        negative_prompt: entry["negative_prompt"].as_str().unwrap_or_default().to_owned(),
        guidance_scale: entry["guidance_scale"].as_f64().map(|scale| scale as f32),
        width: side("width"),
        height: side("height"),
        seeds: entry["seeds"]
            .as_array()
            .unwrap()
            .iter()
            .map(|seed| seed.as_u64().unwrap())
            .collect(),
        scheduler: entry["scheduler"].as_str().map(|name| name.parse().unwrap()),
        steps: Some(steps),
        image,
        references: entry["references"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|file| Picture::read(folder.join(file.as_str().unwrap())).unwrap())
            .collect(),
        ..ImageRequest::new(prompt)
    }
}

/// A small picture to go by another one of the fixture, in so many columns and rows.
fn by_another(folder: &Path, [width, height]: [usize; 2]) -> ImageRequest {
    ImageRequest {
        steps: Some(2),
        width: Some(width),
        height: Some(height),
        references: vec![Picture::read(folder.join("other.png")).unwrap()],
        ..ImageRequest::new("a photo of an astronaut riding a horse")
    }
}

/// One that begins with a picture of the fixture.
fn begun(folder: &Path) -> ImageRequest {
    let picture = Picture::read(folder.join("image.png")).unwrap();
    ImageRequest {
        steps: Some(3),
        negative_prompt: "the cat".to_owned(),
        image: Some(InitialImage { picture, mask: None, strength: Some(0.7) }),
        ..ImageRequest::new("a photo of an astronaut riding a horse")
    }
}

/// A copy of the fixture to change.
fn copied(name: &str) -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&fixture(name), copy.path());
    if name == "pipeline-z-image" {
        complete_transformer(copy.path());
    }
    copy
}

/// Gives a field of a configuration another value.
fn set_field(folder: &Path, file: &str, field: &str, value: Value) {
    let path = folder.join(file);
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config[field] = value;
    fs::write(&path, config.to_string()).unwrap();
}

/// What is said of a picture of a fixture in which a field has another value; nothing if it is
/// made.
fn refusal(name: &str, file: &str, field: &str, value: Value) -> String {
    let folder = copied(name);
    set_field(folder.path(), file, field, value);
    let request =
        ImageRequest { steps: Some(1), width: Some(16), height: Some(16), ..ImageRequest::new("") };
    let model = ImagePipeline::open(folder.path(), None, settings("cpu=1GB"));
    let made = model.and_then(|model| model.generate(&request).map(|_| ()));
    made.err().map(|error| error.to_string()).unwrap_or_default()
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Says of a model of FLUX.2 whether it was distilled.
fn distilled(folder: &Path, is_distilled: bool) {
    set_field(folder, "model_index.json", "is_distilled", is_distilled.into());
}

fn open(folder: &Path, budget: &str) -> ImagePipeline {
    ImagePipeline::open(folder, None, settings(budget)).unwrap()
}

/// With a denoiser in a file of its own, whose configuration may lie beside it.
fn of_file(folder: &Path, file: &str) -> ImagePipeline {
    let file = folder.join(file);
    let config = file.with_extension("json");
    if config.exists() {
        fs::copy(config, folder.join("transformer/config.json")).unwrap();
    }
    let file = SingleFile::open(&file).unwrap();
    ImagePipeline::open_file(&file, folder, settings("cpu=1GB")).unwrap()
}

fn model() -> ImageModel {
    ImageModel::open(&fixture("pipeline"), None).unwrap()
}

/// The pictures of each request within a step of those recorded beside the fixture.
fn assert_recorded(fixture_name: &str) {
    let expected = Checkpoint::open(fixture(fixture_name).join("expected.safetensors")).unwrap();
    let table = fs::read(fixture(fixture_name).join("expected.json")).unwrap();
    let table: Value = serde_json::from_slice(&table).unwrap();
    let (prompt, steps) = (table["prompt"].as_str().unwrap(), table["steps"].as_u64().unwrap());
    for (name, entry) in table["requests"].as_object().unwrap() {
        let folder = copied(fixture_name);
        if let Some(prediction) = entry["prediction_type"].as_str() {
            let file = "scheduler/scheduler_config.json";
            set_field(folder.path(), file, "prediction_type", prediction.into());
        }
        if let Some(is_distilled) = entry["is_distilled"].as_bool() {
            distilled(folder.path(), is_distilled);
        }
        let steps = entry["steps"].as_u64().unwrap_or(steps);
        let request = request(folder.path(), prompt, steps as usize, entry);
        let mut pipeline = match entry["file"].as_str() {
            Some(file) => of_file(folder.path(), file),
            None => open(folder.path(), "cpu=1GB"),
        };
        for adapter in entry["adapters"].as_array().into_iter().flatten() {
            let (file, scale) = (adapter[0].as_str().unwrap(), adapter[1].as_f64().unwrap());
            pipeline.adapt(&folder.path().join(file), scale).unwrap();
        }
        let pictures = pipeline.generate(&request).unwrap();
        let tensor = expected.get(name).unwrap();
        let [width, height] = [pictures[0].width, pictures[0].height];
        assert_eq!(tensor.shape, [pictures.len(), height, width, 3], "{name}");
        let bytes = expected.read(tensor).unwrap();
        let found = pictures.iter().flat_map(|picture| &picture.rgb);
        for (index, (found, expected)) in found.zip(&bytes[..]).enumerate() {
            let off = (i16::from(*found) - i16::from(*expected)).abs();
            assert!(off <= TOLERANCE, "{name}, byte {index}: {found}, expected {expected}");
        }
    }
}

#[test]
fn a_picture_in_another_size_is_that_of_pillow() {
    let folder = fixture("pipeline");
    let picture = Picture::read(folder.join("image.png")).unwrap();
    let expected = Checkpoint::open(folder.join("expected.safetensors")).unwrap();
    for [width, height] in [[10, 7], [53, 31]] {
        let tensor = expected.get(&format!("image {width} x {height}")).unwrap();
        let bytes = expected.read(tensor).unwrap();
        let found = picture.resized(width, height, PictureFilter::Lanczos).rgb;
        assert_eq!(found.len(), bytes.len());
        for (index, (found, expected)) in found.iter().zip(&bytes[..]).enumerate() {
            let off = (i16::from(*found) - i16::from(*expected)).abs();
            assert!(off <= TOLERANCE, "byte {index}: {found}, expected {expected}");
        }
    }
}

#[test]
fn what_a_picture_to_begin_with_cannot_be_is_named() {
    let folder = copied("pipeline");
    let pipeline = open(folder.path(), "cpu=1GB");
    let picture = Picture::read(folder.path().join("image.png")).unwrap();
    let begun = |strength, steps| ImageRequest {
        image: Some(InitialImage { picture: picture.clone(), mask: None, strength }),
        steps: Some(steps),
        ..ImageRequest::new("a cat")
    };
    let message = |request| pipeline.generate(&request).unwrap_err().to_string();
    for (strength, steps) in [(0.0, 20), (0.04, 20), (1.01, 20), (f32::NAN, 20), (-0.5, 3)] {
        let error = message(begun(Some(strength), steps));
        assert!(error.contains(&format!("a strength of {strength}")), "{error}");
    }
    // What is usual for the kind.
    let usual = pipeline.generate(&begun(None, 5)).unwrap();
    assert_eq!(usual, pipeline.generate(&begun(Some(0.8), 5)).unwrap());
    assert_eq!([usual[0].width, usual[0].height], [24, 16]);
    let narrow = ImageRequest { width: Some(8), ..begun(None, 5) };
    let made = pipeline.generate(&narrow).unwrap();
    assert_eq!([made[0].width, made[0].height], [8, 16]);
    // Steps that are left out are not predicted either.
    let plans = pipeline.model().plan(pipeline.settings(), &begun(Some(0.5), 20)).unwrap();
    assert_eq!(pipeline.model().predict(&plans, &begun(Some(0.5), 20)).unwrap().steps, 11);
    for (name, bytes) in [("none.png", None), ("text.png", Some(&b"no picture"[..]))] {
        let path = folder.path().join(name);
        bytes.into_iter().for_each(|bytes| fs::write(&path, bytes).unwrap());
        let error = Picture::read(&path).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("PNG, JPEG and WebP"), "{error}");
    }
}

/// That a picture has the same bits with all its `parts` in memory and in about the least that
/// works.
fn assert_same_bits_in_little(folder: &Path, request: &ImageRequest, parts: &[&str]) {
    let roomy = open(folder, "cpu=1GB");
    let pictures = roomy.generate(request).unwrap();
    let least = roomy.model().estimate(roomy.settings(), request).unwrap();
    let names: Vec<_> = least.iter().map(|(part, _)| part.name()).collect();
    assert_eq!(names, parts);
    let mut least = least.iter().filter_map(|(_, estimate)| estimate.least).max().unwrap();
    let tight = loop {
        // What this process takes by itself has grown since it was counted: other tests run in it.
        let tight = open(folder, &format!("cpu={}", least + (64 << 20)));
        match tight.generate(request) {
            Err(Error::Core(CoreError::Plan(PlanError::TooSmall(shortfall))))
                if shortfall.least > least =>
            {
                least = shortfall.least;
            }
            made => break made.unwrap(),
        }
    };
    assert_eq!(tight, pictures);
}

#[test]
fn a_picture_to_begin_with_gives_the_same_bits_in_any_budget() {
    let folder = fixture("pipeline-xl");
    let picture = Picture::read(folder.join("image.png")).unwrap();
    let request = ImageRequest {
        image: Some(InitialImage { picture, mask: None, strength: Some(0.5) }),
        steps: Some(4),
        ..ImageRequest::new("a cat")
    };
    assert_same_bits_in_little(
        &folder,
        &request,
        &["text_encoder", "text_encoder_2", "vae_encoder", "unet", "vae"],
    );
}

#[test]
fn pictures_are_those_of_diffusers() {
    assert_recorded("pipeline");
}

#[test]
fn pictures_of_the_second_version_are_those_of_diffusers() {
    assert_recorded("pipeline-v2");
}

#[test]
fn pictures_of_xl_are_those_of_diffusers() {
    assert_recorded("pipeline-xl");
}

#[test]
fn pictures_of_a_consistency_model_are_those_of_diffusers() {
    assert_recorded("pipeline-lcm");
}

#[test]
fn pictures_of_flux_are_those_of_diffusers() {
    assert_recorded("pipeline-flux");
    assert_recorded("pipeline-schnell");
}

#[test]
fn pictures_of_z_image_are_those_of_diffusers() {
    assert_recorded("pipeline-z-image");
}

#[test]
fn pictures_of_flux_2_are_those_of_diffusers() {
    assert_recorded("pipeline-klein");
}

#[test]
fn pictures_of_a_model_that_fills_in_masks_are_those_of_diffusers() {
    assert_recorded("pipeline-inpaint");
    let pipeline = open(&fixture("pipeline-inpaint"), "cpu=1GB");
    let error = pipeline.generate(&ImageRequest::new("a cat")).unwrap_err().to_string();
    assert!(error.contains("give a picture to begin with, and a mask"), "{error}");
}

#[test]
fn several_pictures_are_those_of_their_seeds() {
    let settings = settings("cpu=1GB");
    let pipeline = ImagePipeline::open(&fixture("pipeline"), Some("fp16"), settings).unwrap();
    let request = |seeds: &[u64]| ImageRequest {
        seeds: seeds.to_vec(),
        steps: Some(3),
        ..ImageRequest::new("a cat")
    };
    let one = |seed| pipeline.generate(&request(&[seed])).unwrap().remove(0);
    let mut seen = Vec::new();
    let both = pipeline.generate_watched(&request(&[4, 9]), |progress| match progress {
        ImageProgress::Began { part, .. } => seen.push(part.name().to_owned()),
        ImageProgress::Step { picture, done, steps, size, latents } => {
            assert_eq!(size, [8, 8]);
            assert_eq!((steps, latents.len()), (4, 4 * 64));
            seen.push(format!("{picture}.{done}"));
        }
        _ => {}
    });
    let both = both.unwrap();
    assert_eq!(both[0], one(4));
    assert_eq!(both[1], one(9));
    assert_ne!(both[0], both[1]);
    let steps = ["0.1", "0.2", "0.3", "0.4", "1.1", "1.2", "1.3", "1.4"];
    assert_eq!(seen, [&["text_encoder", "unet"][..], &steps, &["vae"]].concat());
}

#[test]
fn a_stop_ends_the_pass_under_way() {
    let stop = Arc::new(AtomicBool::new(false));
    let pipeline = pipeline(ImageTask::new(), fixture("pipeline"))
        .max_memory(Budget::parse("cpu=1GB").unwrap())
        .stop(stop.clone())
        .build()
        .unwrap();
    let mut steps = 0;
    let made = pipeline.generate_watched(&ImageRequest::new("a cat"), |progress| {
        if let ImageProgress::Step { done, .. } = progress {
            steps = done;
            stop.store(done == 2, Ordering::Relaxed);
        }
    });
    assert!(made.unwrap_err().is_stopped());
    assert_eq!(steps, 2);
}

#[test]
fn a_budget_that_does_not_do_is_refused_with_one_that_does() {
    let (pipeline, request) = (model(), ImageRequest::new("a cat"));
    let error = pipeline.plan(&settings("cpu=1MB"), &request).unwrap_err().to_string();
    assert!(error.contains("cpu=1000000 is too small"), "{error}");
    let estimates = pipeline.estimate(&settings("cpu=1MB"), &request).unwrap();
    let least = estimates.iter().filter_map(|(_, estimate)| estimate.least).max().unwrap();
    let plans = pipeline.plan(&settings(&format!("cpu={least}")), &request).unwrap();
    for (plan, part) in plans.iter().zip(pipeline.kind().parts()) {
        assert_eq!(plan.part, *part);
        assert!(plan.map.memory_bytes() <= least);
    }
}

#[test]
fn requests_that_cannot_be_made_are_refused() {
    let pipeline = open(&fixture("pipeline"), "cpu=1GB");
    let message = |request| pipeline.generate(&request).unwrap_err().to_string();
    let cat = || ImageRequest::new("a cat");
    for (request, named) in [
        (ImageRequest { width: Some(17), ..cat() }, "a width of 17 pixels"),
        (ImageRequest { height: Some(0), ..cat() }, "a height of 0 pixels"),
        (ImageRequest { height: Some(1 << 20), ..cat() }, "a height of 1048576 pixels"),
        (ImageRequest { steps: Some(0), ..cat() }, "0 steps"),
        (ImageRequest { guidance_scale: Some(f32::NAN), ..cat() }, "a guidance scale of NaN"),
    ] {
        let error = message(request);
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    for (file, field, value, named) in [
        ("unet/config.json", "cross_attention_dim", 12, "attn2.to_k.weight"),
        ("unet/config.json", "time_cond_proj_dim", 8, "time_embedding.cond_proj.weight"),
        ("vae/config.json", "latent_channels", 5, "encoder.conv_out.weight"),
        ("vae/config.json", "latents_mean", 1, "`latents_mean` is 1"),
        ("text_encoder/config.json", "hidden_size", 7, "7"),
    ] {
        let folder = copied("pipeline");
        set_field(folder.path(), file, field, value.into());
        let error = ImageModel::open(folder.path(), None).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
    let folder = copied("pipeline");
    let path = folder.path().join("model_index.json");
    let index = fs::read_to_string(&path).unwrap();
    let renamed = index.replace("StableDiffusionPipeline", "LatentConsistencyModelPipeline");
    fs::write(&path, renamed).unwrap();
    let error = ImageModel::open(folder.path(), None).unwrap_err().to_string();
    assert!(error.contains("`time_cond_proj_dim` is unset"), "{error}");
}

#[test]
fn steps_of_a_consistency_model_are_those_that_it_was_taught() {
    let folder = fixture("pipeline-lcm");
    let pipeline = open(&folder, "cpu=1GB");
    let image = |strength| {
        let picture = Picture::read(folder.join("image.png")).unwrap();
        InitialImage { picture, mask: None, strength: Some(strength) }
    };
    let cat = || ImageRequest::new("a cat");
    let message = |request| pipeline.generate(&request).unwrap_err().to_string();
    for (request, named) in [
        (ImageRequest { steps: Some(51), ..cat() }, "the model was taught 50"),
        (ImageRequest { image: Some(image(0.05)), ..cat() }, "leaves 2 of those"),
        (ImageRequest { negative_prompt: "a dog".into(), ..cat() }, "a negative prompt"),
    ] {
        let error = message(request);
        assert!(error.contains(named), "{error}");
    }
    let usual = [pipeline.model().steps(&cat()) as f32, pipeline.model().guidance_scale(&cat())];
    assert_eq!(usual, [4.0, 8.5]);
    assert!(!pipeline.model().looks_at_negative_prompts(&cat()));
    // All steps are made, whatever the strength.
    let begun = ImageRequest { image: Some(image(0.3)), ..cat() };
    let plans = pipeline.model().plan(pipeline.settings(), &begun).unwrap();
    assert_eq!(pipeline.model().predict(&plans, &begun).unwrap().steps, 4);
}

#[test]
fn parts_of_xl_that_do_not_belong_together_are_refused() {
    let changed = |file: &str, field: &str, value: Value| {
        let folder = copied("pipeline-xl");
        set_field(folder.path(), file, field, value);
        ImageModel::open(folder.path(), None).unwrap_err().to_string()
    };
    for (file, field, value, named) in [
        ("unet/config.json", "addition_embed_type", Value::Null, "add_embedding.linear_1.weight"),
        ("unet/config.json", "addition_time_embed_dim", 3.into(), "refiners are not built in"),
        ("unet/config.json", "cross_attention_dim", 8.into(), "attn2.to_k.weight"),
        ("text_encoder_2/config.json", "projection_dim", 9.into(), "text_projection.weight"),
        ("model_index.json", "_class_name", "StableDiffusionPipeline".into(), "20"),
    ] {
        let error = changed(file, field, value);
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn what_flux_cannot_do_is_named() {
    let changed = |file: &str, field: &str, value: Value| {
        let folder = copied("pipeline-flux");
        set_field(folder.path(), file, field, value);
        let model = ImageModel::open(folder.path(), None);
        let made = model.and_then(|model| model.scheduler(&ImageRequest::new("")).map(|_| ()));
        made.err().map(|error| error.to_string()).unwrap_or_default()
    };
    for (file, field, value, named) in [
        ("transformer/config.json", "joint_attention_dim", 8.into(), "context_embedder.weight"),
        ("transformer/config.json", "in_channels", 12.into(), "x_embedder.weight"),
        ("vae/config.json", "latents_mean", 1.into(), "`latents_mean`"),
        (
            "scheduler/scheduler_config.json",
            "_class_name",
            "DDIMScheduler".into(),
            "DDIMScheduler is for",
        ),
        ("model_index.json", "_class_name", "StableDiffusionXLPipeline".into(), "`text_encoder_2`"),
    ] {
        let error = changed(file, field, value);
        assert!(error.contains(named), "{field}: {error}");
    }
    let pipeline = open(&fixture("pipeline-flux"), "cpu=1GB");
    let small = |width, negative: &str| ImageRequest {
        width: Some(width),
        height: Some(16),
        negative_prompt: negative.to_owned(),
        steps: Some(2),
        ..ImageRequest::new("a cat")
    };
    let error = pipeline.generate(&small(16, "a dog")).unwrap_err().to_string();
    assert!(error.contains("negative prompt"), "{error}");
    let error = pipeline.generate(&small(18, "")).unwrap_err().to_string();
    assert!(error.contains("a multiple of 4"), "{error}");
    let other = ImageRequest { scheduler: Some("euler".parse().unwrap()), ..small(16, "") };
    let error = pipeline.generate(&other).unwrap_err().to_string();
    assert!(error.contains("euler is for models that predict noise"), "{error}");
    // What schnell takes by itself is few steps.
    let schnell = ImageModel::open(&fixture("pipeline-schnell"), None).unwrap();
    let usual = ImageRequest::new("");
    assert_eq!([schnell.steps(&usual), pipeline.model().steps(&usual)], [4, 28]);
}

#[test]
fn zeros_for_an_empty_negative_prompt_are_as_the_model_says() {
    let request = ImageRequest { steps: Some(2), ..ImageRequest::new("a cat") };
    let folder = copied("pipeline-xl");
    let zeros = open(folder.path(), "cpu=1GB").generate(&request).unwrap();
    set_field(folder.path(), "model_index.json", "force_zeros_for_empty_prompt", false.into());
    assert_ne!(open(folder.path(), "cpu=1GB").generate(&request).unwrap(), zeros);
}

#[test]
fn a_safety_checker_is_named_as_not_run() {
    let folder = copied("pipeline");
    assert!(ImageModel::open(folder.path(), None).unwrap().notes().is_empty());
    let checker = serde_json::json!(["stable_diffusion", "StableDiffusionSafetyChecker"]);
    set_field(folder.path(), "model_index.json", "safety_checker", checker);
    let notes = ImageModel::open(folder.path(), None).unwrap().notes();
    assert!(notes[0].contains("safety checker is not run"), "{notes:?}");
}

#[test]
fn a_built_pipeline_keeps_its_budget_and_gives_the_same_bits() {
    let (folder, request) = (fixture("pipeline-v2"), ImageRequest::new("a cat"));
    let request = ImageRequest { steps: Some(2), seeds: vec![1, 2], ..request };
    let built = |bytes: u64| {
        pipeline(ImageTask::new(), &folder)
            .device_map(Strategy::Auto)
            .max_memory(Budget::parse(&format!("cpu={bytes}")).unwrap())
            .build()
            .unwrap()
    };
    let roomy = built(1 << 30);
    let least = roomy.model().estimate(roomy.settings(), &request).unwrap();
    let least = least.iter().filter_map(|(_, estimate)| estimate.least).max().unwrap();
    let pictures = roomy.generate(&request).unwrap();
    // What this process takes by itself has grown since it was counted.
    let tight = built(least + (64 << 20));
    assert_eq!(tight.generate(&request).unwrap(), pictures);
    assert_eq!(tight.generate(&request).unwrap(), pictures, "again");
    let error = built(1 << 20).generate(&request).unwrap_err().to_string();
    assert!(error.contains("is too small"), "{error}");
    let map = ManualMap::parse(r#"{"": "cpu"}"#).unwrap();
    let error = pipeline(ImageTask::new(), &folder).device_map(map).build().unwrap_err();
    assert!(error.to_string().contains("name a strategy"), "{error}");
    let error = pipeline(ImageTask::new().variant("ema"), &folder).build().unwrap_err();
    assert!(error.to_string().contains("model.ema.safetensors"), "{error}");
    let error = pipeline(ImageTask::new(), fixture("tokenizer")).build().unwrap_err();
    assert!(error.to_string().contains("model_index.json"), "{error}");
}

#[test]
fn predicted_times_follow_steps_pictures_and_size() {
    let (model, settings) = (model(), settings("cpu=1GB"));
    let predict = |request: ImageRequest| {
        model.predict(&model.plan(&settings, &request).unwrap(), &request).unwrap()
    };
    let cat = || ImageRequest { steps: Some(20), ..ImageRequest::new("a cat") };
    let one = predict(cat());
    // The fixture's scheduler takes one pass more than steps.
    assert_eq!(one.steps, 21);
    let sum = one.text_encoder_seconds + one.denoiser_seconds + one.vae_seconds;
    assert_eq!(one.seconds, sum);
    assert!(one.denoiser_seconds > 20.0 * one.seconds_per_step);
    let three = predict(ImageRequest { seeds: vec![0, 1, 2], ..cat() });
    let passes = (three.denoiser_seconds - one.denoiser_seconds) / one.seconds_per_step;
    assert!((passes - 42.0).abs() < 1e-6, "{passes}");
    assert!(three.vae_seconds > one.vae_seconds);
    let large = ImageRequest { width: Some(512), height: Some(512), ..cat() };
    // 1024 times the pixels, of which each attends to as many more.
    assert!(predict(large).seconds_per_step > 100.0 * one.seconds_per_step);
    let plans = model.plan(&settings, &cat()).unwrap();
    let profile = HardwareProfile::default();
    assert!(one.seconds_per_step >= profile.cpu.block_seconds * plans[1].tree.blocks.len() as f64);
}
