//! How much a JSON schema is, once its alternatives are spelled out.

use serde_json::{Map, Value};

/// The most that a schema may be, in subschemas: real ones are some hundred.
const MOST: f64 = 20_000.0;

/// The deepest that parts lead to other parts.
const DEEPEST: usize = 150;

/// Whether a grammar can be made of a schema in short time. Alternatives multiply: those of `anyOf`
/// with what stands beside it, and those of the parts of `allOf` with each other.
pub(crate) fn is_affordable(schema: &Value) -> bool {
    let mut cost = SchemaCost { root: schema, total: 0.0 };
    cost.add(schema, 1.0, 0).is_some()
}

struct SchemaCost<'s> {
    root: &'s Value,
    total: f64,
}

impl<'s> SchemaCost<'s> {
    /// Counts a part so many times; none once that is too much.
    fn add(&mut self, part: &'s Value, times: f64, depth: usize) -> Option<()> {
        self.count(times, depth)?;
        let parts = match part {
            Value::Object(parts) => parts,
            Value::Array(items) => {
                return items.iter().try_for_each(|item| self.add(item, times, depth + 1));
            }
            _ => return Some(()),
        };
        let times = times * self.alternatives(parts, depth)?;
        // Alone, a part that is referred to is made once, where it stands.
        if parts.len() > 1
            && let Some(target) = self.target(parts)
        {
            self.add(target, times, depth + 1)?;
        }
        let is_schema = |key: &str| !["enum", "const", "default", "examples"].contains(&key);
        let mut parts = parts.iter().filter(|(key, _)| is_schema(key));
        parts.try_for_each(|(key, part)| {
            // Each of the options is in its own alternatives alone.
            let options = match (&**key, part) {
                ("anyOf" | "oneOf", Value::Array(options)) => options.len().max(1),
                _ => 1,
            };
            self.add(part, times / options as f64, depth + 1)
        })
    }

    fn count(&mut self, times: f64, depth: usize) -> Option<()> {
        self.total += times;
        (self.total <= MOST && depth <= DEEPEST).then_some(())
    }

    /// How many alternatives a part has.
    fn alternatives(&mut self, parts: &'s Map<String, Value>, depth: usize) -> Option<f64> {
        let mut all = 1.0;
        for key in ["anyOf", "oneOf"] {
            let options = parts.get(key).and_then(Value::as_array);
            let mut sum = 0.0;
            for option in options.into_iter().flatten() {
                sum += self.alternatives_of(option, depth + 1)?;
            }
            // One of several is told from each of the others.
            all *= f64::max(1.0, if key == "oneOf" { sum * sum } else { sum });
        }
        for part in parts.get("allOf").and_then(Value::as_array).into_iter().flatten() {
            all *= self.alternatives_of(part, depth + 1)?;
        }
        match self.target(parts) {
            Some(target) => Some(all * self.alternatives_of(target, depth + 1)?),
            None => Some(all),
        }
    }

    fn alternatives_of(&mut self, part: &'s Value, depth: usize) -> Option<f64> {
        self.count(0.1, depth)?;
        part.as_object().map_or(Some(1.0), |parts| self.alternatives(parts, depth))
    }

    /// What a part refers to.
    fn target(&self, parts: &'s Map<String, Value>) -> Option<&'s Value> {
        let path = parts.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(path.trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn alternatives_multiply() {
        let mut deep = json!({"type": "integer"});
        let mut definitions = json!({"d0": {"type": "integer"}});
        for level in 1..40 {
            deep = json!({"items": deep, "anyOf": [{"minItems": 1}, {"maxItems": 3}]});
            let before = json!({"$ref": format!("#/$defs/d{}", level - 1)});
            definitions[format!("d{level}")] = json!({"allOf": [before, before]});
        }
        let any = json!({"anyOf": [{"minimum": 1}, {"maximum": 3}]});
        assert!(!is_affordable(&deep));
        assert!(!is_affordable(&json!({"$ref": "#/$defs/d39", "$defs": definitions})));
        assert!(!is_affordable(&json!({"allOf": vec![any.clone(); 40]})));
        assert!(is_affordable(&json!({"allOf": vec![any.clone(); 5]})));
        assert!(is_affordable(&json!({"properties": {"a": any, "b": any}})));
        assert!(is_affordable(&json!({"anyOf": vec![json!({"type": "string"}); 300]})));
        assert!(is_affordable(&json!({"items": {"$ref": "#"}})));
        assert!(!is_affordable(&json!({"allOf": [{"$ref": "#"}]})));
    }
}
