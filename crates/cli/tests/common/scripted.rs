//! A model that always says the same.

use super::{done, outsize, path};
use outsize_checkpoint::{Dtype, ShardWriter, TensorSpec};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const HIDDEN: usize = 64;
const VOCAB: usize = 400;
/// The first token that is a piece.
const FIRST: usize = 300;
const BOS: usize = 1;
const EOS: usize = 2;

/// A model that answers a prompt, which ends with `<s>`, with these pieces; each is a token,
/// special or not. Attention and feed-forward layers are 0, so that each token says what follows
/// it.
pub fn scripted(dir: &TempDir, name: &str, template: &str, pieces: &[(&str, bool)]) -> PathBuf {
    let config = json!({
        "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": VOCAB, "rms_norm_eps": 1e-5, "max_position_embeddings": 1000,
        "tie_word_embeddings": false, "eos_token_id": EOS
    });
    let (file, folder) = (dir.path().join(format!("{name}.json")), dir.path().join(name));
    std::fs::write(&file, config.to_string()).unwrap();
    // For its tokenizer.
    done(&outsize(&["synth", path(&file), path(&folder)]));
    write_weights(&folder, &config, pieces.len());
    let tokenizer = folder.join("tokenizer.json");
    let mut value: Value = serde_json::from_slice(&std::fs::read(&tokenizer).unwrap()).unwrap();
    let vocab = value["model"]["vocab"].as_object_mut().unwrap();
    vocab.retain(|_, id| !(FIRST..FIRST + pieces.len()).contains(&(id.as_u64().unwrap() as usize)));
    for (id, (piece, special)) in (FIRST..).zip(pieces) {
        value["model"]["vocab"][*piece] = json!(id);
        value["added_tokens"].as_array_mut().unwrap().push(json!({
            "id": id, "content": piece, "special": special, "normalized": false, "single_word": false, "lstrip": false,
            "rstrip": false,
        }));
    }
    std::fs::write(&tokenizer, value.to_string()).unwrap();
    std::fs::write(folder.join("chat_template.jinja"), template).unwrap();
    folder
}

fn write_weights(folder: &Path, config: &Value, pieces: usize) {
    let chain: Vec<usize> = [BOS].into_iter().chain(FIRST..FIRST + pieces).chain([EOS]).collect();
    let shapes = [
        ("model.embed_tokens.weight", vec![VOCAB, HIDDEN]),
        ("lm_head.weight", vec![VOCAB, HIDDEN]),
        ("model.norm.weight", vec![HIDDEN]),
        ("model.layers.0.input_layernorm.weight", vec![HIDDEN]),
        ("model.layers.0.post_attention_layernorm.weight", vec![HIDDEN]),
        ("model.layers.0.self_attn.q_proj.weight", vec![HIDDEN, HIDDEN]),
        ("model.layers.0.self_attn.k_proj.weight", vec![HIDDEN / 2, HIDDEN]),
        ("model.layers.0.self_attn.v_proj.weight", vec![HIDDEN / 2, HIDDEN]),
        ("model.layers.0.self_attn.o_proj.weight", vec![HIDDEN, HIDDEN]),
        ("model.layers.0.mlp.gate_proj.weight", vec![32, HIDDEN]),
        ("model.layers.0.mlp.up_proj.weight", vec![32, HIDDEN]),
        ("model.layers.0.mlp.down_proj.weight", vec![HIDDEN, 32]),
    ];
    let generation = std::fs::read(folder.join("generation_config.json")).ok();
    let kept: Vec<_> = ["tokenizer.json", "tokenizer_config.json"]
        .into_iter()
        .filter_map(|name| Some((name, std::fs::read(folder.join(name)).ok()?)))
        .chain(generation.map(|bytes| ("generation_config.json", bytes)))
        .collect();
    std::fs::remove_dir_all(folder).unwrap();
    let spec =
        |(name, shape): &(&str, Vec<usize>)| TensorSpec::new(*name, Dtype::F32, shape.clone());
    let specs = shapes.iter().map(spec).collect();
    let mut writer = ShardWriter::create(folder, specs, 20_000_000).unwrap();
    writer.add_file("config.json", config.to_string().as_bytes()).unwrap();
    for (name, bytes) in kept {
        writer.add_file(name, &bytes).unwrap();
    }
    for (name, shape) in shapes {
        let mut values = vec![0f32; shape.iter().product()];
        match name {
            "model.embed_tokens.weight" => {
                chain.iter().enumerate().for_each(|(at, token)| values[token * HIDDEN + at] = 1.0);
            }
            "lm_head.weight" => {
                let next = chain.iter().skip(1).enumerate();
                next.for_each(|(at, token)| values[token * HIDDEN + at] = 5.0);
            }
            _ if shape.len() == 1 => values.fill(1.0),
            _ => {}
        }
        let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
        writer.write(name, &bytes).unwrap();
    }
    writer.finish().unwrap();
}
