use outsize_plan::{Tier, format_size};
use std::fmt;

/// What can go wrong between a checkpoint and a running module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The checkpoint could not be opened or read.
    #[error(transparent)]
    Checkpoint(#[from] outsize_checkpoint::Error),
    /// The module does not fit the budget.
    #[error(transparent)]
    Plan(#[from] outsize_plan::Error),
    /// The map uses a GPU, and this build computes on none.
    #[error(
        "the device map uses {tier}, and this build computes on cpu only: build it with the feature of a backend \
         for GPUs, such as `--features vulkan` (or cuda, rocm, metal, wgpu), or leave {tier} out of the budget, \
         and out of the device map if one is given"
    )]
    NotBuilt {
        /// The device.
        tier: Tier,
    },
    /// The map uses a GPU that is not there.
    #[error("the device map uses {tier}, and {}", found_gpus(.found))]
    NoGpu {
        /// The device.
        tier: Tier,
        /// Those that are there: `gpu0 (NVIDIA H200, cuda)`.
        found: Vec<String>,
    },
    /// A GPU failed: it was lost, or refused something.
    #[error("{tier} failed: {reason}")]
    Gpu {
        /// The device.
        tier: Tier,
        /// What it said.
        reason: String,
    },
    /// A GPU has less memory for this process than was planned.
    #[error(
        "the memory of {tier} is full: of {} that were planned it gave {} ({reason}); leave {} of the budget to others \
         (`--reserve {}`), or make it smaller",
        format_size(*.planned), format_size(*.held), format_size(*.reserve), format_size(*.reserve).replace(' ', "")
    )]
    GpuFull {
        /// The device.
        tier: Tier,
        /// What was planned to be held there, in bytes.
        planned: u64,
        /// What it gave, in bytes.
        held: u64,
        /// [`Planning::reserve_bytes`](crate::Planning::reserve_bytes) with which the plan fits
        /// into that.
        reserve: u64,
        /// What it said.
        reason: String,
    },
    /// The gradient of a parameter could not be kept.
    #[error("the gradient of `{path}` cannot be kept: {source}")]
    Gradient {
        /// The parameter.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The module is on another device than the map says.
    #[error(
        "{path} is on another device than {tier}, where the map computes: {}", other_device(*.tier)
    )]
    OtherDevice {
        /// The parameter's path.
        path: String,
        /// The device.
        tier: Tier,
    },
    /// Reading a weight failed.
    #[error(transparent)]
    Stream(#[from] outsize_stream::Error),
    /// The checkpoint and the module do not belong together.
    #[error("{0}")]
    Mismatch(Box<KeyMismatch>),
    /// The checkpoint is of other conventions than [`Options::names`](crate::Options::names) says.
    #[error(
        "{checkpoint} was written by a module of Burn, with its own names and shapes, and Options::names asks for those of \
         PyTorch: use Names::default()"
    )]
    Layout {
        /// Where the checkpoint is.
        checkpoint: String,
    },
    /// A head that is said to be the table of embeddings is stored, and is another one.
    #[error(
        "{}: {head} is stored and differs from {table}, but config.json ties the two: set {settings} there, so that the \
         stored head is used", folder.display()
    )]
    TiedHead {
        /// The checkpoint.
        folder: std::path::PathBuf,
        /// The table.
        table: String,
        /// The head.
        head: String,
        /// Fields of a configuration that unties the two, as it has them.
        settings: &'static str,
    },
    /// The tensors of a weight do not belong together.
    #[error(transparent)]
    Format(#[from] outsize_checkpoint::FormatFault),
    /// The module already carries a hook on this parameter.
    #[error(
        "parameter `{path}` already carries a reparameterization (LoRA, QLoRA, an earlier dispatch …) and Burn \
         allows one. For an adapter, save what `module.materialize()` gives as a checkpoint of its own"
    )]
    Reparameterized {
        /// The parameter's path in the module.
        path: String,
    },
    /// The module lives on an autodiff device.
    #[error(
        "parameter `{path}` is on an autodiff device: create the module on `device.inner()`. \
         `Dispatched::backward` gives its gradients"
    )]
    Autodiff {
        /// The parameter's path in the module.
        path: String,
    },
    /// No parameter decides the result of a pass whose gradients are wanted.
    #[error("the loss does not depend on any parameter: there are no gradients to give")]
    NotTracked,
    /// What an adapter adds to a parameter cannot be added.
    #[error("the adapter of `{path}` cannot be used: {reason}")]
    Adapter {
        /// The parameter's path in the module.
        path: String,
        /// Why.
        reason: String,
    },
    /// The module's own weights are quantised.
    #[error(
        "parameter `{path}` is quantised: its value comes from the checkpoint and is held as it is stored or \
         cast. Create the module without quantising it"
    )]
    Quantized {
        /// The parameter's path in the module.
        path: String,
    },
    /// `run` was called by a pass that `run` is making.
    #[error(
        "`Dispatched::run` was called from within a pass of the same module: passes take turns, and this one \
         would wait for itself. Use the module that the outer call was given"
    )]
    Nested,
    /// [`Options::stop`](crate::Options::stop) was set.
    #[error("the pass was stopped")]
    Stopped,
    /// A clone of the module was used after `run` had returned.
    #[error(
        "parameter `{path}` was asked for outside of `Dispatched::run`: a module that left `run`, as a clone \
         does, has no weights of its own. Call it within `run`"
    )]
    OutsideRun {
        /// The parameter's path in the module.
        path: String,
    },
    /// A dispatched module was used for something else than a pass.
    #[error(
        "a dispatched module holds placeholders, and something {what} (met at parameter `{path}`). Do that \
         with a module that was loaded rather than dispatched"
    )]
    Misuse {
        /// The path of the first parameter that was met.
        path: String,
        /// What was done, as in "moves it to another device".
        what: &'static str,
    },
    /// The checkpoint has a transformer whose norms can be told apart in two ways.
    #[error(
        "parameter `{path}`: PyTorch numbers a transformer layer's norms in the order of its sublayers, Burn in \
         another one if `norm_first` is set, which cannot be seen from outside. Say which with \
         `Names::norm_first`"
    )]
    NormOrder {
        /// The parameter's path in the module.
        path: String,
    },
    /// A rule for names cannot be used.
    #[error("the name rule `{pattern}` is refused: {reason}")]
    Rule {
        /// The pattern.
        pattern: String,
        /// Why it is refused.
        reason: String,
    },
    /// A parameter is read in another way than it was dispatched for.
    #[error(
        "parameter `{path}` is streamed {streamed}, but the module asked for {asked}: dispatch it with \
         another `Access`"
    )]
    Access {
        /// The parameter's path in the module.
        path: String,
        /// How it is streamed.
        streamed: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A row was asked for that the parameter does not have.
    #[error("row {row} of `{path}` was asked for, which has {rows}")]
    Row {
        /// The parameter's path in the module.
        path: String,
        /// The row's number.
        row: usize,
        /// How many there are.
        rows: usize,
    },
    /// A value could not be made from the checkpoint's bytes.
    #[error("tensor `{name}` cannot become a parameter: {reason}")]
    Value {
        /// The tensor's name in the checkpoint.
        name: String,
        /// Why.
        reason: String,
    },
    /// A weight cannot be written to another checkpoint as it was to be.
    #[error("tensor `{tensor}` cannot be written anew: {reason}")]
    Rewrite {
        /// The tensor's name in the checkpoint.
        tensor: String,
        /// Why.
        reason: String,
    },
}

/// All that does not fit between a module and a checkpoint, in one list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeyMismatch {
    /// Where the checkpoint is.
    pub checkpoint: String,
    /// Parameters without a tensor: `(parameter, names looked for)`.
    pub missing: Vec<(String, String)>,
    /// Tensors, or parts of tensors, without a parameter.
    pub unexpected: Vec<String>,
    /// Rules for names that matched no parameter. By themselves no fault, but a likely cause of
    /// one.
    pub unused_rules: Vec<String>,
    /// Tensors whose shape is not the parameter's: `(tensor, its shape, the parameter's)`.
    pub misshaped: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Tensors whose type cannot become the parameter's: `(tensor, its type, what is wanted)`.
    pub mistyped: Vec<(String, String, &'static str)>,
    /// What to do, where somebody knows.
    pub advice: Option<String>,
}

/// What to do about a module on another device than that, for a message.
fn other_device(tier: Tier) -> String {
    match tier {
        Tier::Gpu(_) => format!(
            "initialise the module on the device of {tier}, and plan for it with `Options::gpu`"
        ),
        _ => "initialise the module on Device::flex(), or plan for its GPU with `Options::gpu`"
            .to_string(),
    }
}

/// Which GPUs there are, for a message.
fn found_gpus(found: &[String]) -> String {
    match found {
        [] => "no GPU is found: see `outsize env`".to_string(),
        found => format!("those that are found are {}: see `outsize env`", found.join(", ")),
    }
}

impl KeyMismatch {
    /// What the checkpoint's names lack in front, if that is all that is wrong with most of them.
    fn missing_prefix(&self) -> Option<&str> {
        let (_, name) = self.missing.first()?;
        let found: std::collections::HashSet<_> =
            self.unexpected.iter().map(String::as_str).collect();
        let rest = |name: &str, prefix: &str| {
            name.strip_prefix(prefix).is_some_and(|rest| found.contains(rest))
        };
        let prefix = &name[..=name.find('.')?];
        let lacking = self.missing.iter().filter(|(_, name)| rest(name, prefix)).count();
        (2 * lacking > self.missing.len()).then_some(prefix)
    }

    /// Whether there is nothing to complain about, unused rules aside.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.misshaped.is_empty()
            && self.mistyped.is_empty()
    }
}

/// Lines of each kind that a message shows; the rest is counted.
const SHOWN: usize = 12;

impl fmt::Display for KeyMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the module and the checkpoint {} do not match", self.checkpoint)?;
        let mut part = |title: &str, lines: Vec<String>| -> fmt::Result {
            if lines.is_empty() {
                return Ok(());
            }
            write!(f, "\n  {} {title}:", lines.len())?;
            for line in lines.iter().take(SHOWN) {
                write!(f, "\n    {line}")?;
            }
            if lines.len() > SHOWN {
                write!(f, "\n    … and {} more", lines.len() - SHOWN)?;
            }
            Ok(())
        };
        let missing = self.missing.iter().map(|(path, name)| match path == name {
            true => path.clone(),
            false => format!("{path} (looked for as {name})"),
        });
        let misshaped = self.misshaped.iter().map(|(name, found, wanted)| {
            format!("{name}: {found:?} in the checkpoint, {wanted:?} in the module")
        });
        let mistyped = self
            .mistyped
            .iter()
            .map(|(name, found, wanted)| format!("{name}: {found}, the module wants {wanted}"));
        let unused_rules = self.unused_rules.iter().map(|pattern| format!("`{pattern}`"));
        part("missing from the checkpoint", missing.collect())?;
        part("in the checkpoint but not in the module", self.unexpected.clone())?;
        part("of another shape", misshaped.collect())?;
        part("of another type", mistyped.collect())?;
        part("name rules matched no parameter", unused_rules.collect())?;
        if let Some(advice) = &self.advice {
            return write!(f, "\n  {advice}");
        }
        match self.missing_prefix() {
            Some(prefix) => write!(
                f,
                "\n  The checkpoint's names lack `{prefix}` in front, as those of a model saved without its \
                 head do: save the whole model"
            ),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_that_all_names_lack_is_named() {
        let name = |at: usize| format!("layers.{at}.weight");
        let missing: Vec<_> = (0..3)
            .map(|at| format!("model.{}", name(at)))
            .map(|name| (name.clone(), name))
            .collect();
        let unexpected = (0..3).map(name).collect();
        let mut mismatch = KeyMismatch { missing, unexpected, ..KeyMismatch::default() };
        assert!(mismatch.to_string().contains("lack `model.` in front"), "{mismatch}");
        mismatch.unexpected.clear();
        assert!(!mismatch.to_string().contains("in front"), "{mismatch}");
    }
}
