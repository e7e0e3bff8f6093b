//! Weights in fp8 blocks give the bits of the same weights in f32, at their own size, wherever they
//! are.

use crate::common::{done, failed, folder, in_tiles, megabytes, outsize, path, report};
use outsize::checkpoint::{
    Checkpoint, Dtype, ShardWriter, StorageFormat, StoredWeight, TensorSpec,
};
use outsize::kernels::BlockWeight;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Some 35 MB in fp8. Blocks of 128 divide neither all rows nor all columns.
const CONFIG: &str = r#"{
    "model_type": "llama", "hidden_size": 776, "intermediate_size": 2056, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 96, "vocab_size": 3000,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "tie_word_embeddings": false, "eos_token_id": 2
}"#;

/// Matrices that all heads share end in the middle of blocks.
const LATENT: &str = r#"{
    "model_type": "deepseek_v3", "hidden_size": 300, "intermediate_size": 700, "moe_intermediate_size": 260,
    "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 5, "n_routed_experts": 8, "n_group": 4,
    "topk_group": 2, "num_experts_per_tok": 3, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 140,
    "kv_lora_rank": 150, "qk_nope_head_dim": 40, "qk_rope_head_dim": 16, "v_head_dim": 36, "vocab_size": 3000,
    "eos_token_id": 2
}"#;

fn model(dir: &TempDir) -> PathBuf {
    model_of(dir, CONFIG)
}

fn model_of(dir: &TempDir, text: &str) -> PathBuf {
    let config = dir.path().join("fp8.json");
    std::fs::write(&config, text).unwrap();
    let out = dir.path().join("fp8");
    let args = ["synth", path(&config), path(&out), "--dtype", "fp8", "--max-shard-size", "9MB"];
    done(&outsize(&args));
    out
}

/// The same model, its blocks in f32.
fn twin(dir: &TempDir, model: &Path, format: StorageFormat) -> PathBuf {
    let out = dir.path().join(format!("{}-f32", model.file_name().unwrap().display()));
    let checkpoint = Checkpoint::open(model).unwrap();
    let end = format!("weight{}", format.scales.unwrap().suffix);
    let is_scale = |name: &str| {
        name.ends_with(&end)
            || name.ends_with(".input_scale")
            || name.ends_with(".activation_scale")
    };
    let tensors: Vec<_> =
        (checkpoint.tensors().iter()).filter(|tensor| !is_scale(&tensor.name)).collect();
    let specs = tensors.iter().map(|tensor| {
        let dtype = match tensor.dtype {
            Dtype::F8E4M3 => Dtype::F32,
            dtype => dtype,
        };
        TensorSpec::new(&tensor.name, dtype, tensor.shape.clone())
    });
    let mut writer = ShardWriter::create(&out, specs.collect(), 1 << 30).unwrap();
    let text = std::fs::read_to_string(model.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config.as_object_mut().unwrap().remove("quantization_config").unwrap();
    writer.add_file("config.json", config.to_string().as_bytes()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        let file = std::fs::read(model.join(name)).unwrap();
        writer.add_file(name, &file).unwrap();
    }
    for tensor in tensors {
        let mut bytes = checkpoint.read(tensor).unwrap();
        if tensor.dtype == Dtype::F8E4M3 {
            let scales = checkpoint.get(&format.scales_name(&tensor.name).unwrap()).unwrap();
            let format = format.with_scales(scales.dtype);
            StoredWeight::new(format, tensor.clone(), Some(scales.clone())).unwrap();
            let [rows, columns] = tensor.shape[..] else { panic!("{:?}", tensor.shape) };
            let scales = checkpoint.read(scales).unwrap();
            let weight = BlockWeight::new(format, [rows, columns], bytes, scales, 0).unwrap();
            let mut values = vec![0.0; rows * columns];
            weight.dequantize(0..rows, &mut values);
            bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        }
        writer.write(&tensor.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
    assert_shard_gives(&out, model);
    out
}

/// `shard` dequantises to the same numbers, and keeps all bytes if it is not to.
fn assert_shard_gives(twin: &Path, model: &Path) {
    let out = twin.with_extension("sharded");
    done(&outsize(&["shard", path(model), path(&out)]));
    let [found, wanted] = [out.as_path(), model].map(|path| Checkpoint::open(path).unwrap());
    assert_eq!(found.tensors().len(), wanted.tensors().len());
    for tensor in wanted.tensors() {
        let same = found.get(&tensor.name).unwrap();
        assert_eq!((same.dtype, &same.shape), (tensor.dtype, &tensor.shape));
        assert!(found.read(same).unwrap() == wanted.read(tensor).unwrap(), "{}", tensor.name);
    }
    std::fs::remove_dir_all(&out).unwrap();
    done(&outsize(&["shard", path(model), path(&out), "--dtype", "f32"]));
    let [found, wanted] = [out.as_path(), twin].map(|path| Checkpoint::open(path).unwrap());
    assert_eq!(found.tensors().len(), wanted.tensors().len());
    for tensor in wanted.tensors().iter().filter(|tensor| tensor.dtype == Dtype::F32) {
        let same = found.get(&tensor.name).unwrap();
        assert!(found.read(same).unwrap() == wanted.read(tensor).unwrap(), "{}", tensor.name);
    }
    let config = std::fs::read_to_string(out.join("config.json")).unwrap();
    assert!(!config.contains("quantization_config"));
    std::fs::remove_dir_all(out).unwrap();
}

/// Who stores a model with other scales.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    /// compressed-tensors, with one for each row.
    Rows,
    /// The same with one for each matrix, and one for its input.
    Matrices,
    /// Mistral, likewise.
    Mistral,
}

impl Stored {
    fn format(self) -> StorageFormat {
        match self {
            Self::Mistral => StorageFormat::whole_fp8(),
            _ => StorageFormat::compressed_fp8(self == Self::Rows),
        }
    }

    fn config(self) -> Value {
        if self == Self::Mistral {
            return json!({
                "quant_method": "fp8", "activation_scheme": "static", "dequantize": false, "weight_block_size": null,
                "modules_to_not_convert": ["model.vision_tower", "lm_head"],
            });
        }
        let (strategy, of_input, dynamic) = match self {
            Self::Rows => ("channel", "token", true),
            _ => ("tensor", "tensor", false),
        };
        json!({
            "quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "quantization_status": "compressed", "kv_cache_scheme": null,
            "config_groups": { "group_0": {
                "targets": ["Linear"],
                "weights": { "num_bits": 8, "type": "float", "strategy": strategy, "dynamic": false, "symmetric": true },
                "input_activations": { "num_bits": 8, "type": "float", "strategy": of_input, "dynamic": dynamic },
            } },
        })
    }

    /// The scale of a layer's input, which nothing uses.
    fn of_input(self, weight: &str) -> Option<String> {
        let name = match self {
            Self::Rows => return None,
            Self::Matrices => "input_scale",
            Self::Mistral => "activation_scale",
        };
        Some(format!("{}{name}", weight.strip_suffix("weight").unwrap()))
    }
}

/// The same model with such scales in bf16.
fn with_scales(dir: &TempDir, fp8: &Path, twin: &Path, stored: Stored) -> PathBuf {
    let out = dir.path().join(format!("{stored:?}"));
    let format = stored.format();
    let [values, quantized] = [twin, fp8].map(|path| Checkpoint::open(path).unwrap());
    let mut specs = Vec::new();
    for tensor in values.tensors() {
        let dtype = quantized.get(&tensor.name).unwrap().dtype;
        specs.push(TensorSpec::new(&tensor.name, dtype, tensor.shape.clone()));
        if dtype == Dtype::F8E4M3 {
            let scales = match stored {
                Stored::Rows => vec![tensor.shape[0], 1],
                Stored::Matrices => vec![1],
                Stored::Mistral => vec![],
            };
            let name = format.scales_name(&tensor.name).unwrap();
            specs.push(TensorSpec::new(name, Dtype::BF16, scales));
            let of_input = stored.of_input(&tensor.name);
            specs.extend(of_input.map(|name| TensorSpec::new(name, Dtype::BF16, vec![])));
        }
    }
    let mut writer = ShardWriter::create(&out, specs, 1 << 30).unwrap();
    let text = std::fs::read_to_string(fp8.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["quantization_config"] = stored.config();
    writer.add_file("config.json", config.to_string().as_bytes()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        writer.add_file(name, &std::fs::read(fp8.join(name)).unwrap()).unwrap();
    }
    for tensor in values.tensors() {
        let bytes = values.read(tensor).unwrap();
        if quantized.get(&tensor.name).unwrap().dtype != Dtype::F8E4M3 {
            writer.write(&tensor.name, &bytes).unwrap();
            continue;
        }
        let floats: Vec<_> = bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
        let shape = tensor.shape[..].try_into().unwrap();
        let weight = BlockWeight::quantize(format, shape, &floats).unwrap();
        writer.write(&tensor.name, weight.data()).unwrap();
        let scales: Vec<u8> =
            weight.scales().as_chunks::<4>().0.iter().flat_map(|it| [it[2], it[3]]).collect();
        writer.write(&format.scales_name(&tensor.name).unwrap(), &scales).unwrap();
        if let Some(name) = stored.of_input(&tensor.name) {
            writer.write(&name, &[0x80, 0x3f]).unwrap();
        }
    }
    writer.finish().unwrap();
    out
}

#[test]
fn other_scales_in_fp8_give_the_bits_of_their_f32() {
    let dir = folder();
    let fp8 = model(&dir);
    let values = twin(&dir, &fp8, StorageFormat::fp8([128, 128]));
    for stored in [Stored::Rows, Stored::Matrices, Stored::Mistral] {
        let model = with_scales(&dir, &fp8, &values, stored);
        let twin = twin(&dir, &model, stored.format());
        let (wanted, tokens) = (logits(&dir, &twin, &[]), run(&twin, &[])["tokens"].take());
        for budget in [&[][..], &["--max-memory", &megabytes(62)]] {
            assert_eq!(logits(&dir, &model, budget), wanted, "{stored:?} {budget:?}");
            assert_eq!(run(&model, budget)["tokens"], tokens);
        }
    }
}

fn logits(dir: &TempDir, model: &Path, more: &[&str]) -> Vec<u8> {
    let out = dir.path().join("logits.safetensors");
    let ids = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20";
    let args = ["logits", path(model), "--ids", ids, "--force", "--output", path(&out)];
    done(&outsize(&[&args[..], more].concat()));
    std::fs::read(out).unwrap()
}

fn run(model: &Path, more: &[&str]) -> Value {
    let args = ["run", path(model), "--ids", "5,6,7,8", "--json", "--max-new-tokens", "6"];
    report(&outsize(&[&args[..], more].concat()))
}

#[test]
fn fp8_gives_the_bits_of_its_f32_at_its_own_size() {
    let dir = folder();
    let model = model(&dir);
    let twin = twin(&dir, &model, StorageFormat::fp8([128, 128]));
    let checkpoint = Checkpoint::open(&model).unwrap();
    let stored = checkpoint.total_bytes();
    let wanted = logits(&dir, &twin, &[]);
    let free = run(&twin, &[]);
    let all = run(&model, &[]);
    let weights = |report: &Value| report["placement"]["resident_bytes"].as_u64().unwrap();
    assert!(weights(&all) >= stored && weights(&all) < stored + (1 << 19), "{stored}");
    let (small, large) =
        (all["peak_rss_bytes"].as_u64().unwrap(), free["peak_rss_bytes"].as_u64().unwrap());
    let saved = Checkpoint::open(&twin).unwrap().total_bytes() - stored;
    assert!(small + saved * 9 / 10 < large, "{small} instead of {large}");
    assert_eq!(logits(&dir, &model, &[]), wanted);
    assert_eq!(all["tokens"], free["tokens"]);

    // All streamed by tile, some, and what is planned is what is used.
    let mut streamed = Vec::new();
    let budgets = if in_tiles() { [67, 70, 73] } else { [63, 69, 71] };
    for budget in budgets.map(|megabytes| format!("cpu={megabytes}MB")) {
        let budget = ["--max-memory", &budget];
        let found = run(&model, &budget);
        assert_eq!(found["tokens"], free["tokens"]);
        assert_eq!(logits(&dir, &model, &budget), wanted);
        let bytes = found["placement"]["streamed_bytes"].as_u64().unwrap();
        assert!(bytes > 0 && bytes < stored + (1 << 19));
        streamed.push(bytes);
        let most = found["placement"]["tiers"][0]["budget"].as_u64().unwrap();
        assert!(found["peak_rss_bytes"].as_u64().unwrap() <= most);
        let plan = report(&outsize(&[&["plan", path(&model), "--json"], &budget[..]].concat()));
        let disk = plan["tiers"][1]["weights"].as_u64().unwrap();
        assert!(disk > 0 && disk < stored + (1 << 19), "{plan}");
    }
    assert!(streamed.is_sorted_by(|more, less| more > less), "{streamed:?}");
}

#[test]
fn matrices_of_heads_in_fp8_give_the_bits_of_their_f32() {
    let dir = folder();
    let model = model_of(&dir, LATENT);
    let twin = twin(&dir, &model, StorageFormat::fp8([128, 128]));
    let checkpoint = Checkpoint::open(&model).unwrap();
    let dtype =
        |name: &str| checkpoint.get(&format!("model.layers.1.{name}.weight")).unwrap().dtype;
    assert_eq!(dtype("self_attn.kv_b_proj"), Dtype::F8E4M3);
    assert_eq!(dtype("mlp.gate"), Dtype::BF16);
    let (wanted, tokens) = (logits(&dir, &twin, &[]), run(&twin, &[])["tokens"].take());
    for budget in [&[][..], &["--max-memory", &megabytes(51)]] {
        assert_eq!(logits(&dir, &model, budget), wanted, "{budget:?}");
        assert_eq!(run(&model, budget)["tokens"], tokens);
    }
}

#[test]
fn what_a_file_says_of_its_scales_is_checked() {
    let dir = folder();
    let model = model(&dir);
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    for (from, to, message) in [
        ("\"fp8\"", "\"hqq\"", "quant_method"),
        ("\"dynamic\"", "\"blocked\"", "activation_scheme"),
        ("128,\n      128", "64,\n      128", "_scale_inv` have the shape"),
        ("128,\n      128", "0,\n      128", "weight_block_size"),
    ] {
        assert!(text.contains(from), "{text}");
        std::fs::write(&config, text.replace(from, to)).unwrap();
        let error = failed(&outsize(&["run", path(&model), "--ids", "1"]), 1);
        assert!(error.contains(message), "{error}");
    }
}
