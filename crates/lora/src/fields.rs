//! The fields of `adapter_config.json`, with errors that name them. `null` counts as absent.

use outsize_checkpoint::shown;
use serde_json::{Map, Value};

use crate::Error;

/// Longest value quoted in a message, in characters.
const MAX_QUOTE: usize = 80;
/// The most entries of a list or an object: PEFT writes some hundreds at most.
const MAX_ENTRIES: usize = 1 << 16;

pub(crate) struct Fields<'a>(pub(crate) &'a Map<String, Value>);

impl<'a> Fields<'a> {
    pub(crate) fn get(&self, field: &str) -> Option<&'a Value> {
        self.0.get(field).filter(|value| !value.is_null())
    }

    pub(crate) fn flag(&self, field: &str) -> Result<bool, Error> {
        match self.get(field) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.refuse(field, "it must be true or false")),
        }
    }

    pub(crate) fn text(&self, field: &str) -> Result<Option<String>, Error> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.refuse(field, "it must be a string")),
        }
    }

    /// A list of strings, or one string.
    pub(crate) fn texts(&self, field: &str) -> Result<Vec<String>, Error> {
        match self.get(field) {
            Some(Value::String(text)) if !text.is_empty() => Ok(vec![text.clone()]),
            Some(Value::String(_)) => Ok(Vec::new()),
            _ => self.list(field, "strings", |value| value.as_str().map(str::to_owned)),
        }
    }

    /// A list of what `read` takes, or one of it.
    pub(crate) fn list<T>(
        &self,
        field: &str,
        what: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let values = match self.get(field) {
            None => return Ok(Vec::new()),
            Some(Value::Array(values)) => &values[..],
            Some(value) => std::slice::from_ref(value),
        };
        let list = (values.len() <= MAX_ENTRIES).then(|| values.iter().map(read).collect());
        list.flatten().ok_or_else(|| self.refuse(field, &format!("it must be a list of {what}")))
    }

    /// An object of what `read` takes.
    pub(crate) fn object<T, C: FromIterator<(String, T)>>(
        &self,
        field: &str,
        what: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<C, Error> {
        let refused = || self.refuse(field, &format!("it must be an object of {what}"));
        match self.get(field) {
            None => Ok(C::from_iter([])),
            Some(Value::Object(map)) if map.len() <= MAX_ENTRIES => {
                let entries = map.iter().map(|(name, value)| Some((name.clone(), read(value)?)));
                entries.collect::<Option<C>>().ok_or_else(refused)
            }
            Some(_) => Err(refused()),
        }
    }

    /// The error for a value that cannot be used; `expected` continues "is …, but".
    pub(crate) fn refuse(&self, field: &str, expected: &str) -> Error {
        let value = self.0.get(field).map_or_else(|| "absent".to_owned(), Value::to_string);
        Error::Field {
            field: shown(field, MAX_QUOTE),
            value: shown(&value, MAX_QUOTE),
            expected: expected.to_owned(),
        }
    }
}

/// Whether a field says nothing: `null`, `false`, or empty.
pub(crate) fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}
