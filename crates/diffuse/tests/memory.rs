//! The budget holds for a built pipeline, over two calls: its peak of memory, measured in a process of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use outsize_checkpoint::{Dtype, FileWriter, TensorSpec};
use outsize_diffuse::{ImagePipeline, ImageRequest, ImageTask, PipelinePreset};
use outsize_generate::pipeline;
use outsize_models::WeightKind;
use outsize_plan::{Budget, Tier};

/// A built-in pipeline, in which every weight is a small number.
fn write_pipeline(name: &str, folder: &Path) {
    let preset = PipelinePreset::named(name, Dtype::F16).unwrap().unwrap();
    let made = |path: &Path| fs::create_dir_all(path.parent().unwrap()).unwrap();
    for part in preset.parts {
        let place = folder.join(part.folder);
        made(&place.join(part.file));
        fs::write(place.join("config.json"), &part.config).unwrap();
        let mut writer = FileWriter::create(place.join(part.file), part.tensors).unwrap();
        let mut state = 1u32;
        for weight in &part.weights {
            // Of either sign, from 2^-6 to 2^-5.
            let value = |_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (0x2400 | (state >> 16) as u16 & 0x83ff).to_le_bytes()
            };
            let bytes: Vec<u8> = (0..weight.elements()).flat_map(value).collect();
            writer.write(&weight.name, &bytes).unwrap();
        }
        writer.finish().unwrap();
    }
    for (name, text) in preset.files {
        made(&folder.join(&name));
        fs::write(folder.join(name), text).unwrap();
    }
}

/// An adapter for all matrices and convolutions of a pipeline's denoiser, as PEFT has it.
fn write_adapter(name: &str, file: &Path) {
    const RANK: usize = 64;
    let preset = PipelinePreset::named(name, Dtype::F16).unwrap().unwrap();
    let denoiser = preset.parts.iter().find(|part| !part.folder.starts_with("text")).unwrap();
    let weights = denoiser.weights.iter();
    let weights = weights.filter(|weight| weight.kind == WeightKind::Linear);
    let mut specs = Vec::new();
    for weight in weights.filter(|weight| weight.shape.len() > 1) {
        let module = weight.name.strip_suffix(".weight").unwrap();
        let down = [&[RANK], &weight.shape[1..]].concat();
        let name = |side| format!("{}.{module}.lora_{side}.weight", denoiser.folder);
        specs.push(TensorSpec::new(name('A'), Dtype::F16, down));
        specs.push(TensorSpec::new(name('B'), Dtype::F16, [weight.shape[0], RANK]));
    }
    let mut writer = FileWriter::create(file, specs.clone()).unwrap();
    for (index, spec) in specs.iter().enumerate() {
        // 2^-8 and 2^-9: small beside the weights.
        let value = if index % 3 == 0 { 0x1c00u16 } else { 0x9800 };
        let values: usize = spec.shape.iter().product();
        writer.write(&spec.name, &value.to_le_bytes().repeat(values)).unwrap();
    }
    writer.finish().unwrap();
}

fn built(folder: &str, bytes: u64) -> ImagePipeline {
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, bytes);
    let adapter = Path::new(folder).join("adapter.safetensors");
    let task = match adapter.exists() {
        true => ImageTask::new().adapter(adapter, 0.5),
        false => ImageTask::new(),
    };
    pipeline(task, folder).max_memory(budget).build().unwrap()
}

#[test]
fn child() {
    let Ok(folder) = std::env::var("OUTSIZE_CHILD_PIPELINE") else {
        return; // an ordinary test run: this is no test of its own
    };
    outsize_stream::return_freed_memory();
    let request = ImageRequest {
        steps: Some(2),
        width: Some(64),
        height: Some(64),
        seeds: vec![3, 4],
        ..ImageRequest::new("a horse")
    };
    let pipe = built(&folder, u64::MAX / 2);
    let estimates = pipe.model().estimate(pipe.settings(), &request).unwrap();
    let least = estimates.iter().filter_map(|(_, estimate)| estimate.least).max().unwrap();
    // The process grows a little between two looks at it.
    let budget = least + (2 << 20);
    let pipe = built(&folder, budget);
    let plans = pipe.model().plan(pipe.settings(), &request).unwrap();
    let streamed: u64 = plans.iter().map(|plan| plan.map.streamed_bytes()).sum();
    let pictures = pipe.generate(&request).unwrap();
    assert_eq!(pipe.generate(&request).unwrap(), pictures);
    println!("budget={budget} streamed={streamed} peak={}", outsize_machine::peak_rss().unwrap());
}

#[test]
fn a_built_pipeline_stays_within_its_budget() {
    for (name, is_adapted, least_streamed) in [
        ("stable-diffusion-tiny", false, 30_000_000),
        ("stable-diffusion-tiny", true, 20_000_000),
        ("flux-tiny", false, 15_000_000),
        ("flux-tiny", true, 10_000_000),
        ("z-image-tiny", false, 15_000_000),
        ("z-image-tiny", true, 10_000_000),
        ("flux2-klein-tiny", false, 10_000_000),
        ("flux2-klein-tiny", true, 5_000_000),
    ] {
        let folder = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        write_pipeline(name, folder.path());
        let adapter = folder.path().join("adapter.safetensors");
        if is_adapted {
            write_adapter(name, &adapter);
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("OUTSIZE_CHILD_PIPELINE", folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let [budget, streamed, peak] = ["budget=", "streamed=", "peak="].map(|name| {
            let (_, rest) = text.split_once(name).unwrap();
            rest.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        });
        let adapted = adapter.metadata().map_or(0, |file| file.len());
        eprintln!("{name}: adapter {adapted}, budget {budget}, peak {peak}, streamed {streamed}");
        assert!(streamed > least_streamed, "{name}: {streamed}");
        assert!(peak <= budget, "{name}: {peak} > {budget}");
    }
}
