//! What may be wrong with the tensors of a weight.

use crate::dtype::Dtype;

/// Why tensors do not make a weight of a format.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatFault {
    /// A tensor is of another type.
    #[error("`{tensor}` is of type {found}, but its format stores {wanted}")]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: Dtype,
        /// That of the format.
        wanted: Dtype,
    },
    /// Formats of blocks are for matrices.
    #[error("`{tensor}` has the shape {shape:?}, but its format is for matrices")]
    NotAMatrix {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// Rows do not end with a block, or bytes are missing.
    #[error(
        "`{tensor}` of shape {shape:?} has {bytes} bytes, which its format cannot divide into rows"
    )]
    Length {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Its length.
        bytes: u64,
    },
    /// The scales are missing.
    #[error("`{tensor}` needs its scales, `{scales}`, which the checkpoint does not have")]
    NoScales {
        /// The tensor.
        tensor: String,
        /// The name of its scales.
        scales: String,
    },
    /// The zero points are missing.
    #[error("`{tensor}` needs its zero points, `{zeros}`, which the checkpoint does not have")]
    NoZeroPoints {
        /// The tensor.
        tensor: String,
        /// The name of its zero points.
        zeros: String,
    },
    /// There are more or fewer numbers than the weight needs.
    #[error("`{tensor}` has the shape {found:?}, but a weight of shape {shape:?} needs {wanted:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape it should have.
        wanted: Vec<usize>,
        /// The shape of the weight.
        shape: Vec<usize>,
    },
    /// There are more or fewer scales than blocks.
    #[error(
        "the scales `{tensor}` have the shape {found:?}, but blocks of {block:?} of a weight of shape {shape:?} need \
         {wanted:?}"
    )]
    ScaleShape {
        /// The scales.
        tensor: String,
        /// Their shape.
        found: Vec<usize>,
        /// The shape they should have.
        wanted: Vec<usize>,
        /// Rows and columns that one scale is for.
        block: [usize; 2],
        /// The shape of the weight.
        shape: Vec<usize>,
    },
}
