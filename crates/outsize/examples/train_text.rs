//! Trains a small Llama, and a byte-level BPE tokenizer for it, on a text, and writes a checkpoint
//! that `outsize run` reads:
//!
//! ```text
//! cargo build --release --workspace --examples
//! target/release/examples/train_text TEXT OUT --steps 2000
//! OUTSIZE_NUM_PROCESSES=2 target/release/examples/train_text TEXT OUT --threads 1
//! target/release/outsize run OUT --prompt "In the beginning" --max-new-tokens 60
//! ```
//!
//! `--minutes` ends the training early. `--states FOLDER` saves the run every 200 steps, and goes
//! on from there if it is started again. The other options are those of [`Options`]. A rank's batch
//! has `--batch` sequences, and `--threads` compute it. `--precision bf16` multiplies in bf16, and
//! `OUTSIZE_GRADIENT_ACCUMULATION_STEPS` makes larger steps.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{DType, Device, Tensor};
use outsize::checkpoint::{Dtype, ShardWriter, TensorSpec, read_text};
use outsize::models::arch::LlamaForCausalLm;
use outsize::models::{ActivationDtype, Batch, Decoder, Init, ModelConfig, next_token_loss};
use outsize::train::accelerator::MixedPrecision;
use outsize::train::state::TrainingState;
use outsize::train::{Accelerator, DataLoaderBuilder};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer, TokenizerBuilder};

type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What ends a text.
const END: &str = "<|endoftext|>";

/// The most bytes of a text.
const LONGEST: u64 = 1 << 30;

/// Steps between two lines of output, and between two states.
const REPORTED: usize = 20;
const SAVED: usize = 200;

/// What the command line asks for.
struct Options {
    text: PathBuf,
    out: PathBuf,
    states: Option<PathBuf>,
    steps: usize,
    minutes: f64,
    batch: usize,
    context: usize,
    vocabulary: usize,
    hidden: usize,
    layers: usize,
    rate: f64,
    precision: MixedPrecision,
    /// Threads of a rank; all that there are if 0.
    threads: usize,
}

impl Options {
    fn parse() -> Result<Self, Fault> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let [text, out, options @ ..] = &arguments[..] else {
            return Err("give TEXT and OUT, and options such as --steps 2000".into());
        };
        let mut parsed = Self {
            text: text.into(),
            out: out.into(),
            states: None,
            steps: 2000,
            minutes: f64::INFINITY,
            batch: 8,
            context: 256,
            vocabulary: 4096,
            hidden: 256,
            layers: 8,
            rate: 1e-3,
            precision: MixedPrecision::No,
            threads: 0,
        };
        for option in options.chunks(2) {
            let [name, value] = option else { return Err("an option lacks its value".into()) };
            match name.as_str() {
                "--states" => parsed.states = Some(value.into()),
                "--steps" => parsed.steps = number(name, value)?,
                "--minutes" => parsed.minutes = number(name, value)?,
                "--batch" => parsed.batch = number(name, value)?,
                "--context" => parsed.context = number(name, value)?,
                "--vocabulary" => parsed.vocabulary = number(name, value)?,
                "--hidden" => parsed.hidden = number(name, value)?,
                "--layers" => parsed.layers = number(name, value)?,
                "--rate" => parsed.rate = number(name, value)?,
                "--precision" => parsed.precision = number(name, value)?,
                "--threads" => parsed.threads = number(name, value)?,
                _ => return Err(format!("{name} is no option").into()),
            }
        }
        Ok(parsed)
    }

    /// The learning rate of a step: up in a line over a twentieth of them, then down along a cosine
    /// to a tenth.
    fn rate(&self, step: usize) -> f64 {
        let warm = (self.steps / 20).max(1);
        let along =
            step.saturating_sub(warm) as f64 / self.steps.saturating_sub(warm).max(1) as f64;
        let cosine = 0.55 + 0.45 * (std::f64::consts::PI * along).cos();
        self.rate * cosine * ((step + 1) as f64 / warm as f64).min(1.0)
    }

    fn config(&self, tokenizer: &Tokenizer) -> String {
        let heads = (self.hidden / 32).max(1);
        let config = serde_json::json!({
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": tokenizer.get_vocab_size(true),
            "hidden_size": self.hidden,
            "intermediate_size": 3 * self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": true,
            "hidden_act": "silu",
            "eos_token_id": tokenizer.token_to_id(END),
            "dtype": "bfloat16",
        });
        format!("{config:#}\n")
    }
}

fn number<T: FromStr<Err: std::fmt::Display>>(name: &str, value: &str) -> Result<T, Fault> {
    value.parse().map_err(|fault| format!("{name} {value}: {fault}").into())
}

fn main() -> Result<(), Fault> {
    let options = Options::parse()?;
    let text = read_text(&options.text, LONGEST)?;
    let tokenizer = train_tokenizer(&text, options.vocabulary)?;
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let ids: Vec<u32> = (tokenizer.encode_batch_fast(lines, false)?.iter())
        .flat_map(|line| line.get_ids().to_vec())
        .collect();
    // Sequences of so many tokens; the last twentieth is kept for the end.
    let sequences: Vec<Vec<u32>> = ids.chunks_exact(options.context).map(<[u32]>::to_vec).collect();
    let (learned, kept) = sequences.split_at(sequences.len() - sequences.len() / 20);
    if learned.is_empty() {
        return Err(format!("{}: too short a text", options.text.display()).into());
    }
    let bytes_of_token = text.len() as f64 / ids.len() as f64;
    let builder = Accelerator::builder().seed(1).mixed_precision(options.precision);
    let builder = match &options.states {
        Some(folder) => builder.state_dir(folder).total_limit(2),
        None => builder,
    };
    builder.run(|accelerator| {
        // Each rank has threads of its own.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(options.threads).build()?;
        accelerator.print(format!(
            "{} tokens of {bytes_of_token:.2} bytes, {} ranks, {} threads each",
            ids.len(),
            accelerator.num_processes(),
            pool.current_num_threads()
        ));
        let config = options.config(&tokenizer);
        let model = pool.install(|| train(&accelerator, &options, &config, learned, kept))?;
        if accelerator.is_main_process() {
            save(&options.out, &model, &config, &tokenizer.to_string(false)?)?;
        }
        Ok(())
    })
}

/// A byte-level BPE: every text has tokens.
fn train_tokenizer(text: &str, vocabulary: usize) -> Result<Tokenizer, Fault> {
    let bytes = ByteLevel::new(false, true, true);
    let mut tokenizer = TokenizerBuilder::new()
        .with_model(BPE::default())
        .with_normalizer(None::<tokenizers::NormalizerWrapper>)
        .with_pre_tokenizer(Some(bytes))
        .with_post_processor(Some(bytes))
        .with_decoder(Some(bytes))
        .build()?;
    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(vocabulary)
        .special_tokens(vec![AddedToken::from(END, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    tokenizer.train(&mut trainer, text.split_inclusive('\n'))?;
    Ok(serde_json::from_str(&tokenizer.to_string(false)?)?)
}

#[derive(Clone)]
struct Sequences;

impl Batcher<Vec<u32>, Batch> for Sequences {
    fn batch(&self, items: Vec<Vec<u32>>, _device: &Device) -> Batch {
        Batch::left_padded(&items).expect("sequences have tokens")
    }
}

/// Trains on this rank's share of the sequences, and says how well those kept are foretold.
fn train(
    accelerator: &Accelerator,
    options: &Options,
    config: &str,
    learned: &[Vec<u32>],
    kept: &[Vec<u32>],
) -> Result<LlamaForCausalLm, Fault> {
    let device = accelerator.device();
    device.seed(42);
    let compute = match options.precision {
        MixedPrecision::Bf16 => ActivationDtype::Bf16,
        _ => ActivationDtype::F32,
    };
    let init = Init { compute, ..Init::new(&device) };
    let model: LlamaForCausalLm = ModelConfig::from_json(config)?.build(&init).ok_or("no Llama")?;
    let loader = |shuffled: Option<u64>, sequences: &[Vec<u32>]| {
        let builder = DataLoaderBuilder::new(Sequences).batch_size(options.batch);
        let builder = shuffled.into_iter().fold(builder, DataLoaderBuilder::shuffle);
        accelerator.prepare_data_loader(builder.build(InMemDataset::new(sequences.to_vec())))
    };
    let (batches, kept) = (loader(Some(7), learned)?, loader(None, kept)?);
    let mut model = accelerator.prepare_model(model)?;
    let adamw = AdamWConfig::new().with_beta_2(0.95).with_epsilon(1e-8).with_weight_decay(0.1);
    let mut adamw = accelerator.prepare_optimizer(adamw.init());
    accelerator.print(format!("{} parameters", model.num_params()));

    let done = Arc::new(Mutex::new(0usize));
    accelerator.register_for_checkpointing("step", &done)?;
    if options.states.is_some() {
        let state = TrainingState::new().model(&mut model).optimizer(&mut adamw);
        if let Some(resumed) = accelerator.resume(state.data_loader(&batches))? {
            accelerator.print(resumed);
        }
    }
    let mut step = *done.lock().unwrap_or_else(PoisonError::into_inner);
    let start = Instant::now();
    let (mut tokens, mut last) = (0, (Instant::now(), 0));
    let mut losses = Vec::new();
    let is_over = |step| {
        let late = start.elapsed().as_secs_f64() > 60.0 * options.minutes;
        step >= options.steps || late
    };
    // All ranks end together: the first one's clock counts.
    let mut over = is_over(step);
    while !over {
        for batch in batches.iter() {
            accelerator.accumulate();
            let batch = batch?;
            tokens += batch.ids().len() * accelerator.num_processes();
            let logits = forward(accelerator, &model, &batch)?;
            let loss = next_token_loss(logits, &batch);
            losses.push(loss.clone().into_scalar::<f32>());
            let mut gradients = accelerator.backward(loss, &model)?;
            accelerator.clip_grad_norm(&model, &mut gradients, 1.0);
            model = adamw.step(options.rate(step), model, gradients);
            if !accelerator.sync_gradients() {
                continue;
            }
            step += 1;
            *done.lock().unwrap_or_else(PoisonError::into_inner) = step;
            if step.is_multiple_of(REPORTED) {
                let mean = losses.iter().sum::<f32>() / losses.len() as f32;
                let all = accelerator.gather_object(&mean)?;
                let speed = (tokens - last.1) as f64 / last.0.elapsed().as_secs_f64();
                accelerator.print(format!(
                    "step {step}: loss {:.3}, {speed:.0} tokens/s, {:.0} s",
                    all.iter().sum::<f32>() / all.len() as f32,
                    start.elapsed().as_secs_f64()
                ));
                losses.clear();
                last = (Instant::now(), tokens);
            }
            if options.states.is_some() && step.is_multiple_of(SAVED) {
                let state = TrainingState::new().model(&mut model).optimizer(&mut adamw);
                accelerator.save_state(state.data_loader(&batches))?;
            }
            over = accelerator.gather_object(&is_over(step))?[0];
            if over {
                break;
            }
        }
    }
    let mut sum = (0.0, 0);
    for batch in kept.iter() {
        let batch = batch?;
        let loss = next_token_loss(forward(accelerator, &model, &batch)?, &batch);
        sum = (sum.0 + loss.into_scalar::<f32>(), sum.1 + 1);
    }
    let sums: Vec<(f32, usize)> = accelerator.gather_object(&sum)?;
    let all = sums.iter().fold((0.0, 0), |all, sum| (all.0 + sum.0, all.1 + sum.1));
    accelerator.print(format!("loss of what was kept: {:.3}", all.0 / all.1 as f32));
    Ok(model)
}

/// Logits in f32, computed in the precision of the accelerator.
fn forward(
    accelerator: &Accelerator,
    model: &LlamaForCausalLm,
    batch: &Batch,
) -> Result<Tensor<3>, Fault> {
    let mut failed = None;
    let logits = accelerator.autocast(model, None::<Tensor<1>>, |model, _| {
        model.forward_uncached(batch).map_err(|fault| failed = Some(fault)).ok()
    })?;
    logits.ok_or_else(|| failed.map_or("no logits".into(), Fault::from))
}

/// Writes config.json, model.safetensors in bf16, and tokenizer.json.
fn save(out: &Path, model: &LlamaForCausalLm, config: &str, tokenizer: &str) -> Result<(), Fault> {
    #[derive(Default)]
    struct Collector {
        path: Vec<String>,
        tensors: Vec<(TensorSpec, Arc<[u8]>)>,
    }
    impl ModuleVisitor for Collector {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let spec = TensorSpec::new(self.path.join("."), Dtype::BF16, value.dims());
            let data = value.cast(DType::BF16).into_data();
            self.tensors.push((spec, Arc::from(data.as_bytes())));
        }
    }
    let mut collector = Collector::default();
    model.visit(&mut collector);
    let specs = collector.tensors.iter().map(|(spec, _)| spec.clone()).collect();
    let mut writer = ShardWriter::create(out, specs, u64::MAX)?;
    for (spec, bytes) in &collector.tensors {
        writer.write(&spec.name, bytes)?;
    }
    let kind =
        serde_json::json!({ "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END });
    writer.add_file("config.json", config.as_bytes())?;
    writer.add_file("tokenizer.json", tokenizer.as_bytes())?;
    writer.add_file("tokenizer_config.json", format!("{kind:#}\n").as_bytes())?;
    Ok(writer.finish()?)
}
