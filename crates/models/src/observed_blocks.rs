//! What goes into the matrices of a decoder, block after block.

use burn::tensor::Tensor;
use outsize_core::Parameter;

use crate::blocks::{BlockInputs, Residual};
use crate::decoder::{Decoder, check_ids};
use crate::layers::Rotation;
use crate::pass::Pass;
use crate::{Activations, Batch, Error, KvCache, Logits, PassShape};

/// What comes after a block that has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterBlock {
    /// The next one.
    Next,
    /// The same once more, of the same inputs.
    Again,
    /// Nothing.
    Stop,
}

/// A batch on its way through the blocks.
struct Sequences<'a> {
    cache: KvCache,
    pass: Pass<'a>,
    rotations: Vec<Rotation>,
    stream: Tensor<3>,
}

/// Runs each block over all batches before the next one, and asks `each` after it.
pub(crate) fn observe_blocks(
    model: &dyn Decoder,
    batches: &[Batch],
    each: &mut dyn FnMut(usize) -> AfterBlock,
) -> Result<(), Error> {
    let blocks = model.blocks().ok_or(Error::NoBlocks)?;
    let begun = batches.iter().map(|batch| {
        check_ids(batch, model.head().vocab_size())?;
        let cache = KvCache::without_storage(model.cache(), batch);
        let pass = Pass::new(batch, &cache, Logits::All);
        let BlockInputs { residual, rotations } = blocks.inputs(&pass)?;
        Ok(Sequences { cache, pass, rotations, stream: residual.summed() })
    });
    let mut sequences = begun.collect::<Result<Vec<_>, Error>>()?;
    for index in 0..blocks.count() {
        loop {
            let run = |Sequences { cache, pass, rotations, stream }: &mut Sequences<'_>| {
                let residual = Residual::new(stream.clone());
                Ok(blocks.block(index, residual, rotations, pass, cache)?.summed())
            };
            let outputs = sequences.iter_mut().map(run).collect::<Result<Vec<_>, Error>>()?;
            match each(index) {
                AfterBlock::Again => {}
                AfterBlock::Stop => return Ok(()),
                AfterBlock::Next => {
                    let all = sequences.iter_mut().zip(outputs);
                    all.for_each(|(sequences, output)| sequences.stream = output);
                    break;
                }
            }
        }
    }
    Ok(())
}

/// What that allocates at most besides weights, for so many batches of which each is such a pass,
/// in bytes; nothing if the model cannot be run so.
pub(crate) fn observing_bytes(
    model: &dyn Decoder,
    parameters: &[Parameter],
    pass: PassShape,
    batches: usize,
) -> Option<u64> {
    model.blocks()?;
    let (rows, hidden) = (pass.rows(), model.head().width() as u64);
    let widest = parameters.iter().filter(|parameter| parameter.shape.len() == 2);
    let widest = widest.filter_map(|parameter| parameter.shape.last()).max();
    // What is observed is a copy; keys and values stay beside it where no cache takes them.
    let copied = Activations::values(rows.saturating_mul(3 * widest.map_or(0, |n| *n as u64)));
    // What a block took of all batches, and what it gave.
    let streams = rows.saturating_mul(2 * hidden).saturating_mul(batches as u64);
    let held = model.activations(&pass).and(copied).and(Activations::values(streams));
    Some(held.bytes())
}
