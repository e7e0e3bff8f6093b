//! By how much a tokenizer.json may make a text longer.

use serde::Deserialize;
use serde_json::{Map, Value};

/// The most by which one part of a tokenizer may multiply the bytes of a text. Real ones stay
/// below 20.
const MOST: u64 = 256;

/// The most bytes of a precompiled character map. The largest in use have 400 kB.
const MOST_CHARSMAP: usize = 1 << 20;

/// The parts that rewrite text. A step of a few bytes can double it, and a file has room for a
/// thousand steps.
#[derive(Debug, Deserialize)]
pub(crate) struct Rewriting {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
}

impl Rewriting {
    /// Refuses what would turn a short text into one that fills the memory; the reason names the
    /// part.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (name, part) in [
            ("normalizer", &self.normalizer),
            ("pre_tokenizer", &self.pre_tokenizer),
            ("decoder", &self.decoder),
        ] {
            let growth = growth(part);
            if growth > MOST {
                return Err(format!("its {name} can make a text more than {MOST} times longer"));
            }
        }
        Ok(())
    }
}

/// An upper bound on the factor by which a part and all parts in it multiply the bytes of a text.
fn growth(part: &Value) -> u64 {
    let all = |parts: &mut dyn Iterator<Item = &Value>| {
        parts.fold(1, |product: u64, part| product.saturating_mul(growth(part)))
    };
    match part {
        Value::Array(parts) => all(&mut parts.iter()),
        Value::Object(step) => step_growth(step).saturating_mul(all(&mut step.values())),
        _ => 1,
    }
}

/// The factor of one step, without those inside it. Older files do not name a step's type, so its
/// fields tell.
fn step_growth(step: &Map<String, Value>) -> u64 {
    let length = |key: &str| {
        let text = step.get(key).and_then(Value::as_str);
        text.map(|text| text.len() as u64)
    };
    if let (Some(content), Some(pattern)) = (length("content"), step.get("pattern")) {
        return match pattern.get("String").and_then(Value::as_str) {
            Some(pattern) if !pattern.is_empty() => content.div_ceil(pattern.len() as u64).max(1),
            // What matches nothing matches between all characters.
            _ => content.saturating_add(1),
        };
    }
    if let Some(prepend) = length("prepend") {
        return prepend.saturating_add(1);
    }
    if let Some(charsmap) = length("precompiled_charsmap") {
        // What it does to a text takes decoding to find out; a second one has no use.
        return if charsmap <= MOST_CHARSMAP as u64 { 20 } else { MOST + 1 };
    }
    match step.get("type").and_then(Value::as_str) {
        // A byte becomes a character of two, or U+FFFD.
        Some("ByteLevel") => 3,
        // An empty suffix or delimiter puts a space between all characters.
        Some("BPEDecoder" | "CTC") => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(normalizer: Value) -> Result<(), String> {
        let rewriting: Rewriting =
            serde_json::from_value(json!({"normalizer": normalizer, "model": {}})).unwrap();
        rewriting.check()
    }

    fn replace(pattern: Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    fn sequence(step: &Value, count: usize) -> Value {
        json!({"type": "Sequence", "normalizers": vec![step; count]})
    }

    #[test]
    fn what_models_use_passes() {
        for normalizer in [
            Value::Null,
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                replace(json!({"String": " "}), "▁")]}),
            json!({"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": "A".repeat(400_000)},
                replace(json!({"Regex": " {2,}"}), "▁")]}),
            sequence(&replace(json!({"String": "``"}), "\""), 20),
        ] {
            check(normalizer).unwrap();
        }
    }

    #[test]
    fn steps_that_multiply_are_refused() {
        let double = replace(json!({"String": "a"}), "aa");
        check(sequence(&double, 8)).unwrap();
        for normalizer in [
            sequence(&double, 9),
            // Hidden in sequences, and without types.
            (0..9).fold(json!([]), |inner, _| json!({"normalizers": [inner, double]})),
            sequence(&json!({"pattern": {"String": "a"}, "content": "aa"}), 9),
            replace(json!({"Regex": ""}), &"a".repeat(256)),
            replace(json!({"String": ""}), &"a".repeat(256)),
            sequence(&json!({"type": "Prepend", "prepend": "a"}), 9),
            sequence(&json!({"type": "ByteLevel"}), 6),
            sequence(&json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}), 2),
            json!({"type": "Precompiled", "precompiled_charsmap": "A".repeat(2 << 20)}),
            sequence(&double, 10_000),
        ] {
            let reason = check(normalizer).unwrap_err();
            assert!(reason.contains("normalizer"), "{reason}");
        }
        for part in ["decoder", "pre_tokenizer"] {
            let rewriting: Rewriting =
                serde_json::from_value(json!({part: sequence(&double, 9)})).unwrap();
            assert!(rewriting.check().unwrap_err().contains(part));
        }
    }
}
