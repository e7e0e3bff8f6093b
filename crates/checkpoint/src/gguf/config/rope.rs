//! The rotary embedding.

use serde_json::json;

use super::Convention::*;
use super::{Config, GgufFault, metadata};

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
                    // Scores are stretched, and what is rotated is not: a tenth of the weight is stored.
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
}

/// An f32 is exact in the f64 of JSON.
fn floats(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}
