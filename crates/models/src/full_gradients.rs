//! Gradients of all of a decoder's weights, block by block: of the activations that a backward pass
//! needs, only those of one block exist at a time. The others are computed again from what their
//! block took: gradient checkpointing.

use outsize_core::Learning;

use crate::blocks::{BlockInputs, Residual};
use crate::decoder::{Decoder, check_ids};
use crate::head_gradients::{HeadResult, Labels, head_result};
use crate::pass::Pass;
use crate::{Batch, Error, KvCache, Logits};

/// The loss of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchLoss {
    /// The sum of the cross-entropies of all targets.
    pub loss: f64,
    /// How many targets there were.
    pub targets: usize,
}

/// Ends of the paths of parameters that choose experts and have no gradient: whoever trains a model
/// sets them otherwise.
const FIXED: [&str; 2] = [".e_score_correction_bias", ".expert_bias"];

/// Whether a parameter has a gradient.
pub(crate) fn learns(path: &str) -> bool {
    !FIXED.iter().any(|end| path.ends_with(end))
}

/// The loss of a batch. The gradients of all weights go to who takes them.
pub(crate) fn full_gradients(
    model: &dyn Decoder,
    batch: &Batch,
    labels: Labels<'_>,
    learning: &Learning<'_>,
) -> Result<BatchLoss, Error> {
    let blocks = model.blocks().ok_or(Error::NoBlocks)?;
    check_ids(batch, model.head().vocab_size())?;
    let mut cache = KvCache::without_storage(model.cache(), batch);
    let pass = Pass::new(batch, &cache, Logits::All);
    let BlockInputs { residual, rotations } = blocks.inputs(&pass)?;
    let mut run = |index, stream| {
        let output = blocks.block(index, Residual::new(stream), &rotations, &pass, &mut cache);
        output.map(Residual::summed)
    };
    // As where gradients are tracked: some layers compute otherwise without autodiff.
    let mut stream = residual.summed().autodiff();
    let mut taken = Vec::with_capacity(blocks.count());
    for index in 0..blocks.count() {
        taken.push(stream.clone());
        stream = run(index, stream)?;
    }

    let HeadResult { loss, targets, mut gradient } =
        learning.record(|| head_result(model, blocks, stream, &pass, labels))?;
    for (index, input) in taken.into_iter().enumerate().rev() {
        gradient = learning.record(|| {
            let input = input.detach().require_grad();
            let output = run(index, input.clone())?;
            let mut found = (output * gradient.autodiff()).sum().backward();
            let by_input = input.grad_remove(&mut found);
            Ok::<_, Error>((by_input.unwrap_or_else(|| input.zeros_like().inner()), found))
        })?;
    }
    learning.record(|| {
        let stream = blocks.inputs(&pass)?.residual.summed();
        Ok::<_, Error>(((), (stream * gradient.autodiff()).sum().backward()))
    })?;
    Ok(BatchLoss { loss, targets })
}
