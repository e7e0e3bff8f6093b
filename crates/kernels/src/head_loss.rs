//! The loss of a language model under a fetched head, and how likely tokens are by it: logits exist
//! for some of the vocabulary at a time, so that memory does not grow with it.

use std::ops::Range;

use burn::backend::Flex;
use burn::tensor::{DType, Tensor, TensorData};
use rayon::prelude::*;

use crate::exp::exp;
use crate::extension::f32_elements;
use crate::fetched::add_gradient;
use crate::token_score::{LogitSum, TokenScore, TokenScorer};
use crate::{
    ActivationDtype, FetchedWeight, WeightTensor, add_linear_in_out, is_flex, linear_with,
};

/// Tokens of the vocabulary whose logits exist at once, at most.
pub const HEAD_TOKENS: usize = 1024;

/// What makes logits of hidden states.
#[derive(Debug, Clone, Copy)]
pub struct FetchedHead<'a> {
    /// `[vocabulary, hidden]`.
    pub weight: &'a dyn FetchedWeight,
    /// `[vocabulary]`.
    pub bias: Option<&'a [f32]>,
    /// Logits stay below this in magnitude: `cap · tanh(logit / cap)`.
    pub softcap: Option<f32>,
    /// The type in which hidden states are multiplied.
    pub compute: ActivationDtype,
}

/// A loss, and what its gradient is made of.
#[derive(Debug, Clone)]
pub struct HeadLoss {
    /// The sum of the cross-entropies of all rows.
    pub sum: f64,
    /// Of each row the logarithm of the sum of its logits' exponentials.
    normalizers: Vec<f32>,
}

/// What a loss changes by.
#[derive(Debug)]
pub struct HeadGradient {
    /// With respect to hidden states, `[rows, hidden]` f32.
    pub hidden: Tensor<2>,
    /// With respect to the bias, `[vocabulary]`.
    pub bias: Option<Vec<f32>>,
}

/// The sum of the cross-entropies of `hidden [rows, hidden]` f32, on Flex, and the tokens that were
/// to come, `targets [rows]`. It does not depend on how the head is cut into tiles, by a bit.
///
/// # Panics
///
/// If sizes do not fit each other, or if a target is not below the vocabulary.
pub fn head_loss(hidden: &Tensor<2>, targets: &[u32], head: FetchedHead<'_>) -> HeadLoss {
    head.check(hidden, targets);
    let mut sums = vec![LogitSum::default(); targets.len()];
    head.for_each_part(hidden, |tokens, logits, _| {
        let each = sums.par_iter_mut().zip(targets).zip(logits.par_chunks(tokens.len()));
        each.for_each(|((sum, target), logits)| sum.add(logits, &tokens, *target));
    });
    let normalizers = sums.iter().map(|sum| sum.normalizer() as f32).collect();
    HeadLoss { sum: sums.iter().map(LogitSum::loss).sum(), normalizers }
}

/// How likely `targets [rows]` are by `hidden [rows, hidden]` f32, on Flex, each with the `top`
/// likeliest tokens. It does not depend on how the head is cut into tiles, by a bit.
///
/// # Panics
///
/// As [`head_loss`].
pub fn head_scores(
    hidden: &Tensor<2>,
    targets: &[u32],
    top: usize,
    head: FetchedHead<'_>,
) -> Vec<TokenScore> {
    head.check(hidden, targets);
    let mut scorers = vec![TokenScorer::new(top); targets.len()];
    head.for_each_part(hidden, |tokens, logits, _| {
        let each = scorers.par_iter_mut().zip(targets).zip(logits.par_chunks(tokens.len()));
        each.for_each(|((scorer, target), logits)| scorer.add(logits, &tokens, *target));
    });
    scorers.iter().zip(targets).map(|(scorer, target)| scorer.score(*target)).collect()
}

/// The gradient of a [`head_loss`] with respect to `hidden`, of the same shape, and to the bias if
/// there is one: the head is gone through once more. That of a weight that learns is handed over.
/// Neither does depend on tiles.
///
/// # Panics
///
/// As [`head_loss`], or if the loss is of other rows.
pub fn head_gradient(
    loss: &HeadLoss,
    hidden: &Tensor<2>,
    targets: &[u32],
    head: FetchedHead<'_>,
) -> HeadGradient {
    let [rows, width] = hidden.dims();
    assert_eq!([loss.normalizers.len(), targets.len()], [rows; 2], "loss: of other rows");
    let mut gradient = Some(Tensor::zeros([rows, width], (&hidden.device(), DType::F32)));
    let mut by_bias = head.bias.map(|bias| vec![0.0; bias.len()]);
    let of_columns = hidden.clone().try_into_primitive::<Flex>().expect("it is on Flex");
    head.for_each_part(hidden, |tokens, logits, part| {
        let mut by_logit = vec![0.0; logits.len()];
        let each = by_logit.par_chunks_mut(tokens.len()).zip(logits.par_chunks(tokens.len()));
        let each = each.zip(&loss.normalizers).zip(targets);
        each.for_each(|(((by_logit, logits), normalizer), &target)| {
            for (by_logit, logit) in by_logit.iter_mut().zip(logits) {
                *by_logit = exp(logit - normalizer);
            }
            if let Some(at) = (target as usize).checked_sub(tokens.start)
                && let Some(by_logit) = by_logit.get_mut(at)
            {
                *by_logit -= 1.0;
            }
            if let Some(cap) = head.softcap {
                for (by_logit, logit) in by_logit.iter_mut().zip(logits) {
                    *by_logit *= 1.0 - (logit / cap) * (logit / cap);
                }
            }
        });
        if let Some(by_bias) = &mut by_bias {
            for row in by_logit.chunks_exact(tokens.len()) {
                by_bias[tokens.clone()].iter_mut().zip(row).for_each(|(sum, more)| *sum += more);
            }
        }
        let by_logit = TensorData::new(by_logit, [rows, tokens.len()]);
        let by_logit = Tensor::<2>::from_data(by_logit, (&hidden.device(), DType::F32));
        if let Some(learner) = head.weight.learner() {
            let of_rows = by_logit.clone().try_into_primitive::<Flex>().expect("it is on Flex");
            add_gradient(learner, tokens.start, &of_rows, of_columns.clone());
        }
        let sum = gradient.take().expect("it is put back");
        gradient = Some(add_linear_in_out(ActivationDtype::F32, sum, by_logit, 0, part));
    });
    HeadGradient { hidden: gradient.expect("it is put back"), bias: by_bias }
}

impl FetchedHead<'_> {
    /// That sizes fit each other, and that there are such tokens.
    fn check(&self, hidden: &Tensor<2>, targets: &[u32]) {
        let ([rows, width], [vocabulary, inputs]) = (hidden.dims(), self.weight.dims());
        assert_eq!((width, rows), (inputs, targets.len()), "head: sizes do not fit each other");
        let below = targets.iter().all(|target| (*target as usize) < vocabulary);
        assert!(below, "head: no such token");
        assert!(is_flex(&hidden.device()), "head: hidden states must be on Flex");
    }

    /// Calls `each` with some tokens of the vocabulary, their logits `[rows, tokens.len()]`, and
    /// what makes these.
    fn for_each_part(
        &self,
        hidden: &Tensor<2>,
        mut each: impl FnMut(Range<usize>, &[f32], WeightTensor),
    ) {
        for (tile_rows, tile) in self.weight.tiles() {
            for start in tile_rows.clone().step_by(HEAD_TOKENS) {
                let tokens = start..tile_rows.end.min(start + HEAD_TOKENS);
                let part = tile.slice(start - tile_rows.start..tokens.end - tile_rows.start);
                let logits = linear_with(self.compute, hidden.clone(), part.clone());
                let mut logits = logits.try_into_primitive::<Flex>().expect("it is on Flex");
                if self.bias.is_some() || self.softcap.is_some() {
                    let values = crate::extension::f32_elements_mut(&mut logits, "logits");
                    values.par_chunks_mut(tokens.len()).for_each(|row| {
                        self.finish(row, &tokens);
                    });
                }
                each(tokens, f32_elements(&logits, "logits"), part);
            }
        }
    }

    /// Makes logits of products.
    fn finish(&self, row: &mut [f32], tokens: &Range<usize>) {
        if let Some(bias) = self.bias {
            row.iter_mut().zip(&bias[tokens.clone()]).for_each(|(logit, bias)| *logit += bias);
        }
        if let Some(cap) = self.softcap {
            row.iter_mut().for_each(|logit| *logit = crate::exp::tanh(*logit / cap) * cap);
        }
    }
}
