//! Files of adapters: what they may be called and hold, and what is refused.

use std::path::{Path, PathBuf};

use crate::common::fixture;
use outsize_diffuse::{ImageModel, ImagePipeline, ImageRequest, ImageSettings, adapter_file};
use outsize_plan::Budget;
use proptest::prelude::*;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A weight `[4, 16]` of the fixture's denoiser.
const MODULE: &str = "unet.down_blocks.0.resnets.0.time_emb_proj";

/// Name, type and shape of a tensor.
type Tensor<'a> = (String, &'a str, Vec<usize>);

fn model() -> ImageModel {
    ImageModel::open(&fixture("pipeline"), None).unwrap()
}

/// A file of safetensors with these tensors, in which each byte is `byte`, and a note of diffusers.
fn file(folder: &TempDir, tensors: &[Tensor<'_>], byte: u8, note: Option<&Value>) -> PathBuf {
    let (mut header, mut end) = (Map::new(), 0);
    for (name, dtype, shape) in tensors {
        let start = end;
        let bytes = match *dtype {
            "I64" => 8,
            "F32" | "I32" => 4,
            _ => 2,
        };
        end += bytes * shape.iter().product::<usize>();
        let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
        header.insert(name.clone(), entry);
    }
    if let Some(note) = note {
        let note = note.as_str().map_or_else(|| note.to_string(), str::to_owned);
        header.insert("__metadata__".into(), json!({ "lora_adapter_metadata": note }));
    }
    let header = Value::Object(header).to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(vec![byte; end]);
    let path = folder.path().join("adapter.safetensors");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Both matrices of a module.
fn pair(module: &str, down: &[usize], up: &[usize]) -> Vec<Tensor<'static>> {
    let tensor =
        |side, shape: &[usize]| (format!("{module}.lora_{side}.weight"), "F16", shape.to_vec());
    vec![tensor('A', down), tensor('B', up)]
}

fn refusal(tensors: &[Tensor<'_>], byte: u8, note: Option<&Value>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, tensors, byte, note);
    let error = model().adapt(&path, 1.0).unwrap_err().to_string();
    assert!(error.starts_with(&path.display().to_string()), "{error}");
    error
}

#[test]
fn what_does_not_fit_the_model_is_named() {
    let right = || pair(MODULE, &[2, 16], &[4, 2]);
    let with = |name: &str, dtype, shape: &[usize]| {
        let more = (format!("{MODULE}.{name}"), dtype, shape.to_vec());
        [right(), vec![more]].concat()
    };
    let folder = tempfile::tempdir().unwrap();
    model().adapt(&file(&folder, &right(), 0, None), 1.0).unwrap();
    let wide = [right(), pair("unet.mid_block.nothing", &[2, 16], &[4, 2])].concat();
    let flat = format!("lora_{}", MODULE.replace('.', "_"));
    let twice = [right(), pair(&flat, &[2, 16], &[4, 2])].concat();
    let dotted = [right(), pair(&MODULE["unet.".len()..], &[2, 16], &[4, 2])].concat();
    for (tensors, named) in [
        (pair(MODULE, &[2, 15], &[4, 2]), "[2, 15]"),
        (pair(MODULE, &[2, 16], &[5, 2]), "[5, 2]"),
        (pair(MODULE, &[2, 16], &[4, 3]), "[4, 3]"),
        (pair(MODULE, &[0, 16], &[4, 0]), "[0, 16]"),
        (pair(MODULE, &[16], &[4, 2]), "[16]"),
        (pair(MODULE, &[], &[4, 2]), "[]"),
        (right()[..1].to_vec(), "has not two matrices"),
        (wide, "no module unet.mid_block.nothing"),
        (twice, "under another name too"),
        (dotted, "under another name too"),
        (with("dora_scale", "F16", &[4]), "DoRA"),
        (with("hada_w1_a", "F16", &[4]), "LoHa"),
        (with("lora_mid.weight", "F16", &[4]), "Tucker"),
        (with("diff_b", "F16", &[4]), "a whole difference"),
        (with("weight", "F16", &[4]), "is no matrix of a LoRA adapter"),
        (with("alpha", "F16", &[2]), "must hold one finite number"),
        (with("alpha", "I32", &[]), "must be of F32"),
        (with("lora_A.other.weight", "F16", &[2, 16]), "is for the same as another one"),
        (with("lora_A.a.b.weight", "F16", &[2, 16]), "is no matrix of a LoRA adapter"),
    ] {
        let error = refusal(&tensors, 0, None);
        assert!(error.contains(named), "{named}: {error}");
    }
    // Ones in all bits are no number.
    assert!(refusal(&with("alpha", "F16", &[]), 0xff, None).contains("one finite number"));
    let mut whole: Vec<_> = right();
    whole[1].1 = "I32";
    assert!(refusal(&whole, 0, None).contains("must be of F32, BF16 or F16"));
    for scale in [f64::NAN, f64::INFINITY] {
        let error = model().adapt(&file(&folder, &right(), 0, None), scale).unwrap_err();
        assert!(error.to_string().contains("is not possible"), "{error}");
    }
    let none = model().adapt(Path::new("none.safetensors"), 1.0).unwrap_err().to_string();
    assert!(none.contains("there is no such file"), "{none}");
}

#[test]
fn what_peft_noted_is_heeded_or_refused() {
    let tensors = pair(MODULE, &[2, 16], &[4, 2]);
    let noted = |field: &str, value: Value| {
        json!({
            "unet.peft_type": "LORA", "unet.r": 2, "unet.lora_alpha": 3,
            "unet.target_modules": ["time_emb_proj"], format!("unet.{field}"): value,
        })
    };
    let folder = tempfile::tempdir().unwrap();
    let right = noted("use_dora", json!(false));
    model().adapt(&file(&folder, &tensors, 0, Some(&right)), 1.0).unwrap();
    for (note, named) in [
        (noted("use_dora", json!(true)), "use_dora"),
        (noted("lora_alpha", json!("many")), "lora_alpha"),
        (noted("peft_type", json!("LOHA")), "peft_type"),
        (noted("alpha_pattern", json!({"(": 2})), "alpha_pattern"),
        (json!("no object"), "JSON"),
        (json!("[1]"), "JSON"),
    ] {
        let error = refusal(&tensors, 0, Some(&note));
        assert!(error.contains(named), "{named}: {error}");
    }
}

#[test]
fn the_file_of_a_folder_is_chosen_by_its_name() {
    let choose = |names: &[&'static str]| adapter_file(names.iter().copied());
    let saved = "pytorch_lora_weights.safetensors";
    assert_eq!(choose(&["a.safetensors", saved, "b.safetensors"]), Some(saved));
    assert_eq!(choose(&["README.md", "style.safetensors"]), Some("style.safetensors"));
    assert_eq!(choose(&["a.safetensors", "b.safetensors"]), None);
    assert_eq!(choose(&["unet/model.safetensors", "README.md"]), None);
}

#[test]
fn pictures_have_the_same_bits_in_any_budget() {
    for (name, files) in [
        ("pipeline", &["kohya.safetensors", "peft.safetensors"][..]),
        ("pipeline-flux", &["kohya.safetensors"]),
    ] {
        let folder = fixture(name);
        let (steps, side) = (Some(8), Some(16));
        let request =
            ImageRequest { steps, width: side, height: side, ..ImageRequest::new("a horse") };
        let open = |budget: &str| {
            let settings = ImageSettings::new(Budget::parse(budget).unwrap());
            let mut pipeline = ImagePipeline::open(&folder, None, settings).unwrap();
            for file in files {
                pipeline.adapt(&folder.join(file), 0.6).unwrap();
            }
            pipeline
        };
        let roomy = open("cpu=1GB");
        let pictures = roomy.generate(&request).unwrap();
        let least = roomy.model().estimate(roomy.settings(), &request).unwrap();
        let least = least.iter().filter_map(|(_, estimate)| estimate.least).max().unwrap();
        // What this process takes by itself has grown since it was counted.
        let tight = open(&format!("cpu={}", least + (64 << 20)));
        assert_eq!(tight.generate(&request).unwrap(), pictures, "{name}");
    }
}

/// What may stand in the names of tensors.
fn name() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just(MODULE.to_owned()),
        Just(format!("lora_{}", MODULE.replace('.', "_"))),
        Just("unet.down_blocks.0.attentions.0.transformer_blocks.0.attn1.processor".to_owned()),
        Just("to_q_lora".to_owned()),
        Just("to_out".to_owned()),
        Just("lora_A".to_owned()),
        Just("lora_B".to_owned()),
        Just("lora_down".to_owned()),
        Just("lora_up".to_owned()),
        Just("down".to_owned()),
        Just("weight".to_owned()),
        Just("alpha".to_owned()),
        Just("base_model.model".to_owned()),
        "[a-z_.äé]{0,6}",
    ];
    proptest::collection::vec(part, 1..5).prop_map(|parts| parts.join("."))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a file calls its tensors: it is an adapter that can be read, or one error.
    #[test]
    fn any_names_are_taken_or_refused(
        tensors in proptest::collection::btree_map(
            name(),
            (prop_oneof![Just("F16"), Just("F32"), Just("BF16"), Just("I64")],
             proptest::collection::vec(prop_oneof![Just(0usize), Just(1), Just(2), Just(4), Just(16)], 0..4)),
            0..6,
        ),
        byte in any::<u8>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let tensors: Vec<_> = tensors.into_iter().map(|(name, (dtype, shape))| (name, dtype, shape)).collect();
        let path = file(&folder, &tensors, byte, None);
        let mut model = model();
        if model.adapt(&path, 1.0).is_ok() {
            let settings = ImageSettings::new(Budget::parse("cpu=1GB").unwrap());
            model.plan(&settings, &ImageRequest::new("")).unwrap();
        }
    }
}
