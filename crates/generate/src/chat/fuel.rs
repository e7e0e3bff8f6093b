//! What the engine's own fuel does not count: text that is made of lists, and methods of strings.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

/// The deepest nesting of lists and maps that becomes text.
const DEEPEST: usize = 128;

/// Bytes that a unit of fuel pays for.
const BYTES: u64 = 64;

/// Charges for a value that is to become text. A list that holds another one twice, which holds a
/// third one twice, and so on, takes little memory and has a text without end.
pub(super) fn charge(state: &State<'_, '_>, value: &Value) -> Result<(), Error> {
    charge_at(state, value, 0)
}

fn charge_at(state: &State<'_, '_>, value: &Value, depth: usize) -> Result<(), Error> {
    let is_map = match value.kind() {
        ValueKind::Map => true,
        ValueKind::Seq | ValueKind::Iterable => false,
        // The engine counts what is printed of these.
        _ if depth == 0 => return Ok(()),
        _ => return charge_bytes(state, value.as_str().map_or(0, str::len)),
    };
    if depth > DEEPEST {
        let reason = "a value is nested too deeply to become text";
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    for item in value.try_iter()? {
        state.consume_fuel(1)?;
        charge_at(state, &item, depth + 1)?;
        if is_map {
            charge_at(state, &value.get_item(&item)?, depth + 1)?;
        }
    }
    Ok(())
}

fn charge_bytes(state: &State<'_, '_>, bytes: usize) -> Result<(), Error> {
    state.consume_fuel(1 + bytes as u64 / BYTES)
}

/// Methods that Python's strings, dicts and lists have.
pub(super) fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(text) = value.as_str() {
        charge_bytes(state, text.len())?;
        match (method, args) {
            // As the filters do it, which count what they make.
            ("replace", [old, new]) => {
                return state.apply_filter("replace", &[value.clone(), old.clone(), new.clone()]);
            }
            ("join", [parts]) => {
                charge(state, parts)?;
                return state.apply_filter("join", &[parts.clone(), value.clone()]);
            }
            // Each part is a value of its own.
            ("split", [separator, ..]) if separator.as_str().is_some() => {
                let separator = separator.as_str().unwrap_or_default();
                state.consume_fuel(2 * text.matches(separator).count() as u64)?;
            }
            ("split" | "splitlines", _) => state.consume_fuel(text.len() as u64)?,
            // A width may be of any size.
            ("format", _) if text.contains(':') => {
                let reason = "str.format takes no widths here";
                return Err(Error::new(ErrorKind::InvalidOperation, reason));
            }
            _ => {}
        }
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
}
