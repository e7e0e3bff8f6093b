use serde::Serialize;

/// A value with its source.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sourced<T> {
    /// The value.
    pub value: T,
    /// The file, library or call that it came from.
    pub source: String,
}

impl<T> Sourced<T> {
    /// A value and its source.
    pub fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into() }
    }
}
