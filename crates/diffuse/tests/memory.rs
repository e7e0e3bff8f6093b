//! The budget holds for a built pipeline, over two calls: its peak of memory, measured in a process
//! of its own.

#[path = "../../checkpoint/tests/common/gguf.rs"]
mod gguf;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

use outsize_checkpoint::{Checkpoint, Dtype, FileWriter, TensorSpec};
use outsize_diffuse::{
    ImageModel, ImagePipeline, ImageRequest, ImageTask, Picture, PipelinePreset,
};
use outsize_generate::pipeline;
use outsize_models::WeightKind;
use outsize_plan::{Budget, Tier};

/// How many numbers weights are made of: a prime, so that no row is as another.
const NUMBERS: usize = 65_521;

/// These in f16, of either sign, from 2^-6 to 2^-5.
fn numbers() -> Vec<u8> {
    let mut state = 1u32;
    let value = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (0x2400 | (state >> 16) as u16 & 0x83ff).to_le_bytes()
    };
    (0..NUMBERS).flat_map(value).collect()
}

/// A built-in pipeline, in which every weight is a small number.
fn write_pipeline(name: &str, folder: &Path) {
    let numbers = numbers();
    let preset = PipelinePreset::named(name, Dtype::F16).unwrap().unwrap();
    let made = |path: &Path| fs::create_dir_all(path.parent().unwrap()).unwrap();
    for part in preset.parts {
        let place = folder.join(part.folder);
        made(&place.join(part.file));
        fs::write(place.join("config.json"), &part.config).unwrap();
        let mut writer = FileWriter::create(place.join(part.file), part.tensors).unwrap();
        for (number, weight) in part.weights.iter().enumerate() {
            // Each begins elsewhere in them.
            let (start, bytes) = (2 * (number * 7919 % NUMBERS), 2 * weight.elements() as usize);
            let all = numbers.repeat((start + bytes).div_ceil(numbers.len()));
            writer.write(&weight.name, &all[start..start + bytes]).unwrap();
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

/// The tensor by which a transformer of FLUX.1 is known, and what diffusers calls it.
const MARK: &str = "double_blocks.0.img_mod.lin.weight";
const OWN: &str = "transformer_blocks.0.norm1.linear.weight";

/// Puts in place of a transformer's weights a file of GGUF, whose matrices are in blocks of 8 bits;
/// all others keep diffusers' names.
fn quantize(folder: &Path) {
    let weights = folder.join("transformer/diffusion_pytorch_model.safetensors");
    let whole = Checkpoint::open(&weights).unwrap();
    let mut data = Vec::new();
    let mut tensors = Vec::new();
    for tensor in whole.tensors() {
        let offset = data.len().next_multiple_of(32);
        data.resize(offset, 0);
        let shape: Vec<u64> = tensor.shape.iter().rev().map(|size| *size as u64).collect();
        let bytes = whole.read(tensor).unwrap();
        let is_matrix = shape.len() == 2 && shape[0].is_multiple_of(32);
        let kind = match is_matrix {
            true => {
                for (block, halves) in bytes.chunks_exact(2 * 32).enumerate() {
                    // 2^-12 or 2^-11.
                    data.extend([0, if block % 3 == 0 { 0x0c } else { 0x10 }]);
                    data.extend(halves.chunks_exact(2).map(|half| half[0]));
                }
                8
            }
            false => {
                data.extend(bytes);
                1
            }
        };
        let name = if tensor.name == OWN { MARK } else { &*tensor.name };
        tensors.push((name.to_owned(), shape, kind, offset as u64));
    }
    let described: Vec<gguf::Tensor<'_>> =
        tensors.iter().map(|(name, shape, kind, at)| (&**name, &shape[..], *kind, *at)).collect();
    let values = [("general.architecture", gguf::text("flux"))];
    let mut file = gguf::file(&values, &described, 0);
    file.extend(data);
    fs::write(folder.join(QUANTIZED), file).unwrap();
    fs::remove_file(weights).unwrap();
}

/// The name of the file of a quantised transformer.
const QUANTIZED: &str = "transformer.gguf";

fn built(folder: &Path, bytes: u64) -> ImagePipeline {
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, bytes);
    let adapter = folder.join("adapter.safetensors");
    let task = match adapter.exists() {
        true => ImageTask::new().adapter(adapter, 0.5),
        false => ImageTask::new(),
    };
    let (task, model) = match folder.join(QUANTIZED) {
        file if file.exists() => (task.base(folder), file),
        _ => (task, folder.to_owned()),
    };
    pipeline(task, model).max_memory(budget).build().unwrap()
}

fn request(model: &ImageModel) -> ImageRequest {
    let side = Some(64);
    ImageRequest {
        steps: Some(2),
        width: side,
        height: side,
        seeds: vec![3, 4],
        prompt: "a horse".to_owned(),
        ..model.usual_request()
    }
}

/// A number that other pictures hardly have.
fn hash(pictures: &[Picture]) -> u64 {
    let mut hasher = DefaultHasher::new();
    pictures.iter().for_each(|picture| picture.rgb.hash(&mut hasher));
    hasher.finish()
}

#[test]
fn child() {
    let Ok(folder) = std::env::var("OUTSIZE_CHILD_PIPELINE") else {
        return; // an ordinary test run: this is no test of its own
    };
    outsize_stream::return_freed_memory();
    let folder = Path::new(&folder);
    let pipe = built(folder, u64::MAX / 2);
    let request = request(pipe.model());
    let estimates = pipe.model().estimate(pipe.settings(), &request).unwrap();
    let least = estimates.iter().filter_map(|(_, estimate)| estimate.least).max().unwrap();
    // The process grows a little between two looks at it.
    let budget = least + (2 << 20);
    let pipe = built(folder, budget);
    let plans = pipe.model().plan(pipe.settings(), &request).unwrap();
    let denoisers = plans.iter().filter(|plan| plan.part.is_denoiser());
    let streamed: u64 = denoisers.map(|plan| plan.map.streamed_bytes()).sum();
    let pictures = pipe.generate(&request).unwrap();
    assert_eq!(pipe.generate(&request).unwrap(), pictures);
    let (peak, hash) = (outsize_machine::peak_rss().unwrap(), hash(&pictures));
    println!("budget={budget} streamed={streamed} peak={peak} hash={hash}");
}

// Two tests, which run side by side: they take long.
#[test]
fn a_built_pipeline_of_flux_stays_within_its_budget_with_the_same_bits() {
    stay_within_their_budgets(&[
        ("flux-tiny", false, false, 60_000_000),
        ("flux-tiny", false, true, 60_000_000),
        ("flux-tiny", true, false, 30_000_000),
        ("flux-tiny", true, true, 30_000_000),
        ("flux2-klein-tiny", false, false, 10_000_000),
        ("flux2-klein-tiny", false, true, 5_000_000),
        ("flux2-dev-tiny", false, false, 10_000_000),
    ]);
}

#[test]
fn a_built_pipeline_stays_within_its_budget_with_the_same_bits() {
    stay_within_their_budgets(&[
        ("stable-diffusion-tiny", false, false, 50_000_000),
        ("stable-diffusion-tiny", false, true, 50_000_000),
        ("stable-diffusion-3.5-tiny", false, false, 20_000_000),
        ("stable-diffusion-3.5-tiny", false, true, 20_000_000),
        ("z-image-tiny", false, false, 20_000_000),
        ("z-image-tiny", false, true, 20_000_000),
        ("qwen-image-tiny", false, false, 20_000_000),
        ("qwen-image-tiny", false, true, 20_000_000),
        // In blocks all of it has room.
        ("qwen-image-tiny", true, false, 0),
        // The encoder of pictures to go by needs more than all of it.
        ("qwen-image-edit-tiny", false, false, 0),
    ]);
}

/// Of a preset, whether its transformer is in blocks, whether an adapter is applied, and the least
/// bytes of the denoiser that are streamed, or none.
fn stay_within_their_budgets(cases: &[(&str, bool, bool, u64)]) {
    for &(name, is_quantized, is_adapted, least_streamed) in cases {
        let folder = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        write_pipeline(name, folder.path());
        let adapter = folder.path().join("adapter.safetensors");
        if is_adapted {
            write_adapter(name, &adapter);
        }
        if is_quantized {
            quantize(folder.path());
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("OUTSIZE_CHILD_PIPELINE", folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let fields = ["budget=", "streamed=", "peak=", "hash="];
        let [budget, streamed, peak, found] = fields.map(|name| {
            let (_, rest) = text.split_once(name).unwrap();
            rest.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        });
        let adapted = adapter.metadata().map_or(0, |file| file.len());
        eprintln!("{name}: adapter {adapted}, budget {budget}, peak {peak}, streamed {streamed}");
        match least_streamed {
            0 => assert_eq!(streamed, 0, "{name}"),
            least => assert!(streamed > least, "{name}: {streamed}"),
        }
        assert!(peak <= budget, "{name}: {peak} > {budget}");
        let roomy = built(folder.path(), 4 << 30);
        let in_memory = roomy.generate(&request(roomy.model())).unwrap();
        assert_eq!(found, hash(&in_memory), "{name}");
    }
}
