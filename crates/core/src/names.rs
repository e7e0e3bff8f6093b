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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn parameter(path: &str, class: &str, shape: &[usize]) -> Parameter {
        let mut containers = vec!["Vec".to_string(); path.matches('.').count()];
        containers.push(format!("Struct:{class}"));
        Parameter {
            path: path.to_string(),
            containers,
            kind: Kind::Float,
            shape: shape.to_vec(),
            hooked: false,
            autodiff: false,
            flips: false,
        }
    }

    #[test]
    fn pytorch_says_weight_and_bias_and_turns_linear() {
        let names = Names::new(Layout::PyTorch);
        let gamma = parameter("layers.0.norm.gamma", "LayerNorm", &[4]);
        assert_eq!(names.tensor(&gamma), "layers.0.norm.weight");
        assert!(!names.is_transposed(&gamma));
        let beta = parameter("beta", "GroupNorm", &[4]);
        assert_eq!(names.tensor(&beta), "bias");
        let linear = parameter("head.weight", "Linear", &[4, 2]);
        assert_eq!(names.tensor(&linear), "head.weight");
        assert!(names.is_transposed(&linear));
        let column = Parameter {
            flips: true,
            ..linear.clone()
        };
        assert!(!names.is_transposed(&column));
        // A field of that name elsewhere is left alone.
        let other = parameter("gamma", "Mixer", &[4]);
        assert_eq!(names.tensor(&other), "gamma");
        assert_eq!(Names::new(Layout::Burn).tensor(&gamma), gamma.path);
        assert!(!Names::new(Layout::Burn).is_transposed(&linear));
    }

    #[test]
    fn rules_apply_one_after_the_other() {
        let names = Names::default()
            .rename(r"^layers\.(\d+)\.", "h.$1.")
            .and_then(|names| names.rename("^h", "transformer.h"))
            .unwrap();
        let weight = parameter("layers.12.up.weight", "Linear", &[1, 1]);
        assert_eq!(names.tensor(&weight), "transformer.h.12.up.weight");
        let error = Names::default().rename("(", "").unwrap_err().to_string();
        assert!(error.contains("`(`"), "{error}");
    }
}
