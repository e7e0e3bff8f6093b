//! A Burn module of your own, saved by Burn and run in a quarter of the memory that its weights
//! take: `cargo run --release -p outsize --example own_module`.

use std::time::Instant;

use burn::module::Module;
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use outsize::core::{Options, load_checkpoint_and_dispatch, parameters};
use outsize::plan::{Budget, Tier, format_size};

#[derive(Module, Debug)]
struct Classifier {
    embedding: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

impl Classifier {
    fn new(device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(8000, 512).init(device),
            encoder: TransformerEncoderConfig::new(512, 2048, 8, 8).init(device),
            head: LinearConfig::new(512, 2).init(device),
        }
    }

    /// `[batch, tokens]` ids to `[batch, tokens, 2]` scores.
    fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        let x = self.embedding.forward(ids);
        self.head.forward(self.encoder.forward(TransformerEncoderInput::new(x)))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex();
    let folder = std::env::temp_dir().join(format!("outsize-own-module-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let file = folder.join("classifier.bpk");
    let ids = Tensor::<2, Int>::from_ints([[1, 2, 3, 4, 5, 6, 7, 8]], &device);

    // It might have been trained; what it computes is compared below.
    let trained = Classifier::new(&device);
    let expected = trained.forward(ids.clone()).into_data();
    trained.save_file(&file)?;

    // The same module without its weights: `init` allocates none before they are used.
    let module = Classifier::new(&device);
    let values = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    let bytes: u64 = parameters(&module).iter().map(|one| 4 * values(&one.shape)).sum();
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, bytes / 4);
    println!("{} of weights in {}\n", format_size(bytes), format_size(bytes / 4));
    let model =
        load_checkpoint_and_dispatch(module, &file, &Options { budget, ..Options::default() })?;
    println!("{}", model.device_map().picture(100));
    for pass in 1..=3 {
        let begun = Instant::now();
        let output = model.run(|model| model.forward(ids.clone()))?;
        assert_eq!(output.into_data(), expected, "another result than Burn's alone");
        println!("pass {pass}: {:.0?}, the same bits as without outsize", begun.elapsed());
    }
    println!("{} read", format_size(model.stats().bytes_read));
    Ok(std::fs::remove_dir_all(&folder)?)
}
