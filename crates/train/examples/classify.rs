//! Burn's custom training loop, on generated data, on any number of ranks:
//!
//! ```text
//! cargo run --release -p outsize-train --example classify
//! OUTSIZE_NUM_PROCESSES=2 cargo run --release -p outsize-train --example classify
//! cargo build --release --workspace --features outsize/mpi --example classify
//! mpirun -n 2 target/release/examples/classify
//! ```
//!
//! The first and the last begin with the same weights. Threads draw theirs from one generator, and
//! so begin with others each time.

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::AdamConfig;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use outsize_train::{Accelerator, DataLoaderBuilder};

/// A point in the plane, and which arm of a spiral it is on.
type Point = ([f32; 2], i64);

/// Three arms of a spiral.
fn spiral(points: usize) -> InMemDataset<Point> {
    let point = |index: usize| {
        let (arm, along) = (index % 3, index as f32 / points as f32);
        let angle = 4.0 * along + arm as f32 * std::f32::consts::TAU / 3.0;
        let wobble = (index as f32 * 12.9898).sin() * 0.1;
        ([along * (angle + wobble).cos(), along * (angle + wobble).sin()], arm as i64)
    };
    InMemDataset::new((0..points).map(point).collect())
}

#[derive(Clone)]
struct Points;

impl Batcher<Point, (Tensor<2>, Tensor<1, Int>)> for Points {
    fn batch(&self, items: Vec<Point>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let (points, arms): (Vec<_>, Vec<_>) = items.into_iter().unzip();
        let points = TensorData::new(points.concat(), [arms.len(), 2]);
        (Tensor::from_data(points, device), Tensor::from_data(arms.as_slice(), device))
    }
}

#[derive(Module, Debug)]
struct Model {
    layers: Vec<Linear>,
    output: Linear,
}

impl Model {
    fn new(device: &Device) -> Self {
        let layers = [(2, 32), (32, 32)].map(|(from, to)| LinearConfig::new(from, to).init(device));
        Self { layers: layers.into(), output: LinearConfig::new(32, 3).init(device) }
    }

    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        let layer = |hidden, layer: &Linear| activation::relu(layer.forward(hidden));
        self.output.forward(self.layers.iter().fold(points, layer))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    Ok(Accelerator::builder()
        .split_batches(true)
        .seed(1)
        .run(train)
        .map_err(|fault| fault.to_string())?)
}

fn train(accelerator: Accelerator) -> Result<(), outsize_train::Error> {
    let device = accelerator.device();
    accelerator.device().seed(42);
    let points = DataLoaderBuilder::new(Points).batch_size(48).shuffle(42).build(spiral(600));
    let valid = DataLoaderBuilder::new(Points).batch_size(48).build(spiral(250));
    let schedule =
        CosineAnnealingLrSchedulerConfig::new(0.02, 30 * 13).init().expect("it is valid");
    let (mut model, mut optim, points, mut schedule) =
        accelerator.prepare(Model::new(&device), AdamConfig::new().init(), points, schedule)?;
    let valid = accelerator.prepare_data_loader(valid)?;

    for epoch in 1..=30 {
        for batch in points.iter() {
            accelerator.accumulate();
            let (points, arms) = batch.expect("the data is in memory");
            let output = model.forward(points);
            let loss = CrossEntropyLossConfig::new().init(&output.device()).forward(output, arms);
            let grads = accelerator.backward(loss, &model)?;
            model = optim.step(schedule.step(), model, grads);
        }

        let (mut right, mut all) = (0, 0);
        for batch in valid.iter() {
            let (points, arms) = batch.expect("the data is in memory");
            let found = model.valid().forward(points.inner()).argmax(1).squeeze_dim::<1>(1);
            let is_right = accelerator.gather_for_metrics(found.equal(arms.inner()))?;
            all += is_right.dims()[0];
            right += is_right.int().sum().into_scalar::<i64>();
        }
        if epoch % 10 == 0 {
            accelerator
                .print(format!("epoch {epoch}: {right} of {all} points are on the right arm"));
        }
    }
    Ok(())
}
