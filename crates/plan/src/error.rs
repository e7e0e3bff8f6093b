use crate::{MemoryOverhead, Strategy, Tier, format_size};
use std::fmt;

/// An error of planning, or of reading its inputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid size.
    #[error(
        "invalid size `{text}`: {reason}; expected a number of bytes, or a number and a unit (KB, MB, GB, TB, KiB, MiB, \
         GiB, TiB), such as 600MB"
    )]
    Size {
        /// The text.
        text: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An unknown tier.
    #[error("unknown device `{text}`: expected cpu, disk, gpu0, gpu1, …")]
    Tier {
        /// The text.
        text: String,
    },
    /// An invalid part of a budget.
    #[error("`{part}` in the budget: {reason} (a budget is written as cpu=600MB)")]
    BudgetPart {
        /// The part as given.
        part: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two blocks or two tensors of the same name: a map by name would mix them up.
    #[error("there are two {what}s named `{name}`: each name must be given once")]
    Duplicate {
        /// `block` or `tensor`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Sizes whose sum has more than 64 bits, as a damaged checkpoint can claim.
    #[error("the sizes up to tensor `{name}` overflow 64 bits: is the checkpoint damaged?")]
    TooLarge {
        /// The tensor at which the sum overflows, or the last one.
        name: String,
    },
    /// A name that the model does not have.
    #[error("there is no module or tensor `{name}` in the model{}", meant(nearest.as_deref()))]
    UnknownName {
        /// The name.
        name: String,
        /// One of the model's that is much like it.
        nearest: Option<String>,
    },
    /// A device map that cannot be read.
    #[error(
        "the device map cannot be read: {reason}; it is written as {{\"model.layers.0\": 0, \"lm_head\": \"disk\", \"\": \"cpu\"}}, \
         or as YAML of the same"
    )]
    Map {
        /// What is wrong with it, and where.
        reason: String,
    },
    /// A tensor without a place.
    #[error(
        "the device map says nothing of `{name}`{}: add an entry for it, or one for all else, as in {{\"\": \"cpu\"}}",
        and_more(*others)
    )]
    NotPlaced {
        /// The first tensor without one.
        name: String,
        /// How many others have none.
        others: usize,
    },
    /// A device that would hold more than it may.
    #[error(
        "the device map puts {} ({bytes} bytes) on {tier}{}, and its budget is {} ({budget} bytes): move some to \
         another device, or raise the budget of {tier}",
        format_size(*bytes), and_needs(*needs), format_size(*budget)
    )]
    OverBudget {
        /// The device.
        tier: Tier,
        /// Weights and KV cache that would be on it, in bytes.
        bytes: u64,
        /// What is needed or left free besides, in bytes.
        needs: u64,
        /// Its budget, in bytes.
        budget: u64,
    },
    /// Something would be streamed from disk that may not.
    #[error(
        "the model does not fit into memory, which it must: {lacking} bytes are lacking ({}); give cpu={least} in the budget, \
         or let weights be streamed from disk (neither `must_fit` nor a budget for disk)",
        format_size(*lacking)
    )]
    MustFit {
        /// Bytes of main memory that are lacking.
        lacking: u64,
        /// The least budget of main memory that would do, in bytes.
        least: u64,
    },
    /// A choice of places puts more on disk than may be there.
    #[error(
        "the device map leaves {bytes} bytes of weights on disk ({}), and no more than {most} may be there (`must_fit`, or \
         the budget for disk): place more of them on other devices",
        format_size(*bytes)
    )]
    OnDisk {
        /// What would be on disk.
        bytes: u64,
        /// What may be.
        most: u64,
    },
    /// Places for another model.
    #[error(
        "the model has {expected} tensors, and places were given for {found}: were they made for another model?"
    )]
    Assignment {
        /// Tensors of the model.
        expected: usize,
        /// Places given.
        found: usize,
    },
    /// Tensors that share their memory were given different places.
    #[error(
        "tensor `{name}` is on {tier} and tensor `{other}`, which shares its memory, on {other_tier}: place both on one device"
    )]
    Tied {
        /// One of them.
        name: String,
        /// Its place.
        tier: Tier,
        /// The other.
        other: String,
        /// The other's place.
        other_tier: Tier,
    },
    /// A strategy that [`assign`](crate::assign) does not know.
    #[error(
        "the strategy {strategy} is not one of Accelerate's: these are sequential, balanced and balanced_low_0"
    )]
    NotAssigned {
        /// The strategy.
        strategy: Strategy,
    },
    /// Something would be on disk, which was ruled out.
    #[error(
        "{}{} not fit: {} ({bytes} bytes) would have to stay on disk, which the options rule out; raise the \
         budgets, or let weights stay on disk", module(name), and_others(*others), format_size(*bytes)
    )]
    DoesNotFit {
        /// The first module or tensor that has no place.
        name: String,
        /// How many others have none.
        others: usize,
        /// What all of them take, in bytes.
        bytes: u64,
    },
    /// The model does not run in the budget, whatever is streamed.
    #[error("{0}")]
    TooSmall(Shortfall),
}

/// A question after what may have been meant.
fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(": is `{name}` meant?"))
}

/// The rest of a list.
fn and_more(others: usize) -> String {
    match others {
        0 => String::new(),
        _ => format!(" and {others} more"),
    }
}

/// What is needed besides weights.
fn and_needs(needs: u64) -> String {
    match needs {
        0 => String::new(),
        _ => format!(", which needs {} besides", format_size(needs)),
    }
}

/// A module or tensor by its path, of which the model has none.
fn module(name: &str) -> String {
    match name {
        "" => "the model as a whole".to_string(),
        name => format!("`{name}`"),
    }
}

/// The rest of a list, and its verb.
fn and_others(others: usize) -> String {
    match others {
        0 => " does".to_string(),
        1 => " and 1 other do".to_string(),
        _ => format!(" and {others} others do"),
    }
}

/// A budget that is too small, and what would do. All in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortfall {
    /// The tier whose budget is too small.
    pub tier: Tier,
    /// Its budget.
    pub budget: u64,
    /// The least budget that would do.
    pub least: u64,
    /// What of it is needed besides weights.
    pub needs: MemoryOverhead,
    /// What of it takes the ring that weights are streamed through.
    pub ring: u64,
    /// What of it take the weights that stay in memory.
    pub resident: u64,
    /// What of it is to be left free.
    pub reserve: u64,
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tier, least, .. } = self;
        write!(
            f,
            "the budget {tier}={} is too small for this model: it takes at least {tier}={least} ({})",
            self.budget,
            format_size(*least),
        )?;
        let parts = [
            ("the process", self.needs.process),
            ("the KV cache", self.needs.kv_cache),
            ("activations", self.needs.activations),
            ("staging of the reader threads", self.needs.readers),
            ("the overflow share", self.needs.overflow),
            ("the ring that weights are streamed through", self.ring),
            ("weights that stay in memory", self.resident),
            ("the reserve", self.reserve),
        ];
        let mut before = ": ";
        for (what, bytes) in parts.into_iter().filter(|(_, bytes)| *bytes > 0) {
            write!(f, "{before}{} for {what}", format_size(bytes))?;
            before = ", ";
        }
        write!(f, "; raise the budget")?;
        if self.needs.kv_cache > 0 {
            write!(f, ", or shorten the context for a smaller KV cache")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortfall_says_what_would_do_and_why() {
        let shortfall = Shortfall {
            tier: Tier::Cpu,
            budget: 50_000_000,
            least: 93_123_456,
            needs: MemoryOverhead {
                process: 40_000_000,
                kv_cache: 23_000_000,
                ..MemoryOverhead::default()
            },
            ring: 30_000_000,
            resident: 123_456,
            reserve: 0,
        };
        assert_eq!(
            Error::TooSmall(shortfall).to_string(),
            "the budget cpu=50000000 is too small for this model: it takes at least cpu=93123456 (93.1 MB): \
             40 MB for the process, 23 MB for the KV cache, 30 MB for the ring that weights are streamed \
             through, 123 KB for weights that stay in memory; raise the budget, or shorten the context for a \
             smaller KV cache"
        );
    }
}
