//! Gradients of what an adapter adds to weights that do not learn, block by block: of the
//! activations that a backward pass needs, only those of one block exist at a time, and those of
//! blocks that are to be kept. The others are computed again from what their block took: gradient
//! checkpointing.

use std::collections::HashMap;

use burn::tensor::Tensor;
use outsize_core::LowRank;

use crate::blocks::{BlockInputs, Residual};
use crate::decoder::{Decoder, check_ids};
use crate::head_gradients::{HeadResult, Labels, head_result, loss_of_hidden};
use crate::learning_memory::block_of;
use crate::pass::Pass;
use crate::{Batch, Error, KvCache, Logits};

/// The loss of a batch, and the gradients of an adapter.
#[derive(Debug)]
pub struct LowRankGradients {
    /// The sum of the cross-entropies of all targets.
    pub loss: f64,
    /// How many targets there were.
    pub targets: usize,
    /// By the path of the weight: gradients of that sum for what is multiplied first `[rank, in]`,
    /// and second `[out, rank]`, in f32.
    pub gradients: HashMap<String, [Tensor<2>; 2]>,
}

/// The loss of a batch under an adapter, and its gradients. `layers` is the path of the blocks;
/// `set` adds to weights, by path, what it is given. Of the last `kept` blocks activations are kept
/// instead of computed again.
pub(crate) fn low_rank_gradients(
    (model, layers): (&dyn Decoder, &str),
    batch: &Batch,
    labels: Labels<'_>,
    adapter: &HashMap<String, LowRank>,
    kept: usize,
    set: &dyn Fn(&HashMap<String, LowRank>),
) -> Result<LowRankGradients, Error> {
    let blocks = model.blocks().ok_or(Error::NoBlocks)?;
    check_ids(batch, model.head().vocab_size())?;
    let mut parts = by_block(adapter, layers, blocks.count())?;
    let first = parts.iter().position(|part| !part.is_empty()).unwrap_or(blocks.count());
    let first_kept = blocks.count().saturating_sub(kept).max(first);

    let mut cache = KvCache::without_storage(model.cache(), batch);
    let pass = Pass::new(batch, &cache, Logits::All);
    set(adapter);
    let BlockInputs { residual, rotations } = blocks.inputs(&pass)?;
    let mut run = |index, stream| {
        let output = blocks.block(index, Residual::new(stream), &rotations, &pass, &mut cache);
        output.map(Residual::summed)
    };
    // As where gradients are tracked: some layers compute otherwise without autodiff, and the
    // results depend on what is kept by no bit.
    let mut stream = residual.summed().autodiff();
    let mut taken = Vec::with_capacity(blocks.count() - first);
    for (index, parts) in parts.iter_mut().enumerate() {
        if index >= first_kept {
            let graph = Graph::new(parts, stream, set, |x| run(index, x))?;
            stream = graph.output.clone().detach();
            taken.push(Taken::Graph(Box::new(graph)));
            continue;
        }
        if index >= first {
            taken.push(Taken::Input(Box::new(stream.clone())));
        }
        stream = run(index, stream)?;
    }

    let (HeadResult { loss, targets, mut gradient }, _) =
        head_result(model, blocks, stream, &pass, labels)?;
    let mut gradients = HashMap::new();
    for (index, taken) in (first..blocks.count()).zip(taken).rev() {
        let graph = match taken {
            Taken::Graph(graph) => *graph,
            Taken::Input(x) => Graph::new(&mut parts[index], *x, set, |x| run(index, x))?,
        };
        gradient = graph.backward(gradient, &mut gradients);
    }
    Ok(LowRankGradients { loss, targets, gradients })
}

/// What is kept of a block for its gradients.
enum Taken {
    /// What it took.
    Input(Box<Tensor<3>>),
    /// All that they are made of.
    Graph(Box<Graph>),
}

/// A block that has run and not yet backward.
struct Graph {
    input: Tensor<3>,
    learning: HashMap<String, LowRank>,
    output: Tensor<3>,
}

impl Graph {
    /// Runs a block of which `parts` learn.
    fn new(
        parts: &mut HashMap<String, LowRank>,
        input: Tensor<3>,
        set: &dyn Fn(&HashMap<String, LowRank>),
        run: impl FnOnce(Tensor<3>) -> Result<Tensor<3>, Error>,
    ) -> Result<Self, Error> {
        let learning = parts.drain().map(|(path, part)| (path, learning(part))).collect();
        set(&learning);
        let input = input.detach().require_grad();
        let output = run(input.clone())?;
        Ok(Self { input, learning, output })
    }

    /// Adds the gradients of its parts to `gradients`, and gives that of what it took.
    fn backward(
        self,
        by_output: Tensor<3>,
        gradients: &mut HashMap<String, [Tensor<2>; 2]>,
    ) -> Tensor<3> {
        let Self { input, learning, output } = self;
        let mut found = (output * by_output.autodiff()).sum().backward();
        for (path, part) in learning {
            let matrices = [part.down, part.up].map(|part| {
                let gradient = part.grad_remove(&mut found);
                gradient.unwrap_or_else(|| part.zeros_like().inner())
            });
            gradients.insert(path, matrices);
        }
        input.grad_remove(&mut found).unwrap_or_else(|| input.zeros_like().inner())
    }
}

/// The loss alone.
pub(crate) fn low_rank_loss(
    model: &dyn Decoder,
    batch: &Batch,
    labels: Labels<'_>,
) -> Result<f64, Error> {
    let blocks = model.blocks().ok_or(Error::NoBlocks)?;
    check_ids(batch, model.head().vocab_size())?;
    let mut cache = KvCache::without_storage(model.cache(), batch);
    let pass = Pass::new(batch, &cache, Logits::All);
    let hidden = blocks.through(&pass, &mut cache)?;
    loss_of_hidden(model, hidden, labels)
}

/// The parts of an adapter, each with the block that its weight is in.
fn by_block(
    adapter: &HashMap<String, LowRank>,
    layers: &str,
    count: usize,
) -> Result<Vec<HashMap<String, LowRank>>, Error> {
    let mut parts = vec![HashMap::new(); count];
    for (path, part) in adapter {
        match block_of(layers, path).and_then(|index| parts.get_mut(index)) {
            Some(of_block) => of_block.insert(path.clone(), part.clone()),
            None => return Err(Error::OutsideBlocks { path: path.clone() }),
        };
    }
    Ok(parts)
}

fn learning(LowRank { down, up, scale, in_out }: LowRank) -> LowRank {
    let [down, up] = [down, up].map(|part| part.autodiff().detach().require_grad());
    LowRank { down, up, scale, in_out }
}
