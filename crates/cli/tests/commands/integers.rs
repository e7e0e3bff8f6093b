//! Weights of integers give the bits of the same weights in f32, at their own size, wherever they
//! are.

use crate::common::{
    assert_alike, assert_same_bits, done, failed, folder, megabytes, outsize, path, read_logits,
    report,
};
use outsize::checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Some 35 MB, of which 26 are in 4 bits. Groups of 128 are cut at the end of some rows.
const CONFIG: &str = r#"{
    "model_type": "llama", "hidden_size": 768, "intermediate_size": 2112, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 96, "vocab_size": 3000,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "tie_word_embeddings": false, "eos_token_id": 2
}"#;

/// Columns that share a scale.
const GROUP: usize = 128;

fn synth(dir: &TempDir, dtype: &str) -> PathBuf {
    let config = dir.path().join("config.json");
    std::fs::write(&config, CONFIG).unwrap();
    let out = dir.path().join(dtype);
    let args = ["synth", path(&config), path(&out), "--dtype", dtype, "--max-shard-size", "9MB"];
    done(&outsize(&args));
    out
}

/// A matrix as integers, and what they are worth.
struct Matrix {
    rows: usize,
    columns: usize,
    numbers: Vec<u8>,
    zeros: Vec<u8>,
    /// Bits of f16.
    scales: Vec<u16>,
}

impl Matrix {
    /// Of a matrix in words of 4 or 8 bits, with scales and zero points of its own.
    fn of(packed: &[u8], [rows, columns]: [usize; 2], bits: usize) -> Self {
        let row = packed.len() / rows;
        let number = |at: usize| {
            let (byte, shift) = (at % columns * bits / 8, at % columns * bits % 8);
            packed[at / columns * row + byte] >> shift & ((1u32 << bits) - 1) as u8
        };
        let groups = rows * columns.div_ceil(GROUP);
        let middle = 1 << (bits - 1);
        let zero = |at: usize| if at % 50 == 49 { 0 } else { middle - 2 + (at * 7 % 5) as u8 };
        // From 2^-8 to 2^-7, or a sixteenth of these.
        let exponent = if bits == 4 { 0x1c00 } else { 0x0c00 };
        Self {
            rows,
            columns,
            numbers: (0..rows * columns).map(number).collect(),
            zeros: (0..groups).map(zero).collect(),
            scales: (0..groups).map(|at| exponent + (at * 37 % 1024) as u16).collect(),
        }
    }

    fn groups(&self) -> usize {
        self.columns.div_ceil(GROUP)
    }

    fn worth(&self) -> Vec<u8> {
        let mut worth = Vec::with_capacity(4 * self.numbers.len());
        let rows = self.numbers.chunks(self.columns);
        // Groups do not go on in the next row.
        for (group, numbers) in rows.flat_map(|row| row.chunks(GROUP)).enumerate() {
            let bits = self.scales[group];
            let scale = (1024.0 + f32::from(bits & 0x3ff)) * 2f32.powi(i32::from(bits >> 10) - 25);
            let zero = f32::from(self.zeros[group]);
            for number in numbers {
                worth.extend_from_slice(&((f32::from(*number) - zero) * scale).to_le_bytes());
            }
        }
        worth
    }

    /// Scales from group to group.
    fn turned_scales(&self) -> Vec<u8> {
        let all = (0..self.groups()).flat_map(|group| (0..self.rows).map(move |row| (row, group)));
        all.flat_map(|(row, group)| self.scales[row * self.groups() + group].to_le_bytes())
            .collect()
    }

    /// Words of the numbers that `number` gives of each.
    fn words(bits: usize, count: usize, number: impl Fn(usize, usize) -> u8) -> Vec<u32> {
        let word = |at| (0..32 / bits).map(|of| u32::from(number(at, of)) << (of * bits)).sum();
        (0..count).map(word).collect()
    }

    /// The tensors of a layer as AWQ has them, or as GPTQ does.
    fn tensors(
        &self,
        method: &str,
        bits: usize,
    ) -> Vec<(&'static str, Dtype, Vec<usize>, Vec<u8>)> {
        const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
        let each = 32 / bits;
        let (rows, columns, groups) = (self.rows, self.columns, self.groups());
        let bytes =
            |words: Vec<u32>| words.into_iter().flat_map(u32::to_le_bytes).collect::<Vec<u8>>();
        let place = |of: usize| if method == "awq" { ORDER[of] } else { of };
        let zeros = Self::words(bits, groups * rows / each, |at, of| {
            let (group, row) = (at / (rows / each), at % (rows / each) * each + place(of));
            self.zeros[row * groups + group]
        });
        let (shape, numbers) = match method {
            "awq" => (
                vec![columns, rows / each],
                Self::words(bits, columns * rows / each, |at, of| {
                    let (column, row) = (at / (rows / each), at % (rows / each) * each + ORDER[of]);
                    self.numbers[row * columns + column]
                }),
            ),
            _ => (
                vec![columns / each, rows],
                Self::words(bits, columns / each * rows, |at, of| {
                    self.numbers[at % rows * columns + at / rows * each + of]
                }),
            ),
        };
        let ones = if bits == 4 { 0x1111_1111 } else { 0x0101_0101 };
        let zeros = zeros.into_iter().map(|word| match method {
            "gptq" => word.wrapping_sub(ones),
            _ => word,
        });
        let mut tensors = vec![
            ("qweight", Dtype::I32, shape, bytes(numbers)),
            ("qzeros", Dtype::I32, vec![groups, rows / each], bytes(zeros.collect())),
            ("scales", Dtype::F16, vec![groups, rows], self.turned_scales()),
        ];
        if method == "gptq" {
            let order = (0..columns).flat_map(|at| ((at / GROUP) as i32).to_le_bytes());
            tensors.push(("g_idx", Dtype::I32, vec![columns], order.collect()));
        }
        tensors
    }
}

/// A checkpoint of integers as AWQ or GPTQ writes them, and the same in f32.
fn turned(dir: &TempDir, packed: &Path, method: &str, bits: usize) -> [PathBuf; 2] {
    let checkpoint = Checkpoint::open(packed).unwrap();
    let (mut stored, mut wide) = (Vec::new(), Vec::new());
    for tensor in checkpoint.tensors() {
        let bytes = || checkpoint.read(tensor).unwrap();
        let Some(module) = tensor.name.strip_suffix("weight_packed") else {
            if !tensor.name.contains(".weight_") {
                let plain = (tensor.name.clone(), tensor.dtype, tensor.shape.clone(), bytes());
                stored.push(plain.clone());
                wide.push(plain);
            }
            continue;
        };
        let columns = tensor.shape[1] * 32 / bits;
        let matrix = Matrix::of(&bytes(), [tensor.shape[0], columns], bits);
        for (name, dtype, shape, bytes) in matrix.tensors(method, bits) {
            stored.push((format!("{module}{name}"), dtype, shape, bytes));
        }
        let shape = vec![matrix.rows, columns];
        wide.push((format!("{module}weight"), Dtype::F32, shape, matrix.worth()));
    }
    let text = std::fs::read_to_string(packed.join("config.json")).unwrap();
    let write = |name: String, tensors: &[(String, Dtype, Vec<usize>, Vec<u8>)], how: Value| {
        let out = dir.path().join(name);
        let specs = tensors
            .iter()
            .map(|(name, dtype, shape, _)| TensorSpec::new(name, *dtype, shape.clone()));
        let mut writer = ShardWriter::create(&out, specs.collect(), 1 << 30).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["quantization_config"] = how;
        writer.add_file("config.json", config.to_string().as_bytes()).unwrap();
        for name in ["tokenizer.json", "tokenizer_config.json"] {
            writer.add_file(name, &std::fs::read(packed.join(name)).unwrap()).unwrap();
        }
        for (name, .., bytes) in tensors {
            writer.write(name, bytes).unwrap();
        }
        writer.finish().unwrap();
        out
    };
    let how = json!({"quant_method": method, "bits": bits, "group_size": GROUP});
    [
        write(format!("{method}-{bits}"), &stored, how),
        write(format!("{method}-{bits}-f32"), &wide, Value::Null),
    ]
}

fn logits(dir: &TempDir, model: &Path, more: &[&str]) -> Vec<f32> {
    let out = dir.path().join("logits.safetensors");
    let args =
        ["logits", path(model), "--ids", "1,2,3,4,5,6,7,8,9", "--force", "--output", path(&out)];
    done(&outsize(&[&args[..], more].concat()));
    read_logits(&out)
}

fn run(model: &Path, more: &[&str]) -> Value {
    let args = ["run", path(model), "--ids", "5,6,7,8", "--json", "--max-new-tokens", "6"];
    report(&outsize(&[&args[..], more].concat()))
}

/// Runs a model in its own size and in little memory: with the bits of its twin, in its budget.
fn assert_runs(dir: &TempDir, model: &Path, twin: &Path) {
    let name = model.display();
    let stored = Checkpoint::open(model).unwrap().total_bytes();
    let wanted = logits(dir, twin, &[]);
    let tokens = run(twin, &[])["tokens"].take();
    let all = run(model, &[]);
    let resident = all["placement"]["resident_bytes"].as_u64().unwrap();
    assert!(resident < stored + (1 << 20), "{name}: {resident} of {stored}");
    assert_eq!(all["tokens"], tokens, "{name}");
    let own = logits(dir, model, &[]);
    assert_alike(&own, &wanted, &name.to_string());
    let mut streamed = 0;
    for budget in [61, 64, 67].map(megabytes) {
        let budget = ["--max-memory", &budget];
        let found = run(model, &budget);
        assert_eq!(found["tokens"], tokens, "{name} in {budget:?}");
        let placed = logits(dir, model, &budget);
        assert_same_bits(&placed, &own, &format!("{name} in {budget:?}"));
        streamed += found["placement"]["streamed_bytes"].as_u64().unwrap();
        let most = found["placement"]["tiers"][0]["budget"].as_u64().unwrap();
        let peak = found["peak_rss_bytes"].as_u64().unwrap();
        assert!(peak <= most, "{name}: {peak} of {most}");
    }
    assert!(streamed > 0, "{name}");
}

#[test]
fn packed_integers_give_the_bits_of_their_f32_at_their_own_size() {
    for dtype in ["int4", "int8"] {
        let dir = folder();
        let model = synth(&dir, dtype);
        let twin = dir.path().join("f32");
        done(&outsize(&["shard", path(&model), path(&twin), "--dtype", "f32"]));
        assert_runs(&dir, &model, &twin);
    }
}

/// Integers as others have them, in so many bits: the bits of their f32 at their own size.
fn assert_turned(method: &str, bits: usize) {
    let dir = folder();
    let packed = synth(&dir, if bits == 4 { "int4" } else { "int8" });
    let [model, twin] = turned(&dir, &packed, method, bits);
    assert_runs(&dir, &model, &twin);
    // Written anew they are the same.
    let floats = dir.path().join("floats");
    done(&outsize(&["shard", path(&model), path(&floats), "--dtype", "f32"]));
    assert_alike(&logits(&dir, &floats, &[]), &logits(&dir, &twin, &[]), method);
    if method == "gptq" && bits == 4 {
        assert_other_orders_are_refused(&model);
    }
}

#[test]
fn integers_of_awq_give_the_bits_of_their_f32() {
    assert_turned("awq", 4);
}

#[test]
fn integers_of_gptq_give_the_bits_of_their_f32() {
    assert_turned("gptq", 4);
}

#[test]
fn integers_of_gptq_in_8_bits_give_the_bits_of_their_f32() {
    assert_turned("gptq", 8);
}

/// Columns of a group that are no neighbours, by the name of the tensor that says so.
fn assert_other_orders_are_refused(model: &Path) {
    let file = model.join("model.safetensors");
    let tensor = "model.layers.2.mlp.up_proj.g_idx";
    let checkpoint = Checkpoint::open(model).unwrap();
    let order = checkpoint.get(tensor).unwrap();
    let at = order.offset as usize;
    drop(checkpoint);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[at + 4] = 1;
    std::fs::write(&file, bytes).unwrap();
    let error = failed(&outsize(&["run", path(model), "--ids", "1"]), 1);
    assert!(error.contains(tensor) && error.contains("desc_act"), "{error}");
}

#[test]
fn what_a_file_says_of_its_integers_is_checked() {
    let dir = folder();
    let model = synth(&dir, "int4");
    let config = model.join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    for (from, to, message) in [
        ("\"num_bits\": 4", "\"num_bits\": 3", "num_bits"),
        ("\"num_bits\": 4", "\"num_bits\": 8", "weight_scale` have the shape"),
        ("\"group_size\": 128", "\"group_size\": 0", "group_size"),
        ("\"group_size\": 128", "\"group_size\": 64", "weight_scale` have the shape"),
        ("\"symmetric\": true", "\"symmetric\": false", "weight_zero_point"),
        ("\"strategy\": \"group\"", "\"strategy\": \"block\"", "strategy"),
        ("\"type\": \"int\"", "\"type\": \"float\"", "type"),
        ("\"pack-quantized\"", "\"marlin-24\"", "format"),
        ("\"compressed-tensors\"", "\"awq\"", "format"),
    ] {
        assert!(text.contains(from), "{text}");
        std::fs::write(&config, text.replace(from, to)).unwrap();
        let error = failed(&outsize(&["run", path(&model), "--ids", "1"]), 1);
        assert!(error.contains(message), "{to}: {error}");
    }
}
