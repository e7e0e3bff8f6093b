//! Times steps of training of a Llama with random weights, on random tokens.
//!
//! ```text
//! cargo run --release -p outsize-models --example training_step -- CONFIG.json 8 256 f32 10
//! ```
//!
//! runs 10 steps of AdamW over 8 sequences of 256 tokens, and prints one JSON object: seconds of
//! the forward pass with the loss, of the backward pass and of the update, by steps, and the
//! losses. `bf16` multiplies in bf16 with a copy of the weights, which are kept in f32.
//! `bench/training.py` runs it.

use std::error::Error;
use std::time::Instant;

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{DType, Device, Tensor};
use outsize_models::arch::LlamaForCausalLm;
use outsize_models::{ActivationDtype, Batch, Decoder, Init, ModelConfig, next_token_loss};

/// A copy of parameters in bf16, through which gradients flow.
struct Narrow;

impl ModuleMapper for Narrow {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| tensor.cast(DType::BF16))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [config, rows, tokens, compute, steps] = &arguments[..] else {
        return Err("give CONFIG.json, sequences, tokens of each, f32 or bf16, and steps".into());
    };
    let (rows, tokens, steps): (usize, usize, usize) =
        (rows.parse()?, tokens.parse()?, steps.parse()?);
    let compute = match compute.as_str() {
        "f32" => ActivationDtype::F32,
        "bf16" => ActivationDtype::Bf16,
        other => return Err(format!("{other}: a step is computed in f32 or bf16").into()),
    };
    let config = ModelConfig::from_json(&std::fs::read_to_string(config)?)?;
    // As an `Accelerator` does.
    let _reuse = outsize_kernels::BufferReuse::begin();
    let device = Device::flex().autodiff();
    device.seed(0);
    let init = Init { compute, ..Init::new(&device) };
    let mut model: LlamaForCausalLm = config.build(&init).ok_or("no Llama")?;
    let mut adamw = AdamWConfig::new().with_weight_decay(0.01).with_epsilon(1e-8).init();
    let mut state = 1u32;
    let mut draw = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % config.vocab_size() as u32
    };
    let (mut seconds, mut losses) = (Vec::new(), Vec::new());
    for _ in 0..steps {
        let ids: Vec<Vec<u32>> = (0..rows).map(|_| (0..tokens).map(|_| draw()).collect()).collect();
        let batch = Batch::left_padded(&ids)?;
        let start = Instant::now();
        let logits = match compute {
            ActivationDtype::F32 => model.forward_uncached(&batch)?,
            ActivationDtype::Bf16 => model.clone().map(&mut Narrow).forward_uncached(&batch)?,
        };
        let loss = next_token_loss(logits, &batch);
        let forward = start.elapsed().as_secs_f64();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let backward = start.elapsed().as_secs_f64();
        model = adamw.step(1e-3, model, grads);
        let all = start.elapsed().as_secs_f64();
        seconds.push([forward, backward - forward, all - backward]);
        losses.push(loss.into_scalar::<f32>());
    }
    println!("{}", serde_json::json!({ "seconds": seconds, "losses": losses }));
    Ok(())
}
