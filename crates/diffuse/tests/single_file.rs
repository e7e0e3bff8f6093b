//! Checkpoints of Stable Diffusion in one file; scripts/fixtures/single_file.py wrote them, and checked them with diffusers.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::fixture;
use outsize_checkpoint::{Checkpoint, FileWriter, TensorInfo, TensorSpec};
use outsize_diffuse::{ImagePipeline, ImageRequest, ImageSettings, ImageTask, usual_base};
use outsize_generate::pipeline;
use outsize_plan::Budget;
use tempfile::TempDir;

/// Configurations and tokenizers of a fixture, without weights.
fn base(name: &str) -> TempDir {
    let base = tempfile::tempdir().unwrap();
    copy(&fixture(name), base.path());
    base
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy(&path, &target),
            false if path.extension().is_some_and(|end| end == "safetensors") => {}
            false => drop(fs::copy(path, target).unwrap()),
        }
    }
}

fn single(name: &str) -> PathBuf {
    fixture(name).join("single.safetensors")
}

fn settings() -> ImageSettings {
    ImageSettings::new(Budget::parse("cpu=1GB").unwrap())
}

/// A copy of the file with some of its tensors, under names that may be others.
fn edited(
    file: &Path,
    folder: &TempDir,
    rename: impl Fn(&TensorInfo) -> Option<String>,
) -> PathBuf {
    let (path, whole) = (folder.path().join("edited.safetensors"), Checkpoint::open(file).unwrap());
    let kept = whole.tensors().iter().filter_map(|tensor| Some((rename(tensor)?, tensor)));
    let kept: Vec<_> = kept.collect();
    let specs = kept
        .iter()
        .map(|(name, tensor)| TensorSpec::new(name.clone(), tensor.dtype, tensor.shape.clone()));
    let mut writer = FileWriter::create(&path, specs.collect()).unwrap();
    for (name, tensor) in kept {
        writer.write(&name, &whole.read(tensor).unwrap()).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn refusal(file: &Path, base: &Path) -> String {
    ImagePipeline::open_file(file, base, settings()).unwrap_err().to_string()
}

#[test]
fn pictures_are_those_of_the_same_weights_in_a_folder() {
    for name in ["pipeline", "pipeline-xl"] {
        let (folder, base) = (fixture(name), base(name));
        let request = ImageRequest { steps: Some(4), ..ImageRequest::new("a photo of a horse") };
        let mut expected = ImagePipeline::open(&folder, None, settings()).unwrap();
        let mut found = ImagePipeline::open_file(&single(name), base.path(), settings()).unwrap();
        for adapted in [false, true] {
            if adapted {
                for pipeline in [&mut expected, &mut found] {
                    pipeline.adapt(&folder.join("kohya.safetensors"), 0.5).unwrap();
                }
            }
            let [expected, found] =
                [&expected, &found].map(|pipeline| pipeline.generate(&request).unwrap());
            let pairs = expected[0].rgb.iter().zip(&found[0].rgb);
            let off = pairs.map(|(one, other)| one.abs_diff(*other)).max().unwrap();
            // A projection that is stored the other way round has other last bits.
            assert!(off <= u8::from(name == "pipeline-xl"), "{name}: {off}");
        }
    }
    let (file, base) = (single("pipeline"), base("pipeline"));
    let built = pipeline(ImageTask::new().base(base.path()), &file).build().unwrap();
    assert_eq!(built.generate(&ImageRequest::new("a cat")).unwrap().len(), 1);
}

#[test]
fn an_adapter_of_a_projection_is_that_of_the_folder() {
    let (folder, base) = (fixture("pipeline-xl"), base("pipeline-xl"));
    let adapters = tempfile::tempdir().unwrap();
    let adapter = adapters.path().join("adapter.safetensors");
    let name = |side: &str| format!("lora_te2_text_projection.lora_{side}.weight");
    let specs = [("down", [3, 12]), ("up", [10, 3])]
        .map(|(side, shape)| TensorSpec::new(name(side), outsize_checkpoint::Dtype::F32, shape));
    let mut writer = FileWriter::create(&adapter, specs.to_vec()).unwrap();
    for (side, count) in [("down", 36), ("up", 30)] {
        let values = (0..count).flat_map(|index| ((index * 7 % 11) as f32 - 5.0).to_le_bytes());
        writer.write(&name(side), &values.collect::<Vec<u8>>()).unwrap();
    }
    writer.finish().unwrap();
    let request = ImageRequest { steps: Some(4), ..ImageRequest::new("a photo of a horse") };
    let mut of_folder = ImagePipeline::open(&folder, None, settings()).unwrap();
    let mut of_file =
        ImagePipeline::open_file(&single("pipeline-xl"), base.path(), settings()).unwrap();
    let plain = of_folder.generate(&request).unwrap();
    let [one, other] = [&mut of_folder, &mut of_file].map(|pipeline| {
        pipeline.adapt(&adapter, 1.0).unwrap();
        pipeline.generate(&request).unwrap().remove(0).rgb
    });
    let most = |one: &[u8], other: &[u8]| {
        one.iter().zip(other).map(|(one, other)| one.abs_diff(*other)).max().unwrap()
    };
    assert!(most(&one, &other) <= 1, "{}", most(&one, &other));
    assert!(most(&one, &plain[0].rgb) > 5);
}

#[test]
fn what_a_file_is_made_of_is_told() {
    let folder = tempfile::tempdir().unwrap();
    assert!(usual_base(&single("pipeline")).unwrap().ends_with("/stable-diffusion-v1-5"));
    assert!(usual_base(&single("pipeline-xl")).unwrap().ends_with("/stable-diffusion-xl-base-1.0"));
    let second = edited(&single("pipeline"), &folder, |tensor| {
        Some(tensor.name.replace("cond_stage_model.transformer.", "cond_stage_model.model."))
    });
    assert!(usual_base(&second).unwrap().ends_with("/stable-diffusion-2-1"));
    let untold = edited(&single("pipeline"), &folder, |tensor| {
        (!tensor.name.starts_with("cond_stage_model.")).then(|| tensor.name.clone())
    });
    assert!(usual_base(&untold).unwrap_err().to_string().contains("a folder or a repository"));
}

#[test]
fn what_is_no_such_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (first, xl) = (base("pipeline"), base("pipeline-xl"));
    let flux = base("pipeline-flux");
    let part = fixture("pipeline").join("unet/diffusion_pytorch_model.fp16.safetensors");
    for (file, base, named) in [
        (&part, &first, "it has no tensor model.diffusion_model.input_blocks.0.0.weight"),
        (&single("pipeline"), &xl, "is the base another model?"),
        (&single("pipeline-xl"), &first, "is the base another model?"),
        (&single("pipeline"), &flux, "its base is a FluxPipeline"),
        (&PathBuf::from("none.safetensors"), &first, "none.safetensors"),
    ] {
        let error = refusal(file, base.path());
        assert!(error.contains(named), "{named}: {error}");
    }
    let without = |end: &'static str| {
        edited(&single("pipeline"), &folder, move |tensor| {
            (!tensor.name.ends_with(end)).then(|| tensor.name.clone())
        })
    };
    for end in ["attn_1.q.weight", "up.1.upsample.conv.bias", "out.0.bias", "q_proj.weight"] {
        let error = refusal(&without(end), first.path());
        assert!(error.contains(end) && error.contains("edited.safetensors"), "{error}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(refusal(&single("pipeline"), empty.path()).contains("model_index.json"));
}
