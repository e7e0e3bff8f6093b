//! Tensors and objects as bytes between ranks: objects in MessagePack, tensors as a line of JSON
//! (dtype, shape) and their elements.

use serde::Serialize;
use serde::de::DeserializeOwned;

use burn::tensor::{DType, TensorData};

use crate::Error;

pub(crate) fn to_bytes<T: Serialize + ?Sized>(object: &T) -> Result<Vec<u8>, Error> {
    rmp_serde::to_vec_named(object).map_err(|fault| Error::Object(fault.to_string()))
}

pub(crate) fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    rmp_serde::from_slice(bytes).map_err(|fault| Error::Object(fault.to_string()))
}

pub(crate) fn encode(data: &TensorData) -> Result<Vec<u8>, Error> {
    let shape: &[usize] = data.shape();
    let mut bytes = serde_json::to_vec(&(data.dtype(), shape)).map_err(object)?;
    bytes.push(b'\n');
    bytes.extend_from_slice(data.as_bytes());
    Ok(bytes)
}

pub(crate) fn decode(bytes: &[u8]) -> Result<TensorData, Error> {
    let end = bytes.iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len());
    let (dtype, shape): (DType, Vec<usize>) =
        serde_json::from_slice(&bytes[..end]).map_err(object)?;
    let elements = bytes.get(end + 1..).unwrap_or_default().to_vec();
    TensorData::try_from_bytes_vec(elements, shape, dtype)
        .map_err(|fault| Error::Wire(fault.to_string()))
}

fn object(fault: serde_json::Error) -> Error {
    Error::Object(fault.to_string())
}

/// The dtype and shape, without its first dimension if that may differ.
pub(crate) fn describe(data: &TensorData, any_rows: bool) -> String {
    let shape: &[usize] = data.shape();
    match (shape.split_first(), any_rows) {
        (Some((_, rest)), true) => {
            format!("{:?} [any, {}", data.dtype(), &format!("{rest:?}")[1..])
        }
        _ => format!("{:?} {shape:?}", data.dtype()),
    }
}

pub(crate) fn first_rows(data: TensorData, rows: usize) -> TensorData {
    let mut shape = data.shape().to_vec();
    if shape.is_empty() || shape[0] == rows {
        return data;
    }
    let dtype = data.dtype();
    let row = data.as_bytes().len() / shape[0].max(1);
    shape[0] = rows;
    TensorData::from_bytes_vec(data.as_bytes()[..rows * row].to_vec(), shape, dtype)
}

/// Refuses another shape or dtype.
pub(crate) fn same_shape(own: &TensorData, other: &TensorData) -> Result<(), Error> {
    if (own.dtype(), own.shape()) == (other.dtype(), other.shape()) {
        return Ok(());
    }
    let (own, other) = (describe(own, false), describe(other, false));
    Err(Error::Wire(format!("this rank has {own} and another {other}")))
}

/// Tensors one after the other along their first dimension.
pub(crate) fn concatenate(parts: Vec<TensorData>) -> Result<TensorData, Error> {
    let first = &parts[0];
    let (dtype, mut shape) = (first.dtype(), first.shape().to_vec());
    let mut elements = Vec::with_capacity(parts.iter().map(|part| part.as_bytes().len()).sum());
    shape[0] = 0;
    for (rank, part) in parts.iter().enumerate() {
        if part.dtype() != dtype || part.shape()[1..] != shape[1..] {
            return Err(Error::RankDiffers {
                rank,
                found: format!("gather of {}", describe(part, true)),
                reference: 0,
                expected: format!("gather of {}", describe(first, true)),
            });
        }
        shape[0] += part.shape()[0];
        elements.extend_from_slice(part.as_bytes());
    }
    Ok(TensorData::from_bytes_vec(elements, shape, dtype))
}
