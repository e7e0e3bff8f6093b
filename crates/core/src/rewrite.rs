//! A weight of a checkpoint written to another, in another type or order.

use crate::Error;
use crate::convert::{NoConversion, Scales, burn_type, dequantize, float};
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, StoredWeight, TensorSpec};
use outsize_stream::Convert;

/// Bytes that are read at a time, about.
const PIECE: u64 = 4 << 20;

/// What a weight's values become on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Within each head of so many rows, those that are rotated together come from places beside
    /// each other, and go to the two halves.
    Halves(usize),
    /// One is taken away, of floats.
    MinusOne,
}

/// A weight of a checkpoint on its way to another.
#[derive(Debug, Clone)]
pub struct Rewrite {
    weight: StoredWeight,
    dtype: Dtype,
    change: Option<Change>,
}

impl Rewrite {
    /// A weight that keeps its type and values.
    pub fn kept(weight: StoredWeight) -> Self {
        let dtype = weight.data().dtype;
        Self { weight, dtype, change: None }
    }

    /// A weight that becomes floats of `dtype`, dequantised if it is in blocks.
    ///
    /// # Errors
    /// If it is stored as something that cannot become that, or has not as many rows as `change` needs.
    pub fn new(weight: StoredWeight, dtype: Dtype, change: Option<Change>) -> Result<Self, Error> {
        let rewrite = Self { weight, dtype, change };
        let (data, rows) = (rewrite.weight.data(), rewrite.weight.rows());
        let reason = match change {
            Some(Change::Halves(head)) if head == 0 || head % 2 > 0 || rows % head > 0 => {
                format!("its {rows} rows are no whole heads of {head}")
            }
            _ if rewrite.converts(&Scales::default()).is_err() => {
                format!("{} cannot become {dtype}; leave the type as it is", data.dtype)
            }
            _ => return Ok(rewrite),
        };
        Err(Error::Rewrite { tensor: data.name.clone(), reason })
    }

    /// How the weight is declared to a [`ShardWriter`].
    pub fn spec(&self) -> TensorSpec {
        let data = self.weight.data();
        TensorSpec::new(&data.name, self.dtype, data.shape.clone())
    }

    /// The type of its elements in the new checkpoint.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Writes the weight, a few megabytes at a time, of which two copies are in memory; of one whose rows change places, at
    /// least a head. `go_on` is asked before each.
    ///
    /// # Errors
    /// If reading or writing fails; [`Error::Stopped`] if `go_on` said no.
    pub fn write(
        &self,
        checkpoint: &Checkpoint,
        writer: &mut ShardWriter,
        mut go_on: impl FnMut(&ShardWriter) -> bool,
    ) -> Result<(), Error> {
        let data = self.weight.data();
        let scales = Scales::default();
        if let Some(stored) = self.weight.scales() {
            // Nobody else has set them.
            let _ = scales.set(checkpoint.read(stored)?);
        }
        let converts = self.converts(&scales).unwrap_or_default();
        let unit = match self.change {
            Some(Change::Halves(head)) => self.weight.row_bytes() * head as u64,
            _ => self.weight.format().encoding.block().bytes as u64,
        };
        let piece = (PIECE / unit.max(1)).max(1) * unit.max(1);
        for start in (0..data.len).step_by(piece as usize) {
            if !go_on(writer) {
                return Err(Error::Stopped);
            }
            let mut part = data.clone();
            part.offset += start;
            part.len = piece.min(data.len - start);
            let mut bytes = checkpoint.read(&part)?;
            for convert in &converts {
                let mut to = vec![0; bytes.len() / convert.from * convert.to];
                convert.run(part.offset, &bytes, &mut to);
                bytes = to;
            }
            if let Some(Change::Halves(head)) = self.change {
                let rows = part.len / self.weight.row_bytes().max(1);
                bytes = halves(&bytes, rows as usize, head);
            }
            writer.write(&data.name, &bytes)?;
        }
        Ok(())
    }

    /// What bytes go through one after the other.
    fn converts(&self, scales: &Scales) -> Result<Vec<Convert>, NoConversion> {
        let (to, stored) = (burn_type(self.dtype), self.weight.data().dtype);
        let via = |to| match self.weight.format().is_plain() {
            true => float(stored, to),
            false => dequantize(&self.weight, to, scales).map(Some),
        };
        let wide = burn_type(Dtype::F32);
        let converts = match self.change {
            Some(Change::MinusOne) => [via(wide)?, Some(minus_one()), float(Dtype::F32, to)?],
            _ => [via(to)?, None, None],
        };
        Ok(converts.into_iter().flatten().collect())
    }
}

fn minus_one() -> Convert {
    Convert::new(4, 4, |_, from, to| {
        for (to, from) in to.as_chunks_mut().0.iter_mut().zip(from.as_chunks().0) {
            *to = (f32::from_le_bytes(*from) - 1.0).to_le_bytes();
        }
    })
}

/// Rows 0, 2, 4 … of each head, and then rows 1, 3, 5 …
fn halves(bytes: &[u8], rows: usize, head: usize) -> Vec<u8> {
    let row = bytes.len() / rows.max(1);
    let order = (0..rows).map(|to| {
        let (head_start, within) = (to / head * head, to % head);
        head_start + 2 * (within % (head / 2)) + within / (head / 2)
    });
    order.flat_map(|from| &bytes[from * row..][..row]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::halves;

    #[test]
    fn neighbours_go_to_halves() {
        let rows: Vec<u8> = (0..16).collect();
        let wanted = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        assert_eq!(halves(&rows, 8, 4), wanted);
    }
}
