//! What the names of an adapter's tensors say, as PEFT writes them.

/// Which of a module's two matrices a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoraMatrix {
    /// `[rank, in]`.
    Down,
    /// `[out, rank]`.
    Up,
}

/// The module that a tensor is for, and which of its matrices: `….lora_A.weight`, or with the
/// adapter's name, `….lora_A.default.weight`.
pub fn lora_matrix(name: &str) -> Option<(&str, LoraMatrix)> {
    let (start, matrix) = match (name.rfind(".lora_A."), name.rfind(".lora_B.")) {
        (Some(start), None) => (start, LoraMatrix::Down),
        (None, Some(start)) => (start, LoraMatrix::Up),
        _ => return None,
    };
    let rest = &name[start + ".lora_A.".len()..];
    let is_weight = rest == "weight"
        || rest.strip_suffix(".weight").is_some_and(|adapter| !adapter.contains('.'));
    is_weight.then(|| (&name[..start], matrix))
}
