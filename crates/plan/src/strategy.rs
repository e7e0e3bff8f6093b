//! How places are chosen.

mod assign;
mod balance;
mod clean;
mod fill;
mod largest;
mod modules;
mod worklist;

pub use assign::assign;

use crate::Tier;
use serde::{Deserialize, Serialize};
use std::fmt;

/// How places are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The placement with the least predicted time per token, of those that fit.
    #[default]
    Auto,
    /// As Accelerate's: devices are filled one after the other.
    Sequential,
    /// As Accelerate's: each GPU gets about the same.
    Balanced,
    /// As Accelerate's: the same, with as little as possible on the first GPU.
    #[serde(rename = "balanced_low_0")]
    BalancedLow0,
}

impl Strategy {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Auto,
        Self::Sequential,
        Self::Balanced,
        Self::BalancedLow0,
    ];

    /// As it is written: `balanced_low_0`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sequential => "sequential",
            Self::Balanced => "balanced",
            Self::BalancedLow0 => "balanced_low_0",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a strategy of Accelerate's decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Where each tensor lives, in the tree's order.
    pub tiers: Vec<Tier>,
    /// The same by modules, as Accelerate's `infer_auto_device_map` returns it with `clean_result`: module or tensor
    /// paths with their device, `""` being the whole model.
    pub modules: Vec<(String, Tier)>,
    /// What a user should know of it.
    pub warnings: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_serde() {
        for strategy in Strategy::ALL {
            let json = serde_json::to_string(&strategy).unwrap();
            assert_eq!(json, format!("\"{strategy}\""));
        }
    }
}
