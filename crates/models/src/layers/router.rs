//! The layer that chooses experts.

use burn::module::{Module, Param, ParamId};
use burn::tensor::activation::{sigmoid, softmax, softplus};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use outsize_kernels::{ActivationDtype, index_dtype};

use super::linear::{self, matrix, zeros};
use crate::{Error, Init};

/// Scores experts, and chooses a few of them for each token. Its products are of f32 activations,
/// whatever those of other layers are: near a tie, rounding would choose another expert.
#[derive(Module, Debug)]
pub struct Router {
    /// `[experts, hidden]`.
    pub weight: Param<Tensor<2>>,
    /// `[experts]`.
    pub bias: Option<Param<Tensor<1>>>,
    /// `[experts]`: added to the experts' shares while they are chosen
    /// ([Wang et al., 2024](https://arxiv.org/abs/2408.15664)).
    pub e_score_correction_bias: Option<Param<Tensor<1>>>,
    /// `[vocabulary, per_token]`: which experts tokens go to whatever their scores, in
    /// DeepSeek-V4's first layers.
    pub tid2eid: Option<Param<Tensor<2, Int>>>,
    #[module(skip)]
    pub(crate) routing: Routing,
}

/// How a router chooses: the experts of the greatest shares.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Routing {
    /// Experts that each token goes to.
    pub per_token: usize,
    /// What scores become.
    pub shares: Shares,
    /// Whether the shares of those chosen are made to add up to one.
    pub normalized: bool,
    /// What is added to the sum before.
    pub epsilon: f64,
    /// What they are multiplied by then.
    pub scale: f64,
    /// Whether an expert's input is multiplied by its share, rather than what it makes of it.
    pub of_input: bool,
    /// Groups of experts, of which only the best take part, if there are such.
    pub groups: Option<ExpertGroups>,
}

/// What the scores of experts become.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shares {
    /// Their softmax over all experts ([Shazeer et al., 2017](https://arxiv.org/abs/1701.06538)).
    Softmax,
    /// The sigmoid of each ([DeepSeek-AI, 2024](https://arxiv.org/abs/2412.19437)).
    Sigmoid,
    /// The same, of those that are chosen by their scores as they are.
    SigmoidOfChosen,
    /// The root of the softplus of each, in DeepSeek-V4.
    RootSoftplus,
    /// Two softmaxes, for one expert each, of scores that are less by twice this part at most. The
    /// experts are chosen by their scores as they are, the best one first.
    SparseMixer {
        /// That part.
        jitter: f64,
    },
}

/// Experts in groups: each token chooses some groups, then experts in these.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ExpertGroups {
    /// How many there are, of equally many experts.
    pub count: usize,
    /// How many each token chooses.
    pub per_token: usize,
    /// How many of its best experts make up what a group is worth.
    pub best: usize,
    /// What experts of other groups count as: less than any number, or 0 where that is still more
    /// than those of some that are chosen.
    pub others: f32,
}

impl Routing {
    /// Of the greatest shares in a softmax over all.
    pub fn softmax(per_token: usize, normalized: bool) -> Self {
        Self {
            per_token,
            shares: Shares::Softmax,
            normalized,
            // Sigmoids may all be 0; beside a softmax this is nothing.
            epsilon: 1e-20,
            scale: 1.0,
            of_input: false,
            groups: None,
        }
    }
}

impl Router {
    /// A layer without storage for `count` experts.
    pub fn new(hidden: usize, count: usize, routing: Routing, init: &Init) -> Self {
        Self {
            weight: matrix([count, hidden], &init.device),
            bias: None,
            e_score_correction_bias: None,
            tid2eid: None,
            routing,
        }
    }

    /// The same with a bias.
    pub fn biased(self, init: &Init) -> Self {
        let bias = Some(zeros(self.count(), &init.device));
        Self { bias, ..self }
    }

    /// The same with a bias for the choice alone.
    pub fn corrected(self, init: &Init) -> Self {
        let e_score_correction_bias = Some(zeros(self.count(), &init.device));
        Self { e_score_correction_bias, ..self }
    }

    /// The same whose experts are those that a table has for each of `vocabulary` tokens.
    pub fn tabled(self, vocabulary: usize, init: &Init) -> Self {
        let shape = [vocabulary, self.routing.per_token];
        // Of the first ones, unless loaded.
        let first = move |device: &Device, _| {
            let row = Tensor::<1, Int>::arange(0..shape[1] as i64, device);
            row.unsqueeze::<2>().repeat_dim(0, vocabulary)
        };
        let id = ParamId::new();
        let table = Param::uninitialized(id, first, init.device.clone(), false, shape.into());
        Self { tid2eid: Some(table), ..self }
    }

    /// The experts of tokens, if a table has them.
    ///
    /// # Errors
    /// [`Error::ExpertTable`]: a row of the table is none.
    pub(crate) fn tabled_experts(&self, ids: &[u32]) -> Result<Option<ChosenExperts>, Error> {
        let Some(table) = &self.tid2eid else { return Ok(None) };
        let table = table.val();
        let (rows, device) = (table.dims()[0], table.device());
        // An id that the table lacks has no embedding either.
        let places = ids.iter().map(|id| (*id as usize).min(rows - 1) as i64).collect();
        let places = TensorData::new::<i64, _>(places, [ids.len()]);
        let places: Tensor<1, Int> = Tensor::from_data(places, (&device, index_dtype(&device)));
        let chosen: Vec<i64> = table.select(0, places).into_data().iter().collect();
        ChosenExperts::given(chosen, self.routing.per_token, self.count(), ids).map(Some)
    }

    /// Experts that it scores.
    pub fn count(&self) -> usize {
        self.weight.lazy_shape()[0]
    }

    /// Width of a token.
    pub fn hidden(&self) -> usize {
        self.weight.lazy_shape()[1]
    }

    /// The shares of all experts, or the scores that they are made of once some are chosen,
    /// `[tokens, hidden]` f32, where its weight is, to `[tokens, experts]`.
    pub(super) fn shares(&self, x: Tensor<2>) -> Tensor<2> {
        let scores = linear::product(ActivationDtype::F32, x, &self.weight);
        let scores = linear::biased(scores, self.bias.as_ref());
        match self.routing.shares {
            Shares::Softmax => softmax(scores, 1),
            Shares::Sigmoid => sigmoid(scores),
            Shares::RootSoftplus => softplus(scores, 1.0).sqrt(),
            Shares::SigmoidOfChosen | Shares::SparseMixer { .. } => scores,
        }
    }

    /// Which experts tokens of such shares go to, if what is added to these while they are chosen
    /// is not its own.
    pub(super) fn choose(&self, shares: &Tensor<2>, correction: Option<Vec<f32>>) -> ChosenExperts {
        let own = || self.e_score_correction_bias.as_ref().map(correction_of);
        ChosenExperts::of(shares, correction.or_else(own).as_deref(), &self.routing)
    }
}

/// What a parameter, which is not beside the router's weight, adds to the shares of experts while
/// they are chosen.
pub(crate) fn correction_of<const D: usize>(bias: &Param<Tensor<D>>) -> Vec<f32> {
    bias.val().cast(DType::F32).to_data().iter().collect()
}

/// Which experts the tokens go to.
pub(crate) struct ChosenExperts {
    /// Of each token after the other, its experts, in ascending order; of [`Shares::SparseMixer`]
    /// the best one first.
    pub of_tokens: Vec<i64>,
    /// Each expert that is chosen, in ascending order, with where it stands among the choices of
    /// the tokens.
    pub experts: Vec<(usize, Vec<i64>)>,
}

impl ChosenExperts {
    /// Those of some tokens as they are told, `per_token` for each.
    fn given(
        mut of_tokens: Vec<i64>,
        per_token: usize,
        count: usize,
        ids: &[u32],
    ) -> Result<Self, Error> {
        let mut by_expert = vec![Vec::new(); count];
        for (token, chosen) in of_tokens.chunks_exact_mut(per_token).enumerate() {
            chosen.sort_unstable();
            let is_known = |expert: &i64| (0..count as i64).contains(expert);
            if !chosen.iter().all(is_known) || chosen.windows(2).any(|two| two[0] == two[1]) {
                return Err(Error::ExpertTable { token: ids[token], experts: count });
            }
            for (at, expert) in chosen.iter().enumerate() {
                by_expert[*expert as usize].push((token * per_token + at) as i64);
            }
        }
        Ok(Self::sorted(of_tokens, by_expert))
    }

    fn sorted(of_tokens: Vec<i64>, by_expert: Vec<Vec<i64>>) -> Self {
        let experts = by_expert.into_iter().enumerate().filter(|(_, choices)| !choices.is_empty());
        Self { of_tokens, experts: experts.collect() }
    }

    /// The greatest of each row of `[tokens, experts]`; of equals the first.
    fn of(shares: &Tensor<2>, correction: Option<&[f32]>, routing: &Routing) -> Self {
        let [_, count] = shares.dims();
        let mut values: Vec<f32> = shares.to_data().iter().collect();
        let mut of_tokens = Vec::with_capacity(values.len() / count.max(1) * routing.per_token);
        let mut by_expert = vec![Vec::new(); count];
        for row in values.chunks_mut(count) {
            for (value, bias) in row.iter_mut().zip(correction.unwrap_or_default()) {
                *value += bias;
            }
            // What is not a number comes last: the result is none either.
            row.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = f32::MIN);
            if let Some(groups) = &routing.groups {
                leave_out_groups(row, groups);
            }
            let mut chosen = greatest(row, routing.per_token);
            if !matches!(routing.shares, Shares::SparseMixer { .. }) {
                chosen.sort_unstable();
            }
            for expert in chosen {
                by_expert[expert].push(of_tokens.len() as i64);
                of_tokens.push(expert as i64);
            }
        }
        Self::sorted(of_tokens, by_expert)
    }
}

/// Where the greatest are, of equals the first.
fn greatest(values: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|one, other| values[*other].total_cmp(&values[*one]));
    order.truncate(count);
    order
}

/// Makes the experts of all but the best groups the last to be chosen.
fn leave_out_groups(row: &mut [f32], groups: &ExpertGroups) {
    let size = row.len() / groups.count;
    let worth = |group: &[f32]| -> f32 {
        let best = greatest(group, groups.best);
        best.iter().map(|&at| group[at]).sum()
    };
    let worths: Vec<f32> = row.chunks(size).map(worth).collect();
    let chosen = greatest(&worths, groups.per_token);
    for (at, group) in row.chunks_mut(size).enumerate() {
        if !chosen.contains(&at) {
            group.fill(groups.others);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_of_other_groups_may_be_better_than_some_that_are_chosen() {
        let best = |mut row: [f32; 4], others| {
            leave_out_groups(&mut row, &ExpertGroups { count: 2, per_token: 1, best: 2, others });
            (row, greatest(&row, 2))
        };
        let (row, least) = ([0.5, -0.25, 0.0, 0.125], f32::NEG_INFINITY);
        assert_eq!(best(row, least), ([0.5, -0.25, least, least], vec![0, 1]));
        assert_eq!(best(row, 0.0), ([0.5, -0.25, 0.0, 0.0], vec![0, 2]));
    }

    #[test]
    fn a_table_names_different_experts_that_there_are() {
        let given = |table: &[i64]| ChosenExperts::given(table.to_vec(), 2, 4, &[7, 9]);
        let chosen = given(&[3, 0, 1, 3]).unwrap();
        assert_eq!(chosen.of_tokens, [0, 3, 1, 3]);
        assert_eq!(chosen.experts, [(0, vec![0]), (1, vec![2]), (3, vec![1, 3])]);
        for broken in [[0, 1, 2, 2], [0, 1, 4, 0], [0, 1, -1, 0], [0, 1, 2, i64::MAX]] {
            let error = given(&broken).err().unwrap();
            assert!(matches!(error, Error::ExpertTable { token: 9, experts: 4 }), "{error}");
        }
    }
}
