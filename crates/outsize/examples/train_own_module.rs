//! A Burn module of your own learns in less memory than its weights take, gradients and AdamW's
//! moments not counted: `cargo run --release -p outsize --example train_own_module`.

use std::time::Instant;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use outsize::core::{Options, learning_device, memory_overhead, parameters, process_bytes};
use outsize::plan::{Budget, format_size};
use outsize::train::offload::{OffloadedAdamW, offloaded};

#[derive(Module, Debug)]
struct Classifier {
    embedding: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

impl Classifier {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(2000, 768).init(device),
            encoder: TransformerEncoderConfig::new(768, 3072, 12, 12).init(device),
            head: LinearConfig::new(768, 2).init(device),
        }
    }

    /// The loss of texts `[batch, tokens]` of these classes.
    fn loss(&self, ids: Tensor<2, Int>, classes: Tensor<1, Int>) -> Tensor<1> {
        let x = self.embedding.forward(ids);
        let x = self.encoder.forward(TransformerEncoderInput::new(x));
        let scores = self.head.forward(x.mean_dim(1).squeeze_dim::<2>(1));
        CrossEntropyLossConfig::new().init(&scores.device()).forward(scores, classes)
    }
}

/// What a pass forward and backward over a batch keeps, besides weights and their gradients: found
/// by trying.
const ACTIVATIONS: u64 = 64 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("outsize-train-own-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let file = folder.join("classifier.bpk");
    // What it begins with, saved by Burn.
    Classifier::new(&Device::flex()).save_file(&file)?;

    let values = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    let module = Classifier::new(&Device::flex());
    let bytes: u64 = parameters(&module).iter().map(|one| 4 * values(&one.shape)).sum();
    let budget = "cpu=250MB";
    println!(
        "{} of weights, {} with gradients and moments, in {budget}\n",
        format_size(bytes),
        format_size(4 * bytes)
    );
    let options = Options {
        budget: Budget::parse(budget)?,
        needs: memory_overhead(process_bytes(0), ACTIVATIONS),
        ..Options::default()
    };
    let mut training = offloaded(&file, folder.join("states"))
        .options(options)
        .adamw(OffloadedAdamW { max_grad_norm: Some(1.0), ..OffloadedAdamW::default() })
        .open(Classifier::new)?;
    println!("{}", training.device_map().picture(100));

    // Inputs on this device: dropout knows that it is training.
    let device = learning_device();
    while training.steps() < 6 {
        let begun = Instant::now();
        // A step of two batches: two texts each, one of each class.
        for text in [10, 20] {
            let ids = Tensor::<2, Int>::from_ints([[text, 1], [text + 1000, 1]], &device);
            let classes = Tensor::from_ints([0, 1], &device);
            training.backward(|module| module.loss(ids, classes))?;
        }
        let step = training.step(1e-5)?;
        println!("step {}: loss {:.3}, {:.1?}", step.step, step.loss, begun.elapsed());
    }
    training.save(folder.join("trained"))?;
    println!("{} read by passes", format_size(training.bytes_read()));
    training.remove_states();
    Ok(std::fs::remove_dir_all(&folder)?)
}
