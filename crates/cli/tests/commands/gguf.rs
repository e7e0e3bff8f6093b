//! A GGUF file is a model by itself: every command takes one.

#[path = "../../../checkpoint/tests/common/gguf.rs"]
mod made;

use crate::common::{done, failed, folder, outsize, path, report};
use made::{array, f32, file, text, texts, u32};
use std::path::PathBuf;
use tempfile::TempDir;

const TOKENS: usize = 260;
const WIDTH: u64 = 32;

/// A Llama of one layer, its matrices in Q8_0 of random numbers, with a token for each byte.
fn model(dir: &TempDir) -> PathBuf {
    let bytes = (0..256).map(|byte| format!("<0x{byte:02X}>"));
    let tokens: Vec<String> =
        ["<unk>", "<s>", "</s>", "▁"].map(str::to_owned).into_iter().chain(bytes).collect();
    let tokens: Vec<_> = tokens.iter().map(String::as_str).collect();
    let kinds = [2, 3, 3, 1].into_iter().chain([6; 256]);
    let kinds: Vec<_> = kinds.map(|kind| (5, i32::to_le_bytes(kind).to_vec())).collect();
    let values = [
        ("general.architecture", text("llama")),
        ("llama.block_count", u32(1)),
        ("llama.context_length", u32(64)),
        ("llama.embedding_length", u32(32)),
        ("llama.feed_forward_length", u32(32)),
        ("llama.attention.head_count", u32(4)),
        ("llama.attention.layer_norm_rms_epsilon", f32(1e-5)),
        ("tokenizer.ggml.model", text("llama")),
        ("tokenizer.ggml.tokens", texts(&tokens)),
        ("tokenizer.ggml.token_type", array(&kinds)),
        ("tokenizer.ggml.scores", array(&vec![f32(0.0); TOKENS])),
        ("tokenizer.ggml.bos_token_id", u32(1)),
        ("tokenizer.ggml.eos_token_id", u32(2)),
    ];
    let square = [WIDTH, WIDTH];
    let table = [WIDTH, TOKENS as u64];
    let matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let matrices: Vec<_> = matrices.iter().map(|name| format!("blk.0.{name}.weight")).collect();
    let mut tensors: Vec<(&str, &[u64], u32)> =
        matrices.iter().map(|name| (name.as_str(), &square[..], 8)).collect();
    tensors.push(("token_embd.weight", &table, 8));
    for name in ["blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"] {
        tensors.push((name, &square[..1], 0));
    }
    let (mut placed, mut data) = (Vec::new(), Vec::new());
    let mut state = 1u32;
    for (name, shape, kind) in tensors {
        placed.push((name, shape, kind, data.len() as u64));
        if kind == 0 {
            data.extend(1f32.to_le_bytes().repeat(32));
            continue;
        }
        for _ in 0..shape[1] {
            // 2⁻⁹ as f16.
            data.extend(0x1800u16.to_le_bytes());
            data.extend((0..32).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            }));
        }
        data.resize(data.len().next_multiple_of(32), 0);
    }
    let mut bytes = file(&values, &placed, data.len());
    let start = bytes.len() - data.len();
    bytes[start..].copy_from_slice(&data);
    let out = dir.path().join("tiny.gguf");
    std::fs::write(&out, bytes).unwrap();
    out
}

#[test]
fn every_command_takes_a_gguf_file() {
    let dir = folder();
    let model = model(&dir);
    let model = path(&model);
    let said =
        report(&outsize(&["run", model, "--prompt", "Ab", "--json", "--max-new-tokens", "4"]));
    // The beginning, a space, and two bytes.
    assert_eq!(
        (&said["prompt_tokens"], said["tokens"].as_array().map(Vec::len)),
        (&4.into(), Some(4))
    );
    let plan = report(&outsize(&["plan", model, "--json"]));
    assert!(plan.to_string().contains("model.layers.0"), "{plan}");
    let out = dir.path().join("logits.safetensors");
    done(&outsize(&["logits", model, "--ids", "1,2", "--output", path(&out)]));
    let estimate = outsize(&["estimate", model]);
    done(&estimate);
    let notes = String::from_utf8_lossy(&estimate.stderr).into_owned();
    assert!(!notes.contains("llama."), "{notes}");
}

#[test]
fn a_damaged_file_is_named() {
    let dir = folder();
    let good = model(&dir);
    let bytes = std::fs::read(&good).unwrap();
    std::fs::write(&good, &bytes[..bytes.len() - 1]).unwrap();
    for command in ["run", "plan", "estimate"] {
        let more = if command == "run" { &["--prompt", "a"][..] } else { &[] };
        let said = failed(&outsize(&[&[command, path(&good)], more].concat()), 1);
        assert!(said.contains("tiny.gguf: tensor \"output_norm.weight\""), "{said}");
    }
}
