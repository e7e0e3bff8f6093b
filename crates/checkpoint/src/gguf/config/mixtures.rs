//! What further mixtures of experts have otherwise than transformers.

use serde_json::Value;

use super::relatives::{is_local, kinds};
use super::{Config, GgufFault, metadata};

impl Config<'_> {
    /// The fields that transformers calls otherwise for these than for most models, and those that
    /// nothing but tensors say.
    pub(super) fn add_conventions_of_mixtures(&mut self) -> Result<(), GgufFault> {
        match self.architecture {
            "exaone-moe" => {
                self.check_sigmoid()?;
                self.add_layer_types(4, false)?;
                self.count_shared_experts();
            }
            "cohere2moe" => {
                self.add_layer_types(4, true)?;
                self.add_sparse_layers()?;
                self.count_shared_experts();
                let field = "expert_gating_func";
                let is_softmax = self.unsigned(field)? == Some(1);
                if !is_softmax {
                    self.check_sigmoid()?;
                }
                self.fields.remove(field);
                self.set("expert_selection_fn", if is_softmax { "softmax" } else { "sigmoid" });
                self.rename("logits_scaling", "logit_scale");
                self.rename("intermediate_size", "prefix_dense_intermediate_size");
                self.rename("moe_intermediate_size", "intermediate_size");
            }
            "hy_v3" => {
                self.check_sigmoid()?;
                self.add_sparse_layers()?;
                self.count_shared_experts();
            }
            "afmoe" => {
                self.check_sigmoid()?;
                self.add_layer_types(4, false)?;
                self.rename("first_k_dense_replace", "num_dense_layers");
                self.rename("n_shared_experts", "num_shared_experts");
                self.rename("norm_topk_prob", "route_norm");
                self.rename("routed_scaling_factor", "route_scale");
                // As llama.cpp always does.
                self.set("mup_enabled", true);
            }
            "laguna" => {
                self.check_sigmoid()?;
                self.add_sparse_layers()?;
                self.rename("routed_scaling_factor", "moe_routed_scaling_factor");
                self.list_heads_of_layers("num_attention_heads_per_layer");
                let heads = self.fields.get("num_attention_heads").and_then(Value::as_u64);
                let rows = self.side("blk.0.attn_gate.weight", 0).unwrap_or(0) as u64;
                let of_elements = heads.is_some_and(|heads| rows > heads);
                self.set("gating", if of_elements { "per-element" } else { "per-head" });
                match self.fields.contains_key("sliding_window") {
                    true => self.add_layer_types(4, true)?,
                    // All see everything.
                    false => _ = self.fields.remove("sliding_window_pattern"),
                }
            }
            "deepseek4" => self.add_deepseek_v4()?,
            "mellum" => self.add_layer_types(4, false)?,
            "minimax-m3" => self.add_minimax_m3()?,
            "mimo2" => self.add_mimo()?,
            "step35" => self.add_step()?,
            "kimi-linear" => self.add_kimi_linear()?,
            _ => {}
        }
        Ok(())
    }

    /// Which layers have a window, where nothing is listed all but one of so many: the last one, or
    /// the first one.
    pub(super) fn add_layer_types(&mut self, every: u64, first: bool) -> Result<(), GgufFault> {
        let pattern = match self.fields.remove("sliding_window_pattern") {
            Some(Value::Array(pattern)) => pattern,
            every_other => {
                let every = every_other.and_then(|every| every.as_u64()).unwrap_or(every).max(1);
                let seen = if first { 0 } else { every - 1 };
                (0..self.layers()?).map(|layer| Value::from(layer % every != seen)).collect()
            }
        };
        self.set("layer_types", kinds(&pattern));
        Ok(())
    }

    /// Which layers have experts: those with a router.
    fn add_sparse_layers(&mut self) -> Result<(), GgufFault> {
        self.fields.remove("first_k_dense_replace");
        self.set_kinds_by_tensor("mlp_layer_types", "ffn_gate_inp.weight", ["dense", "sparse"])
    }

    /// How many experts all tokens go to: so many times as wide as the others.
    fn count_shared_experts(&mut self) {
        let width = |field| self.fields.get(field).and_then(Value::as_u64);
        let widths = width("shared_expert_intermediate_size").zip(width("moe_intermediate_size"));
        self.fields.remove("shared_expert_intermediate_size");
        match (self.fields.remove("n_shared_experts"), widths) {
            (Some(count), _) => self.set("num_shared_experts", count),
            (None, Some((all, each @ 1..))) => self.set("num_shared_experts", all / each),
            (None, _) => self.set("num_shared_experts", 0),
        }
    }

    /// Moves a list of heads of queries to a field; the most of them stay.
    fn list_heads_of_layers(&mut self, field: &str) {
        let all = "num_attention_heads";
        if let Some(Value::Array(listed)) = self.fields.get(all).cloned() {
            self.set(all, listed.iter().filter_map(Value::as_u64).max());
            self.set(field, listed);
        }
    }

    /// MiniMax-M3: which layers have an indexer, those with its weights, and the widths of MLPs.
    fn add_minimax_m3(&mut self) -> Result<(), GgufFault> {
        self.check_sigmoid()?;
        self.add_sparse_layers()?;
        let kinds = ["full_attention", "minimax_m3_sparse"];
        self.set_kinds_by_tensor("layer_types", "indexer.k_proj.weight", kinds)?;
        let mut shared = self.tensors.iter().filter(|it| it.name.ends_with(".ffn_up_shexp.weight"));
        if let Some(width) = shared.next().and_then(|shared| shared.shape.first()) {
            self.set("shared_intermediate_size", *width);
        }
        for field in ["n_shared_experts", "norm_topk_prob", "shared_expert_intermediate_size"] {
            self.fields.remove(field);
        }
        self.rename("num_experts", "num_local_experts");
        self.rename("index_topk", "index_topk_blocks");
        self.rename("intermediate_size", "dense_intermediate_size");
        self.rename("moe_intermediate_size", "intermediate_size");
        Ok(())
    }

    /// MiMo-V2, whose layers with a window have twice as many heads of keys.
    fn add_mimo(&mut self) -> Result<(), GgufFault> {
        self.check_sigmoid()?;
        self.add_sparse_layers()?;
        self.rename("num_experts", "n_routed_experts");
        let scale = self.fields.remove(&self.key("attention.value_scale"));
        self.set("attention_value_scale", scale);
        // Of the tokens before a token alone.
        self.rename("sliding_window", "sliding_window_size");
        if let Some(values) = self.unsigned("attention.value_length")? {
            self.set("v_head_dim", values);
        }
        self.keep_one_of_kind("num_key_value_heads", |full, local| {
            Some(local) == full.checked_mul(2)
        })?;
        self.add_layer_types(6, true)
    }

    /// Step 3.5, whose layers with a window have other heads of queries.
    fn add_step(&mut self) -> Result<(), GgufFault> {
        self.check_sigmoid()?;
        self.add_sparse_layers()?;
        self.fields.remove(&self.key("moe_every_n_layers"));
        self.rename("routed_scaling_factor", "moe_router_scaling_factor");
        self.rename("norm_topk_prob", "norm_expert_weight");
        self.rename("shared_expert_intermediate_size", "share_expert_dim");
        for (key, field) in
            [("swiglu_clamp_exp", "swiglu_limits"), ("swiglu_clamp_shexp", "swiglu_limits_shared")]
        {
            self.rename(&self.key(key), field);
        }
        let local = self.keep_one_of_kind("num_attention_heads", |_, _| true)?;
        if let Some(local) = local {
            self.set("num_sliding_attention_heads", local);
        }
        self.keep_one_of_kind("num_key_value_heads", |full, local| full == local)?;
        self.add_layer_types(4, true)
    }

    /// Keeps of a list of layers the number of those that see everything; gives that of the others.
    fn keep_one_of_kind(
        &mut self,
        field: &str,
        are_built_in: fn(u64, u64) -> bool,
    ) -> Result<Option<u64>, GgufFault> {
        let (Some(Value::Array(listed)), Some(Value::Array(pattern))) =
            (self.fields.get(field), self.fields.get("sliding_window_pattern"))
        else {
            return Ok(None);
        };
        let of_kind = |wanted: bool| {
            let mut those = listed
                .iter()
                .zip(pattern)
                .filter(|(_, local)| is_local(local) == wanted)
                .filter_map(|(number, _)| number.as_u64());
            let first = those.next()?;
            those.all(|number| number == first).then_some(first)
        };
        let (full, local) = (of_kind(false), of_kind(true));
        let (Some(full), Some(local)) = (full.or(local), local.or(full)) else {
            let reason =
                format!("{field} of layers with a window must be alike, and so the others");
            return Err(metadata(&self.key("attention.sliding_window_pattern"), reason));
        };
        if full != local && !are_built_in(full, local) {
            let reason =
                format!("{full} and {local} heads in layers of two kinds are not built in");
            return Err(metadata(&self.key("attention.head_count_kv"), reason));
        }
        self.set(field, full);
        Ok(Some(local))
    }

    /// DeepSeek-V4: how experts are chosen, and what their MLPs are clamped to.
    fn add_deepseek_v4(&mut self) -> Result<(), GgufFault> {
        let field = "expert_gating_func";
        let function = match self.unsigned(field)? {
            Some(2) => "sigmoid",
            None | Some(4) => "sqrtsoftplus",
            Some(other) => {
                let reason = format!(
                    "{other} is not built in: 2, a sigmoid, and 4, a root of softplus, are"
                );
                return Err(metadata(&self.key(field), reason));
            }
        };
        self.fields.remove(field);
        self.set("scoring_func", function);
        self.rename("num_experts", "n_routed_experts");
        // As wide as the others.
        self.fields.remove("shared_expert_intermediate_size");
        let rotated = self.unsigned("rope.dimension_count")?;
        self.fields.remove("partial_rotary_factor");
        self.set("qk_rope_head_dim", rotated);
        for end in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
            let key = self.key(end);
            let Some(limit) = self.fields.remove(&key) else { continue };
            let limits = limit.as_array().cloned().unwrap_or(vec![limit]);
            let first = limits.first().cloned().unwrap_or_default();
            let known = self.fields.entry("swiglu_limit").or_insert(first).clone();
            if limits.iter().any(|limit| *limit != known) {
                let reason = "only the same limit in all layers is built in".to_owned();
                return Err(metadata(&key, reason));
            }
        }
        Ok(())
    }

    /// Kimi Linear: which layers have linear attention, and the sizes of that.
    fn add_kimi_linear(&mut self) -> Result<(), GgufFault> {
        self.check_sigmoid()?;
        self.rename("n_shared_experts", "num_shared_experts");
        self.set("linear_num_heads", self.unsigned("attention.head_count")?);
        self.rename(&self.key("kda.head_dim"), "linear_head_dim");
        self.set("linear_rates_negated", true);
        if !self.fields.contains_key("n_group") {
            self.fields.remove("topk_group");
        }
        Ok(())
    }
}
