//! Several residual streams, of which each part of a layer takes a sum and to which it gives shares.

use burn::module::{Module, Param};
use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Tensor};
use outsize_kernels::ActivationDtype;

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
    /// What is added to all shares.
    pub epsilon: f64,
    /// What the norm of all streams adds.
    pub norm_epsilon: f64,
}

/// Hyper-connections ([Zhu et al., 2024](https://arxiv.org/abs/2409.19606)): what a part of a layer takes is a sum of the streams,
/// and each stream gets a share of what it gives. These shares are made of all streams together, in f32.
#[derive(Module, Debug)]
pub struct HyperConnection {
    /// `[2 · streams, streams · hidden]`: what each stream gives, then what it gets; of the last one, which nothing comes
    /// behind, `[streams, streams · hidden]`.
    pub hc_fn: Param<Tensor<2>>,
    /// `[2 · streams]` or `[streams]`.
    pub hc_base: Param<Tensor<1>>,
    /// `[2]` or `[1]`.
    pub hc_scale: Param<Tensor<1>>,
    #[module(skip)]
    config: HyperConnectionConfig,
}

impl HyperConnection {
    /// Around a part of a layer, without storage.
    pub fn new(hidden: usize, config: HyperConnectionConfig, init: &Init) -> Self {
        Self::of(2, hidden, config, init)
    }

    /// Behind the last layer, without storage.
    pub fn last(hidden: usize, config: HyperConnectionConfig, init: &Init) -> Self {
        Self::of(1, hidden, config, init)
    }

    fn of(parts: usize, hidden: usize, config: HyperConnectionConfig, init: &Init) -> Self {
        let (streams, device) = (config.streams, &init.device);
        Self {
            hc_fn: matrix([parts * streams, streams * hidden], device),
            hc_base: zeros(parts * streams, device),
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
        let shares = self.shares(&mixes, 1) * self.config.magnitude + self.config.epsilon;
        (sum, ResidualStreams { all: x, shares })
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
        // The norm's output; or a stream, its share and two sums; or all streams anew, beside what they are made of.
        Activations::values(pass.rows() * (2 * all + 4 * hidden + 12 * streams))
    }
}

/// Streams, and what they get of what a part of a layer gives.
pub(crate) struct ResidualStreams {
    all: Tensor<3>,
    shares: Tensor<3>,
}

impl ResidualStreams {
    /// The streams with their shares of `[batch, tokens, hidden]` f32.
    pub(crate) fn with(self, given: Tensor<3>) -> Tensor<3> {
        let streams = self.shares.dims()[2];
        let given = given.to_device(&self.all.device());
        let share = |at| given.clone() * self.shares.clone().narrow(2, at, 1);
        let parts = (0..streams).map(|at| stream(&self.all, at, streams) + share(at));
        Tensor::cat(parts.collect(), 2)
    }
}

/// One of the streams.
fn stream(x: &Tensor<3>, at: usize, streams: usize) -> Tensor<3> {
    let hidden = x.dims()[2] / streams;
    x.clone().narrow(2, at * hidden, hidden)
}
