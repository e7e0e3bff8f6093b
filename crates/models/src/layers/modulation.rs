//! Norms whose scale and shift come from what all tokens of a picture have in common, and shares in
//! which branches are added: "adaLN-Zero". Peebles and Xie 2022 (arXiv:2212.09748).

use burn::module::Module;
use burn::tensor::Tensor;
use outsize_core::Names;
use outsize_kernels::layer_norm;

use super::{Linear, entered, joined};
use crate::architecture::Init;

/// The name of a transformer's last projection to scales and shifts where the shifts come first, as
/// in the software that FLUX was published for.
pub const SHIFT_FIRST: &str = "final_layer.adaLN_modulation.1";

/// The names of a transformer whose last projection, `norm_out.linear`, may be [that](SHIFT_FIRST).
pub(crate) fn names_with_shift_first() -> Names {
    let names = Names::default();
    names.or_rename(r"^norm_out\.linear\.", &format!("{SHIFT_FIRST}.")).unwrap_or_default()
}

/// A projection of what all tokens of a picture have in common to scales, shifts and shares.
#[derive(Module, Debug)]
pub struct AdaLayerNorm {
    /// `[parts · hidden, hidden]`.
    linear: Linear,
}

/// A layer norm's scale, less one, and its shift: `[batch, hidden]` f32 each, or `[1, hidden]` for
/// all pictures.
pub(crate) struct Modulation {
    pub scale: Tensor<2>,
    pub shift: Tensor<2>,
}

impl AdaLayerNorm {
    /// A projection to so many parts.
    pub(crate) fn new(hidden: usize, parts: usize, bias: bool, init: &Init) -> Self {
        Self { linear: Linear::new(hidden, parts * hidden, bias, init) }
    }

    /// The parts `[batch, hidden]` f32 for a conditioning `[batch, hidden]` f32, of which there are
    /// `N`.
    pub(crate) fn parts<const N: usize>(&self, conditioning: &Tensor<2>) -> [Tensor<2>; N] {
        modulation_parts(&self.linear, conditioning)
    }

    /// Scale and shift of a last norm, of which either may come first.
    pub(crate) fn modulation(&self, conditioning: &Tensor<2>, shift_first: bool) -> Modulation {
        let [first, second] = self.parts(conditioning);
        match shift_first {
            true => Modulation { scale: second, shift: first },
            false => Modulation { scale: first, shift: second },
        }
    }

    /// Activations where its block computes.
    pub(crate) fn entered<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        entered(x, &self.linear.weight)
    }
}

/// The parts `[batch, hidden]` f32, of which there are `N`, that a projection makes of a
/// conditioning `[batch, hidden]` f32.
pub(crate) fn modulation_parts<const N: usize>(
    linear: &Linear,
    conditioning: &Tensor<2>,
) -> [Tensor<2>; N] {
    let all = linear.forward(conditioning.clone());
    let hidden = all.dims()[1] / N;
    std::array::from_fn(|part| all.clone().narrow(1, part * hidden, hidden))
}

/// Of the parts of a conditioning what a block's two branches have, in attention and in the MLP:
/// the norm, and the share in which a branch is added.
pub(crate) fn two_branches(
    [shift, scale, share, shift_mlp, scale_mlp, share_mlp]: [Tensor<2>; 6],
) -> [(Modulation, Tensor<2>); 2] {
    let mlp = Modulation { scale: scale_mlp, shift: shift_mlp };
    [(Modulation { scale, shift }, share), (mlp, share_mlp)]
}

/// Tokens of a stream, one behind the other, that have a conditioning in common.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Run {
    /// How many.
    pub tokens: usize,
    /// The conditioning's row.
    pub row: usize,
}

impl Modulation {
    /// The norm of `[batch, tokens, hidden]` f32, scaled and shifted.
    pub fn norm(&self, x: &Tensor<3>, epsilon: f64) -> Tensor<3> {
        let [pictures, hidden] = self.scale.dims();
        let device = x.device();
        let norm = |x: Tensor<3>, picture: usize| {
            let [scale, shift] = [&self.scale, &self.shift].map(|part| {
                part.clone().narrow(0, picture, 1).reshape([hidden]).to_device(&device)
            });
            layer_norm(x, scale.add_scalar(1.0), Some(shift), epsilon)
        };
        if pictures == 1 {
            return norm(x.clone(), 0);
        }
        // Scale and shift are a picture's own: those of a norm over its tokens alone.
        let normed = (0..pictures).map(|picture| norm(x.clone().narrow(0, picture, 1), picture));
        joined(normed.collect(), 0)
    }

    /// The norm of `[1, tokens, hidden]` f32 whose tokens come in `runs`, with scales and shifts of
    /// several conditionings.
    pub fn norm_runs(&self, x: &Tensor<3>, runs: &[Run], epsilon: f64) -> Tensor<3> {
        by_run([x.clone()], runs, |[x], row| self.of(row).norm(&x, epsilon))
    }

    /// That of one conditioning.
    fn of(&self, row: usize) -> Self {
        let [scale, shift] = [&self.scale, &self.shift].map(|part| part.clone().narrow(0, row, 1));
        Self { scale, shift }
    }
}

/// `x + share · branch`: `[batch, tokens, hidden]` f32, with a share `[batch, hidden]`, or
/// `[1, hidden]` for all pictures.
pub(crate) fn add_share(x: Tensor<3>, share: Tensor<2>, branch: Tensor<3>) -> Tensor<3> {
    let share = share.unsqueeze_dim(1).to_device(&branch.device());
    x + branch * share
}

/// The same of `[1, tokens, hidden]` f32 whose tokens come in `runs`, with shares of several
/// conditionings.
pub(crate) fn add_share_runs(
    x: Tensor<3>,
    share: &Tensor<2>,
    branch: Tensor<3>,
    runs: &[Run],
) -> Tensor<3> {
    by_run([x, branch], runs, |[x, branch], row| {
        add_share(x, share.clone().narrow(0, row, 1), branch)
    })
}

/// What `one` makes of each run of tokens and the row of its conditioning, in their order.
fn by_run<const N: usize>(
    streams: [Tensor<3>; N],
    runs: &[Run],
    one: impl Fn([Tensor<3>; N], usize) -> Tensor<3>,
) -> Tensor<3> {
    if let [run] = runs {
        return one(streams, run.row);
    }
    let mut start = 0;
    let parts = runs.iter().map(|run| {
        let part = streams.each_ref().map(|x| x.clone().narrow(1, start, run.tokens));
        start += run.tokens;
        one(part, run.row)
    });
    joined(parts.collect(), 1)
}
