//! What models with experts have besides.

use super::Convention::*;
use super::{Config, GgufFault, metadata};

impl Config<'_> {
    pub(super) fn has_experts(&self) -> Result<bool, GgufFault> {
        Ok(self.unsigned("expert_count")?.is_some_and(|count| count > 0))
    }

    /// What models with experts have besides.
    pub(super) fn add_experts(&mut self) -> Result<(), GgufFault> {
        if self.unsigned("expert_used_count")?.is_none() {
            let reason = "it is missing: to how many experts a token goes is not known".to_owned();
            return Err(metadata(&self.key("expert_used_count"), reason));
        }
        if self.architecture == "llama" {
            self.set("model_type", "mixtral");
        }
        if self.has_convention(SharedExperts) {
            return self.add_shared_experts();
        }
        let inner = "moe_intermediate_size";
        if self.has_convention(OneWidth) {
            // Where there are no other widths.
            if let Some(width) = self.fields.remove(inner) {
                self.set("intermediate_size", width);
            }
            return Ok(());
        }
        for (field, tensor, rows) in [
            (inner, "blk.0.ffn_gate_exps.weight", 1),
            ("shared_expert_intermediate_size", "blk.0.ffn_gate_shexp.weight", 0),
        ] {
            if let Some(width) = self.side(tensor, rows)
                && !self.fields.contains_key(field)
            {
                self.set(field, width);
            }
        }
        Ok(())
    }
}
