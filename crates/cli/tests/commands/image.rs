//! `outsize image`, and what `plan` and `estimate` say of a pipeline.

use crate::common::{done, failed, folder, message, outsize, path, start, text};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../diffuse/tests/fixtures/pipeline")
}

fn image(output: &Path, more: &[&str]) -> std::process::Output {
    let fixture = fixture();
    let args = ["image", path(&fixture), "--output", path(output), "--prompt", "a cat"];
    outsize(&[&args, more].concat())
}

fn names(folder: &Path) -> Vec<String> {
    let names = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_picture_is_written_with_its_parameters() {
    let folder = folder();
    let output = folder.path().join("cat.png");
    let options = ["--steps", "3", "--seed", "5", "--negative-prompt", "dög", "--preview", "1"];
    let made = image(&output, &options);
    done(&made);
    assert!(message(&made).contains("wrote"), "{}", message(&made));
    assert_eq!(names(folder.path()), ["cat.png"]);
    let bytes = std::fs::read(&output).unwrap();
    let all = text(&bytes);
    for part in ["prompt\0a cat", "steps\x003", "seed\x005", "scheduler\0PNDM", "size\x0016x16"] {
        assert!(all.contains(part), "{part}");
    }
    // Not a second time, unless it is wanted.
    assert!(failed(&image(&output, &["--steps", "3"]), 2).contains("--force"));
    let nowhere = output.with_file_name("nowhere").join("a.png");
    assert!(failed(&image(&nowhere, &["--steps", "3"]), 2).contains("no folder"));
    assert!(failed(&image(&output.with_extension("jpg"), &[]), 2).contains("cat.png is"));
    done(&image(&output, &["--steps", "3", "--force"]));
    assert_ne!(std::fs::read(&output).unwrap(), bytes);
}

#[test]
fn several_pictures_have_their_seeds_in_their_names() {
    let folder = folder();
    let output = folder.path().join("cat.png");
    let options = ["--steps", "2", "--seed", "8", "--count", "2", "--json", "--scheduler", "euler"];
    let report: Value = serde_json::from_str(&done(&image(&output, &options))).unwrap();
    assert_eq!(names(folder.path()), ["cat-8.png", "cat-9.png"]);
    assert_eq!(report["pictures"][1]["seed"], 9);
    assert_eq!(report["scheduler"], "EulerDiscreteScheduler");
    assert_eq!(report["parts"][1]["part"], "unet");
    assert!(report["parts"][1]["bytes_read"].as_u64().unwrap() > 0);
    assert_eq!(report["predicted"]["steps"], 2);
    assert!(report["predicted"]["seconds"].as_f64().unwrap() > 0.0);
}

#[test]
fn a_picture_begins_with_another_one() {
    let folder = folder();
    let output = folder.path().join("cat.png");
    let file = fixture().join("image.png");
    let begun = ["--image", path(&file), "--strength", "0.5", "--steps", "6", "--json"];
    let report: Value = serde_json::from_str(&done(&image(&output, &begun))).unwrap();
    assert_eq!([&report["width"], &report["height"]], [24, 16]);
    let parts: Vec<_> =
        report["parts"].as_array().unwrap().iter().map(|one| &one["part"]).collect();
    assert_eq!(parts, ["text_encoder", "vae_encoder", "unet", "vae"]);
    // Of six steps three, and one more of this scheduler.
    assert_eq!(report["predicted"]["steps"], 4);
    let bytes = std::fs::read(&output).unwrap();
    assert!(text(&bytes).contains("strength\x000.5"));
    let mask = fixture().join("mask.png");
    let filled = ["--image", path(&file), "--mask", path(&mask), "--steps", "6", "--force"];
    done(&image(&output, &filled));
    let bytes = std::fs::read(&output).unwrap();
    let said = text(&bytes);
    assert!(said.contains("strength\x001") && said.contains("mask\0mask.png"));
    let other = ["--image", path(&output), "--strength", "2", "--force"];
    assert!(failed(&image(&output, &other), 1).contains("--strength"));
    assert!(failed(&image(&output, &["--strength", "0.5", "--force"]), 2).contains("--image"));
    let none = ["--image", "none.png", "--force"];
    assert!(failed(&image(&output, &none), 1).contains("none.png"));
    assert_eq!(std::fs::read(&output).unwrap(), bytes);
    // Models of random weights have no encoder.
    let model = folder.path().join("tiny");
    done(&outsize(&["synth", "stable-diffusion-tiny", path(&model), "--dtype", "f16"]));
    let args = ["image", path(&model), "--prompt", "x", "--output", path(&output), "--force"];
    let error = failed(&outsize(&[&args[..], &["--image", path(&file)]].concat()), 1);
    assert!(error.contains("only the decoder"), "{error}");
}

#[test]
fn a_picture_goes_by_others() {
    let folder = folder();
    let output = folder.path().join("cat.png");
    let klein = fixture().with_file_name("pipeline-klein");
    let [one, other] = ["reference.png", "other.png"].map(|name| klein.join(name));
    let begin = ["image", path(&klein), "--prompt", "a cat", "--output", path(&output), "--force"];
    let by = ["--image", path(&one), "--image", path(&other)];
    let run = |more: &[&str]| outsize(&[&begin[..], &by, more].concat());
    let report: Value = serde_json::from_str(&done(&run(&["--steps", "2", "--json"]))).unwrap();
    assert_eq!([&report["width"], &report["height"]], [68, 64]);
    let parts: Vec<_> =
        report["parts"].as_array().unwrap().iter().map(|one| &one["part"]).collect();
    assert_eq!(parts, ["text_encoder", "vae_encoder", "transformer", "vae"]);
    let bytes = std::fs::read(&output).unwrap();
    let said = text(&bytes);
    assert!(said.contains("image\0reference.png, other.png") && !said.contains("strength"));
    assert!(failed(&run(&["--strength", "0.5"]), 2).contains("--strength: not for this model"));
    assert!(failed(&run(&["--mask", path(&one)]), 2).contains("--mask: not for this model"));
    let edit = fixture().with_file_name("pipeline-qwen-edit");
    let changed = ["image", path(&edit), "--prompt", "red", "--output", path(&output), "--force"];
    let small = ["--width", "32", "--height", "16", "--steps", "2", "--json"];
    let run = |more: &[&str]| outsize(&[&changed[..], &small, more].concat());
    let report: Value = serde_json::from_str(&done(&run(&by[..2]))).unwrap();
    let parts: Vec<_> =
        report["parts"].as_array().unwrap().iter().map(|one| &one["part"]).collect();
    assert_eq!(parts, ["vision_encoder", "text_encoder", "vae_encoder", "transformer", "vae"]);
    assert!(failed(&run(&[]), 1).contains("give one picture, not 0 (--image)"));
    assert!(failed(&run(&by), 1).contains("give one picture, not 2 (--image)"));
    let plan = done(&outsize(&["plan", path(&edit)]));
    assert!(plan.contains("vision_encoder") && plan.contains("1024 x 1024"), "{plan}");
    // Others begin with one.
    assert!(failed(&image(&output, &[&by[..], &["--force"]].concat()), 2).contains("give one"));
}

#[test]
fn a_picture_is_made_with_adapters() {
    let folder = folder();
    let output = folder.path().join("cat.png");
    let steps = ["--steps", "2", "--force"];
    let run = |more: &[&str]| image(&output, &[&steps, more].concat());
    let made = |more: &[&str]| {
        done(&run(more));
        std::fs::read(&output).unwrap()
    };
    let (kohya, peft) = (fixture().join("kohya.safetensors"), fixture().join("peft.safetensors"));
    let both = ["--adapter", path(&kohya), "--adapter", path(&peft)];
    let once = ["--adapter-scale", "1", "--adapter-scale", "1"];
    let none = ["--adapter-scale", "0", "--adapter-scale", "-0"];
    let adapted = made(&both);
    assert!(text(&adapted).contains("adapters\0kohya.safetensors 1, peft.safetensors 1"));
    assert_eq!(made(&[&both[..], &once].concat()), adapted);
    let pixels = |bytes: &[u8]| {
        std::fs::write(&output, bytes).unwrap();
        outsize::diffuse::Picture::read(&output).unwrap().rgb
    };
    let plain = pixels(&made(&[]));
    assert_ne!(pixels(&adapted), plain);
    assert_eq!(pixels(&made(&[&both[..], &none].concat())), plain);
    // In the least budget that is not refused too.
    let tight = |budget: &str| run(&[&both[..], &["--max-memory", budget]].concat());
    let error = failed(&tight("cpu=1MB"), 1);
    let least = error.split_once("at least cpu=").unwrap().1.split(' ').next().unwrap();
    done(&tight(&format!("cpu={least}")));
    assert_eq!(std::fs::read(&output).unwrap(), adapted);
    // A folder of one, and what it takes.
    let saved = folder.path().join("saved");
    std::fs::create_dir(&saved).unwrap();
    std::fs::copy(&kohya, saved.join("pytorch_lora_weights.safetensors")).unwrap();
    let [of_folder, of_file] = [&saved, &kohya].map(|one| made(&["--adapter", path(one)]));
    assert_eq!(pixels(&of_folder), pixels(&of_file));
    let plan = |more: &[&str]| {
        let fixture = fixture();
        let args = ["plan", path(&fixture), "--json", "--max-memory", "cpu=1GB"];
        let report: Value = serde_json::from_str(&done(&outsize(&[&args, more].concat()))).unwrap();
        report["parts"][1]["estimate"]["least"].as_u64().unwrap()
    };
    assert!(plan(&["--adapter", path(&saved)]) > plan(&[]) + 30_000);
    let text_model = fixture().join("text_encoder/model.fp16.safetensors");
    for (more, code, named) in [
        (vec!["--adapter", "none.safetensors"], 2, "none.safetensors does not exist"),
        (vec!["--adapter", path(&text_model)], 1, "is no matrix of a LoRA adapter"),
        (vec!["--adapter-scale", "1"], 2, "--adapter"),
        ([&both[..], &["--adapter-scale", "1"]].concat(), 2, "there are 1 for 2 adapters"),
        (vec!["--adapter", path(folder.path())], 1, "pytorch_lora_weights.safetensors"),
    ] {
        let error = failed(&run(&more), code);
        assert!(error.contains(named), "{error}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in names(from) {
        match from.join(&name) {
            folder if folder.is_dir() => copy_folder(&folder, &to.join(name)),
            file => drop(fs::copy(file, to.join(name)).unwrap()),
        }
    }
}

#[test]
fn a_checkpoint_in_one_file_is_run() {
    let folder = folder();
    let output = folder.path().join("cat.png");
    let (fixture, file) = (fixture(), fixture().join("single.safetensors"));
    let rest = ["--output", path(&output), "--prompt", "a cat", "--steps", "3", "--force"];
    let run =
        |model: &Path, more: &[&str]| outsize(&[&["image", path(model)], &rest[..], more].concat());
    done(&run(&fixture, &[]));
    let expected = outsize::diffuse::Picture::read(&output).unwrap();
    done(&run(&file, &["--base", path(&fixture)]));
    assert_eq!(outsize::diffuse::Picture::read(&output).unwrap(), expected);
    for command in ["plan", "estimate"] {
        let of_folder = done(&outsize(&[command, path(&fixture), "--json"]));
        let of_file = done(&outsize(&[command, path(&file), "--base", path(&fixture), "--json"]));
        let [of_folder, of_file]: [Value; 2] =
            [of_folder, of_file].map(|json| serde_json::from_str(&json).unwrap());
        assert_eq!(of_folder["parts"][1]["estimate"], of_file["parts"][1]["estimate"]);
        let error = failed(&outsize(&[command, path(&fixture), "--base", path(&fixture)]), 2);
        assert!(error.contains("--base: only for a checkpoint in one file"), "{error}");
    }
    let schnell = fixture.with_file_name("pipeline-schnell");
    let guided = ["--guidance-scale", "3", "--width", "16", "--height", "16"];
    let said = run(&schnell, &guided);
    assert!(message(&said).contains("--guidance-scale has no effect"), "{}", message(&said));
    // Where the transformer alone is in a file.
    let flux = fixture.with_file_name("pipeline-flux");
    let base = folder.path().join("base");
    copy_folder(&flux, &base);
    fs::copy(flux.join("wide.json"), base.join("transformer/config.json")).unwrap();
    fs::remove_file(base.join("transformer/diffusion_pytorch_model.safetensors")).unwrap();
    let sides = ["--base", path(&base), "--width", "16", "--height", "16"];
    done(&run(&flux.join("wide.gguf"), &sides));
    assert_ne!(outsize::diffuse::Picture::read(&output).unwrap(), expected);
    let part = fixture.join("unet/diffusion_pytorch_model.fp16.safetensors");
    for (model, more, code, named) in [
        (&fixture, vec!["--base", path(&fixture)], 2, "--base: only for a checkpoint in one file"),
        (&file, vec!["--base", "nowhere"], 2, "nowhere does not exist"),
        (&file, vec!["--base", path(&fixture), "--variant", "fp16"], 2, "--variant"),
        (&part, vec![], 1, "its tensors are not called as those of Stable Diffusion"),
        (&part, vec!["--base", path(&fixture)], 1, "--base"),
    ] {
        let error = failed(&run(model, &more), code);
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn a_large_picture_to_begin_with_is_within_the_budget() {
    let folder = folder();
    let (large, output) = (folder.path().join("large.png"), folder.path().join("cat.png"));
    let [width, height] = [4000, 3000];
    let value = |index: usize| (index % (3 * width) / 7 + index / (3 * width)) as u8;
    let rgb = (0..3 * width * height).map(value).collect();
    outsize::diffuse::Picture { width, height, rgb }.write_png(&large, &[]).unwrap();
    let begun = ["--image", path(&large), "--mask", path(&large), "--steps", "2", "--json"];
    let begun = [&begun[..], &["--width", "16", "--height", "16"]].concat();
    let run = |budget: &str| image(&output, &[&begun[..], &["--max-memory", budget]].concat());
    let error = failed(&run("cpu=1MB"), 1);
    let least = error.split_once("at least cpu=").unwrap().1.split(' ').next().unwrap();
    let report: Value = serde_json::from_str(&done(&run(&format!("cpu={least}")))).unwrap();
    let peak = report["peak_rss_bytes"].as_u64().unwrap();
    println!("peak {peak} of {least}");
    assert!(peak <= least.parse().unwrap(), "{peak} of {least}");
    assert!(peak > 72_000_000, "{peak}");
}

#[test]
fn what_cannot_be_done_names_the_flag() {
    let run = outsize(&["run", path(&fixture()), "--prompt", "a cat"]);
    assert!(failed(&run, 2).contains("`outsize image`"), "{}", message(&run));
    let folder = folder();
    let output = folder.path().join("cat.png");
    for (options, named) in [
        (["--width", "13"], "--width"),
        (["--steps", "0"], "--steps"),
        (["--guidance-scale", "nan"], "--guidance-scale"),
        (["--max-memory", "cpu=1MB"], "--max-memory"),
        (["--variant", "ema"], "model.ema.safetensors"),
    ] {
        let error = failed(&image(&output, &options), 1);
        assert!(error.contains(named), "{error}");
    }
    // What a refusal asks for does, for all parts.
    let error = failed(&image(&output, &["--max-memory", "cpu=1MB"]), 1);
    let least = error.split_once("at least cpu=").unwrap().1.split(' ').next().unwrap();
    done(&image(&output, &["--steps", "2", "--max-memory", &format!("cpu={least}")]));
    std::fs::remove_file(&output).unwrap();
    assert!(failed(&image(&output, &["--scheduler", "heun"]), 2).contains("dpm++-karras"));
    let empty = folder.path();
    let args = ["image", path(empty), "--output", path(&output), "--prompt", "a cat"];
    assert!(failed(&outsize(&args), 1).contains("model_index.json"));
    assert!(names(folder.path()).is_empty());
}

#[test]
fn plan_and_estimate_show_the_parts() {
    let fixture = fixture();
    for (command, budget) in [("plan", &["--max-memory", "cpu=1GB"][..]), ("estimate", &[])] {
        let shown = done(&outsize(&[&[command, path(&fixture)], budget].concat()));
        let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in ["text_encoder", "unet", "vae", "take turns", "51 passes of the denoiser"] {
            assert!(shown.contains(part), "{shown}");
        }
        let json = done(&outsize(&[&[command, path(&fixture), "--json"], budget].concat()));
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["parts"].as_array().unwrap().len(), 3);
        assert!(json["least"].as_u64().unwrap() > 0);
        assert_eq!(json["parts"][0]["placement"].is_object(), command == "plan");
        let [step, all] =
            ["seconds_per_step", "seconds"].map(|key| json["prediction"][key].as_f64().unwrap());
        assert!(step > 0.0 && all > 51.0 * step, "{step} {all}");
    }
}

#[test]
fn a_synthetic_pipeline_runs_and_is_interrupted_without_a_trace() {
    let folder = folder();
    let model = folder.path().join("tiny");
    done(&outsize(&["synth", "stable-diffusion-tiny", path(&model), "--dtype", "f16"]));
    let output = folder.path().join("out.png");
    let run = |steps: &str| {
        let args = ["image", path(&model), "--prompt", "x", "--output", path(&output)];
        let args = [&args[..], &["--steps", steps, "--max-memory", "cpu=150MB", "--json"]].concat();
        let args = [&args[..], &["--preview", "1"]].concat();
        start(folder.path(), &args)
    };
    let report = run("2").wait_with_output().unwrap();
    let report: Value = serde_json::from_str(&done(&report)).unwrap();
    let peak = report["peak_rss_bytes"].as_u64().unwrap();
    assert!(peak < 150_000_000, "{peak}");
    std::fs::remove_file(&output).unwrap();
    let child = run("900");
    std::thread::sleep(Duration::from_secs(2));
    let asked = Instant::now();
    let pid = child.id().to_string();
    std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap();
    failed(&child.wait_with_output().unwrap(), 130);
    assert!(asked.elapsed() < Duration::from_secs(10));
    assert_eq!(names(folder.path()), ["tiny"]);
}

#[test]
fn another_scheduler_leaves_sizes_known() {
    let folder = folder();
    let model = folder.path().join("tiny");
    done(&outsize(&["synth", "stable-diffusion-tiny", path(&model), "--dtype", "f16"]));
    let config = model.join("scheduler/scheduler_config.json");
    std::fs::write(&config, r#"{"_class_name": "HeunDiscreteScheduler"}"#).unwrap();
    let shown = done(&outsize(&["estimate", path(&model)]));
    assert!(shown.contains("text_encoder") && shown.contains("no speed is predicted"), "{shown}");
}
