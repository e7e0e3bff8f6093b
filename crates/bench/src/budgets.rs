//! The budgets that a model is run in by default.

use outsize_plan::format_size;
use serde::Serialize;

/// Percentages of the weights.
const SHARES: [u64; 2] = [50, 10];

/// What a resident model takes beside its weights is less than this share of them, and this much.
const OVERHEAD_SHARE: f64 = 0.05;
const OVERHEAD: u64 = 200 << 20;

/// A budget to run a model in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BudgetCase {
    /// What a table calls it.
    pub name: String,
    /// The budget as [`Budget::parse`](outsize_plan::Budget::parse) takes it; none for all that is
    /// free.
    pub max_memory: Option<String>,
    /// Bytes of main memory that the process may hold.
    #[serde(rename = "budget_bytes")]
    pub bytes: Option<u64>,
    /// Texts that run side by side, all of the same prompt.
    pub batch: u32,
}

impl BudgetCase {
    /// The same budget for so many texts.
    pub fn with_batch(&self, batch: u32) -> Self {
        let name = format!("{}, batch {batch}", self.name);
        Self { name, batch, ..self.clone() }
    }
}

/// All of the `free` memory, if a model of `weights` bytes fits it, and some shares of the weights.
pub fn default_budgets(weights: u64, free: Option<u64>) -> Vec<BudgetCase> {
    let needed = weights as f64 * (1.0 + OVERHEAD_SHARE) + OVERHEAD as f64;
    let fits = free.is_none_or(|free| free as f64 >= needed);
    let all = fits.then(|| BudgetCase {
        name: "all in memory".to_string(),
        max_memory: None,
        bytes: None,
        batch: 1,
    });
    let shares = SHARES.into_iter().map(|share| {
        let bytes = weights / 100 * share;
        BudgetCase {
            name: format!("{share} % of the weights, {}", format_size(bytes)),
            max_memory: Some(format!("cpu={bytes}B")),
            bytes: Some(bytes),
            batch: 1,
        }
    });
    all.into_iter().chain(shares).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outsize_plan::Budget;

    #[test]
    fn a_model_that_does_not_fit_is_not_run_in_memory() {
        let named = |free| -> Vec<_> {
            let cases = default_budgets(2_000_000_000, free);
            cases.into_iter().map(|case| case.max_memory).collect()
        };
        let shares = [Some("cpu=1000000000B".to_string()), Some("cpu=200000000B".to_string())];
        assert_eq!(named(Some(2_300_000_000)), shares);
        assert_eq!(named(Some(2_320_000_000))[0], None);
        assert_eq!(named(None)[1..], shares);
        for share in shares.iter().flatten() {
            assert!(Budget::parse(share).is_ok());
        }
    }
}
