//! What a parameter is called in the checkpoint, and how it is stored there.

use crate::{Error, Parameter};
use regex::Regex;

/// Whose conventions a checkpoint follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// As the module declares it: same names, same shapes.
    #[default]
    Burn,
    /// PyTorch's: a `Linear`'s weight is stored `[out, in]`, and the norms say `weight` and `bias` for
    /// `gamma` and `beta`.
    PyTorch,
}

/// Rules from a parameter's path to a tensor's name.
#[derive(Debug, Clone, Default)]
pub struct Names {
    layout: Layout,
    rules: Vec<(Regex, String)>,
}

/// Burn's classes whose scale and shift are called `gamma` and `beta`.
const NORMS: [&str; 5] = [
    "BatchNorm",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "RmsNorm",
];

impl Names {
    /// The conventions of `layout` and no rule.
    pub fn new(layout: Layout) -> Self {
        Self {
            layout,
            rules: Vec::new(),
        }
    }

    /// Adds a rule, applied to the path after the earlier ones: every match of the regular expression
    /// `pattern` is replaced by `with` (`$1` is the first group).
    ///
    /// # Errors
    /// [`Error::Rule`] if `pattern` is no regular expression.
    pub fn rename(mut self, pattern: &str, with: &str) -> Result<Self, Error> {
        let regex = Regex::new(pattern).map_err(|error| Error::Rule {
            pattern: pattern.to_string(),
            reason: error.to_string(),
        })?;
        self.rules.push((regex, with.to_string()));
        Ok(self)
    }

    /// The name of the tensor that holds `parameter`.
    pub fn tensor(&self, parameter: &Parameter) -> String {
        let mut name = parameter.path.clone();
        if self.layout == Layout::PyTorch && NORMS.contains(&parameter.class()) {
            let field = match parameter.field() {
                "gamma" => "weight",
                "beta" => "bias",
                other => other,
            };
            name.truncate(name.len() - parameter.field().len());
            name.push_str(field);
        }
        for (pattern, with) in &self.rules {
            name = pattern.replace_all(&name, with.as_str()).into_owned();
        }
        name
    }

    /// Whether the tensor is stored with its two axes the other way round than
    /// [`Parameter::shape`] says.
    pub fn is_transposed(&self, parameter: &Parameter) -> bool {
        // A `LinearLayout::Col` saves `[out, in]` itself: nothing is left to turn.
        self.layout == Layout::PyTorch
            && parameter.class() == "Linear"
            && parameter.field() == "weight"
            && parameter.shape.len() == 2
            && !parameter.flips
    }
}
