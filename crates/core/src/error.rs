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
    /// Reading a weight failed.
    #[error(transparent)]
    Stream(#[from] outsize_stream::Error),
    /// The checkpoint and the module do not belong together.
    #[error("{0}")]
    Mismatch(Box<Misfit>),
    /// The module already carries a hook on this parameter.
    #[error(
        "parameter `{path}` already carries a reparameterization (LoRA, QLoRA …) and Burn allows one: \
         merge it first with `module.materialize()`"
    )]
    Reparameterized {
        /// The parameter's path in the module.
        path: String,
    },
    /// The module lives on an autodiff device.
    #[error(
        "parameter `{path}` is on an autodiff device, and a streamed weight has no gradient: \
         create the module on `device.inner()` for inference"
    )]
    Autodiff {
        /// The parameter's path in the module.
        path: String,
    },
    /// A rule for names is no regular expression.
    #[error("the name rule `{pattern}` is not a regular expression: {reason}")]
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
}

/// All that does not fit between a module and a checkpoint, in one list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Misfit {
    /// Where the checkpoint is.
    pub checkpoint: String,
    /// Parameters without a tensor: `(parameter, name looked for)`.
    pub missing: Vec<(String, String)>,
    /// Tensors without a parameter.
    pub unexpected: Vec<String>,
    /// Tensors whose shape is not the parameter's: `(tensor, its shape, the parameter's)`.
    pub misshaped: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Tensors whose type cannot become the parameter's: `(tensor, its type, what is wanted)`.
    pub mistyped: Vec<(String, String, &'static str)>,
}

impl Misfit {
    /// Whether there is nothing to complain about.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.misshaped.is_empty()
            && self.mistyped.is_empty()
    }
}

/// Lines of each kind that a message shows; the rest is counted.
const SHOWN: usize = 12;

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the module and the checkpoint {} do not match",
            self.checkpoint
        )?;
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
        part(
            "missing from the checkpoint",
            self.missing
                .iter()
                .map(|(path, name)| {
                    if path == name {
                        path.clone()
                    } else {
                        format!("{path} (looked for as {name})")
                    }
                })
                .collect(),
        )?;
        part(
            "in the checkpoint but not in the module",
            self.unexpected.clone(),
        )?;
        part(
            "of another shape",
            self.misshaped
                .iter()
                .map(|(name, found, wanted)| {
                    format!("{name}: {found:?} in the checkpoint, {wanted:?} in the module")
                })
                .collect(),
        )?;
        part(
            "of another type",
            self.mistyped
                .iter()
                .map(|(name, found, wanted)| format!("{name}: {found}, the module wants {wanted}"))
                .collect(),
        )
    }
}
