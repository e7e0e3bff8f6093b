//! Several residual streams, of which each part of a layer takes a sum and to which it gives
//! shares.

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Tensor, TensorData};
use outsize_kernels::ActivationDtype;

use super::attention::query_positions::QueryPositions;
use super::linear::{self, matrix, zeros};
use super::{entered, unit_rms_norm};
use crate::{Activations, Init, PassShape};

/// The sizes of a [`HyperConnection`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HyperConnectionConfig {
    /// How many residual streams there are.
    pub streams: usize,
    /// What the shares that streams get are multiplied by.
    pub magnitude: f64,
    /// What is added to all shares; if streams are mixed, to those that they give alone.
    pub epsilon: f64,
    /// How often what streams take of each other is brought nearer to what adds up to one either
    /// way, if they are mixed.
    pub mixing_steps: Option<usize>,
    /// What the norm of all streams adds.
    pub norm_epsilon: f64,
}

/// Hyper-connections ([Zhu et al., 2024](https://arxiv.org/abs/2409.19606)): what a part of a layer
/// takes is a sum of the streams, and each stream gets a share of what it gives. These shares are
/// made of all streams together, in f32. Streams may be mixed too, by matrices whose rows and
/// columns add up to one ([Xie et al., 2025](https://arxiv.org/abs/2512.24880)).
#[derive(Module, Debug)]
pub struct HyperConnection {
    /// `[shares, streams · hidden]`: what each stream gives, then what it gets, then what it has of
    /// each stream if they are mixed; of the last one, which nothing comes behind, what it gives
    /// alone.
    pub hc_fn: Param<Tensor<2>>,
    /// `[shares]`.
    pub hc_base: Param<Tensor<1>>,
    /// `[3]`, `[2]` or `[1]`: of these kinds of shares.
    pub hc_scale: Param<Tensor<1>>,
    #[module(skip)]
    config: HyperConnectionConfig,
}

impl HyperConnection {
    /// Around a part of a layer, without storage.
    pub fn new(hidden: usize, config: HyperConnectionConfig, init: &Init) -> Self {
        Self::of(if config.mixing_steps.is_some() { 3 } else { 2 }, hidden, config, init)
    }

    /// Behind the last layer, without storage.
    pub fn last(hidden: usize, config: HyperConnectionConfig, init: &Init) -> Self {
        Self::of(1, hidden, config, init)
    }

    fn of(parts: usize, hidden: usize, config: HyperConnectionConfig, init: &Init) -> Self {
        let (streams, device) = (config.streams, &init.device);
        let shares = parts.min(2) * streams + if parts == 3 { streams * streams } else { 0 };
        Self {
            hc_fn: matrix([shares, streams * hidden], device),
            hc_base: zeros(shares, device),
            hc_scale: zeros(parts, device),
            config,
        }
    }

    /// The sum of streams `[batch, tokens, streams · hidden]` f32: `[batch, tokens, hidden]`.
    pub(crate) fn sum(&self, x: Tensor<3>) -> Tensor<3> {
        self.summed(&entered(x, &self.hc_fn)).0
    }

    /// The same, with the streams and what they get of what is made of it.
    pub(crate) fn enter(&self, x: Tensor<3>) -> (Tensor<3>, ResidualStreams) {
        let x = entered(x, &self.hc_fn);
        let (sum, mixes) = self.summed(&x);
        let mut shares = self.shares(&mixes, 1) * self.config.magnitude;
        if self.config.mixing_steps.is_none() {
            shares = shares + self.config.epsilon;
        }
        let mixing = self.config.mixing_steps.map(|steps| self.mixing(&mixes, steps));
        (sum, ResidualStreams { all: x, shares, mixing })
    }

    /// What streams have of each other, `[batch, tokens, streams · streams]`: of each one all that
    /// have of it. It is made in main memory, in many steps of few numbers.
    fn mixing(&self, mixes: &Tensor<3>, steps: usize) -> Tensor<3> {
        let HyperConnectionConfig { streams, epsilon, .. } = self.config;
        let epsilon = epsilon as f32;
        let [batch, tokens, _] = mixes.dims();
        let device = mixes.device();
        let read = |values: &Param<Tensor<1>>| -> Vec<f32> {
            values.val().cast(DType::F32).into_data().iter().collect()
        };
        let (base, scale) = (read(&self.hc_base), read(&self.hc_scale)[2]);
        let base = &base[2 * streams..];
        let mixes = mixes.clone().narrow(2, 2 * streams, streams * streams);
        let mut all: Vec<f32> = mixes.into_data().iter().collect();
        for shares in all.chunks_exact_mut(streams * streams) {
            for (row, base) in shares.chunks_exact_mut(streams).zip(base.chunks_exact(streams)) {
                row.iter_mut().zip(base).for_each(|(share, base)| *share = *share * scale + base);
                let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter_mut().for_each(|share| *share = (*share - most).exp());
                let sum: f32 = row.iter().sum();
                row.iter_mut().for_each(|share| *share = *share / sum + epsilon);
            }
            let columns_to_one = |shares: &mut [f32]| {
                for column in 0..streams {
                    let column = || (0..streams).map(move |row| row * streams + column);
                    let sum: f32 = column().map(|at| shares[at]).sum();
                    column().for_each(|at| shares[at] /= sum + epsilon);
                }
            };
            columns_to_one(shares);
            for _ in 1..steps {
                for row in shares.chunks_exact_mut(streams) {
                    let sum: f32 = row.iter().sum();
                    row.iter_mut().for_each(|share| *share /= sum + epsilon);
                }
                columns_to_one(shares);
            }
        }
        let shares = TensorData::new(all, [batch, tokens, streams * streams]);
        Tensor::from_data(shares, (&device, DType::F32))
    }

    /// The sum, and what shares are made of.
    fn summed(&self, x: &Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let HyperConnectionConfig { streams, epsilon, norm_epsilon, .. } = self.config;
        let normed = unit_rms_norm(x.clone(), norm_epsilon);
        let mixes = linear::product(ActivationDtype::F32, normed, &self.hc_fn);
        let given = self.shares(&mixes, 0) + epsilon;
        let parts = (0..streams).map(|at| stream(x, at, streams) * given.clone().narrow(2, at, 1));
        (parts.reduce(|sum, part| sum + part).expect("there are streams"), mixes)
    }

    /// What each stream gives, or what it gets.
    fn shares(&self, mixes: &Tensor<3>, part: usize) -> Tensor<3> {
        let streams = self.config.streams;
        let of = |values: &Param<Tensor<1>>, from, count| {
            let values = values.val().cast(DType::F32).narrow(0, from, count);
            values.to_device(&mixes.device()).unsqueeze::<3>()
        };
        let mixes = mixes.clone().narrow(2, part * streams, streams);
        let scale = of(&self.hc_scale, part, 1);
        sigmoid(mixes * scale + of(&self.hc_base, part * streams, streams))
    }

    /// How many streams there are.
    pub(crate) fn streams(&self) -> usize {
        self.config.streams
    }

    /// What it holds at most, besides the streams.
    pub(crate) fn activations(&self, pass: &PassShape) -> Activations {
        let all = self.hc_fn.lazy_shape()[1] as u64;
        let (streams, hidden) = (self.config.streams as u64, all / self.config.streams as u64);
        // The norm's output; or a stream, its share and two sums; or all streams anew, beside what
        // they are made of.
        let mixing = if self.config.mixing_steps.is_some() { 3 * streams * streams } else { 0 };
        Activations::values(pass.rows() * (2 * all + 4 * hidden + 12 * streams + mixing))
    }
}

/// Streams, and what they get of what a part of a layer gives.
pub(crate) struct ResidualStreams {
    all: Tensor<3>,
    shares: Tensor<3>,
    mixing: Option<Tensor<3>>,
}

impl ResidualStreams {
    /// The same of the tokens that queries are wanted of alone.
    pub(crate) fn needed(self, positions: &QueryPositions<'_>) -> Self {
        Self {
            all: positions.needed(self.all),
            shares: positions.needed(self.shares),
            mixing: self.mixing.map(|mixing| positions.needed(mixing)),
        }
    }

    /// The streams with their shares of `[batch, tokens, hidden]` f32.
    pub(crate) fn with(self, given: Tensor<3>) -> Tensor<3> {
        let streams = self.shares.dims()[2];
        let given = given.to_device(&self.all.device());
        let share = |at| given.clone() * self.shares.clone().narrow(2, at, 1);
        let kept = |at| match &self.mixing {
            None => stream(&self.all, at, streams),
            Some(mixing) => {
                let part = |from| {
                    let share = mixing.clone().narrow(2, from * streams + at, 1);
                    stream(&self.all, from, streams) * share
                };
                (1..streams).fold(part(0), |sum, from| sum + part(from))
            }
        };
        let parts = (0..streams).map(|at| kept(at) + share(at));
        Tensor::cat(parts.collect(), 2)
    }
}

/// One of the streams.
fn stream(x: &Tensor<3>, at: usize, streams: usize) -> Tensor<3> {
    let hidden = x.dims()[2] / streams;
    x.clone().narrow(2, at * hidden, hidden)
}
