//! What DeepSeek and models with its experts have besides.

use serde_json::Value;

use super::{Config, GgufFault, metadata};

impl Config<'_> {
    /// The widths of heads of which keys and values are compressed. Files that have them for llama.cpp's sake as one head give
    /// those widths beside the original ones.
    pub(super) fn add_latent_attention(&mut self) -> Result<(), GgufFault> {
        for field in ["head_dim", "num_key_value_heads"] {
            self.fields.remove(field);
        }
        let both = |config: &Self, one: &str, other: &str| {
            Ok(config.unsigned(one)?.or(config.unsigned(other)?))
        };
        let query = both(self, "attention.key_length_mla", "attention.key_length")?;
        let value = both(self, "attention.value_length_mla", "attention.value_length")?;
        let rotated = self.unsigned("rope.dimension_count")?;
        if let (Some(query), Some(rotated)) = (query, rotated) {
            self.set("qk_nope_head_dim", query.saturating_sub(rotated));
        }
        for (field, width) in [("qk_rope_head_dim", rotated), ("v_head_dim", value)] {
            if let Some(width) = width {
                self.set(field, width);
            }
        }
        if !self.fields.contains_key("q_lora_rank") {
            self.set("q_lora_rank", Value::Null);
        }
        if self.has("blk.0.attn_k_b.weight") {
            self.set("kv_b_apart", true);
        }
        Ok(())
    }

    /// What models have whose experts may be in groups.
    pub(super) fn add_shared_experts(&mut self) -> Result<(), GgufFault> {
        let field = "expert_gating_func";
        let is_sigmoid = match (self.unsigned(field)?, self.architecture) {
            (Some(2), _) | (None, "glm4moe" | "glm-dsa" | "dots1") => true,
            (None | Some(0 | 1), "deepseek2") => false,
            (Some(other), _) => {
                let reason =
                    format!("{other} is not built in: 1, a softmax, and 2, a sigmoid, are");
                return Err(metadata(&self.key(field), reason));
            }
            (None, _) => false,
        };
        self.fields.remove(field);
        if let Some(count) = self.fields.remove("num_experts") {
            self.set("n_routed_experts", count);
        }
        if self.architecture == "deepseek2" {
            self.set("model_type", if is_sigmoid { "deepseek_v3" } else { "deepseek_v2" });
            if !is_sigmoid && self.fields.contains_key("n_group") {
                self.set("topk_method", "group_limited_greedy");
            }
        }
        // Where transformers would take others.
        for (field, value) in [
            ("n_group", 1.into()),
            ("topk_group", 1.into()),
            ("routed_scaling_factor", 1.0.into()),
            ("norm_topk_prob", Value::from(false)),
            ("first_k_dense_replace", 0.into()),
            ("n_shared_experts", 1.into()),
        ] {
            self.fields.entry(field).or_insert(value);
        }
        if self.architecture == "glm4moe" {
            self.set("use_qk_norm", self.has("blk.0.attn_q_norm.weight"));
        }
        if matches!(self.architecture, "glm4moe" | "glm-dsa") {
            // The layers that guess further tokens are counted too.
            let further = self.unsigned("nextn_predict_layers")?.unwrap_or(0);
            if let Some(layers) = self.unsigned("block_count")? {
                self.set("num_hidden_layers", layers.saturating_sub(further));
            }
        }
        Ok(())
    }
}
