//! Typed access to the fields of a JSON object, with errors that name the field.

use std::cell::RefCell;
use std::rc::Rc;

use outsize_checkpoint::shown;
use serde_json::{Map, Value};

use crate::Error;

/// Longest value quoted in a message, in characters.
pub(crate) const MAX_QUOTE: usize = 80;

/// More names of unknown fields than this are of no use to anyone.
const MAX_UNKNOWN: usize = 32;

/// The fields of a JSON object. `null` counts as absent, as it does in `transformers`.
#[derive(Debug)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// The object's own name and a dot; empty at the top.
    prefix: String,
    /// Full names of fields that nobody knows, those of objects within too.
    unknown: Rc<RefCell<Vec<String>>>,
}

impl<'a> Fields<'a> {
    /// The fields of the whole file.
    pub fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: String::new(), unknown: Rc::default() }
    }

    /// The names and values of all fields.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a Value)> {
        self.map.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The field's full name, fit for a message.
    pub fn path(&self, field: &str) -> String {
        format!("{}{}", self.prefix, shown(field, MAX_QUOTE))
    }

    /// Notes a field that nobody knows.
    pub(crate) fn note_unknown(&self, field: &str) {
        let mut unknown = self.unknown.borrow_mut();
        if unknown.len() < MAX_UNKNOWN {
            unknown.push(self.path(field));
        }
    }

    /// The full names of fields that nobody knows, in the order in which they were checked; at
    /// most 32.
    pub(crate) fn unknown(&self) -> Vec<String> {
        self.unknown.borrow().clone()
    }

    /// Whether the field is there, be it `null`.
    pub fn has(&self, field: &str) -> bool {
        self.map.contains_key(field)
    }

    /// The field's value, unless absent or `null`.
    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// The fields of an object within; `None` if absent or empty.
    pub fn object(&self, field: &str) -> Result<Option<Fields<'a>>, Error> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Object(map)) if map.is_empty() => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Fields {
                map,
                prefix: format!("{}{field}.", self.prefix),
                unknown: self.unknown.clone(),
            })),
            Some(_) => Err(self.refuse(field, "it must be an object".to_owned())),
        }
    }

    /// The fields of an object within that must be there.
    pub fn required_object(&self, field: &str) -> Result<Fields<'a>, Error> {
        self.object(field)?.ok_or_else(|| self.missing(field))
    }

    /// A whole number from 1 to `max`.
    pub fn size(&self, field: &str, max: usize) -> Result<usize, Error> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        value
            .as_u64()
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| (1..=max).contains(n))
            .ok_or_else(|| self.refuse(field, format!("it must be a whole number from 1 to {max}")))
    }

    /// A whole number from 1 to `max`, or `default` if absent.
    pub fn size_or(&self, field: &str, default: usize, max: usize) -> Result<usize, Error> {
        if self.get(field).is_some() { self.size(field, max) } else { Ok(default) }
    }

    /// What a list says of each of so many layers, in one of these words.
    pub fn listed<T: Copy>(
        &self,
        field: &str,
        layers: usize,
        words: &[(&str, T)],
    ) -> Result<Vec<T>, Error> {
        let meant = |said: &Value| words.iter().find(|(word, _)| said == word).map(|(_, it)| *it);
        let listed = self.get(field).and_then(Value::as_array);
        let listed = listed.and_then(|listed| listed.iter().map(meant).collect());
        listed.filter(|listed: &Vec<_>| listed.len() == layers).ok_or_else(|| {
            let quoted: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
            let (last, others) = quoted.split_last().expect("there are words");
            let words = format!("{} and {last}", others.join(", "));
            self.refuse(field, format!("it must be a list of {layers} of {words}"))
        })
    }

    /// A finite number from `min` to `max`.
    pub fn number_within(&self, field: &str, min: f64, max: f64) -> Result<f64, Error> {
        let number = self.number(field)?;
        if (min..=max).contains(&number) {
            return Ok(number);
        }
        Err(self.refuse(field, format!("it must be from {min} to {max}")))
    }

    /// A finite number from `min` to `max`, or `default` if absent.
    pub fn number_within_or(
        &self,
        field: &str,
        default: f64,
        min: f64,
        max: f64,
    ) -> Result<f64, Error> {
        if self.get(field).is_some() { self.number_within(field, min, max) } else { Ok(default) }
    }

    /// A finite number.
    pub fn number(&self, field: &str) -> Result<f64, Error> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        value
            .as_f64()
            .filter(|n| n.is_finite())
            .ok_or_else(|| self.refuse(field, "it must be a finite number".to_owned()))
    }

    /// A finite number, or `default` if absent.
    pub fn number_or(&self, field: &str, default: f64) -> Result<f64, Error> {
        if self.get(field).is_some() { self.number(field) } else { Ok(default) }
    }

    /// True or false, or `default` if absent.
    pub fn flag_or(&self, field: &str, default: bool) -> Result<bool, Error> {
        match self.get(field) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.refuse(field, "it must be true or false".to_owned())),
        }
    }

    /// A string, if present.
    pub fn text(&self, field: &str) -> Result<Option<&'a str>, Error> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.refuse(field, "it must be a string".to_owned())),
        }
    }

    /// The error for a value that cannot be used; `expected` continues "is …, but".
    pub fn refuse(&self, field: &str, expected: String) -> Error {
        let value = self.map.get(field).map_or_else(|| "absent".to_owned(), Value::to_string);
        Error::Field { field: self.path(field), value: shown(&value, MAX_QUOTE), expected }
    }

    /// The error for a field that must be there.
    pub fn missing(&self, field: &str) -> Error {
        Error::MissingField { field: self.path(field) }
    }
}
