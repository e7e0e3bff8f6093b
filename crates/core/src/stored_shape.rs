//! Tensors in the shape of the parameters that they are for.

use crate::Location;
use outsize_checkpoint::TensorInfo;

/// A convolution of one place, `[out, in, 1, 1]` or one of patches that do not overlap,
/// `[out, in, frames, rows, columns]`, as the linear layer that it is, if a matrix is wanted; and
/// as a vector what is longer than one along a single axis, `[channels, 1, 1]`, or is a number; and
/// as a matrix one that is alone in a stack, `[1, rows, columns]`.
pub(crate) fn flat(tensor: &TensorInfo, wanted: &[usize], location: &Location) -> TensorInfo {
    let mut tensor = tensor.clone();
    let beyond_one =
        |shape: &[usize]| shape.iter().copied().filter(|n| *n != 1).collect::<Vec<_>>();
    if wanted.len() == 1
        && tensor.shape.len() != 2
        && beyond_one(&tensor.shape) == beyond_one(wanted)
    {
        tensor.shape = wanted.to_vec();
    }
    if wanted.len() == 2 && tensor.shape.split_first() == Some((&1, wanted)) {
        tensor.shape.remove(0);
    }
    if let ([outputs, window @ ..], [wanted_outputs, inputs @ ..]) = (&tensor.shape[..], wanted)
        && (3..=5).contains(&(1 + window.len()))
        && inputs.len() < 2
        && Some(*outputs) == wanted_outputs.checked_mul(location.parts).map(|n| n / location.count)
        && window.iter().try_fold(1, |n: usize, side| n.checked_mul(*side))
            == Some(inputs.first().copied().unwrap_or(1))
    {
        tensor.shape = [&[*outputs], inputs].concat();
    }
    tensor
}

/// Takes the frames out of the shape of a convolution of films, if one of pictures is wanted.
/// Returns how many it has; one of all else.
pub(crate) fn without_frames(tensor: &mut TensorInfo, wanted: &[usize]) -> usize {
    match tensor.shape[..] {
        [outputs, inputs, frames, rows, columns]
            if frames > 0 && wanted == [outputs, inputs, rows, columns] =>
        {
            tensor.shape.remove(2);
            frames
        }
        _ => 1,
    }
}

/// A stack of so many parts, or of modules that have some each, as rows of one behind those of the
/// other.
pub(crate) fn as_rows(tensor: &TensorInfo, wanted: &[usize], parts: usize) -> TensorInfo {
    let mut tensor = tensor.clone();
    if let [count, rows, ..] = tensor.shape[..]
        && tensor.shape.len() == wanted.len() + 1
        && parts.is_multiple_of(count.max(1))
    {
        tensor.shape.splice(..2, [count * rows]);
    }
    tensor
}
