//! Checkpoints in one file; scripts/fixtures/single_file.py and transformer_files.py wrote them,
//! and checked them with diffusers.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{complete_transformer, fixture, time_embedder};
use outsize_checkpoint::{Checkpoint, FileWriter, TensorInfo, TensorSpec};
use outsize_diffuse::{
    ImagePipeline, ImageRequest, ImageSettings, ImageTask, PipelinePart, SingleFile,
};
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
    copy_some(from, to, |path| path.extension().is_none_or(|end| end != "safetensors"));
}

fn copy_all(from: &Path, to: &Path) {
    copy_some(from, to, |_| true);
}

fn copy_some(from: &Path, to: &Path, is_wanted: fn(&Path) -> bool) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().flatten() {
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        match path.is_dir() {
            true => copy_some(&path, &target, is_wanted),
            false if is_wanted(&path) => drop(fs::copy(path, target).unwrap()),
            false => {}
        }
    }
}

fn single(name: &str) -> PathBuf {
    fixture(name).join("single.safetensors")
}

fn settings() -> ImageSettings {
    ImageSettings::new(Budget::parse("cpu=1GB").unwrap())
}

fn request() -> ImageRequest {
    let side = Some(16);
    ImageRequest {
        steps: Some(20),
        width: side,
        height: side,
        ..ImageRequest::new("a photo of a horse")
    }
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

fn open(file: &Path, base: &Path) -> Result<ImagePipeline, outsize_diffuse::Error> {
    ImagePipeline::open_file(&SingleFile::open(file)?, base, settings())
}

fn refusal(file: &Path, base: &Path) -> String {
    open(file, base).unwrap_err().to_string()
}

fn usual_base(file: &Path) -> Result<&'static str, outsize_diffuse::Error> {
    SingleFile::open(file)?.usual_base()
}

/// A fixture with all of its weights, in a folder and in one file.
fn both(name: &str, copied: &TempDir) -> (PathBuf, PathBuf) {
    if name != "pipeline-z-image" {
        return (fixture(name), single(name));
    }
    let folder = copied.path().join("folder");
    copy_all(&fixture(name), &folder);
    complete_transformer(&folder);
    let whole = copied.path().join("whole");
    time_embedder::complete_under(&single(name), &whole, "model.diffusion_model.");
    (folder, whole.join("model.safetensors"))
}

#[test]
fn pictures_are_those_of_the_same_weights_in_a_folder() {
    for name in [
        "pipeline",
        "pipeline-xl",
        "pipeline-flux",
        "pipeline-flux2",
        "pipeline-klein",
        "pipeline-z-image",
    ] {
        let copied = tempfile::tempdir().unwrap();
        let ((folder, file), base) = (both(name, &copied), base(name));
        let adapter = match name {
            "pipeline-flux2" | "pipeline-klein" | "pipeline-z-image" => "peft.safetensors",
            _ => "kohya.safetensors",
        };
        if ["pipeline-flux2", "pipeline-klein"].contains(&name) {
            // All but the transformer are those of the base.
            for part in ["text_encoder/model", "vae/diffusion_pytorch_model"] {
                let file = format!("{part}.safetensors");
                fs::copy(folder.join(&file), base.path().join(&file)).unwrap();
            }
        }
        let request = request();
        let mut expected = ImagePipeline::open(&folder, None, settings()).unwrap();
        let mut found = open(&file, base.path()).unwrap();
        for adapted in [false, true] {
            if adapted {
                for pipeline in [&mut expected, &mut found] {
                    pipeline.adapt(&folder.join(adapter), 0.5).unwrap();
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
    let request = request();
    let mut of_folder = ImagePipeline::open(&folder, None, settings()).unwrap();
    let mut of_file = open(&single("pipeline-xl"), base.path()).unwrap();
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
    let flux = single("pipeline-flux");
    assert!(usual_base(&flux).unwrap().ends_with("/FLUX.1-dev"));
    let unguided = edited(&flux, &folder, |tensor| {
        (!tensor.name.contains("guidance_in.")).then(|| tensor.name.clone())
    });
    assert!(usual_base(&unguided).unwrap().ends_with("/FLUX.1-schnell"));
    assert!(usual_base(&single("pipeline-flux2")).unwrap().ends_with("/FLUX.2-dev"));
    for (name, named) in
        [("pipeline-z-image", "Tongyi-MAI/Z-Image-Turbo"), ("pipeline-klein", "FLUX.2-klein-4B")]
    {
        let untold = usual_base(&single(name)).unwrap_err().to_string();
        assert!(untold.contains(named), "{untold}");
    }
}

#[test]
fn parts_that_are_not_in_a_file_are_those_of_its_base() {
    use PipelinePart::{TextEncoder, TextEncoder2, Transformer, Unet, Vae};
    for (name, without, has, needs) in [
        ("pipeline-flux", "vae.", &[TextEncoder, TextEncoder2, Transformer][..], "vae/"),
        (
            "pipeline-flux",
            "text_encoders.t5xxl.",
            &[TextEncoder, Vae, Transformer],
            "text_encoder_2/",
        ),
        ("pipeline", "first_stage_model.", &[TextEncoder, Unet], "vae/"),
        ("pipeline", "cond_stage_model.", &[Vae, Unet], "text_encoder/"),
    ] {
        let (folder, base) = (tempfile::tempdir().unwrap(), base(name));
        let file = edited(&single(name), &folder, |tensor| {
            (!tensor.name.starts_with(without)).then(|| tensor.name.clone())
        });
        assert_eq!(SingleFile::open(&file).unwrap().parts(), has, "{without}");
        let error = refusal(&file, base.path());
        assert!(error.contains(needs), "{error}");
        let request = request();
        let [one, other] = [&file, &single(name)]
            .map(|file| open(file, &fixture(name)).unwrap().generate(&request).unwrap());
        assert_eq!(one, other, "{without}");
    }
}

#[test]
fn what_is_no_such_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (first, xl) = (base("pipeline"), base("pipeline-xl"));
    let flux = base("pipeline-flux");
    let part = fixture("pipeline").join("unet/diffusion_pytorch_model.fp16.safetensors");
    for (file, base, named) in [
        (&part, &first, "its tensors are not called as those of Stable Diffusion"),
        (&single("pipeline"), &xl, "nor its base"),
        (&single("pipeline-xl"), &first, "is the base another model?"),
        (&single("pipeline"), &flux, "its base is a FluxPipeline"),
        (&single("pipeline-flux"), &first, "its base is a StableDiffusionPipeline"),
        (
            &fixture("pipeline-flux").join("fp8.safetensors"),
            &flux,
            "text_encoder/model.safetensors",
        ),
        (&fixture("pipeline-flux").join("wide.gguf"), &flux, "text_encoder"),
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
    // A transformer of another width.
    let error = refusal(&fixture("pipeline-flux").join("wide.gguf"), &fixture("pipeline-flux"));
    assert!(error.contains("wide.gguf") && error.contains("is the base another model?"), "{error}");
    for end in ["linear1.bias", "query_norm.scale", "in_layer.weight"] {
        let fp8 = fixture("pipeline-flux").join("fp8.safetensors");
        let file = edited(&fp8, &folder, |tensor| {
            (!tensor.name.ends_with(end)).then(|| tensor.name.clone())
        });
        let error = refusal(&file, &fixture("pipeline-flux"));
        assert!(error.contains(end), "{error}");
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(refusal(&single("pipeline"), empty.path()).contains("model_index.json"));
}
