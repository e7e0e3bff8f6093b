//! What further relatives of Llama have otherwise than transformers.

use serde_json::Value;

use super::{Config, GgufFault, metadata};

impl Config<'_> {
    /// The fields that transformers calls otherwise for these than for most models.
    pub(super) fn add_conventions_of_relatives(&mut self) -> Result<(), GgufFault> {
        match self.architecture {
            "granite" => self.rename("attn_scale", "attention_multiplier"),
            "stablelm" => {
                self.rename("attention_bias", "use_qkv_bias");
                // Whatever is said.
                self.set("use_parallel_residual", !self.has_in_a_block("ffn_norm.weight"));
            }
            // Absent is not none there.
            "jais2" => {
                for (field, bias) in
                    [("attention_bias", "attn_q.bias"), ("mlp_bias", "ffn_up.bias")]
                {
                    self.set(field, self.has_in_a_block(bias));
                }
            }
            "phi2" => {
                // All of its layers have biases.
                self.fields.remove("attention_bias");
                self.fields.remove("mlp_bias");
                if let Some(width) = self.side("blk.0.ffn_up.weight", 0) {
                    // What the metadata says is a guess.
                    self.set("intermediate_size", width);
                }
            }
            "exaone" => {
                // Said by either name.
                let epsilon = self.fields.remove("layer_norm_eps");
                if let Some(epsilon) = epsilon {
                    self.fields.entry("rms_norm_eps").or_insert(epsilon);
                }
                self.rename("rms_norm_eps", "layer_norm_epsilon");
            }
            "exaone4" => {
                // Absent is not none there.
                self.fields.entry("sliding_window").or_insert(Value::Null);
                if let Some(Value::Array(pattern)) = self.fields.remove("sliding_window_pattern") {
                    self.set("layer_types", kinds(&pattern));
                }
            }
            "olmo2" if self.fields.contains_key("sliding_window") => {
                self.set("model_type", "olmo3");
                self.add_layer_types(4, false)?;
            }
            "llama4" => {
                // As wide as the others.
                self.fields.remove("shared_expert_intermediate_size");
                self.set("gates_apart", true);
                self.rename("num_experts", "num_local_experts");
                // Those without experts, and the experts.
                self.rename("intermediate_size", "intermediate_size_mlp");
                self.rename("moe_intermediate_size", "intermediate_size");
                self.rename("moe_layer_interval", "interleave_moe_layer_step");
                self.fields.remove("first_k_dense_replace");
                // As llama.cpp tells them.
                self.set("use_qk_norm", self.unsigned("expert_count")? != Some(128));
            }
            "granitemoe" | "granitehybrid" => {
                self.rename("attn_scale", "attention_multiplier");
                self.set("gates_apart", true);
                self.rename("num_experts", "num_local_experts");
                let shared = "shared_intermediate_size";
                self.rename("shared_expert_intermediate_size", shared);
                if self.architecture == "granitemoe" && self.fields.contains_key(shared) {
                    self.set("model_type", "granitemoeshared");
                }
            }
            "command-r" | "cohere2" => self.rename("logits_scaling", "logit_scale"),
            "ernie4_5" => {
                self.rename("attention_bias", "use_bias");
                self.fields.remove("mlp_bias");
            }
            "ernie4_5-moe" => {
                self.rename("first_k_dense_replace", "moe_layer_start_index");
                self.rename("n_shared_experts", "moe_num_shared_experts");
                // So many times as wide as the others.
                self.fields.remove("shared_expert_intermediate_size");
                if !self.has_in_a_block("ffn_gate_shexp.weight") {
                    self.set("moe_num_shared_experts", 0);
                }
            }
            // The one that all tokens go to is as wide as the others.
            "hunyuan-moe" => {
                for field in ["n_shared_experts", "shared_expert_intermediate_size"] {
                    self.fields.remove(field);
                }
            }
            // Of LayerNorm without weights, which has always this one.
            "olmo" => _ = self.fields.remove("layer_norm_eps"),
            "nemotron" => self.rename("layer_norm_eps", "norm_eps"),
            "lfm2" | "lfm2moe" => self.add_short_convolutions()?,
            "seed_oss" => {
                self.set("attention_out_bias", self.has("blk.0.attn_output.bias"));
            }
            "starcoder2" => {
                self.rename("layer_norm_eps", "norm_epsilon");
                self.rename("attention_bias", "use_bias");
                self.fields.remove("mlp_bias");
            }
            "minimax-m2" => self.check_sigmoid()?,
            _ => {}
        }
        Ok(())
    }

    /// Layers with a short convolution: those that have no heads of keys.
    fn add_short_convolutions(&mut self) -> Result<(), GgufFault> {
        self.rename("rms_norm_eps", "norm_eps");
        if let Some(heads) = self.set_kinds_by_heads(["conv", "full_attention"]) {
            self.set("num_key_value_heads", heads.iter().filter_map(Value::as_u64).max());
        }
        if self.architecture == "lfm2" {
            self.set("block_auto_adjust_ff_dim", false);
            return Ok(());
        }
        self.rename("first_k_dense_replace", "num_dense_layers");
        self.check_sigmoid()
    }

    /// Says of each layer which of two kinds it is, by whether it has heads of keys, where these
    /// are listed; gives the list.
    pub(super) fn set_kinds_by_heads(&mut self, [without, with]: [&str; 2]) -> Option<Vec<Value>> {
        let heads = self.fields.get("num_key_value_heads")?.as_array()?.clone();
        let kind = |heads: &Value| if heads.as_u64() == Some(0) { without } else { with };
        self.set("layer_types", heads.iter().map(kind).collect::<Vec<_>>());
        Some(heads)
    }

    /// Refuses other shares of experts than those behind a sigmoid.
    pub(super) fn check_sigmoid(&mut self) -> Result<(), GgufFault> {
        let field = "expert_gating_func";
        if let Some(other) = self.unsigned(field)?.filter(|&kind| kind != 2) {
            let reason = format!("{other} is not built in: 2, a sigmoid, is");
            return Err(metadata(&self.key(field), reason));
        }
        self.fields.remove(field);
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &str, to: &str) {
        if let Some(value) = self.fields.remove(from) {
            self.set(to, value);
        }
    }
}

/// What transformers calls layers with the window, and those without it.
pub(super) fn kinds(pattern: &[Value]) -> Vec<&'static str> {
    let kind = |local| if is_local(local) { "sliding_attention" } else { "full_attention" };
    pattern.iter().map(kind).collect()
}

/// Whether a layer has the window: some files have numbers.
pub(super) fn is_local(local: &Value) -> bool {
    *local == true || local.as_u64().is_some_and(|n| n != 0)
}
