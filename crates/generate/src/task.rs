//! What a model of text is run for.

use std::fmt;

use outsize_models::ModelConfig;

/// What a model of text is run for, by the name that it has in transformers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TextTask {
    /// A decoder goes on from the prompt: GPT-2, Llama.
    TextGeneration,
    /// An encoder reads the prompt, and a decoder answers it: T5.
    Text2TextGeneration,
}

impl TextTask {
    /// What a model of this configuration is for.
    pub fn of(config: &ModelConfig) -> Self {
        match config.decoder_start() {
            Some(_) => Self::Text2TextGeneration,
            None => Self::TextGeneration,
        }
    }

    /// Its name in transformers: `text-generation` or `text2text-generation`.
    pub fn name(self) -> &'static str {
        match self {
            Self::TextGeneration => "text-generation",
            Self::Text2TextGeneration => "text2text-generation",
        }
    }
}

impl fmt::Display for TextTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
