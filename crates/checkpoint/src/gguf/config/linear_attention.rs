//! What Qwen3-Next and Qwen3.5 have besides.

use serde_json::Value;

use super::{Config, GgufFault};

impl Config<'_> {
    /// The heads of linear attention, and what GGUF files have otherwise than transformers.
    pub(super) fn add_linear_attention(&mut self) -> Result<(), GgufFault> {
        let values = self.unsigned("ssm.inner_size")?.zip(self.unsigned("ssm.time_step_rank")?);
        if let Some((all, heads @ 1..)) = values {
            self.set("linear_value_head_dim", all / heads);
        }
        // One is already added to the weights of norms, and rates are what they are multiplied by.
        self.set("rms_norm_add_unit_offset", false);
        self.set("linear_rates_negated", true);
        if self.architecture == "qwen3next" {
            if self.has_in_a_block("attn_gate.weight") {
                self.set("linear_qkvz_apart", true);
            }
        } else {
            self.set("linear_heads_in_turns", true);
        }
        let key = self.key("attention.recurrent_layers");
        if let Some(Value::Array(linear)) = self.fields.remove(&key) {
            let kind = |linear: &Value| match *linear == true {
                true => "linear_attention",
                false => "full_attention",
            };
            self.set("layer_types", linear.iter().map(kind).collect::<Vec<_>>());
        }
        Ok(())
    }
}
