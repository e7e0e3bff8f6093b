//! GGUF files as checkpoints: tensors, and the small files that are made from their metadata.

#[path = "../../../../fuzz/checks/gguf.rs"]
mod check;
mod configurations;
#[path = "../common/gguf.rs"]
mod made;
mod vision;

use made::*;
use outsize_checkpoint::{Checkpoint, Dtype, model_folder, read_object, read_optional};
use proptest::prelude::*;
use serde_json::{Map, Value as Json, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

fn written(bytes: &[u8]) -> (TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    (place, path)
}

/// What opening a file says.
fn refusal(bytes: &[u8]) -> String {
    let (_place, path) = written(bytes);
    let said = Checkpoint::open(&path).unwrap_err().to_string();
    assert!(said.contains("model.gguf: ") && !said.chars().any(char::is_control), "{said}");
    said
}

fn object(path: &Path, name: &str) -> Map<String, Json> {
    read_object(&path.join(name)).unwrap().unwrap()
}

fn config(architecture: &str, more: &[(&str, Value)]) -> Result<Map<String, Json>, String> {
    let (_place, path) = written(&model(architecture, more));
    let read = read_object(&path.join("config.json"));
    read.map(Option::unwrap).map_err(|error| error.to_string())
}

#[test]
fn tensors_have_the_names_of_transformers() {
    let tensors: &[Tensor<'_>] = &[
        ("token_embd.weight", &[256, 2], 14, 448),
        ("blk.11.attn_q.weight", &[64, 3], 8, 0),
        ("blk.0.ffn_norm.weight", &[5], 0, 224),
        ("other.weight", &[2, 3, 5], 1, 256),
        ("rope_freqs.weight", &[4], 0, 320),
    ];
    for (architecture, norm) in
        [("llama", "post_attention_layernorm"), ("gemma3", "pre_feedforward_layernorm")]
    {
        let bytes = file(&[("general.architecture", text(architecture))], tensors, 900);
        let (_place, path) = written(&bytes);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let found: Vec<_> = checkpoint
            .tensors()
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.dtype, tensor.shape.clone(), tensor.len))
            .collect();
        let norm = format!("model.layers.0.{norm}.weight");
        assert_eq!(
            found,
            [
                ("model.layers.11.self_attn.q_proj.weight", Dtype::Q8_0, vec![3, 64], 204),
                (&norm, Dtype::F32, vec![5], 20),
                ("other.weight", Dtype::F16, vec![5, 3, 2], 60),
                ("model.embed_tokens.weight", Dtype::Q6K, vec![2, 256], 420),
            ]
        );
        let norm = checkpoint.get(&norm).unwrap();
        assert_eq!(checkpoint.read(norm).unwrap()[..2], [224, 225]);
        assert_eq!((checkpoint.folder(), model_folder(&path)), (&*path, &*path));
    }
}

#[test]
fn types_of_blocks_have_their_numbers() {
    let numbers =
        [8, 2, 3, 6, 7, 10, 11, 12, 13, 14, 20, 23, 39, 19, 29, 16, 17, 22, 18, 21, 34, 35];
    for (number, dtype) in numbers.into_iter().zip(Dtype::GGUF_BLOCKS) {
        let (_place, path) = written(&file(&[], &[("x", &[256, 2], number, 0)], 600));
        let checkpoint = Checkpoint::open(&path).unwrap();
        let found = checkpoint.get("x").unwrap();
        let block = dtype.block();
        assert_eq!((found.dtype, found.len as usize), (dtype, 512 / block.elements * block.bytes));
    }
}

#[test]
fn experts_in_one_tensor_are_cut_apart() {
    let tensors: &[Tensor<'_>] = &[
        ("blk.3.ffn_gate_exps.weight", &[32, 2, 3], 8, 0),
        ("blk.3.ffn_down_exps.weight", &[2, 32, 3], 0, 224),
        ("blk.3.ffn_gate_inp_shexp.weight", &[5], 0, 992),
        // Not experts: of other dimensions, of none, or of more than there can be.
        ("blk.4.ffn_up_exps.weight", &[32, 2], 0, 1024),
        ("blk.5.ffn_up_exps.weight", &[32, 2, 0], 0, 1280),
        ("blk.6.ffn_up_exps.weight", &[0, 2, 1 << 40], 0, 1280),
        // As older files have them.
        ("blk.2.ffn_up.7.weight", &[2, 1], 0, 1312),
    ];
    let gates = |[before, gate, down]: [&str; 3]| -> Vec<(String, Vec<usize>, u64, u64)> {
        let one = |expert: u64, part: &str, shape: &[usize], start: u64, len: u64| {
            let name = format!("model.layers.3.{before}.{expert}.{part}.weight");
            (name, shape.to_vec(), start + expert * len, len)
        };
        let gates = (0..3).map(|expert| one(expert, gate, &[2, 32], 0, 68));
        gates.chain((0..3).map(|expert| one(expert, down, &[32, 2], 224, 256))).collect()
    };
    for (architecture, names) in [
        ("llama", ["block_sparse_moe.experts", "w1", "w2"]),
        ("qwen3moe", ["mlp.experts", "gate_proj", "down_proj"]),
    ] {
        let bytes = file(&[("general.architecture", text(architecture))], tensors, 1320);
        let (_place, path) = written(&bytes);
        let checkpoint = Checkpoint::open(&path).unwrap();
        let base = checkpoint.tensors()[0].offset;
        let found: Vec<_> = (checkpoint.tensors().iter())
            .map(|tensor| {
                (tensor.name.clone(), tensor.shape.clone(), tensor.offset - base, tensor.len)
            })
            .collect();
        let (experts, rest) = found.split_at(6);
        assert_eq!(experts, gates(names), "{architecture}");
        let [before, ..] = names;
        let up = if architecture == "llama" { "w3" } else { "up_proj" };
        let older = format!("model.layers.2.{before}.7.{up}.weight");
        let names: Vec<_> = rest.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(
            names,
            [
                "model.layers.3.mlp.shared_expert_gate.weight",
                "blk.4.ffn_up_exps.weight",
                "blk.5.ffn_up_exps.weight",
                "blk.6.ffn_up_exps.weight",
                &*older,
            ]
        );
        assert_eq!(rest[0].1, [1, 5]);
        // The bytes of the second expert are its own.
        let expert = checkpoint.read(&checkpoint.tensors()[1]).unwrap();
        assert_eq!((expert[0], expert.len()), (68, 68));
    }
}

#[test]
fn damaged_files_are_named_with_their_fault() {
    let good = model("llama", &[]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    let tensors = |tensors: &[Tensor<'_>]| file(&[], tensors, 64);
    let one = |shape: &[u64], kind, offset| tensors(&[("x", shape, kind, offset)]);
    let twice: &[Tensor<'_>] = &[("x", &[1], 0, 0), ("x", &[1], 0, 32)];
    let key = |key: &str, value| file(&[(key, value)], &[], 0);
    for (bytes, part) in [
        (b"GGML".to_vec(), "does not begin with \"GGUF\""),
        (Vec::new(), "cut short"),
        (with(4, 1), "version 1 is not supported"),
        (b"GGUF\0\0\0\x03".to_vec(), "little-endian"),
        (with(15, 0x80), "cut short"),
        (with(23, 0x80), "keys, over the limit"),
        (with(31, 0x80), "cut short"),
        (one(&[33], 8, 0), "no whole blocks of Q8_0"),
        (one(&[u64::MAX, 2], 0, 0), "too large"),
        (one(&[0, u64::MAX, 3], 0, 0), "too large"),
        (one(&[1], 0, 8), "multiple of the file's alignment"),
        (one(&[1], 0, u64::MAX - 31), "ends beyond"),
        (one(&[1], 0, 1 << 62), "ends beyond"),
        (one(&[17], 0, 0), "ends beyond"),
        (one(&[1, 1, 1, 1, 1], 0, 0), "5 dimensions"),
        (one(&[32], 9, 0), "Q8_1, is not built in"),
        (one(&[32], 36, 0), "IQ4_NL_4_4, is not built in"),
        (one(&[128], 13, 0), "no whole blocks of Q5_K"),
        (one(&[33], 39, 0), "no whole blocks of MXFP4"),
        (one(&[32], 77, 0), "number 77, is not built in"),
        (tensors(twice), "x\": it comes twice"),
        (tensors(&[("a", &[9], 0, 0), ("b", &[1], 0, 32)]), "inside of tensor \"a\""),
        (tensors(&[("a\u{1b}[2J", &[1], 0, 0)]), "control characters"),
        (key("a", (9, [9u32.to_le_bytes(), [0; 4]].concat())), "its type, 9,"),
        (key("a", (13, Vec::new())), "its type, 13,"),
        (key("a", (9, [&10u32.to_le_bytes()[..], &[255; 8]].concat())), "cut short"),
        (file(&[("a", u32(1)), ("a", u32(1))], &[], 0), "\"a\": it comes twice"),
        (key("general.alignment", u32(48)), "power of two"),
        (key("general.alignment", text("32")), "whole number"),
    ] {
        let said = refusal(&bytes);
        assert!(said.contains(part), "{said}\nshould contain\n{part}");
    }
}

#[test]
fn every_truncation_is_refused() {
    let good = model("llama", &[("a", texts(&["b", "c"])), ("d", f32(1.0))]);
    check::check(&good);
    for len in 0..good.len() {
        refusal(&good[..len]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever is read lies in the file.
    #[test]
    fn damage_never_panics(damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let tokens = [("tokenizer.ggml.model", text("llama")), ("tokenizer.ggml.tokens", texts(&["a", "b", "ab"])),
            ("tokenizer.ggml.scores", array(&[f32(0.0), f32(1.0), f32(2.0)]))];
        let mut bytes = model("llama", &tokens);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        check::check(&bytes);
        let (_place, path) = written(&bytes);
        if let Ok(checkpoint) = Checkpoint::open(&path) {
            for tensor in checkpoint.tensors() {
                prop_assert_eq!(checkpoint.read(tensor).unwrap().len() as u64, tensor.len);
            }
        }
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            if let Err(error) = read_optional(&path.join(name), 1 << 20) {
                prop_assert!(!error.to_string().chars().any(char::is_control));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Counts, lengths, types and offsets that lie, wherever they stand.
    #[test]
    fn numbers_that_lie_never_panic(
        lies in prop::collection::vec((any::<prop::sample::Index>(), 0usize..9, any::<bool>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let tensors: &[Tensor<'_>] =
            &[("token_embd.weight", &[32, 3], 8, 0), ("blk.0.attn_q.weight", &[4, 4, 4], 0, 128), ("x", &[], 0, 416)];
        let values = [("general.architecture", text("llama")), ("general.alignment", u32(32)),
            ("tokenizer.ggml.model", text("llama")), ("tokenizer.ggml.tokens", texts(&["a", "b", "ab"])),
            ("tokenizer.ggml.scores", array(&[f32(0.0), f32(1.0), f32(2.0)])), ("llama.rope.scaling.factor", f32(2.0))];
        let mut bytes = file(&values, tensors, 420);
        // Where something ends or begins: every other place is within a text.
        let header = bytes.len() - 420;
        for (at, what, short) in lies {
            let len = bytes.len() as u64;
            let lie = [0, 1, len, len - 1, 1 << 31, 1 << 63, (1 << 63) - 1, u64::MAX, u64::MAX / 4][what];
            let lie = &lie.to_le_bytes()[..if short { 4 } else { 8 }];
            let at = at.index(header - 8);
            bytes[at..at + lie.len()].copy_from_slice(lie);
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let began = Instant::now();
        check::check(&bytes);
        let (_place, path) = written(&bytes);
        drop(Checkpoint::open(&path));
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
            if let Err(error) = read_optional(&path.join(name), 1 << 20) {
                prop_assert!(!error.to_string().chars().any(char::is_control));
            }
        }
        prop_assert!(began.elapsed() < Duration::from_secs(10));
    }
}

/// Metadata that would take for ever, or all memory, to turn into the files of a folder.
#[test]
fn metadata_beyond_all_bounds_is_refused() {
    let said = |name: &str, more: &[(&str, Value)]| {
        let (_place, path) = written(&model("llama", more));
        let began = Instant::now();
        let said = read_optional(&path.join(name), 1 << 20).unwrap_err().to_string();
        assert!(began.elapsed() < Duration::from_secs(10), "{said}");
        said
    };
    let long = "ab".repeat(1 << 19);
    let long = said(
        "tokenizer.json",
        &[
            ("tokenizer.ggml.model", text("llama")),
            ("tokenizer.ggml.tokens", texts(&["a", "b", &long])),
            ("tokenizer.ggml.scores", array(&[f32(0.0), f32(1.0), f32(2.0)])),
        ],
    );
    assert!(long.contains("tokenizer.ggml.tokens\": they are too long"), "{long}");
    let many = vec!["a"; (1 << 20) + 1];
    let many = [("tokenizer.ggml.model", text("gpt2")), ("tokenizer.ggml.tokens", texts(&many))];
    let many = said("tokenizer.json", &many);
    assert!(many.contains("there are over 1048576 tokens"), "{many}");
    let wide = said("config.json", &[("llama.x", texts(&vec!["a"; 1 << 18]))]);
    assert!(wide.contains("\"llama.x\": it takes the configuration over"), "{wide}");
}

/// A model of which each part has one tensor, by the names of the parts and what is wrong with
/// them.
fn in_parts(change: impl Fn(usize, &mut Vec<(&str, Value)>, &mut &str)) -> (TempDir, Vec<PathBuf>) {
    let place = tempfile::tempdir().unwrap();
    let tensors = ["token_embd.weight", "blk.0.attn_q.bias", "output.weight"];
    let paths = (0..3).map(|at| {
        let mut values = vec![("split.no", u32(at as u32)), ("split.count", u32(3))];
        if at == 0 {
            values.push(("general.architecture", text("llama")));
        }
        let mut name = tensors[at];
        change(at, &mut values, &mut name);
        let path = place.path().join(format!("m-{:05}-of-00003.gguf", at + 1));
        let data = 1000 * (at + 1);
        fs::write(&path, file(&values, &[(name, &[2, 3], 0, 32 * at as u64)], data)).unwrap();
        path
    });
    let paths = paths.collect();
    (place, paths)
}

#[test]
fn parts_are_one_checkpoint() {
    let (_place, paths) = in_parts(|_, _, _| {});
    let checkpoint = Checkpoint::open(&paths[0]).unwrap();
    let found: Vec<_> =
        checkpoint.tensors().iter().map(|tensor| (tensor.file, &*tensor.name)).collect();
    let wanted =
        ["model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.bias", "lm_head.weight"];
    assert_eq!(found, wanted.into_iter().enumerate().collect::<Vec<_>>());
    for (at, tensor) in checkpoint.tensors().iter().enumerate() {
        // The data counts up.
        assert_eq!(checkpoint.read(tensor).unwrap()[..2], [32 * at as u8, 32 * at as u8 + 1]);
    }
    // The configuration is made of all.
    let config = object(&paths[0], "config.json");
    assert_eq!(
        (&config["tie_word_embeddings"], &config["attention_bias"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(config["vocab_size"], 3);
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let said = |paths: &[PathBuf], at: usize| Checkpoint::open(&paths[at]).unwrap_err().to_string();
    let (_place, paths) = in_parts(|_, _, _| {});
    let not_first = said(&paths, 1);
    assert!(not_first.contains("not the first part: name m-00001-of-00003.gguf"), "{not_first}");
    fs::remove_file(&paths[2]).unwrap();
    let missing = said(&paths, 0);
    assert!(missing.contains("the part m-00003-of-00003.gguf is missing"), "{missing}");
    let (_place, paths) = in_parts(|at, values, _| {
        if at == 2 {
            values[0].1 = u32(1);
        }
    });
    let other = said(&paths, 0);
    assert!(other.contains("m-00003") && other.contains("it is not part 3 of 3"), "{other}");
    let (_place, paths) = in_parts(|_, _, name| *name = "output.weight");
    let twice = said(&paths, 0);
    assert!(twice.contains("\"output.weight\": another part has it too"), "{twice}");
    let (place, paths) = in_parts(|_, _, _| {});
    let renamed = place.path().join("m.gguf");
    fs::rename(&paths[0], &renamed).unwrap();
    let renamed = said(&[renamed], 0);
    assert!(
        renamed.contains("part 1 of 3, and its name should end in -00001-of-00003.gguf"),
        "{renamed}"
    );
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    for (architecture, more, part) in [
        ("rwkv7", ("general.type", text("model")), "\"rwkv7\" is not built in for GGUF"),
        ("llama", ("general.type", text("adapter")), "name the file of the whole model"),
        ("llama", ("split.count", u32(3)), "-00001-of-00003.gguf"),
        ("llama", ("general.quantization_version", u32(1)), "only 2 is"),
        ("llama", ("llama.rope.scaling.type", text("ntk")), "\"ntk\" are not built in"),
    ] {
        let said = config(architecture, &[more]).unwrap_err();
        assert!(said.contains("model.gguf: metadata ") && said.contains(part), "{said}");
    }
    let (_place, path) = written(&file(&[], &[], 0));
    let said = read_object(&path.join("config.json")).unwrap_err().to_string();
    assert!(said.contains("general.architecture\": it is missing"), "{said}");
}

#[test]
fn scores_become_merges() {
    let tokens = ["<unk>", "<s>", "<0x41>", "a", "b", "ab", "aab", "c"];
    let kinds = [2, 3, 6, 1, 1, 1, 1, 4];
    let kinds: Vec<_> = kinds.iter().map(|kind| (5, i32::to_le_bytes(*kind).to_vec())).collect();
    let scores = [0.0, 0.0, 0.0, -3.0, -4.0, -2.0, -1.0, 0.0].map(f32);
    let values = [
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", texts(&tokens)),
        ("tokenizer.ggml.token_type", array(&kinds)),
        ("tokenizer.ggml.scores", array(&scores)),
        ("tokenizer.ggml.bos_token_id", u32(1)),
        ("tokenizer.ggml.add_eos_token", flag(true)),
        ("tokenizer.chat_template", text("{{ messages }}")),
    ];
    let (_place, path) = written(&model("llama", &values));
    let tokenizer = object(&path, "tokenizer.json");
    assert_eq!(tokenizer["model"]["vocab"]["aab"], 6);
    assert_eq!(tokenizer["model"]["merges"], json!([["a", "ab"], ["a", "b"]]));
    assert_eq!(tokenizer["model"]["unk_token"], "<unk>");
    assert_eq!(tokenizer["model"]["byte_fallback"], true);
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let added: Vec<_> = added.iter().map(|token| (&token["id"], &token["special"])).collect();
    assert_eq!(json!(added), json!([[0, true], [1, true], [7, false]]));
    let around = object(&path, "tokenizer_config.json");
    assert_eq!(around["bos_token"], "<s>");
    assert_eq!((&around["add_bos_token"], &around["add_eos_token"]), (&json!(true), &json!(true)));
    assert_eq!(around["chat_template"], "{{ messages }}");
    let special = |token: &str| json!({"SpecialToken": {"id": token, "type_id": 0}});
    let sequence = json!({"Sequence": {"id": "A", "type_id": 0}});
    assert_eq!(tokenizer["post_processor"]["single"], json!([special("<s>"), sequence]));
    let known = json!({"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}});
    assert_eq!(tokenizer["post_processor"]["special_tokens"], known);
    assert!(read_optional(&path.join("generation_config.json"), 1).unwrap().is_none());
}

#[test]
fn tokenizers_are_refused_by_name() {
    let tokens = ("tokenizer.ggml.tokens", texts(&["a", "b"]));
    let gpt2 = ("tokenizer.ggml.model", text("gpt2"));
    let llama = ("tokenizer.ggml.model", text("llama"));
    for (values, part) in [
        (vec![("tokenizer.ggml.model", text("bert")), tokens.clone()], "\"bert\" are not built in"),
        (vec![gpt2.clone()], "tokens\": it is missing"),
        (vec![gpt2.clone(), tokens.clone(), ("tokenizer.ggml.pre", text("odd"))], "\"odd\" is not"),
        (vec![gpt2.clone(), tokens.clone()], "pre\": \"\" is not built in"),
        (
            vec![gpt2, tokens.clone(), ("tokenizer.ggml.pre", text("qwen2"))],
            "merges\": it is missing",
        ),
        (vec![llama.clone(), tokens.clone()], "scores\": it is missing"),
        (
            vec![llama, tokens, ("tokenizer.ggml.scores", array(&[f32(0.0)]))],
            "1 entries, and there are 2 tokens",
        ),
    ] {
        let (_place, path) = written(&model("llama", &values));
        let said = read_optional(&path.join("tokenizer.json"), 1 << 20).unwrap_err().to_string();
        assert!(said.contains(part), "{said}\nshould contain\n{part}");
    }
    let (_place, path) = written(&model("llama", &[]));
    assert!(read_optional(&path.join("tokenizer.json"), 1 << 20).unwrap().is_none());
}
