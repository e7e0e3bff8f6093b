//! The budgets that a model is run in.

use crate::error::Failure;
use outsize::machine::{DETECTED_SHARE, available};
use outsize::plan::{Budget, format_size};

/// Shares of the weights that are tried where nobody says.
const SHARES: [u64; 2] = [50, 10];

/// What a resident model takes beside its weights is less than this share of them, and this much more.
const BESIDE_SHARE: f64 = 0.05;
const BESIDE: u64 = 200 << 20;

/// A budget to run in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// What the table calls it.
    pub name: String,
    /// What `outsize run` gets; nothing if it is to take what is free.
    pub max_memory: Option<String>,
    /// Bytes of main memory that the process may hold.
    pub bytes: Option<u64>,
}

/// Those given, or all that is free if the model fits and some shares of its weights.
pub fn cases(given: &[String], weights: u64) -> Result<Vec<Case>, Failure> {
    if given.is_empty() {
        return Ok(by_default(weights, available()));
    }
    let case = |text: &String| {
        let budget = Budget::parse(text)
            .map_err(|error| Failure::usage(format!("--max-memory: {error}")))?;
        Ok(Case {
            name: text.clone(),
            max_memory: Some(text.clone()),
            bytes: budget.get(outsize::plan::Tier::Cpu),
        })
    };
    given.iter().map(case).collect()
}

fn by_default(weights: u64, available: Option<u64>) -> Vec<Case> {
    let needed = weights as f64 * (1.0 + BESIDE_SHARE) + BESIDE as f64;
    let fits = available.is_none_or(|free| free as f64 * DETECTED_SHARE >= needed);
    let all = fits.then(|| Case {
        name: "all in memory".to_string(),
        max_memory: None,
        bytes: None,
    });
    let shares = SHARES.into_iter().map(|share| {
        let bytes = weights / 100 * share;
        Case {
            name: format!("{share} % of the weights, {}", format_size(bytes)),
            max_memory: Some(format!("cpu={bytes}B")),
            bytes: Some(bytes),
        }
    });
    all.into_iter().chain(shares).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_what_is_run() {
        let given = ["cpu=600MB".to_string(), "cpu=1GiB".to_string()];
        let cases = cases(&given, 5).unwrap();
        let bytes: Vec<_> = cases.iter().map(|case| case.bytes).collect();
        assert_eq!(bytes, [Some(600_000_000), Some(1 << 30)]);
        assert_eq!(cases[0].max_memory.as_deref(), Some("cpu=600MB"));
        for wrong in ["600MB", "cpu=", "cpu=many", ""] {
            let error = super::cases(&[wrong.to_string()], 5).unwrap_err();
            assert!(matches!(error, Failure::Usage(message) if message.contains("--max-memory")));
        }
    }

    #[test]
    fn a_model_that_does_not_fit_is_not_run_in_memory() {
        let named = |free| -> Vec<_> {
            let cases = by_default(2_000_000_000, free);
            cases.into_iter().map(|case| case.max_memory).collect()
        };
        let shares = [
            Some("cpu=1000000000B".to_string()),
            Some("cpu=200000000B".to_string()),
        ];
        assert_eq!(named(Some(2_500_000_000)), shares);
        assert_eq!(named(Some(2_800_000_000))[0], None);
        assert_eq!(named(None)[1..], shares);
        // The command understands what it is given.
        for share in shares.iter().flatten() {
            assert!(Budget::parse(share).is_ok());
        }
    }
}
