use outsize_checkpoint::{Checkpoint, TensorInfo};
use std::collections::HashMap;

/// Tensors by name: those of a [`Checkpoint`], or headers whose files are elsewhere.
#[derive(Debug, Clone)]
pub struct TensorTable<'a> {
    place: String,
    /// Whether a module of Burn wrote them.
    is_burnpack: bool,
    tensors: &'a [TensorInfo],
    positions: HashMap<&'a str, usize>,
}

impl<'a> TensorTable<'a> {
    /// A table of `tensors`; `place` is where messages say they are.
    pub fn new(place: impl Into<String>, tensors: &'a [TensorInfo]) -> Self {
        let names = tensors.iter().map(|tensor| tensor.name.as_str());
        Self {
            place: place.into(),
            is_burnpack: false,
            tensors,
            positions: names.zip(0..).collect(),
        }
    }

    /// All of them, in the order of the checkpoint.
    pub fn tensors(&self) -> &'a [TensorInfo] {
        self.tensors
    }

    /// Where messages say the tensors are.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Whether a module of Burn wrote them, so that names and shapes are its own.
    pub(crate) fn is_burnpack(&self) -> bool {
        self.is_burnpack
    }

    /// The position in [`Self::tensors`] of the tensor of this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.positions.get(name).copied()
    }
}

impl<'a> From<&'a Checkpoint> for TensorTable<'a> {
    fn from(checkpoint: &'a Checkpoint) -> Self {
        let table = Self::new(checkpoint.folder().display().to_string(), checkpoint.tensors());
        Self { is_burnpack: checkpoint.is_burnpack(), ..table }
    }
}
