//! Which modules of a model a configuration names, as PEFT matches them.

use std::collections::{BTreeMap, HashSet};

use fancy_regex::{Regex, RegexBuilder};
use outsize_checkpoint::shown;
use serde_json::{Value, json};

use crate::Error;
use crate::fields::Fields;

/// The most regular expressions of one field.
const MAX_EXPRESSIONS: usize = 1 << 12;
/// The longest regular expression, in bytes. Those that tools write are some hundreds long.
const MAX_LENGTH: usize = 1 << 14;
/// The most bytes of a compiled one.
const COMPILED: usize = 1 << 20;
/// Longest expression quoted in a message, in characters.
const MAX_QUOTE: usize = 80;

/// Which modules of a model are meant.
#[derive(Debug, Clone, PartialEq)]
pub enum ModulePattern {
    /// Those of these names, or whose names end in a dot and one of these.
    Suffixes(Vec<String>),
    /// Those whose whole name matches the regular expression.
    Regex(String),
    /// All linear layers but the output head: `all-linear`.
    AllLinear,
}

impl ModulePattern {
    /// Modules whose names end so.
    pub fn suffixes<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self::Suffixes(names.into_iter().map(Into::into).collect())
    }

    pub(crate) fn read(fields: &Fields<'_>, field: &str) -> Result<Option<Self>, Error> {
        Ok(match fields.get(field) {
            Some(Value::String(text)) if text.is_empty() => None,
            Some(Value::String(text)) if text.eq_ignore_ascii_case("all-linear") => {
                Some(Self::AllLinear)
            }
            Some(Value::String(text)) => Some(Self::Regex(text.clone())),
            _ => Some(Self::Suffixes(fields.texts(field)?)).filter(|names| !names.is_empty()),
        })
    }

    fn is_empty(&self) -> bool {
        matches!(self, Self::Suffixes(names) if names.is_empty())
    }

    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Suffixes(names) => json!(names),
            Self::Regex(expression) => json!(expression),
            Self::AllLinear => json!("all-linear"),
        }
    }

    /// In words, for a message.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Suffixes(names) => shown(&names.join(", "), 3 * MAX_QUOTE),
            Self::Regex(expression) => {
                format!("modules that match {}", shown(expression, 3 * MAX_QUOTE))
            }
            Self::AllLinear => "all linear layers".to_owned(),
        }
    }

    /// Something that says of a name whether it matches; of [`Self::AllLinear`] all do.
    pub(crate) fn matcher(&self, field: &str) -> Result<Matcher<'_>, Error> {
        Ok(match self {
            Self::Suffixes(names) => Matcher::suffixes(names),
            // As `re.fullmatch`.
            Self::Regex(text) => Matcher::Regex(Expression::new(field, text, r"\A(?:", r")\z")?),
            Self::AllLinear => Matcher::All,
        })
    }
}

pub(crate) enum Matcher<'a> {
    Suffixes(HashSet<&'a str>),
    Regex(Expression),
    All,
}

impl<'a> Matcher<'a> {
    pub(crate) fn suffixes(names: &'a [String]) -> Self {
        Self::Suffixes(names.iter().map(String::as_str).collect())
    }
}

impl Matcher<'_> {
    pub(crate) fn matches(&self, name: &str) -> Result<bool, Error> {
        match self {
            Self::Suffixes(names) => Ok(names.contains(name)
                || name.match_indices('.').any(|(dot, _)| names.contains(&name[dot + 1..]))),
            Self::Regex(expression) => expression.matches(name),
            Self::All => Ok(true),
        }
    }

    /// Whether the name is one of those listed, and not just its end.
    pub(crate) fn is_exact(&self, name: &str) -> bool {
        matches!(self, Self::Suffixes(names) if names.contains(name))
    }
}

/// A regular expression of Python, with bounds on what it may cost.
pub(crate) struct Expression {
    field: String,
    text: String,
    regex: Regex,
}

impl Expression {
    pub(crate) fn new(field: &str, text: &str, before: &str, after: &str) -> Result<Self, Error> {
        let wrong = |reason: &str| fault(field, text, reason);
        if text.len() > MAX_LENGTH {
            return Err(wrong(&format!("it is longer than {MAX_LENGTH} bytes")));
        }
        let mut builder = RegexBuilder::new(&format!("{before}{text}{after}"));
        let regex = builder.delegate_size_limit(COMPILED).build();
        let regex = regex.map_err(|error| wrong(&error.to_string()))?;
        Ok(Self { field: field.to_owned(), text: text.to_owned(), regex })
    }

    pub(crate) fn matches(&self, name: &str) -> Result<bool, Error> {
        let found = self.regex.is_match(name);
        found.map_err(|error| fault(&self.field, &self.text, &error.to_string()))
    }

    /// What the group `idx` matches, as a number.
    pub(crate) fn index(&self, name: &str) -> Result<Option<usize>, Error> {
        let found = self.regex.captures(name);
        let found = found.map_err(|error| fault(&self.field, &self.text, &error.to_string()))?;
        let index = found.as_ref().and_then(|found| found.name("idx"));
        Ok(index.and_then(|index| index.as_str().parse().ok()))
    }
}

fn fault(field: &str, text: &str, reason: &str) -> Error {
    Error::Field {
        field: field.to_owned(),
        value: shown(text, MAX_QUOTE),
        expected: format!(
            "that is not a regular expression that can be used: {}",
            shown(reason, 2 * MAX_QUOTE)
        ),
    }
}

/// For each module, by its names, what the first of `patterns` that matches one of them says.
pub(crate) fn first_matches<T: Copy>(
    field: &str,
    patterns: &BTreeMap<String, T>,
    modules: &[Vec<String>],
) -> Result<Vec<Option<T>>, Error> {
    let mut found = vec![None; modules.len()];
    if patterns.len() > MAX_EXPRESSIONS {
        let reason = format!("it has more than {MAX_EXPRESSIONS} of them");
        return Err(fault(field, "a large object", &reason));
    }
    // One compiled expression at a time.
    for (text, value) in patterns {
        let expression = Expression::new(field, text, r"\A(.*\.)?(", r")\z")?;
        for (names, found) in modules.iter().zip(&mut found).filter(|(_, found)| found.is_none()) {
            for name in names {
                if expression.matches(name)? {
                    *found = Some(*value);
                }
            }
        }
    }
    Ok(found)
}
