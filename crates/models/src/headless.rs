//! Configurations of models whose hidden states are wanted, and no logits.

use serde_json::Value;

use crate::config::{self, Fields};
use crate::{Error, ModelConfig, registry};

/// Fields by which a head's input is scaled, which is not told from the hidden states.
const SCALES: [&str; 2] = ["logit_scale", "logits_scaling"];

impl ModelConfig {
    /// Whether it is read [without a head](Self::without_head).
    pub fn is_headless(&self) -> bool {
        self.is_headless
    }

    /// Reads the text of a `config.json` of a model whose [hidden
    /// states](crate::DispatchedDecoder::hidden_batch) are wanted: it may be published without a
    /// head (`Qwen3Model`), and a head that is stored is passed over.
    ///
    /// # Errors
    /// As [`from_json`](Self::from_json); a model whose tokens see those behind them, or that
    /// scales what goes into its head.
    pub fn without_head(text: &str) -> Result<Self, Error> {
        let mut map = config::object(text)?;
        let row = registry::row(&Fields::new(&map))?;
        let named = |name: &Value| name == &format!("{}Model", row.class_prefixes.0);
        let classes = map.get("architectures").and_then(Value::as_array);
        if classes.is_some_and(|classes| classes.iter().any(named)) {
            map.remove("architectures");
        }
        if let Some(field) = SCALES.into_iter().find(|field| map.contains_key(*field)) {
            let expected = "hidden states are not told from a head's input, which this scales";
            return Err(Fields::new(&map).refuse(field, expected.to_owned()));
        }
        // The table is there anyway.
        let tied = map.entry("tie_word_embeddings").or_insert(Value::Null);
        if matches!(tied, Value::Null | Value::Bool(_)) {
            *tied = Value::from(true);
        }
        let mut config = Self::of_object(&map)?;
        config.is_headless = true;
        Ok(config)
    }
}
