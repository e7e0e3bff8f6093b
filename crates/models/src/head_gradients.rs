//! The loss of what a decoder's blocks give, and its gradients: logits exist of some of the
//! vocabulary at a time.

use burn::tensor::{DType, Gradients, IndexingUpdateOp, Int, Tensor, TensorData};
use outsize_core::Streamed;
use outsize_kernels::{FetchedHead, head_gradient, head_loss};

use crate::Error;
use crate::blocks::{Blocks, Residual};
use crate::decoder::{Decoder, Head};
use crate::pass::Pass;

/// What a batch's positions are to predict: for each position of each row, the token that is to
/// come, or none.
pub type Labels<'a> = &'a [Option<u32>];

/// What the head makes of what the last block gives.
pub(crate) struct HeadResult {
    /// The sum of the cross-entropies of all targets.
    pub loss: f64,
    /// How many there are.
    pub targets: usize,
    /// The gradient of that sum for what the last block gives.
    pub gradient: Tensor<3>,
}

/// What the head makes of what the last block gives, and the gradients of the norm before it. The
/// head's own go to where they are taken, if they are.
pub(crate) fn head_result(
    model: &dyn Decoder,
    blocks: &dyn Blocks,
    stream: Tensor<3>,
    pass: &Pass<'_>,
    labels: Labels<'_>,
) -> Result<(HeadResult, Gradients), Error> {
    let stream = stream.detach().require_grad();
    let hidden = blocks.normed(Residual::new(stream.clone()), pass);
    let chosen = Chosen::new(model, hidden.clone().inner(), labels)?;
    let (loss, by_head) = with_head(model, |head| {
        let loss = head_loss(&chosen.hidden, &chosen.tokens, head);
        (loss.sum, head_gradient(&loss, &chosen.hidden, &chosen.tokens, head))
    })?;
    if let (Some(by_bias), Head::Own(linear)) = (&by_head.bias, model.head())
        && let Some(bias) = linear.bias.as_ref().and_then(Streamed::of)
    {
        bias.add_gradient(0, by_bias);
    }
    let by_chosen = by_head.hidden;
    let width = hidden.dims()[2];
    let zeros = Tensor::<2>::zeros([labels.len(), width], (&by_chosen.device(), DType::F32));
    let by_hidden = zeros.select_assign(0, chosen.positions, by_chosen, IndexingUpdateOp::Add);
    let by_hidden = by_hidden.reshape(hidden.dims()).autodiff();
    let mut of_norm = (hidden * by_hidden).sum().backward();
    let gradient = stream.grad_remove(&mut of_norm).expect("the norm is of the stream");
    Ok((HeadResult { loss, targets: chosen.tokens.len(), gradient }, of_norm))
}

/// The loss of hidden states as the head takes them.
pub(crate) fn loss_of_hidden(
    model: &dyn Decoder,
    hidden: Tensor<3>,
    labels: Labels<'_>,
) -> Result<f64, Error> {
    let chosen = Chosen::new(model, hidden, labels)?;
    with_head(model, |head| head_loss(&chosen.hidden, &chosen.tokens, head).sum)
}

/// Hidden states that have a label.
pub(crate) struct Chosen {
    positions: Tensor<1, Int>,
    /// `[labels, hidden]` f32.
    pub hidden: Tensor<2>,
    pub tokens: Vec<u32>,
}

impl Chosen {
    pub(crate) fn new(
        model: &dyn Decoder,
        hidden: Tensor<3>,
        labels: Labels<'_>,
    ) -> Result<Self, Error> {
        let [rows, tokens, width] = hidden.dims();
        assert_eq!(labels.len(), rows * tokens, "a label, or none, for each position");
        let (positions, tokens): (Vec<i64>, Vec<u32>) = (labels.iter().enumerate())
            .filter_map(|(position, token)| Some((position as i64, (*token)?)))
            .unzip();
        let vocab_size = model.head().vocab_size();
        if let Some(index) = tokens.iter().position(|token| *token as usize >= vocab_size) {
            return Err(Error::TokenId { id: tokens[index], index, vocab_size });
        }
        let positions = TensorData::new(positions, [tokens.len()]);
        let positions = Tensor::<1, Int>::from_data(positions, (&hidden.device(), DType::I64));
        let hidden = hidden.reshape([labels.len(), width]).select(0, positions.clone());
        Ok(Self { positions, hidden, tokens })
    }
}

/// Does something with the head of a dispatched model.
pub(crate) fn with_head<T>(
    model: &dyn Decoder,
    work: impl FnOnce(FetchedHead<'_>) -> T,
) -> Result<T, Error> {
    let (weight, bias, compute) = match model.head() {
        Head::Own(linear) => (&linear.weight, linear.bias.as_ref(), linear.compute),
        Head::Tied(table) => (&table.weight, None, table.compute),
    };
    let bias: Option<Vec<f32>> =
        bias.map(|bias| bias.val().cast(DType::F32).into_data().iter().collect());
    Ok(work(FetchedHead {
        weight: Streamed::of(weight).ok_or(Error::NotDispatched)?,
        bias: bias.as_deref(),
        softcap: model.logit_softcap().map(|cap| cap as f32),
        compute,
    }))
}
