//! What models with Mamba or Mamba-2 have besides.

use serde_json::Value;

use super::{Config, GgufFault, metadata};

impl Config<'_> {
    /// The sizes of the state space, which layers have one, and what GGUF files have otherwise than
    /// transformers.
    pub(super) fn add_state_space(&mut self) -> Result<(), GgufFault> {
        // What transformers calls taps, elements of a state, groups, heads or what steps are made
        // of, and a bias of the convolution.
        let names = match self.architecture {
            "nemotron_h" | "nemotron_h_moe" => {
                ["conv_kernel", "ssm_state_size", "n_groups", "mamba_num_heads", "use_conv_bias"]
            }
            "mamba" => ["conv_kernel", "state_size", "", "time_step_rank", "use_conv_bias"],
            "mamba2" => ["conv_kernel", "state_size", "n_groups", "num_heads", "use_conv_bias"],
            "jamba" => ["mamba_d_conv", "mamba_d_state", "", "mamba_dt_rank", "mamba_conv_bias"],
            "falcon-h1" | "granitehybrid" => [
                "mamba_d_conv",
                "mamba_d_state",
                "mamba_n_groups",
                "mamba_n_heads",
                "mamba_conv_bias",
            ],
            _ => return Ok(()),
        };
        let generic = [
            "linear_conv_kernel_dim",
            "linear_key_head_dim",
            "linear_num_key_heads",
            "linear_num_value_heads",
        ];
        for (from, to) in generic.into_iter().zip(names) {
            self.rename(from, to);
        }
        self.set(names[4], self.has_in_a_block("ssm_conv1d.bias"));
        if self.has_in_a_block("ssm_in.bias") {
            self.set(
                if names[4] == "use_conv_bias" { "use_bias" } else { "mamba_proj_bias" },
                true,
            );
        }
        self.set("linear_rates_negated", true);
        let inner = self.required("ssm.inner_size")?;
        match self.architecture {
            "nemotron_h" | "nemotron_h_moe" => {
                self.set("mamba_head_dim", inner / self.required("ssm.time_step_rank")?.max(1));
                self.add_nemotron()?;
            }
            "jamba" | "granitehybrid" => {
                self.set("mamba_expand", inner / self.required("embedding_length")?.max(1));
                if self.architecture == "jamba" { self.add_periods() } else { self.add_granite() }?;
            }
            "falcon-h1" => {
                self.set("mamba_d_ssm", inner);
                self.set("mamba_rms_norm", self.has_in_a_block("ssm_norm.weight"));
                self.set("mamba_norm_before_gate", false);
            }
            _ => self.add_state_space_alone(inner)?,
        }
        Ok(())
    }

    /// Mamba, Falcon Mamba and Mamba-2, which have nothing else.
    fn add_state_space_alone(&mut self, inner: u64) -> Result<(), GgufFault> {
        // Not looked at.
        for field in ["num_attention_heads", "num_key_value_heads", "max_position_embeddings"] {
            self.fields.remove(field);
        }
        self.rename("rms_norm_eps", "layer_norm_epsilon");
        if self.architecture == "mamba2" {
            self.fields.remove("intermediate_size");
            self.set("expand", inner / self.required("embedding_length")?.max(1));
            self.set("head_dim", inner / self.required("ssm.time_step_rank")?.max(1));
            return Ok(());
        }
        self.set("intermediate_size", inner);
        if self.header.flag(&self.key("ssm.dt_b_c_rms"))? == Some(true) {
            self.set("model_type", "falcon_mamba");
            let epsilon = self.fields.get("layer_norm_epsilon").cloned().unwrap_or_default();
            self.set("mixer_rms_eps", epsilon);
        }
        Ok(())
    }

    /// Nemotron-H: what the blocks are, by their heads and the width of their MLP or experts.
    fn add_nemotron(&mut self) -> Result<(), GgufFault> {
        let [heads, widths] = ["num_key_value_heads", "intermediate_size"]
            .map(|field| self.fields.get(field).and_then(Value::as_array).cloned());
        let (Some(heads), Some(widths)) = (heads, widths) else {
            let reason = "with feed_forward_length it must list a number for each block".to_owned();
            return Err(metadata(&self.key("attention.head_count_kv"), reason));
        };
        let experts = self.has_experts()?;
        let letter = |(heads, width): (&Value, &Value)| match (heads.as_u64(), width.as_u64()) {
            (Some(0), Some(0)) => 'M',
            (_, Some(0)) => '*',
            _ if experts => 'E',
            _ => '-',
        };
        let pattern = heads.iter().zip(&widths).map(letter);
        self.set("hybrid_override_pattern", pattern.collect::<String>());
        self.set_most("num_key_value_heads", &heads);
        self.set_most("intermediate_size", &widths);
        if !self.fields.contains_key("rms_norm_eps") {
            self.rename("layer_norm_eps", "rms_norm_eps");
        }
        self.fields.remove("layer_norm_eps");
        self.rename("rms_norm_eps", "layer_norm_epsilon");
        if experts {
            self.check_sigmoid()?;
            self.rename("num_experts", "n_routed_experts");
            self.rename("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size");
        }
        Ok(())
    }

    /// Granite 4: which layers have attention, whether it rotates, and the MLP that all tokens go
    /// to.
    fn add_granite(&mut self) -> Result<(), GgufFault> {
        if let Some(heads) = self.set_kinds_by_heads(["mamba", "attention"]) {
            self.set_most("num_key_value_heads", &heads);
        }
        let rotates = self.header.flag(&self.key("rope.scaling.finetuned"))?;
        let kind = if rotates == Some(false) { "nope" } else { "rope" };
        self.set("position_embedding_type", kind);
        if !self.has_experts()? {
            self.set("num_local_experts", 0);
            let width = self.fields.get("intermediate_size").cloned();
            self.set("shared_intermediate_size", width);
        }
        Ok(())
    }

    /// The greatest of some numbers, for all layers that have any.
    fn set_most(&mut self, field: &str, of_layers: &[Value]) {
        self.set(field, of_layers.iter().filter_map(Value::as_u64).max().filter(|&most| most > 0));
    }

    /// Jamba: in which layers attention and experts are, as it says that: once in a period, behind
    /// an offset.
    fn add_periods(&mut self) -> Result<(), GgufFault> {
        let layers = self.layers()?;
        let field = "num_key_value_heads";
        if let Some(Value::Array(heads)) = self.fields.get(field).cloned() {
            let attends = (0..layers).filter(|&layer| {
                heads.get(layer as usize).is_none_or(|heads| heads.as_u64() != Some(0))
            });
            let attends = attends.collect::<Vec<_>>();
            self.set_period(
                "attention.head_count_kv",
                ["attn_layer_period", "attn_layer_offset"],
                &attends,
            )?;
            self.set_most(field, &heads);
        }
        let routed = (0..).zip(self.layers_with("ffn_gate_inp.weight")?);
        let sparse: Vec<u64> = routed.filter(|(_, routed)| *routed).map(|(at, _)| at).collect();
        if sparse.is_empty() {
            // One expert is an MLP.
            self.set("num_experts", 1);
            self.set("num_experts_per_tok", 1);
        }
        self.set_period("expert_count", ["expert_layer_period", "expert_layer_offset"], &sparse)
    }

    fn set_period(
        &mut self,
        key: &str,
        [period, offset]: [&str; 2],
        found: &[u64],
    ) -> Result<(), GgufFault> {
        let layers = self.layers()?;
        let (every, from) = match *found {
            [] => (layers + 1, layers),
            [first] => (layers.max(1), first),
            [first, second, ..] => (second - first, first),
        };
        if !(0..layers).filter(|layer| layer % every == from).eq(found.iter().copied()) {
            let reason = "its layers do not come once in a period".to_owned();
            return Err(metadata(&self.key(key), reason));
        }
        self.set(period, every);
        self.set(offset, from);
        Ok(())
    }
}
