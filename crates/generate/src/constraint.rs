//! Texts that have to be JSON.

use std::fmt;

use llguidance::Matcher;
use llguidance::api::{StopReason, TopLevelGrammar};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::schema_cost::is_affordable;
use crate::shield::shielded;
use crate::tokenizer::Tokenizer;

/// The longest schema, in bytes as JSON.
const LONGEST: usize = 64 << 10;

/// What may be between the parts of a text: a model could go on with white space without an end.
const WHITE_SPACE: &str = r"\n {0,32}| {1,2}";

/// What a text has to be: JSON that is valid by a schema.
#[derive(Debug, Clone, PartialEq)]
pub struct JsonConstraint {
    schema: Value,
}

impl JsonConstraint {
    /// Any object.
    pub fn object() -> Self {
        Self::new(json!({ "type": "object" }))
    }

    /// What is valid by this [JSON schema](https://json-schema.org). Properties come in its order.
    pub fn new(schema: Value) -> Self {
        Self { schema }
    }
}

/// What a token means for a constrained text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Constrained {
    /// The text goes on.
    Open,
    /// Nothing may follow.
    Complete,
    /// Nothing can follow, although the text is not complete: the vocabulary lacks what would, or
    /// it takes too much to compute.
    Stuck,
}

/// A text that grows as a constraint has it.
pub(crate) struct ConstrainedText {
    matcher: Matcher,
}

impl ConstrainedText {
    /// A text of which there is nothing.
    pub fn new(tokenizer: &Tokenizer, constraint: &JsonConstraint) -> Result<Self> {
        let refused =
            |reason: String| Error::Constraint { reason: outsize_checkpoint::shown(&reason, 400) };
        let Value::Object(mut schema) = constraint.schema.clone() else {
            return Err(refused("it is no object".to_owned()));
        };
        let length = constraint.schema.to_string().len();
        if length > LONGEST {
            return Err(refused(format!("it has {length} bytes, of at most {LONGEST}")));
        }
        if !is_affordable(&constraint.schema) {
            return Err(refused(
                "its parts have too many alternatives, or are too deep".to_owned(),
            ));
        }
        let factory = tokenizer.constraints()?;
        schema.insert("x-guidance".to_owned(), json!({ "whitespace_pattern": WHITE_SPACE }));
        let grammar = TopLevelGrammar::from_json_schema(Value::Object(schema));
        let parser = shielded(|| {
            factory.create_parser(grammar).map_err(|error| format!("{error:#}").into())
        });
        let mut matcher = Matcher::new(Ok(parser.map_err(refused)?));
        match matcher.get_error() {
            Some(error) => Err(refused(error)),
            None => {
                // The schema may be one that nothing is valid by.
                matcher.compute_mask_or_eos().map_err(|error| refused(format!("{error:#}")))?;
                Ok(Self { matcher })
            }
        }
    }

    /// Excludes tokens that may not come next; one that ends a text may come once the text is
    /// complete.
    pub fn mask(&mut self, logits: &mut [f32], eos: &[u32]) -> Constrained {
        let complete = self.matcher.is_accepting().unwrap_or(false);
        let ends = eos.iter().any(|token| (*token as usize) < logits.len());
        let Ok(mask) = self.matcher.compute_mask() else {
            return if complete && ends { self.only(logits, eos) } else { Constrained::Stuck };
        };
        let mut open = complete && ends;
        for (token, logit) in (0..).zip(&mut *logits) {
            match (token as usize) < mask.len() && mask.is_allowed(token) {
                true => open = true,
                false if complete && eos.contains(&token) => {}
                false => *logit = f32::NEG_INFINITY,
            }
        }
        if open { Constrained::Open } else { Constrained::Stuck }
    }

    fn only(&self, logits: &mut [f32], eos: &[u32]) -> Constrained {
        for (token, logit) in (0..).zip(logits) {
            if !eos.contains(&token) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Constrained::Open
    }

    /// Adds a token that the mask allows.
    pub fn push(&mut self, token: u32) -> Constrained {
        match self.matcher.consume_token(token) {
            Err(_) => Constrained::Stuck,
            Ok(()) if !self.matcher.is_stopped() => Constrained::Open,
            Ok(()) => match self.matcher.stop_reason() {
                StopReason::NoExtension
                | StopReason::NoExtensionBias
                | StopReason::EndOfSentence => Constrained::Complete,
                _ => Constrained::Stuck,
            },
        }
    }
}

impl fmt::Debug for ConstrainedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstrainedText").finish_non_exhaustive()
    }
}
