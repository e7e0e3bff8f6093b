//! How tensors are placed.

use crate::{ModuleMap, Tier};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How tensors are placed.
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
    pub const ALL: [Self; 4] = [Self::Auto, Self::Sequential, Self::Balanced, Self::BalancedLow0];

    /// The name as written in JSON: `balanced_low_0`.
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

/// What chose a placement. Written as a strategy's name, or `manual`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum ChosenBy {
    /// A strategy.
    Strategy(Strategy),
    /// A person, or a program of theirs.
    Manual,
}

impl ChosenBy {
    /// The name as written in JSON: `auto`, `manual`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strategy(strategy) => strategy.name(),
            Self::Manual => "manual",
        }
    }
}

impl From<ChosenBy> for &'static str {
    fn from(chosen_by: ChosenBy) -> Self {
        chosen_by.name()
    }
}

impl TryFrom<String> for ChosenBy {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let strategies = Strategy::ALL.into_iter().map(Self::Strategy);
        strategies.chain([Self::Manual]).find(|chosen_by| chosen_by.name() == name).ok_or_else(
            || {
                let shown: String = name.escape_debug().take(100).collect();
                format!("unknown strategy `{shown}`")
            },
        )
    }
}

/// The decision of one of Accelerate's strategies, or of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Where each tensor lives, in the tree's order.
    pub tiers: Vec<Tier>,
    /// The same by modules, as Accelerate's `infer_auto_device_map` returns it with `clean_result`.
    pub modules: ModuleMap,
    /// What a user should know of it.
    pub warnings: Vec<String>,
    /// What decided.
    pub chosen_by: ChosenBy,
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
