//! Matmuls and rows of stored weights over Burn tensors of any device.

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Dispatch, Flex};
use burn::tensor::{DType, Int, Tensor};

use crate::device::{has_kernels, is_flex, is_stored};
use crate::extension::StoredWeightOps;
use crate::tiled_extension::{
    Tiles, stored_gated_linear_tiles, stored_gated_mlp_tiles, stored_linear_tiles,
    stored_linear_two_tiles,
};
use crate::{ActivationDtype, ActivationFunction, WeightTensor};

/// `y = x · Wᵀ`: `x [.., in]`, `weight [out, in]` as a checkpoint stores it, to `[.., out]`.
///
/// On the Flex (CPU) device, with `x` in f32 and `weight` in bf16, f16, f32 or blocks, the weight
/// is read as it lies in memory and the result keeps this crate's [contract](crate#the-contract);
/// so it is with autodiff around Flex, where gradients flow to `x` and to a weight of floats, to
/// the latter in its dtype. Everything else, that is other devices and other dtypes, takes Burn's
/// own matmul with the weight cast to the dtype of `x`. The result has the dtype of `x`.
///
/// # Panics
///
/// If the last dimension of `x` is not `in`, or if the two lie on different devices.
pub fn linear<const D: usize>(x: Tensor<D>, weight: impl Into<WeightTensor>) -> Tensor<D> {
    linear_with(ActivationDtype::F32, x, weight)
}

/// [`linear`] with activations multiplied in a type of the caller's choice. Burn's own matmul,
/// where that is taken, keeps them as they are.
///
/// # Panics
///
/// As [`linear`].
pub fn linear_with<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weight: impl Into<WeightTensor>,
) -> Tensor<D> {
    let weight = weight.into();
    check_width(&x, &weight);
    if is_here(&x, &[&weight]) {
        return Tensor::from_dispatch(Dispatch::stored_linear(
            x.into_dispatch(),
            weight.into_operand(),
            compute,
        ));
    }
    let ([out, width], mut dims) = (weight.dims(), x.dims());
    let rows = dims[..D - 1].iter().product::<usize>();
    let dtype = x.dtype();
    let x = x.reshape([rows, width]);
    dims[D - 1] = out;
    let y = match weight {
        #[cfg(feature = "gpu")]
        WeightTensor::Packed(weight) => weight.linear(x),
        weight => {
            let weight = weight.into_float(&x.device());
            x.matmul(weight.cast(dtype).transpose())
        }
    };
    y.reshape(dims)
}

/// [`linear_with`] three weights on the GPU of `x`, made by one launch; the same bits. None if
/// there is no such launch for them: for more than a few rows, for other types than floats, or on
/// another device.
pub fn linear_three<const D: usize>(
    x: &Tensor<D>,
    weights: [&WeightTensor; 3],
) -> Option<[Tensor<D>; 3]> {
    #[cfg(feature = "gpu")]
    if let [WeightTensor::Packed(first), WeightTensor::Packed(second), WeightTensor::Packed(third)] =
        weights
        && [first, second, third].iter().all(|weight| weight.device() == x.device())
        && x.dtype() == DType::F32
    {
        weights.iter().for_each(|weight| check_width(x, weight));
        let dims = x.dims();
        let rows = dims[..D - 1].iter().product::<usize>();
        let x = x.clone().reshape([rows, dims[D - 1]]);
        let ys = crate::gpu::PackedWeight::linear_three(&x, [first, second, third])?;
        return Some(ys.map(|y| {
            let mut dims = dims;
            dims[D - 1] = y.dims()[1];
            y.reshape(dims)
        }));
    }
    let _ = (x, weights);
    None
}

/// [`linear_with`] weights `[out, in]`, each with its `out`, that come tile by tile, rows after
/// rows, each tile with which rows these are: the bits that the whole weights give. Activations are
/// rounded and packed once for all, and each tile's outputs go where they belong; one tile is held
/// at a time.
///
/// # Panics
///
/// As [`linear`], and if the tiles are not all rows of the weight in order.
pub fn linear_tiles<const D: usize, const N: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weights: [(usize, impl Iterator<Item = (Range<usize>, WeightTensor)>); N],
) -> [Tensor<D>; N] {
    if !takes_tiles(&x) {
        return weights.map(|(_, tiles)| {
            let parts = tiles.map(|(_, tile)| linear_with(compute, x.clone(), tile)).collect();
            Tensor::cat(parts, D - 1)
        });
    }
    let weights = weights.map(|(out, tiles)| (out, into_flex(tiles)));
    stored_linear_tiles(compute, flex(x), weights).map(Tensor::from_primitive::<Flex>)
}

/// [`linear_tiles`] of two weights of `out` rows whose tiles are asked for in turns: of each, one
/// is held at a time.
///
/// # Panics
///
/// As there; if `x` is not in f32 on the Flex device.
pub fn linear_two_tiles<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    out: usize,
    weights: [impl Iterator<Item = (Range<usize>, WeightTensor)>; 2],
) -> [Tensor<D>; 2] {
    assert!(takes_tiles(&x), "linear: f32 activations must be on Flex");
    let weights = weights.map(into_flex);
    stored_linear_two_tiles(compute, flex(x), out, weights).map(Tensor::from_primitive::<Flex>)
}

/// [`gated_linear`] with weights as [`linear_two_tiles`] takes them, the gate's first: the bits
/// that the whole weights give.
///
/// # Panics
///
/// As there.
pub fn gated_linear_tiles<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    out: usize,
    weights: [impl Iterator<Item = (Range<usize>, WeightTensor)>; 2],
    act: ActivationFunction,
) -> Tensor<D> {
    assert!(takes_tiles(&x), "gate: f32 activations must be on Flex");
    let weights = weights.map(into_flex);
    Tensor::from_primitive::<Flex>(stored_gated_linear_tiles(compute, act, flex(x), out, weights))
}

/// `(act(x · Gᵀ) · (x · Uᵀ)) · Dᵀ` with weights that come tile by tile: gate and up of `inner` rows
/// as [`linear_two_tiles`] takes them, then down of `out` rows. The bits of
/// [`gated_linear_tiles`] and [`linear_tiles`] one after the other, without the tensor in between.
///
/// # Panics
///
/// As there.
pub fn gated_mlp_tiles<const D: usize, T>(
    compute: ActivationDtype,
    x: Tensor<D>,
    [inner, out]: [usize; 2],
    [gate, up, down]: [T; 3],
    act: ActivationFunction,
) -> Tensor<D>
where
    T: Iterator<Item = (Range<usize>, WeightTensor)>,
{
    assert!(takes_tiles(&x), "mlp: f32 activations must be on Flex");
    let (gated, down) = ([gate, up].map(into_flex), into_flex(down));
    let sizes = [inner, out];
    Tensor::from_primitive::<Flex>(stored_gated_mlp_tiles(
        compute,
        act,
        flex(x),
        sizes,
        gated,
        down,
    ))
}

/// Whether matmuls write what tiles give to where it belongs.
fn takes_tiles<const D: usize>(x: &Tensor<D>) -> bool {
    is_flex(&x.device()) && x.dtype() == DType::F32
}

fn flex<const D: usize>(x: Tensor<D>) -> FloatTensor<Flex> {
    x.try_into_primitive::<Flex>().expect("a tensor on Flex is one of Flex")
}

/// Tiles as Flex takes them.
pub(crate) fn into_flex(tiles: impl Iterator<Item = (Range<usize>, WeightTensor)>) -> impl Tiles {
    tiles.map(|(rows, tile)| (rows, tile.into_flex()))
}

/// Three matmuls of the same activations, each as [`linear_with`] gives it, bit for bit. A CPU's
/// threads share those of a few rows as one piece of work, which is faster than one after the
/// other.
///
/// # Panics
///
/// As [`linear`].
pub fn linear_qkv<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    weights: [impl Into<WeightTensor>; 3],
) -> [Tensor<D>; 3] {
    let weights = weights.map(Into::into);
    weights.iter().for_each(|weight| check_width(&x, weight));
    if !is_here(&x, &weights.each_ref()) {
        return weights.map(|weight| linear_with(compute, x.clone(), weight));
    }
    let [first, second, third] = weights.map(WeightTensor::into_operand);
    let (first, second, third) =
        Dispatch::stored_linear_qkv(x.into_dispatch(), first, second, third, compute);
    [first, second, third].map(Tensor::from_dispatch)
}

/// `act(x · Gᵀ) · (x · Uᵀ)`: `x [.., in]`, `gate` and `up` `[out, in]`, to `[.., out]`; the same
/// bits as [`linear_with`] and [`gated`](crate::gated) give, faster for a few rows.
///
/// # Panics
///
/// As [`linear`]; if the weights differ in size; if a tensor is not on a device that
/// [`has_kernels`], if `x` is not in f32 or a weight not in bf16, f16 or f32.
pub fn gated_linear<const D: usize>(
    compute: ActivationDtype,
    x: Tensor<D>,
    gate: impl Into<WeightTensor>,
    up: impl Into<WeightTensor>,
    act: ActivationFunction,
) -> Tensor<D> {
    let (gate, up) = (gate.into(), up.into());
    check_width(&x, &gate);
    assert_eq!(gate.dims(), up.dims(), "gate: sides of other shapes");
    assert!(is_here(&x, &[&gate, &up]), "gate: f32 activations and stored weights must be on Flex");
    Tensor::from_dispatch(Dispatch::stored_gated_linear(
        x.into_dispatch(),
        gate.into_operand(),
        up.into_operand(),
        act,
        compute,
    ))
}

/// `y + x[.., start..start + rows] · W`: `y [.., out]`, `x [.., in]`, and `weight [rows, out]`, the
/// rows from `start` on of one stored `[in, out]`, as GPT-2's `Conv1D` stores it. Tiles of a
/// weight, added in order, give the bits that the whole weight gives at once. Otherwise as
/// [`linear_with`], but for the order of sums, which is that of `in`.
///
/// # Panics
///
/// If the sizes do not fit each other, or if the tensors lie on different devices.
pub fn add_linear_in_out<const D: usize>(
    compute: ActivationDtype,
    y: Tensor<D>,
    x: Tensor<D>,
    start: usize,
    weight: impl Into<WeightTensor>,
) -> Tensor<D> {
    let weight = weight.into();
    if has_kernels(&y.device()) && y.dtype() == DType::F32 && is_here(&x, &[&weight]) {
        return Tensor::from_dispatch(Dispatch::add_stored_linear_in_out(
            y.into_dispatch(),
            x.into_dispatch(),
            weight.into_operand(),
            start,
            compute,
        ));
    }
    let ([inner, _], dims) = (weight.dims(), x.dims());
    let rows = dims[..D - 1].iter().product::<usize>();
    let dtype = x.dtype();
    let x = x.narrow(D - 1, start, inner).reshape([rows, inner]);
    let weight = weight.into_float(&x.device()).cast(dtype);
    let product = x.matmul(weight).reshape(y.dims());
    y + product
}

/// Whether matmuls of these are computed in this crate.
fn is_here<const D: usize>(x: &Tensor<D>, weights: &[&WeightTensor]) -> bool {
    has_kernels(&x.device())
        && x.dtype() == DType::F32
        && weights.iter().all(|weight| is_read(weight))
}

/// Whether this crate reads the weight as it is stored.
fn is_read(weight: &WeightTensor) -> bool {
    match weight {
        WeightTensor::Float(weight) => has_kernels(&weight.device()) && is_stored(weight.dtype()),
        WeightTensor::Blocks(_) => true,
        #[cfg(feature = "gpu")]
        WeightTensor::Packed(_) => false,
    }
}

fn check_width<const D: usize>(x: &Tensor<D>, weight: &WeightTensor) {
    let ([out, width], dims) = (weight.dims(), x.dims());
    assert_eq!(
        dims.last(),
        Some(&width),
        "linear: the last dimension of x {dims:?} must be the second of the weight [{out}, {width}]",
    );
}

/// Rows `ids [t]` of `table [n, d]`, to `[t, d]` in f32. Only these rows are read and converted.
///
/// On an autodiff device gradients flow to the table.
///
/// # Panics
///
/// If an id is not a row of the table. (Some GPU backends give an unspecified row instead; check
/// ids first.)
pub fn embedding(table: impl Into<WeightTensor>, ids: Tensor<1, Int>) -> Tensor<2> {
    let table = table.into();
    if has_kernels(&ids.device()) && is_read(&table) {
        Tensor::from_dispatch(Dispatch::stored_rows(table.into_operand(), ids.into_dispatch()))
    } else {
        #[cfg(feature = "gpu")]
        if let WeightTensor::Packed(table) = &table {
            let ids: Vec<u32> = ids.into_data().iter::<u32>().collect();
            return table.select(&ids);
        }
        let table = table.into_float(&ids.device());
        table.select(0, ids).cast(DType::F32)
    }
}
