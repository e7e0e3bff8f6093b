//! What a matmul does to activations.

/// The type that activations are multiplied in. Sums are f32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationDtype {
    /// As they are.
    #[default]
    F32,
    /// Rounded to bf16 before each matmul, to nearest, ties to even. With weights in bf16, and
    /// in GGUF's Q3_K to Q6_K, this is faster on processors that multiply pairs of bf16.
    Bf16,
}

impl ActivationDtype {
    /// In how many parts of bf16, of which tiles are, a number is multiplied.
    pub(crate) fn parts(self) -> usize {
        match self {
            Self::F32 => 3,
            Self::Bf16 => 1,
        }
    }
}
