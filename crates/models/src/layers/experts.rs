//! Experts: feed-forward blocks of which a router chooses a few for each token.

use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use outsize_core::Streamed;
use outsize_kernels::index_dtype;

use super::router::{ChosenExperts, Router, Routing, Shares};
use super::{Either, FusedMlp, Linear, Mlp, Parameterless, either, entered, sparse_mixer};
use crate::{Activations, PassShape};

/// Rows that experts give, up to which they need not work in their order.
const FEW: usize = 64;

/// A pass that chooses experts so many times as there are, or more often, is taken to need all of
/// them.
const CHOICES_FOR_ALL: usize = 3;

/// A feed-forward block that may be one of many.
pub(crate) trait Expert {
    /// `[1, tokens, hidden]` f32 to the same.
    fn forward(&self, x: Tensor<3>) -> Tensor<3>;

    /// Its weights, in the order in which it uses them.
    fn layers(&self) -> impl Iterator<Item = &Linear>;

    /// What it holds at most in a pass in which all tokens choose it, besides its input.
    fn activations(&self, pass: &PassShape) -> Activations;
}

impl Expert for Mlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        Self::forward(self, x)
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        [&self.gate_proj, &self.up_proj, &self.down_proj].into_iter()
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        Self::activations(self, pass)
    }
}

impl Expert for FusedMlp {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        Self::forward(self, x)
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        [&self.gate_up_proj, &self.down_proj].into_iter()
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        Self::activations(self, pass)
    }
}

/// One that has no weights gives what it takes.
impl Expert for Parameterless {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        x
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        std::iter::empty()
    }

    fn activations(&self, _: &PassShape) -> Activations {
        Activations::default()
    }
}

impl<A: Expert, B: Expert> Expert for Either<A, B> {
    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        either!(self, expert => expert.forward(x))
    }

    fn layers(&self) -> impl Iterator<Item = &Linear> {
        let (one, other) = match self {
            Self::One(one) => (Some(one), None),
            Self::Other(other) => (None, Some(other)),
        };
        let one = one.into_iter().flat_map(Expert::layers);
        one.chain(other.into_iter().flat_map(Expert::layers))
    }

    fn activations(&self, pass: &PassShape) -> Activations {
        either!(self, expert => expert.activations(pass))
    }
}

/// Says which experts' weights a pass of `rows` tokens will ask for, if that is known before it
/// comes to them: all.
pub(crate) fn announce_all<E: Expert>(experts: &[E], router: &Router, rows: usize) {
    if rows.saturating_mul(router.routing.per_token) >= experts.len() * CHOICES_FOR_ALL {
        Streamed::announce(experts.iter().flat_map(weights));
    }
}

fn is_in_memory<E: Expert>(expert: &E) -> bool {
    weights(expert).all(Streamed::is_in_memory)
}

/// The handles of an expert's weights, if they have any.
fn weights<E: Expert>(expert: &E) -> impl Iterator<Item = &Streamed> {
    expert.layers().filter_map(|layer| Streamed::of(&layer.weight))
}

/// The sum of what the experts that a router chooses make of each token, each times its share:
/// `[batch, tokens, hidden]` f32 to the same. The experts add up in their order, so that a token's
/// sum does not depend on its neighbours.
pub(crate) fn mixed<E: Expert>(x: Tensor<3>, router: &Router, experts: &[E]) -> Tensor<3> {
    mixed_with(x, router, None, experts)
}

/// The same with something added to the shares while experts are chosen that is no part of the
/// router.
pub(crate) fn mixed_with<E: Expert>(
    x: Tensor<3>,
    router: &Router,
    correction: Option<Vec<f32>>,
    experts: &[E],
) -> Tensor<3> {
    mixed_routed(x, router, experts, |x| route(x, router, correction))
}

fn mixed_routed<E: Expert>(
    x: Tensor<3>,
    router: &Router,
    experts: &[E],
    route: impl FnOnce(Tensor<2>) -> RoutedRows,
) -> Tensor<3> {
    let x = entered(x, &router.weight);
    let [batch, tokens, hidden] = x.dims();
    let x = x.reshape([batch * tokens, hidden]);
    let routed = route(x.clone());
    spread(x, routed, router.routing.of_input, experts).reshape([batch, tokens, hidden])
}

/// Which experts the rows of a pass go to.
pub(crate) struct RoutedRows {
    /// Of each row its experts, in the order of its shares: `[rows, per_token]`.
    pub places: Tensor<2, Int>,
    /// Their shares: `[rows, per_token]` f32.
    pub shares: Tensor<2>,
    /// Each expert that is chosen, in ascending order, with where it stands among the choices of
    /// the rows.
    experts: Vec<(usize, Vec<i64>)>,
}

fn ints(values: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), (device, index_dtype(device)))
}

/// What a router makes of `[rows, hidden]` f32, where its weight is.
pub(crate) fn route(x: Tensor<2>, router: &Router, correction: Option<Vec<f32>>) -> RoutedRows {
    let shares = router.shares(x);
    let chosen = router.choose(&shares, correction);
    routed(shares, chosen, router)
}

/// What becomes of the shares of all experts `[rows, experts]` f32 once some are chosen.
fn routed(shares: Tensor<2>, chosen: ChosenExperts, router: &Router) -> RoutedRows {
    let Routing { per_token, normalized, epsilon, scale, .. } = router.routing;
    let (rows, device) = (shares.dims()[0], shares.device());
    let places = ints(chosen.of_tokens, &device).reshape([rows, per_token]);
    let mut shares = match router.routing.shares {
        Shares::Softmax | Shares::Sigmoid | Shares::RootSoftplus => {
            shares.gather(1, places.clone())
        }
        Shares::SigmoidOfChosen => sigmoid(shares.gather(1, places.clone())),
        Shares::SparseMixer { jitter } => sparse_mixer::shares(shares, places.clone(), jitter),
    };
    if normalized {
        shares = shares.clone() / (shares.sum_dim(1) + epsilon);
    }
    if scale != 1.0 {
        shares = shares * scale;
    }
    RoutedRows { places, shares, experts: chosen.experts }
}

/// The sum of what the experts of each row make of it, each times its share: `[rows, hidden]` f32
/// to the same. Shares are of their inputs instead if that is said.
pub(crate) fn spread<E: Expert>(
    x: Tensor<2>,
    routed: RoutedRows,
    of_input: bool,
    experts: &[E],
) -> Tensor<2> {
    let chosen = || routed.experts.iter().map(|(expert, _)| &experts[*expert]);
    Streamed::announce(chosen().flat_map(weights));
    let ([rows, hidden], device) = (x.dims(), x.device());
    let per_token = routed.shares.dims()[1];
    let shares = routed.shares.reshape([rows * per_token]);
    let mut sum = Tensor::<2>::zeros([rows, hidden], (&device, DType::F32));
    let add =
        |sum: Tensor<2>, of_expert, y| sum.select_assign(0, of_expert, y, IndexingUpdateOp::Add);
    let mut experts_of_pass = routed.experts;
    let few = rows * per_token <= FEW;
    if few {
        // While others are read.
        experts_of_pass.sort_by_key(|(expert, _)| !is_in_memory(&experts[*expert]));
    }
    let mut results = Vec::new();
    for (expert, choices) in experts_of_pass {
        let share = shares.clone().select(0, ints(choices.clone(), &device)).unsqueeze_dim::<2>(1);
        let of_expert = ints(choices.iter().map(|at| at / per_token as i64).collect(), &device);
        let rows = match choices.len() == rows {
            true => x.clone(),
            false => x.clone().select(0, of_expert.clone()),
        };
        let run = |rows: Tensor<2>| experts[expert].forward(rows.unsqueeze()).squeeze_dim::<2>(0);
        let y = if of_input { run(rows * share) } else { run(rows) * share };
        match few {
            true => results.push((expert, of_expert, y)),
            false => sum = add(sum, of_expert, y),
        }
    }
    results.sort_by_key(|(expert, ..)| *expert);
    for (_, of_expert, y) in results {
        sum = add(sum, of_expert, y);
    }
    sum
}

/// As [`mixed_with`], and with what one expert makes of all tokens added.
pub(crate) fn mixed_beside<E: Expert>(
    x: Tensor<3>,
    shared: Option<&Mlp>,
    router: &Router,
    correction: Option<Vec<f32>>,
    experts: &[E],
) -> Tensor<3> {
    beside(x, shared, |x| mixed_with(x, router, correction, experts))
}

/// The same with experts that are chosen already.
pub(crate) fn mixed_chosen_beside<E: Expert>(
    x: Tensor<3>,
    shared: Option<&Mlp>,
    router: &Router,
    chosen: ChosenExperts,
    experts: &[E],
) -> Tensor<3> {
    let route = |x| routed(router.shares(x), chosen, router);
    beside(x, shared, |x| mixed_routed(x, router, experts, route))
}

fn beside(
    x: Tensor<3>,
    shared: Option<&Mlp>,
    mixed: impl FnOnce(Tensor<3>) -> Tensor<3>,
) -> Tensor<3> {
    let shared = shared.map(|shared| shared.forward(x.clone()));
    let mixed = mixed(x);
    match shared {
        Some(shared) => mixed + shared,
        None => mixed,
    }
}

/// What that holds at most, besides the residual stream.
pub(crate) fn beside_activations<E: Expert>(
    shared: Option<&Mlp>,
    router: &Router,
    experts: &[E],
    pass: &PassShape,
) -> Activations {
    let most = expert_activations(router, experts, pass);
    let shared = shared.map(|shared| Expert::activations(shared, pass));
    // What the shared one makes of its input, beside the others and added to them.
    let kept = Activations::values(pass.rows() * 2 * router.hidden() as u64);
    most.or(shared.unwrap_or_default()).and(kept)
}

/// What [`mixed`] holds at most, besides the residual stream.
pub(crate) fn expert_activations<E: Expert>(
    router: &Router,
    experts: &[E],
    pass: &PassShape,
) -> Activations {
    let (count, hidden) = (router.count(), router.hidden());
    let per_token = router.routing.per_token;
    // At worst all tokens choose the same expert. Beside what that holds: the sum, the expert's
    // input, and its result times the shares, or those of all; and the scores, their exponentials
    // and shares, with what is chosen of them.
    let rows = pass.rows();
    let of_burn = rows * (3 * hidden + 4 * count + 4 * per_token) as u64
        + (rows * per_token as u64).min(FEW as u64) * hidden as u64;
    let scaled = if router.routing.of_input { hidden } else { 0 };
    let one = experts.first().map_or(Activations::default(), |expert| expert.activations(pass));
    one.and(Activations::values(of_burn + rows * scaled as u64))
        .and(Activations::values(rows * hidden as u64).with_unpooled(0))
}
