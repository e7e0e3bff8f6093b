//! Values of random weights, as files store them.

use crate::error::Failure;
use crate::interrupt;
use outsize::checkpoint::Dtype;
use outsize::kernels::cast;
use outsize::models::{RandomWeights, WeightSpec};

/// Values that are made and written at a time.
const CHUNK: usize = 1 << 22;

/// Makes the values of a tensor, some at a time.
pub fn write_values(
    random: &RandomWeights,
    tensor: &WeightSpec,
    stored: Dtype,
    mut write: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut values = vec![0.0; CHUNK.min(tensor.elements() as usize)];
    let mut bytes = Vec::with_capacity(values.len() * stored.size());
    let mut at = 0;
    while at < tensor.elements() {
        interrupt::check()?;
        let values = &mut values[..CHUNK.min((tensor.elements() - at) as usize)];
        random.fill(tensor, at, values);
        encode(values, stored, &mut bytes);
        write(&bytes)?;
        at += values.len() as u64;
    }
    Ok(())
}

/// The values in the type of the file, little endian.
fn encode(values: &[f32], dtype: Dtype, bytes: &mut Vec<u8>) {
    bytes.clear();
    match dtype {
        Dtype::F16 => {
            let mut half = vec![Default::default(); values.len()];
            cast::f32_to_f16(values, &mut half);
            bytes.extend(half.iter().flat_map(|value| value.to_le_bytes()));
        }
        Dtype::BF16 => {
            let mut half = vec![Default::default(); values.len()];
            cast::f32_to_bf16(values, &mut half);
            bytes.extend(half.iter().flat_map(|value| value.to_le_bytes()));
        }
        _ => bytes.extend(values.iter().flat_map(|value| value.to_le_bytes())),
    }
}
