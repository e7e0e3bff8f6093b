//! What further relatives of Llama have otherwise than transformers.

use super::{Config, GgufFault, metadata};

impl Config<'_> {
    /// The fields that transformers calls otherwise for these than for most models.
    pub(super) fn add_conventions_of_relatives(&mut self) -> Result<(), GgufFault> {
        match self.architecture {
            "granite" => self.rename("attn_scale", "attention_multiplier"),
            "command-r" | "cohere2" => self.rename("logits_scaling", "logit_scale"),
            "ernie4_5" => {
                self.rename("attention_bias", "use_bias");
                self.fields.remove("mlp_bias");
            }
            "seed_oss" => {
                let name = "blk.0.attn_output.bias";
                let has_bias = self.tensors.iter().any(|entry| entry.name == name);
                self.set("attention_out_bias", has_bias);
            }
            "starcoder2" => {
                self.rename("layer_norm_eps", "norm_epsilon");
                self.rename("attention_bias", "use_bias");
                self.fields.remove("mlp_bias");
            }
            "minimax-m2" => {
                let field = "expert_gating_func";
                if let Some(other) = self.unsigned(field)?.filter(|&kind| kind != 2) {
                    let reason = format!("{other} is not built in: 2, a sigmoid, is");
                    return Err(metadata(&self.key(field), reason));
                }
                self.fields.remove(field);
            }
            _ => {}
        }
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) {
        if let Some(value) = self.fields.remove(from) {
            self.set(to, value);
        }
    }
}
