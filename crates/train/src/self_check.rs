//! What `outsize test` runs on every rank: whether ranks exchange, share, train and save as they
//! should.

use std::path::Path;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{DatasetError, InMemDataset};
use burn::module::Param;
use burn::nn::{Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::state::TrainingState;
use crate::{Accelerator, DataLoaderBuilder, Error, Reduction};

/// Features of an item.
const FEATURES: usize = 4;

/// How much weights may differ from those of one rank with the whole batch.
const SAME: f32 = 1e-6;

/// How much a module's output in bf16 or fp16 may differ from that in f32, of its largest value.
const ROUNDED: f32 = 0.02;

/// What was tried, and how it went on all ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was tried.
    pub name: &'static str,
    /// What was found; if it is wrong, on which rank.
    pub found: Result<String, String>,
}

/// Tries collectives, data, gradients, the precision that is set, and states, which are written to
/// `folder` and removed. All ranks call it, and get the same result.
///
/// # Errors
/// Ranks cannot tell each other how it went.
pub fn self_check(accelerator: &Accelerator, folder: &Path) -> Result<Vec<Check>, Error> {
    let checks: [(&'static str, RankCheck); 5] = [
        ("collectives", |accelerator, _| collectives(accelerator)),
        ("data", |accelerator, _| data(accelerator)),
        ("gradients", |accelerator, _| gradients(accelerator)),
        ("precision", |accelerator, _| precision(accelerator)),
        ("states", states),
    ];
    checks
        .iter()
        .map(|(name, check)| {
            let own = check(accelerator, folder).map_err(|fault| fault.0);
            let all = accelerator.gather_object(&own)?;
            let wrong = all
                .iter()
                .enumerate()
                .find_map(|(rank, found)| Some((rank, found.as_ref().err()?)));
            let found = match wrong {
                Some((rank, fault)) => Err(format!("rank {rank}: {fault}")),
                None => own,
            };
            Ok(Check { name, found })
        })
        .collect()
}

/// Tries something on a rank, with a folder for files: what was found, or what is wrong.
type RankCheck = fn(&Accelerator, &Path) -> Result<String, Fault>;

/// What is wrong.
#[derive(Debug, Serialize, Deserialize)]
struct Fault(String);

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl From<DatasetError> for Fault {
    fn from(error: DatasetError) -> Self {
        Self(error.to_string())
    }
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), Fault> {
    match found == expected {
        true => Ok(()),
        false => Err(Fault(format!("{what} gives {found:?} instead of {expected:?}"))),
    }
}

fn collectives(accelerator: &Accelerator) -> Result<String, Fault> {
    let (rank, ranks) = (accelerator.process_index(), accelerator.num_processes());
    let all: Vec<f32> = (0..ranks).map(|rank| rank as f32).collect();
    let own = || Tensor::<1>::from_data(TensorData::from([rank as f32]), &accelerator.device());
    expect("gather", values(accelerator.gather(own())?), all.clone())?;
    let sum = all.iter().sum::<f32>();
    expect("a sum", values(accelerator.reduce(own(), Reduction::Sum)?), vec![sum])?;
    let mean = sum / ranks as f32;
    expect("a mean", values(accelerator.reduce(own(), Reduction::Mean)?), vec![mean])?;
    expect("broadcast", values(accelerator.broadcast(own(), 0)?), vec![0.0])?;
    let objects: Vec<String> = (0..ranks).map(|rank| format!("rank {rank}")).collect();
    expect("gather_object", accelerator.gather_object(&format!("rank {rank}"))?, objects)?;
    accelerator.wait_for_everyone()?;
    Ok(format!("gather, sum, mean, broadcast, objects, barrier; {ranks} ranks"))
}

/// Numbers of items, as a batch.
struct Numbers;

impl Batcher<i32, Tensor<1, Int>> for Numbers {
    fn batch(&self, items: Vec<i32>, device: &Device) -> Tensor<1, Int> {
        let count = items.len();
        Tensor::from_data(TensorData::new(items, [count]), device)
    }
}

fn data(accelerator: &Accelerator) -> Result<String, Fault> {
    let items = 5 * accelerator.num_processes() as i32 + 3;
    let loader = DataLoaderBuilder::new(Numbers).batch_size(2).shuffle(7);
    let loader = loader.build(InMemDataset::new((0..items).collect()));
    let loader = accelerator.prepare_data_loader(loader)?;
    for _epoch in 0..2 {
        let mut seen = Vec::new();
        for batch in loader.iter() {
            let batch = accelerator.gather_for_metrics(batch?)?;
            seen.extend(batch.into_data().iter::<i64>());
        }
        seen.sort_unstable();
        expect("an epoch", seen, (0..i64::from(items)).collect())?;
    }
    Ok(format!("each of {items} items once an epoch, shuffled"))
}

/// Inputs and targets.
#[derive(Debug, Clone)]
struct Pairs {
    inputs: Tensor<2>,
    targets: Tensor<2>,
}

/// Items by number, as inputs and targets.
struct MakePairs;

impl Batcher<i32, Pairs> for MakePairs {
    fn batch(&self, items: Vec<i32>, device: &Device) -> Pairs {
        let count = items.len();
        let value = |at: usize| ((at * 2_654_435_761) % 1000) as f32 / 500.0 - 1.0;
        let inputs = items
            .iter()
            .flat_map(|item| (0..FEATURES).map(move |k| value(*item as usize * FEATURES + k + 1)));
        let targets = items.iter().map(|item| value(*item as usize + 77)).collect::<Vec<_>>();
        Pairs {
            inputs: Tensor::from_data(
                TensorData::new(inputs.collect::<Vec<_>>(), [count, FEATURES]),
                device,
            ),
            targets: Tensor::from_data(TensorData::new(targets, [count, 1]), device),
        }
    }
}

fn model(device: &Device) -> Linear {
    let mut model = LinearConfig::new(FEATURES, 1).init(device);
    model.weight = Param::from_data(TensorData::from([[0.1], [-0.2], [0.3], [0.4]]), device);
    model.bias = Some(Param::from_data(TensorData::from([0.5]), device));
    model
}

fn loss(output: Tensor<2>, targets: Tensor<2>) -> Tensor<1> {
    (output - targets).square().mean()
}

/// Ten steps with batches of eight items of all ranks together.
fn trained(accelerator: &Accelerator, mut model: Linear) -> Result<Linear, Fault> {
    let mut optimizer = accelerator.prepare_optimizer(SgdConfig::new().init());
    let each = 8_usize.div_ceil(accelerator.num_processes());
    let items = (each * accelerator.num_processes() * 10) as i32;
    let loader = DataLoaderBuilder::new(MakePairs).batch_size(each);
    let loader = loader.build(InMemDataset::new((0..items).collect()));
    for batch in accelerator.prepare_data_loader(loader)?.iter() {
        accelerator.accumulate();
        let batch = batch?;
        let loss = loss(model.forward(batch.inputs), batch.targets);
        let gradients = accelerator.backward(loss, &model)?;
        model = optimizer.step(0.1, model, gradients);
    }
    Ok(model)
}

fn gradients(accelerator: &Accelerator) -> Result<String, Fault> {
    let device = accelerator.device();
    let ranks = accelerator.num_processes();
    let together = trained(accelerator, accelerator.prepare_model(model(&device))?)?;
    // The same by one rank, by Burn alone.
    let each = 8_usize.div_ceil(ranks) * ranks;
    let (mut alone, mut optimizer) = (model(&device), SgdConfig::new().init());
    let steps = 10_usize.div_ceil(accelerator.gradient_accumulation_steps());
    for step in 0..steps {
        let first = step * accelerator.gradient_accumulation_steps();
        let last = (first + accelerator.gradient_accumulation_steps()).min(10);
        let pairs =
            MakePairs.batch(((first * each) as i32..(last * each) as i32).collect(), &device);
        let gradients = loss(alone.forward(pairs.inputs), pairs.targets).backward();
        let gradients = burn::optim::GradientsParams::from_grads(gradients, &alone);
        alone = optimizer.step(0.1, alone, gradients);
    }
    let off = difference(&together, &alone);
    match off < SAME {
        true => Ok(format!("{steps} steps as by one rank, within {off:.1e}")),
        false => Err(Fault(format!("weights after {steps} steps are off by {off:e}"))),
    }
}

fn precision(accelerator: &Accelerator) -> Result<String, Fault> {
    let device = accelerator.device();
    let model = model(&device);
    let inputs = MakePairs.batch((0..16).collect(), &device).inputs;
    let exact = values(model.forward(inputs.clone()));
    let found = values(accelerator.autocast(&model, inputs, Linear::forward)?);
    let largest = exact.iter().fold(0_f32, |most, value| most.max(value.abs()));
    let off =
        exact.iter().zip(&found).fold(0_f32, |most, (a, b)| most.max((a - b).abs())) / largest;
    let name = accelerator.mixed_precision().name();
    match off <= ROUNDED {
        true => Ok(format!("mixed precision {name}: off by {off:.1e} of the largest output")),
        false => {
            Err(Fault(format!("mixed precision {name} is off by {off:e} of the largest output")))
        }
    }
}

fn states(accelerator: &Accelerator, folder: &Path) -> Result<String, Fault> {
    let mut first = trained(accelerator, model(&accelerator.device()))?;
    let weights = values(first.weight.val());
    accelerator.save_state_to(folder, TrainingState::new().model(&mut first))?;
    let mut second = model(&accelerator.device());
    let loaded = accelerator.load_state(folder, TrainingState::new().model(&mut second));
    accelerator.wait_for_everyone()?;
    accelerator.on_main_process(|| std::fs::remove_dir_all(folder));
    loaded?;
    expect("a state", values(second.weight.val()), weights)?;
    Ok("saved and loaded with the same bits".to_string())
}

/// The largest difference of two models' weights.
fn difference(a: &Linear, b: &Linear) -> f32 {
    let off = (a.weight.val() - b.weight.val()).abs().max();
    off.into_scalar::<f32>()
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}
