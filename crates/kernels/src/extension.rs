//! The operations over a backend's own tensors: a Burn backend extension for Flex.
//!
//! [`linear()`](crate::linear()) and [`embedding`](crate::embedding) choose between this and Burn's
//! own operations; call them unless you write an extension yourself.

use burn::backend::flex::FlexTensor;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Flex, TensorMetadata, backend_extension};
use burn::tensor::{DType, Shape, TensorData};

use crate::buffer::{self, Buffer};
use crate::matmul::{
    InOutMatmul, Matmul, MatmulActivations, Size, add_linear_in_out_into, input_gradient_into,
    linear_each_into, weight_gradient_into,
};
use crate::{ActivationDtype, ActivationFunction, Isa, Weight, WeightOperand};

/// Operations on weights which stay as stored.
#[backend_extension(Flex, Autodiff)]
pub trait StoredWeightOps: Backend {
    /// `x · Wᵀ`: `x [.., k]` f32, `weight [n, k]` bf16, f16, f32 or blocks, to `[.., n]` f32.
    ///
    /// A weight that lies in memory row after row, be it a slice of the rows of another, is read in
    /// place. Others (transposed, sliced by columns) are first copied.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    fn stored_linear(
        x: FloatTensor<Self>,
        #[extension_type] weight: WeightOperand<Self>,
        compute: ActivationDtype,
    ) -> FloatTensor<Self>;

    /// Three matmuls of the same activations, each as [`stored_linear`](Self::stored_linear) gives
    /// it.
    ///
    /// # Panics
    ///
    /// As there.
    fn stored_linear_qkv(
        x: FloatTensor<Self>,
        #[extension_type] first: WeightOperand<Self>,
        #[extension_type] second: WeightOperand<Self>,
        #[extension_type] third: WeightOperand<Self>,
        compute: ActivationDtype,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>);

    /// `act(x · Gᵀ) · (x · Uᵀ)`, element by element: `x [.., k]` f32, `gate` and `up` `[n, k]`
    /// bf16, f16, f32 or blocks, to `[.., n]` f32.
    ///
    /// # Panics
    ///
    /// As for [`stored_linear`](Self::stored_linear), and if the weights differ in size.
    fn stored_gated_linear(
        x: FloatTensor<Self>,
        #[extension_type] gate: WeightOperand<Self>,
        #[extension_type] up: WeightOperand<Self>,
        act: ActivationFunction,
        compute: ActivationDtype,
    ) -> FloatTensor<Self>;

    /// `y + x[.., start..start + rows] · W`: `y [.., n]` and `x [.., k]` f32, `weight [rows, n]`
    /// bf16, f16, f32 or blocks, some rows of one that is stored `[in, out]`. In place where `y`
    /// has no other owner.
    ///
    /// # Panics
    ///
    /// If a rank, a size or a dtype is another.
    fn add_stored_linear_in_out(
        y: FloatTensor<Self>,
        x: FloatTensor<Self>,
        #[extension_type] weight: WeightOperand<Self>,
        start: usize,
        compute: ActivationDtype,
    ) -> FloatTensor<Self>;

    /// Rows `ids [t]` of `table [n, d]` (bf16, f16, f32 or blocks), to `[t, d]` f32. Only these
    /// rows are read.
    ///
    /// # Panics
    ///
    /// If a rank or a dtype is another, or if an id is negative or not below `n`.
    fn stored_rows(
        #[extension_type] table: WeightOperand<Self>,
        ids: IntTensor<Self>,
    ) -> FloatTensor<Self>;
}

impl StoredWeightOps for Flex {
    fn stored_linear(
        x: FlexTensor,
        weight: WeightOperand<Self>,
        compute: ActivationDtype,
    ) -> FlexTensor {
        let (shape, [y]) = matmuls(x, [weight], compute);
        result(y, shape)
    }

    fn stored_linear_qkv(
        x: FlexTensor,
        first: WeightOperand<Self>,
        second: WeightOperand<Self>,
        third: WeightOperand<Self>,
        compute: ActivationDtype,
    ) -> (FlexTensor, FlexTensor, FlexTensor) {
        let (shape, ys) = matmuls(x, [first, second, third], compute);
        let [first, second, third] = ys.map(|y| result(y, shape.clone()));
        (first, second, third)
    }

    fn stored_gated_linear(
        x: FlexTensor,
        gate: WeightOperand<Self>,
        up: WeightOperand<Self>,
        act: ActivationFunction,
        compute: ActivationDtype,
    ) -> FlexTensor {
        let (x, weights) = (contiguous(x), [gate, up].map(contiguous_rows));
        let (shape, size @ [m, _]) = sizes(&x);
        let [n, ups] = weights.each_ref().map(|weight| outputs(weight, &shape));
        assert_eq!(n, ups, "linear: a gate has the size of what goes through");
        let mut y = buffer::take(m * n);
        let x = f32_elements(&x, "linear: x");
        let weights = weights.each_ref().map(|weight| operand(weight, "linear: weight"));
        MatmulActivations::new(Isa::detected(), compute, x, size).multiply_gated(
            act,
            weights,
            0..n,
            n,
            &mut y,
        );
        result((n, y), shape)
    }

    fn add_stored_linear_in_out(
        y: FlexTensor,
        x: FlexTensor,
        weight: WeightOperand<Self>,
        start: usize,
        compute: ActivationDtype,
    ) -> FlexTensor {
        let (mut y, x) = (whole(y), contiguous(x));
        let weight = contiguous_rows(weight);
        let [rows, n] = matrix(&weight, "linear: weight");
        let shape = x.shape();
        assert_eq!(
            y.shape().as_slice().last(),
            Some(&n),
            "linear: y {:?} is not what a weight [{rows}, {n}] gives",
            y.shape()
        );
        let matmul = InOutMatmul {
            x: f32_elements(&x, "linear: x"),
            k: shape.as_slice().last().copied().unwrap_or_default(),
            weight: operand(&weight, "linear: weight"),
            rows: start..start + rows,
            y: y.storage_mut(),
            n,
        };
        add_linear_in_out_into(Isa::detected(), compute, matmul);
        y
    }

    fn stored_rows(table: WeightOperand<Self>, ids: FlexTensor) -> FlexTensor {
        let table = contiguous_rows(table);
        let [n, d] = matrix(&table, "embedding: table");
        let ids: Vec<i64> = ids.into_data().iter::<i64>().collect();
        let mut y = vec![0.0; ids.len() * d];
        let rows = operand(&table, "embedding: table");
        for (t, &id) in ids.iter().enumerate() {
            let row = usize::try_from(id).ok().filter(|&row| row < n);
            let Some(row) = row else {
                panic!("embedding: id {id} (number {t}) is not a row of a table of {n} rows")
            };
            rows.slice(row * d, (row + 1) * d).widen(&mut y[t * d..][..d]);
        }
        FlexTensor::from_data(TensorData::new(y, [ids.len(), d]))
    }
}

/// The gradient of `x`, given that of `x · Wᵀ`: `dy · W`.
pub(crate) fn input_gradient(
    dy: FlexTensor,
    weight: WeightOperand<Flex>,
    compute: ActivationDtype,
) -> FlexTensor {
    let weight = contiguous_rows(weight);
    let [n, k] = matrix(&weight, "linear: weight");
    let mut shape = dy.shape();
    let dy = f32_elements(&dy, "linear: gradient");
    let size = Size { m: dy.len() / n.max(1), n, k };
    let mut dx = buffer::take(size.m * k);
    let weight = operand(&weight, "linear: weight").widened();
    input_gradient_into(Isa::detected(), compute, dy, &weight, size, &mut dx);
    shape.as_mut_slice().last_mut().into_iter().for_each(|last| *last = k);
    FlexTensor::from_data(buffer::data(dx, shape))
}

/// The gradient of a weight, given that of `x · Wᵀ`: `dyᵀ · x`, in f32.
pub(crate) fn weight_gradient(
    dy: &FlexTensor,
    x: FlexTensor,
    compute: ActivationDtype,
) -> FlexTensor {
    let x = contiguous(x);
    let (dy_shape, x_shape) = (dy.shape(), x.shape());
    let (dy, x) = (f32_elements(dy, "linear: gradient"), f32_elements(&x, "linear: x"));
    let [n, k] = [dy_shape, x_shape].map(|shape| shape.as_slice().last().copied().unwrap_or(1));
    let size = Size { m: dy.len() / n.max(1), n, k };
    let mut dw = buffer::take(n * k);
    weight_gradient_into(Isa::detected(), compute, dy, x, size, &mut dw);
    FlexTensor::from_data(buffer::data(dw, [n, k]))
}

/// The tensor itself if its elements, and no others, fill its memory row after row; else a copy of
/// which that is true. It is taken, so that the result may be its memory's only owner, which is
/// written in place.
pub(crate) fn whole(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

/// The tensor itself if its elements lie row after row, wherever they begin; else a copy of which
/// that is true.
pub(crate) fn contiguous(tensor: FlexTensor) -> FlexTensor {
    // `to_contiguous` would also copy what is contiguous but does not fill its storage, such as
    // some rows of a weight.
    if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() }
}

/// `x · Wᵀ` of each weight, with the weight's rows; and the shape of `x`.
fn matmuls<const N: usize>(
    x: FlexTensor,
    weights: [WeightOperand<Flex>; N],
    compute: ActivationDtype,
) -> (Shape, [(usize, Buffer); N]) {
    let (x, weights) = (contiguous(x), weights.map(contiguous_rows));
    let (shape, size @ [m, _]) = sizes(&x);
    let mut ys = weights.each_ref().map(|weight| {
        let n = outputs(weight, &shape);
        (n, buffer::take(m * n))
    });
    let mut weights = weights.iter();
    let mut each = ys.each_mut().map(|(n, y)| Matmul {
        weight: weights.next().map_or(Weight::F32(&[]), |weight| operand(weight, "linear: weight")),
        n: *n,
        y,
        stride: *n,
    });
    linear_each_into(Isa::detected(), compute, f32_elements(&x, "linear: x"), size, &mut each);
    (shape, ys)
}

/// The shape of activations, and how many rows of what width they are.
pub(crate) fn sizes(x: &FlexTensor) -> (Shape, [usize; 2]) {
    let shape = x.shape();
    let (&k, rows) = shape.as_slice().split_last().expect("linear: x must have a dimension");
    let size = [rows.iter().product(), k];
    (shape, size)
}

/// The rows of a weight for activations of that shape.
fn outputs(weight: &WeightOperand<Flex>, x: &Shape) -> usize {
    let [n, width] = matrix(weight, "linear: weight");
    let k = x.as_slice().last().copied().unwrap_or_default();
    assert_eq!(k, width, "linear: x {x:?} needs a weight [out, {k}], but it is [{n}, {width}]");
    n
}

/// A matmul as a tensor, if its activations had that shape.
pub(crate) fn result((n, y): (usize, Buffer), mut shape: Shape) -> FlexTensor {
    if let Some(last) = shape.as_mut_slice().last_mut() {
        *last = n;
    }
    FlexTensor::from_data(buffer::data(y, shape))
}

pub(crate) fn matrix(weight: &WeightOperand<Flex>, name: &str) -> [usize; 2] {
    match weight {
        WeightOperand::Float(tensor) => dims(tensor, name),
        WeightOperand::Blocks(weight) => weight.shape(),
    }
}

/// The sizes of a tensor of `N` dimensions.
pub(crate) fn dims<const N: usize>(tensor: &FlexTensor, name: &str) -> [usize; N] {
    let shape = tensor.shape();
    let Ok(dims) = shape.as_slice().try_into() else {
        panic!("{name} must have {N} dimensions, but it is {shape:?}")
    };
    dims
}

/// A weight of floats that lie row after row; see [`contiguous`].
pub(crate) fn contiguous_rows(weight: WeightOperand<Flex>) -> WeightOperand<Flex> {
    match weight {
        WeightOperand::Float(tensor) => WeightOperand::Float(contiguous(tensor)),
        blocks => blocks,
    }
}

pub(crate) fn operand<'a>(weight: &'a WeightOperand<Flex>, name: &str) -> Weight<'a> {
    match weight {
        WeightOperand::Float(tensor) => stored(tensor, name),
        WeightOperand::Blocks(weight) => Weight::Blocks(weight.view()),
    }
}

pub(crate) fn stored<'a>(tensor: &'a FlexTensor, name: &str) -> Weight<'a> {
    let weight = match tensor.dtype() {
        DType::BF16 => tensor.as_slice().map(Weight::Bf16),
        DType::F16 => tensor.as_slice().map(Weight::F16),
        DType::F32 => tensor.as_slice().map(Weight::F32),
        _ => None,
    };
    weight.unwrap_or_else(|| {
        panic!("{name} must be bf16, f16 or f32, but it is {:?}", tensor.dtype())
    })
}

pub(crate) fn f32_elements<'a>(tensor: &'a FlexTensor, name: &str) -> &'a [f32] {
    tensor
        .as_slice()
        .unwrap_or_else(|| panic!("{name} must be f32, but it is {:?}", tensor.dtype()))
}

/// The elements of a tensor that fills its memory; those of a copy, if it is not the only owner.
pub(crate) fn f32_elements_mut<'a>(tensor: &'a mut FlexTensor, name: &str) -> &'a mut [f32] {
    let dtype = tensor.dtype();
    assert!(dtype == DType::F32, "{name} must be f32, but it is {dtype:?}");
    tensor.storage_mut()
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn some_rows_of_a_weight_are_not_copied() {
        let weight = FlexTensor::from_data(TensorData::new(vec![bf16::ONE; 12], [4, 3]));
        let whole = weight.bytes().as_ptr();
        let some = contiguous(weight.narrow(0, 1, 2));
        assert_eq!(some.bytes().as_ptr(), whole);
        let Weight::Bf16(elements) = stored(&some, "weight") else {
            panic!("a bf16 tensor holds bf16")
        };
        assert_eq!(elements.len(), 6);
        assert_eq!(elements.as_ptr().cast(), whole.wrapping_add(3 * size_of::<bf16>()));
    }

    #[test]
    fn columns_of_a_weight_are() {
        let weight = FlexTensor::from_data(TensorData::new(vec![bf16::ONE; 12], [4, 3]));
        assert_eq!(contiguous(weight.narrow(1, 1, 2)).bytes().len(), 8 * size_of::<bf16>());
    }

    #[test]
    #[should_panic(expected = "linear: weight must be bf16, f16 or f32, but it is F64")]
    fn other_dtypes_are_refused() {
        let x = FlexTensor::from_data(TensorData::new(vec![1.0f32; 3], [1, 3]));
        let weight = FlexTensor::from_data(TensorData::new(vec![1.0f64; 3], [1, 3]));
        Flex::stored_linear(x, WeightOperand::Float(weight), ActivationDtype::F32);
    }
}
