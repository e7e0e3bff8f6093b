//! Adapters of opened models.

use std::path::Path;

use outsize_lora::LoraAdapter;

use super::{OpenedModel, PipelineError};

impl OpenedModel {
    /// Adds what the LoRA adapter in `folder` says to the model's linear layers. Its matrices stay
    /// in main memory, and are counted in the budget. A model that [drafts](Self::draft_with) stays
    /// as it is.
    ///
    /// # Errors
    /// A folder that holds no adapter of this model, or one that asks for what is not built in.
    pub fn adapt(&mut self, folder: &Path) -> Result<(), PipelineError> {
        self.adapter = Some(LoraAdapter::open(folder, &self.config)?);
        Ok(())
    }

    /// What is added to the model's linear layers.
    pub fn adapter(&self) -> Option<&LoraAdapter> {
        self.adapter.as_ref()
    }
}
