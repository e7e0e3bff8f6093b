//! Modules whose weights are stored as plain numbers.

use fancy_regex::{Regex, RegexBuilder};

/// The most regular expressions of one list.
const MAX_EXPRESSIONS: usize = 1 << 12;
/// The longest regular expression, in bytes.
const MAX_LENGTH: usize = 1 << 14;
/// The most bytes of a compiled one.
const COMPILED: usize = 1 << 20;

/// Modules whose weights are stored as plain numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct KeptModules {
    /// Parts of paths from the first on; `*` stands for any one part.
    names: Vec<String>,
    /// What paths begin with.
    patterns: Vec<Regex>,
}

impl KeptModules {
    /// Of names, and of regular expressions behind `re:`, as compressed-tensors has them.
    ///
    /// # Errors
    /// The first that is none, or that is too long or one too many.
    pub fn new(listed: Vec<String>) -> Result<Self, String> {
        let (mut names, mut patterns) = (Vec::new(), Vec::new());
        for name in listed {
            match name.strip_prefix("re:") {
                None => names.push(name),
                Some(text) => {
                    let is_short = text.len() <= MAX_LENGTH && patterns.len() < MAX_EXPRESSIONS;
                    let built = || {
                        let mut builder = RegexBuilder::new(&format!("^(?:{text})"));
                        builder.delegate_size_limit(COMPILED).build().ok()
                    };
                    match is_short.then(built).flatten() {
                        Some(pattern) => patterns.push(pattern),
                        None => return Err(name),
                    }
                }
            }
        }
        Ok(Self { names, patterns })
    }

    /// Whether the module of this path is one.
    pub fn contains(&self, path: &str) -> bool {
        let is_in = |module: &String| {
            let mut parts = path.split('.');
            module
                .split('.')
                .all(|name| parts.next().is_some_and(|part| name == "*" || name == part))
        };
        self.names.iter().any(is_in)
            || self.patterns.iter().any(|pattern| pattern.is_match(path).unwrap_or(false))
    }
}

impl PartialEq for KeptModules {
    fn eq(&self, other: &Self) -> bool {
        let texts = |kept: &Self| -> Vec<String> {
            kept.patterns.iter().map(|pattern| pattern.as_str().to_owned()).collect()
        };
        self.names == other.names && texts(self) == texts(other)
    }
}

impl Eq for KeptModules {}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(listed: &[&str]) -> Result<KeptModules, String> {
        KeptModules::new(listed.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn names_are_parts_and_expressions_begin_a_path() {
        let kept = kept(&[
            "lm_head",
            "model.layers.*.self_attn",
            r"re:.*mlp\.(gate|up|down)_proj.*",
            "re:vision",
            r"re:model\.(?!layers)",
        ]);
        let kept = kept.unwrap();
        for path in [
            "lm_head",
            "model.layers.7.self_attn.q_proj",
            "model.layers.0.mlp.up_proj",
            "vision_tower.layers.0",
            "model.embed_tokens",
        ] {
            assert!(kept.contains(path), "{path}");
        }
        for path in ["model.layers.3.mlp.experts.0.up_proj", "model.layers.1.vision", "lm_heads"] {
            assert!(!kept.contains(path), "{path}");
        }
    }

    #[test]
    fn what_is_no_expression_is_named() {
        for bad in ["re:(", &format!("re:{}", "a".repeat(MAX_LENGTH + 1))] {
            assert_eq!(kept(&["lm_head", bad]).unwrap_err(), bad);
        }
        let many = vec!["re:a"; MAX_EXPRESSIONS + 1];
        assert_eq!(kept(&many).unwrap_err(), "re:a");
    }
}
