//! The rotary embedding.

use serde_json::{Value, json};

use super::Convention::*;
use super::{Config, GgufFault, metadata, part};

/// Of DeepSeek: a tenth of the weight of YaRN's stretch of scores.
const LOG_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

impl Config<'_> {
    /// The rotary embedding, with the factors of tensors.
    pub(super) fn add_rope(&mut self, factors: [Option<Vec<f32>>; 3]) -> Result<(), GgufFault> {
        if self.architecture == "gemma4" {
            let [all, ..] = factors;
            return self.add_rope_of_kinds(&all.unwrap_or_default());
        }
        let key = self.key("rope.scaling.type");
        let kind = self.header.text(&key)?;
        let is_scaled = kind != Some("none");
        let kind = kind.filter(|_| is_scaled);
        let original = "original_max_position_embeddings";
        let trained = self.number("rope.scaling.original_context_length");
        let stretch = self.number("rope.scaling.attn_factor").unwrap_or(1.0);
        let by_factors = |short: &[f32], long: &[f32]| {
            let (short, long) = (floats(short), floats(long));
            json!({
                "rope_type": "longrope", "short_factor": short, "long_factor": long,
                "attention_factor": stretch,
            })
        };
        let factor = self.number("rope.scaling.factor").or(self.number("rope.scale_linear"));
        let factor = factor.filter(|_| is_scaled);
        let mut rope = match (kind, factors) {
            (None, [Some(all), None, None]) => by_factors(&all, &all),
            (None | Some("longrope"), [None, Some(short), Some(long)]) => {
                if let Some(trained) = trained {
                    self.set(original, trained as u64);
                }
                by_factors(&short, &long)
            }
            (None, [None, None, None]) if factor.is_none_or(|factor| factor <= 1.0) => {
                if self.architecture == "gpt-oss" {
                    // Where transformers would take another one.
                    self.set("rope_scaling", json!({ "rope_type": "default" }));
                }
                return Ok(());
            }
            (None | Some("linear"), [None, None, None]) => {
                json!({ "rope_type": "linear", "factor": factor })
            }
            (Some("yarn"), [None, None, None]) => {
                let factor = factor.unwrap_or(1.0);
                let mut yarn = json!({ "rope_type": "yarn", "factor": factor });
                if self.architecture == "gpt-oss" {
                    yarn["truncate"] = false.into();
                }
                let weight = self.number(LOG_MULTIPLIER);
                let stretched = |weight: f64| 0.1 * weight * factor.ln() + 1.0;
                if self.has_convention(LatentAttention) {
                    // Scores are stretched, and what is rotated is not: a tenth of the weight is
                    // stored.
                    yarn["mscale_all_dim"] = (weight.unwrap_or(0.0) * 10.0).into();
                    yarn["attention_factor"] = 1.0.into();
                    self.fields.remove(&self.key(LOG_MULTIPLIER));
                } else if let ("mistral3", Some(weight)) = (self.architecture, weight) {
                    yarn["attention_factor"] = (stretched(1.0) / stretched(weight)).into();
                    self.fields.remove(&self.key(LOG_MULTIPLIER));
                } else if let Some(factor) = self.number("rope.scaling.yarn_attn_factor") {
                    yarn["attention_factor"] = factor.into();
                } else if stretch != 1.0 {
                    yarn["attention_factor"] = (stretch * stretched(1.0)).into();
                }
                for name in ["beta_fast", "beta_slow"] {
                    if let Some(beta) = self.number(&format!("rope.scaling.yarn_{name}")) {
                        yarn[name] = beta.into();
                    }
                }
                yarn
            }
            (kind, _) => {
                let reason = format!(
                    "rotary embeddings scaled by {:?} are not built in together with these tensors of factors",
                    kind.unwrap_or("none")
                );
                return Err(metadata(&key, reason));
            }
        };
        if let Some(trained) = trained {
            rope[original] = (trained as u64).into();
        }
        let of_growth = "attention.temperature_scale";
        if let ("mistral3", Some(rate)) = (self.architecture, self.number(of_growth))
            && rate != 0.0
        {
            // Queries grow with their position.
            self.fields.remove(&self.key(of_growth));
            self.set("model_type", "ministral3");
            rope["llama_4_scaling_beta"] = rate.into();
        }
        self.set("rope_scaling", rope);
        Ok(())
    }

    /// The rotary embeddings of models whose layers with a window have their own: never stretched,
    /// and of another part of a head.
    pub(super) fn nest_rope(&mut self) -> Result<(), GgufFault> {
        let theta = self.fields.remove("rope_theta");
        let local_theta = self.fields.remove("rope_local_base_freq").or(theta.clone());
        let mut full = match self.fields.remove("rope_scaling") {
            Some(Value::Object(scaling)) => Value::Object(scaling),
            _ => json!({ "rope_type": "default" }),
        };
        let mut local = json!({ "rope_type": "default" });
        for (rope, theta) in [(&mut full, theta), (&mut local, local_theta)] {
            if let Some(theta) = theta {
                rope["rope_theta"] = theta;
            }
        }
        let field = "partial_rotary_factor";
        let of_heads = self.fields.remove(field);
        let head = self.fields.get("head_dim").and_then(Value::as_u64);
        let of_window = self.unsigned("rope.dimension_count_swa")?.zip(head);
        let of_window = of_window.map(|(rotated, head)| part(rotated, head).min(1.0));
        let (of_all, of_window) = match self.architecture {
            // Of those that see everything a half, whatever is said, and what its pairs are divided
            // by.
            "step35" => {
                for name in ["short_factor", "long_factor"] {
                    if let Some(factors) = full.get_mut(name).and_then(Value::as_array_mut) {
                        factors.truncate(factors.len() / 2);
                    }
                }
                (Some(0.5.into()), Some(1.0.into()))
            }
            _ => (of_heads.clone(), of_window.map(Value::from).or(of_heads)),
        };
        for (rope, rotated) in [(&mut full, of_all), (&mut local, of_window)] {
            if let Some(rotated) = rotated {
                rope[field] = rotated;
            }
        }
        self.set("rope_parameters", json!({ "full_attention": full, "sliding_attention": local }));
        Ok(())
    }
}

/// An f32 is exact in the f64 of JSON.
fn floats(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}
