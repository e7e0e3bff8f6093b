//! Weights that are written as integers.

use outsize_checkpoint::{Dtype, StorageFormat, StoredWeight, TensorInfo, TensorSpec};
use outsize_kernels::IntegerRounding;
use std::sync::Arc;

use super::{Rewrite, RoundRows, Source, through};
use crate::Error;
use crate::convert::{burn_type, float};

/// How values become integers.
#[derive(Debug, Clone)]
pub(super) struct Quantized {
    format: StorageFormat,
    rounding: IntegerRounding,
    columns: usize,
    /// The parameter's path in the module.
    path: Arc<str>,
}

impl Quantized {
    pub(super) fn specs(&self, name: &str, shape: [usize; 2]) -> Vec<TensorSpec> {
        let tensors = self.format.tensors(name, shape).into_iter();
        tensors.map(|(name, dtype, shape)| TensorSpec::new(name, dtype, shape)).collect()
    }

    /// What rounds each value by itself.
    pub(super) fn rounding(&self) -> Box<RoundRows<'static>> {
        let (rounding, columns) = (self.rounding, self.columns);
        Box::new(move |rows| rounding.round(rows, columns))
    }
}

impl Rewrite {
    /// Has one matrix of floats, which is the parameter at `path`, written as integers of a format
    /// that [rounding](IntegerRounding::of) makes. Scales are f16 for weights that become f16, else
    /// bf16. Whether it is one is returned: others stay as they are.
    pub fn quantize(&mut self, format: StorageFormat, path: &str) -> bool {
        let format = format.with_scales(match self.dtype {
            Dtype::F16 => Dtype::F16,
            _ => Dtype::BF16,
        });
        let is_float = matches!(self.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let is_one = matches!(self.source, Source::Weight(..)) && is_float;
        match (IntegerRounding::of(format), &self.spec().shape[..]) {
            (Some(rounding), &[rows, columns]) if is_one && rows > 0 && columns > 0 => {
                let path = path.into();
                self.quantized = Some(Quantized { format, rounding, columns, path });
                true
            }
            _ => false,
        }
    }

    /// One of so many equal parts of a stack of matrices of floats, as a matrix `name` of its own;
    /// none of anything else.
    pub fn part(&self, part: usize, parts: usize, name: String) -> Option<Self> {
        let Source::Weight(weight, None) = &self.source else { return None };
        let data = weight.data();
        let &[count, rows, columns] = &data.shape[..] else { return None };
        let all = count.checked_mul(rows)?;
        let is_plain = weight.format().is_plain() && self.added.is_empty();
        if !is_plain || part >= parts || !all.is_multiple_of(parts) || all == 0 {
            return None;
        }
        let (rows, bytes) = (all / parts, data.len / parts as u64);
        let data = TensorInfo {
            name,
            shape: vec![rows, columns],
            offset: data.offset + bytes * part as u64,
            len: bytes,
            ..data.clone()
        };
        Some(Self::of(Source::Weight(StoredWeight::plain(data).into(), None), self.dtype))
    }

    /// If it is written as integers: the path of the parameter, how values are rounded, and the
    /// columns of a row.
    pub fn quantized(&self) -> Option<(&str, IntegerRounding, usize)> {
        let quantized = self.quantized.as_ref()?;
        Some((&quantized.path, quantized.rounding, quantized.columns))
    }

    /// What some rows become, which are of its type.
    pub(super) fn rounded(
        &self,
        bytes: Vec<u8>,
        round: &RoundRows<'_>,
    ) -> Result<[Vec<u8>; 2], Error> {
        // There is one from each of the floats to f32.
        let wide = float(self.dtype, burn_type(Dtype::F32)).ok().flatten();
        let bytes = through(bytes, 0, wide.as_slice());
        let values: Vec<f32> =
            bytes.as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect();
        if !values.iter().all(|value| value.is_finite()) {
            let reason = "it has values that are infinite or no numbers, which integers cannot be";
            return Err(Error::Rewrite { tensor: self.spec().name, reason: reason.to_owned() });
        }
        Ok(round(&values))
    }
}
