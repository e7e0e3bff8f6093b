//! An adapter that learns.

use std::collections::HashMap;

use burn::module::{Module, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_core::LowRank;
use outsize_lora::LoraTarget;
use outsize_models::LowRankGradients;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The two matrices of a linear layer's adapter, in f32.
#[derive(Module, Debug)]
pub struct LearningLayer {
    /// `[rank, in]`.
    pub down: Param<Tensor<2>>,
    /// `[out, rank]`.
    pub up: Param<Tensor<2>>,
}

/// An adapter that learns, as a module: what an optimizer changes.
#[derive(Module, Debug)]
pub struct LearningAdapter {
    /// In the order of the targets.
    pub layers: Vec<LearningLayer>,
    #[module(skip)]
    targets: Vec<LoraTarget>,
}

impl LearningAdapter {
    /// An adapter that changes nothing yet: what is multiplied first is drawn uniformly from
    /// `±1/√in`, as PEFT draws it, and what is multiplied second is zero. The same seed gives the
    /// same values.
    pub fn new(targets: Vec<LoraTarget>, seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let layers = targets.iter().map(|target| {
            let ([out, inputs], rank) = (target.shape, target.rank);
            let bound = (inputs.max(1) as f32).powf(-0.5);
            let down = (0..rank * inputs).map(|_| bound * uniform(random.next_u64())).collect();
            LearningLayer {
                down: learned(down, [rank, inputs]),
                up: learned(vec![0.0; out * rank], [out, rank]),
            }
        });
        Self { layers: layers.collect(), targets }
    }

    /// The same with the matrices of an adapter by the paths of weights, such as one that was
    /// learned before.
    ///
    /// # Errors
    /// A target that has none, by its path.
    pub fn from_parts(
        targets: Vec<LoraTarget>,
        parts: &HashMap<String, LowRank>,
    ) -> Result<Self, String> {
        let layers = targets.iter().map(|target| {
            let part = parts.get(&target.path).ok_or_else(|| target.path.clone())?;
            let [down, up] = [&part.down, &part.up].map(|matrix| {
                let matrix = matrix.clone().cast(DType::F32);
                Param::from_tensor(matrix.autodiff().detach().require_grad())
            });
            Ok(LearningLayer { down, up })
        });
        Ok(Self { layers: layers.collect::<Result<_, String>>()?, targets })
    }

    /// What it adds to which weights, by their paths.
    pub fn parts(&self) -> HashMap<String, LowRank> {
        let parts = self.targets.iter().zip(&self.layers).map(|(target, layer)| {
            let [down, up] = [&layer.down, &layer.up].map(|matrix| matrix.val().inner());
            (target.path.clone(), LowRank { down, up, scale: target.scale, in_out: target.in_out })
        });
        parts.collect()
    }

    /// Gradients by the paths of weights as an optimizer takes them.
    pub fn gradients(&self, mut found: LowRankGradients) -> GradientsParams {
        let mut gradients = GradientsParams::new();
        for (target, layer) in self.targets.iter().zip(&self.layers) {
            if let Some([down, up]) = found.gradients.remove(&target.path) {
                gradients.register(layer.down.id, down);
                gradients.register(layer.up.id, up);
            }
        }
        gradients
    }

    /// What an adapter takes while it learns, in bytes.
    pub fn learning_bytes(targets: &[LoraTarget]) -> u64 {
        /// Copies of its values in f32 that exist at most: the values, gradients of a pass and of
        /// those before it in a step, the two moments of AdamW, and what a step makes of one matrix
        /// before it forgets the last.
        const COPIES: u64 = 6;
        targets.iter().map(LoraTarget::parameter_count).sum::<u64>() * 4 * COPIES
    }

    /// Values of all its matrices.
    pub fn parameter_count(&self) -> u64 {
        self.targets.iter().map(LoraTarget::parameter_count).sum()
    }
}

/// A number from -1 to 1.
fn uniform(bits: u64) -> f32 {
    // 24 bits are what an f32 holds.
    (bits >> 40) as f32 / (1 << 23) as f32 - 1.0
}

fn learned(values: Vec<f32>, shape: [usize; 2]) -> Param<Tensor<2>> {
    let device = Device::flex().autodiff();
    let data = TensorData::new(values, shape);
    Param::from_tensor(Tensor::from_data(data, (&device, DType::F32)).require_grad())
}
