//! The passes over a prompt.

use crate::Workload;

/// Equal passes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Passes {
    /// How many there are.
    pub(crate) count: f64,
    /// Tokens of each sequence.
    pub(crate) tokens: f64,
    /// Tokens before them, on average.
    pub(super) before: f64,
    /// Whether the ring is still empty.
    pub(crate) first: bool,
}

/// The prompt in passes of at most a chunk.
pub(super) fn passes(workload: &Workload) -> Vec<Passes> {
    let chunk = workload.chunk.clamp(1, workload.prompt.max(1));
    let (whole, rest) = (workload.prompt / chunk, workload.prompt % chunk);
    let (size, whole) = (chunk as f64, whole as f64);
    let mut passes = Vec::with_capacity(3);
    let mut add = |count: f64, tokens: f64, before: f64| {
        if count > 0.0 && tokens > 0.0 {
            let first = passes.is_empty();
            passes.push(Passes { count, tokens, before, first });
        }
    };
    add(whole.min(1.0), size, 0.0);
    add(whole - 1.0, size, size * whole / 2.0);
    add(1.0, rest as f64, size * whole);
    passes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_cut_in_chunks() {
        let tokens = |prompt, chunk| -> Vec<(f64, f64)> {
            let passes = passes(&Workload { prompt, chunk, ..Workload::default() });
            assert_eq!(passes.iter().filter(|pass| pass.first).count(), passes.len().min(1));
            passes.iter().map(|pass| (pass.count, pass.tokens)).collect()
        };
        assert_eq!(tokens(0, 512), []);
        assert_eq!(tokens(1, 0), [(1.0, 1.0)]);
        assert_eq!(tokens(300, 512), [(1.0, 300.0)]);
        assert_eq!(tokens(1300, 512), [(1.0, 512.0), (1.0, 512.0), (1.0, 276.0)]);
        let many = passes(&Workload { prompt: u64::MAX, chunk: 1, ..Workload::default() });
        let sum: f64 = many.iter().map(|pass| pass.count * pass.tokens).sum();
        assert_eq!(sum, u64::MAX as f64);
    }
}
