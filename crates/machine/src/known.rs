use serde::Serialize;

/// Something that was found out, and what said so.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sourced<T> {
    /// What was found.
    pub value: T,
    /// The file, library or call that said so.
    pub source: String,
}

impl<T> Sourced<T> {
    /// A value and what said so.
    pub fn new(value: T, source: impl Into<String>) -> Self {
        Self {
            value,
            source: source.into(),
        }
    }
}
