//! What Gemma 3n and Gemma 4 have besides.

use serde_json::{Value, json};

use super::super::names::ROPE_FREQUENCIES;
use super::relatives::kinds;
use super::{Config, GgufFault, GgufValue, metadata, part};

impl Config<'_> {
    /// Layers that see everything and layers with a window, whose heads may be others.
    pub(super) fn add_heads_of_kinds(&mut self) -> Result<(), GgufFault> {
        let field = "sliding_window_pattern";
        let Some(Value::Array(pattern)) = self.fields.remove(field) else {
            let reason = "it must say of each block whether it has the window".to_owned();
            return Err(metadata(&self.key("attention.sliding_window_pattern"), reason));
        };
        let is_local = |kind: &Value| kind.as_bool() == Some(true);
        self.set("layer_types", kinds(&pattern));
        if let Some(rows) = self.side("per_layer_token_embd.weight", 0) {
            self.set("vocab_size_per_layer_input", rows);
        }
        match self.architecture {
            "gemma3n" => {
                self.add_gemma3n();
                Ok(())
            }
            _ => self.add_gemma4(&pattern.iter().map(is_local).collect::<Vec<_>>()),
        }
    }

    fn add_gemma3n(&mut self) {
        self.set("laurel_rank", self.side("blk.0.laurel_l.weight", 0));
        if let Some(GgufValue::Array(scales)) =
            self.header.get(&self.key("activation_sparsity_scale"))
        {
            // What part of a normal distribution is below so many deviations, as it is said in
            // transformers.
            let share = |scale: GgufValue<'_>| match scale {
                GgufValue::F32(scale) => {
                    let below = libm::erfc(-f64::from(scale) / std::f64::consts::SQRT_2) / 2.0;
                    // Of a scale in 32 bits.
                    (below * 1e6).round() / 1e6
                }
                _ => f64::NAN,
            };
            let pattern: Vec<_> = scales.iter().map(share).collect();
            self.set("activation_sparsity_pattern", pattern);
        }
    }

    fn add_gemma4(&mut self, local: &[bool]) -> Result<(), GgufFault> {
        // Those that see everything have the names of all; the others have their own.
        self.rename("head_dim", "global_head_dim");
        if let Some(width) = self.unsigned("attention.key_length_swa")? {
            self.set("head_dim", width);
        }
        if let Some(Value::Array(heads)) = self.fields.get("num_key_value_heads").cloned() {
            let of_kind = |wanted: bool| {
                let mut of_layers = heads.iter().zip(local);
                of_layers.find(|(_, local)| **local == wanted).map(|(heads, _)| heads.clone())
            };
            let (local, full) = (of_kind(true), of_kind(false));
            self.set("num_key_value_heads", local);
            self.set("num_global_key_value_heads", full);
        }
        let names = self.names();
        let values_are_keys = |(layer, local): (usize, &bool)| {
            let has = |part| names.contains(format!("blk.{layer}.attn_{part}.weight").as_str());
            !local && has('k') && !has('v')
        };
        if local.iter().enumerate().any(values_are_keys) {
            self.set("attention_k_eq_v", true);
        }
        if let Some(Value::Array(widths)) = self.fields.get("intermediate_size").cloned() {
            let [first, last] = [widths.first(), widths.last()].map(|width| width?.as_u64());
            self.set("use_double_wide_mlp", first != last);
            self.set("intermediate_size", first);
        }
        if self.has_experts()? {
            self.set("enable_moe_block", true);
            self.rename("num_experts_per_tok", "top_k_experts");
        }
        Ok(())
    }

    /// The rotary embeddings of Gemma 4, of which a part of each head that sees everything is
    /// rotated: the pairs whose factor is one.
    pub(super) fn add_rope_of_kinds(&mut self, factors: &[f32]) -> Result<(), GgufFault> {
        let rotated = factors.iter().take_while(|&&factor| factor == 1.0).count();
        if factors.is_empty() || factors[rotated..].iter().any(|&factor| factor < 1e20) {
            let reason = "its factors must be ones, and behind them very large ones".to_owned();
            return Err(GgufFault::Tensor { tensor: ROPE_FREQUENCIES.to_owned(), reason });
        }
        let part_of_full = part(rotated as u64, factors.len() as u64).min(1.0);
        let theta = self.fields.remove("rope_theta");
        let mut local = json!({ "rope_type": "default" });
        if let Some(theta) = self.fields.remove("rope_local_base_freq") {
            local["rope_theta"] = theta;
        }
        let widths = ["attention.key_length_swa", "rope.dimension_count_swa"];
        if let [Some(width), Some(rotated)] = [self.unsigned(widths[0])?, self.unsigned(widths[1])?]
            && rotated != width
        {
            local["partial_rotary_factor"] = part(rotated, width).into();
        }
        let mut full =
            json!({ "rope_type": "proportional", "partial_rotary_factor": part_of_full });
        if let Some(theta) = theta {
            full["rope_theta"] = theta;
        }
        self.set("rope_parameters", json!({ "full_attention": full, "sliding_attention": local }));
        Ok(())
    }
}
