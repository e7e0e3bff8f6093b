//! Pictures are those of diffusers, wherever weights live; scripts/fixtures/text_to_image.py recorded them.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::fixture;
use outsize_checkpoint::Checkpoint;
use outsize_diffuse::{
    ImagePipeline, ImageProgress, ImageRequest, ImageSettings, Picture, PipelinePart,
};
use outsize_plan::Budget;
use serde_json::Value;
use tempfile::TempDir;

/// Steps of 255 that a colour may be off.
const TOLERANCE: i16 = 1;

fn settings(budget: &str) -> ImageSettings {
    ImageSettings::new(Budget::parse(budget).unwrap())
}

fn request(prompt: &str, steps: usize, entry: &Value) -> ImageRequest {
    let side = |name: &str| entry[name].as_u64().map(|side| side as usize);
    ImageRequest {
        negative_prompt: entry["negative_prompt"].as_str().unwrap_or_default().to_owned(),
        guidance_scale: entry["guidance_scale"].as_f64().unwrap_or(7.5) as f32,
        width: side("width"),
        height: side("height"),
        seeds: vec![entry["seed"].as_u64().unwrap()],
        scheduler: entry["scheduler"].as_str().map(|name| name.parse().unwrap()),
        steps,
        ..ImageRequest::new(prompt)
    }
}

/// A copy of the fixture to change.
fn copied() -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&fixture("pipeline"), copy.path());
    copy
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

fn one(pipeline: &ImagePipeline, settings: &ImageSettings, request: &ImageRequest) -> Picture {
    pipeline.generate(settings, request, |_| {}).unwrap().remove(0)
}

#[test]
fn pictures_are_those_of_diffusers() {
    let expected = Checkpoint::open(fixture("pipeline/expected.safetensors")).unwrap();
    let table = fs::read(fixture("pipeline/expected.json")).unwrap();
    let table: Value = serde_json::from_slice(&table).unwrap();
    let (prompt, steps) = (table["prompt"].as_str().unwrap(), table["steps"].as_u64().unwrap());
    for (name, entry) in table["requests"].as_object().unwrap() {
        let folder = copied();
        if let Some(prediction) = entry["prediction_type"].as_str() {
            let path = folder.path().join("scheduler/scheduler_config.json");
            let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            config["prediction_type"] = prediction.into();
            fs::write(&path, config.to_string()).unwrap();
        }
        let pipeline = ImagePipeline::open(folder.path(), None).unwrap();
        let request = request(prompt, steps as usize, entry);
        let picture = one(&pipeline, &settings("cpu=1GB"), &request);
        let tensor = expected.get(name).unwrap();
        assert_eq!(tensor.shape, [picture.height, picture.width, 3], "{name}");
        let bytes = expected.read(tensor).unwrap();
        for (index, (found, expected)) in picture.rgb.iter().zip(&bytes[..]).enumerate() {
            let off = (i16::from(*found) - i16::from(*expected)).abs();
            assert!(off <= TOLERANCE, "{name}, byte {index}: {found}, expected {expected}");
        }
    }
}

#[test]
fn several_pictures_are_those_of_their_seeds() {
    let pipeline = ImagePipeline::open(&fixture("pipeline"), Some("fp16")).unwrap();
    let settings = settings("cpu=1GB");
    let request = |seeds: &[u64]| ImageRequest {
        seeds: seeds.to_vec(),
        steps: 3,
        ..ImageRequest::new("a cat")
    };
    let mut seen = Vec::new();
    let both = pipeline.generate(&settings, &request(&[4, 9]), |progress| match progress {
        ImageProgress::Began { part, .. } => seen.push(part.name().to_owned()),
        ImageProgress::Step { picture, done, steps, size, latents } => {
            assert_eq!(size, [8, 8]);
            assert_eq!((steps, latents.len()), (4, 4 * 64));
            seen.push(format!("{picture}.{done}"));
        }
        _ => {}
    });
    let both = both.unwrap();
    assert_eq!(both[0], one(&pipeline, &settings, &request(&[4])));
    assert_eq!(both[1], one(&pipeline, &settings, &request(&[9])));
    assert_ne!(both[0], both[1]);
    let steps = ["0.1", "0.2", "0.3", "0.4", "1.1", "1.2", "1.3", "1.4"];
    assert_eq!(seen, [&["text_encoder", "unet"][..], &steps, &["vae"]].concat());
}

#[test]
fn a_stop_ends_the_pass_under_way() {
    let pipeline = ImagePipeline::open(&fixture("pipeline"), None).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let settings = ImageSettings { stop: Some(stop.clone()), ..settings("cpu=1GB") };
    let mut steps = 0;
    let made = pipeline.generate(&settings, &ImageRequest::new("a cat"), |progress| {
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
    let pipeline = ImagePipeline::open(&fixture("pipeline"), None).unwrap();
    let request = ImageRequest::new("a cat");
    let error = pipeline.plan(&settings("cpu=1MB"), &request).unwrap_err().to_string();
    assert!(error.contains("cpu=1000000 is too small"), "{error}");
    let estimates = pipeline.estimate(&settings("cpu=1MB"), &request).unwrap();
    let least = estimates.iter().filter_map(|estimate| estimate.least).max().unwrap();
    let plans = pipeline.plan(&settings(&format!("cpu={least}")), &request).unwrap();
    for (plan, part) in plans.iter().zip(PipelinePart::ALL) {
        assert_eq!(plan.part, part);
        assert!(plan.map.memory_bytes() <= least);
    }
}

#[test]
fn requests_that_cannot_be_made_are_refused() {
    let pipeline = ImagePipeline::open(&fixture("pipeline"), None).unwrap();
    let message = |request: ImageRequest| {
        pipeline.generate(&settings("cpu=1GB"), &request, |_| {}).unwrap_err().to_string()
    };
    let cat = || ImageRequest::new("a cat");
    for (request, named) in [
        (ImageRequest { width: Some(17), ..cat() }, "a width of 17 pixels"),
        (ImageRequest { height: Some(0), ..cat() }, "a height of 0 pixels"),
        (ImageRequest { height: Some(1 << 20), ..cat() }, "a height of 1048576 pixels"),
        (ImageRequest { steps: 0, ..cat() }, "0 steps"),
        (ImageRequest { guidance_scale: f32::NAN, ..cat() }, "a guidance scale of NaN"),
    ] {
        let error = message(request);
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    for (file, field, value, named) in [
        ("unet/config.json", "cross_attention_dim", 12, "attn2.to_k.weight"),
        ("unet/config.json", "time_cond_proj_dim", 8, "`time_cond_proj_dim` is 8"),
        ("vae/config.json", "latent_channels", 5, "5"),
        ("vae/config.json", "shift_factor", 1, "`shift_factor` is 1"),
        ("text_encoder/config.json", "hidden_size", 7, "7"),
    ] {
        let folder = copied();
        let path = folder.path().join(file);
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[field] = value.into();
        fs::write(&path, config.to_string()).unwrap();
        let error = ImagePipeline::open(folder.path(), None).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_safety_checker_is_named_as_not_run() {
    let folder = copied();
    assert!(ImagePipeline::open(folder.path(), None).unwrap().notes().is_empty());
    let path = folder.path().join("model_index.json");
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    index["safety_checker"] =
        serde_json::json!(["stable_diffusion", "StableDiffusionSafetyChecker"]);
    fs::write(&path, index.to_string()).unwrap();
    let notes = ImagePipeline::open(folder.path(), None).unwrap().notes();
    assert!(notes[0].contains("safety checker is not run"), "{notes:?}");
}
