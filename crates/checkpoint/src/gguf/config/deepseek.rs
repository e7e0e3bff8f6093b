//! What DeepSeek and models with its experts have besides.

use serde_json::Value;

use super::{Config, GgufFault, metadata};

impl Config<'_> {
    /// The widths of heads of which keys and values are compressed. Files that have them for
    /// llama.cpp's sake as one head give those widths beside the original ones.
    pub(super) fn add_latent_attention(&mut self) -> Result<(), GgufFault> {
        // Lists say which layers have such attention.
        self.set_kinds_by_heads(["linear_attention", "full_attention"]);
        self.fields.remove("head_dim");
        // transformers' own default is that of the published model.
        match self.fields.get("num_attention_heads").cloned() {
            Some(heads) => self.set("num_key_value_heads", heads),
            None => drop(self.fields.remove("num_key_value_heads")),
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
        if self.has_in_a_block("attn_k_b.weight") {
            self.set("kv_b_apart", true);
        }
        if self.architecture == "glm-dsa" {
            // Layers without an indexer see what the one before chose. Not all files say which.
            self.fields.remove(&self.key("attention.indexer.types"));
            let kinds = ["shared", "full"];
            self.set_kinds_by_tensor("indexer_types", "indexer.attn_k.weight", kinds)?;
        }
        if self.has_in_a_block("attn_kv_a_mqa.bias") {
            self.set("attention_bias", true);
        }
        if self.architecture == "deepseek2" && !self.has_experts()? {
            // Youtu-LLM, which has none.
            self.set("model_type", "youtu");
            for field in ["first_k_dense_replace", "moe_intermediate_size", "n_shared_experts"] {
                self.fields.remove(field);
            }
        }
        Ok(())
    }

    /// Whether something is added to the scores by which experts are chosen.
    fn has_correction(&self) -> bool {
        ["exp_probs_b.bias", "exp_probs_b"].into_iter().any(|name| self.has_in_a_block(name))
    }

    /// What models have whose experts may be in groups.
    pub(super) fn add_shared_experts(&mut self) -> Result<(), GgufFault> {
        let field = "expert_gating_func";
        let is_sigmoid = match (self.unsigned(field)?, self.architecture) {
            (Some(2), _) | (None, "glm4moe" | "glm-dsa" | "dots1" | "deepseek32") => true,
            // Older files do not say: of these only those behind a sigmoid have biases.
            (None, "deepseek2") => self.has_correction(),
            (Some(0 | 1), "deepseek2") => false,
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
            // Where transformers would take a half, or there is no MLP.
            self.fields.entry("partial_rotary_factor").or_insert(1.into());
            if let Some(width) = self.fields.get("moe_intermediate_size").cloned() {
                self.fields.entry("intermediate_size").or_insert(width);
            }
        }
        Ok(())
    }
}
