//! Texts as a model of embeddings is run on them.

use outsize_models::ModelConfig;

use super::EmbedOptions;
use super::recipe::EmbeddingRecipe;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// Makes tokens of texts for a model of embeddings.
#[derive(Debug)]
pub struct EmbeddingTokenizer {
    tokenizer: Tokenizer,
    recipe: EmbeddingRecipe,
    vocab_size: usize,
    /// Tokens of a text.
    most: usize,
}

/// A text as the model is run on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbeddingText {
    /// Its tokens, with those of the prompt and special ones.
    pub ids: Vec<u32>,
    /// The first that counts.
    pub from: usize,
    /// Tokens that were cut off.
    pub cut: usize,
}

impl EmbeddingTokenizer {
    /// For a model of this configuration, in whose context texts have up to `context` tokens.
    pub fn new(
        tokenizer: Tokenizer,
        recipe: EmbeddingRecipe,
        config: &ModelConfig,
        context: usize,
    ) -> Self {
        let most = recipe.longest.unwrap_or(context).min(context);
        Self { tokenizer, recipe, vocab_size: config.vocab_size(), most }
    }

    /// How texts become vectors.
    pub fn recipe(&self) -> &EmbeddingRecipe {
        &self.recipe
    }

    /// The most tokens of a text.
    pub fn most(&self) -> usize {
        self.most
    }

    /// What is put before texts.
    ///
    /// # Errors
    /// A name that no prompt has.
    pub fn prompt<'a>(&'a self, options: &EmbedOptions<'a>) -> Result<&'a str> {
        match options.prompt {
            Some(prompt) => Ok(prompt),
            None => self.recipe.prompt(options.prompt_name),
        }
    }

    /// The tokens of a text behind a prompt: what is too long is cut off at its end, and special
    /// tokens stay.
    ///
    /// # Errors
    /// A text that the tokenizer refuses or has no tokens for, one that is not the model's, or room
    /// for special tokens alone.
    pub fn tokens(&self, prompt: &str, text: &str) -> Result<EmbeddingText> {
        let whole = [prompt, text].concat();
        let mut ids = self.tokenizer.encode(&whole, true)?;
        let cut = ids.len().saturating_sub(self.most);
        if cut > 0 {
            let plain = self.tokenizer.encode(&whole, false)?;
            let special = ids.len().saturating_sub(plain.len());
            let begin = (0..=special).find(|begin| ids[*begin..].starts_with(&plain));
            let Some(begin) = begin.filter(|_| self.most > special) else {
                return Err(Error::EmbeddingRoom { most: self.most, special });
            };
            ids.drain(begin + self.most - special..begin + plain.len());
        }
        if ids.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.tokenizer.check(&ids, self.vocab_size)?;
        let from = match self.recipe.includes_prompt || prompt.is_empty() {
            true => 0,
            false => {
                let prompt = self.tokenizer.encode(prompt, true)?;
                let ends = prompt.last().is_some_and(|last| self.tokenizer.is_special(*last));
                // Of a text that is all prompt something has to be left.
                (prompt.len() - usize::from(ends)).min(ids.len() - 1)
            }
        };
        Ok(EmbeddingText { ids, from, cut })
    }

    /// A text that is tokens already, of which all count.
    ///
    /// # Errors
    /// No tokens, or some that the model does not have.
    pub fn ids(&self, ids: &[u32]) -> Result<EmbeddingText> {
        if ids.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        self.tokenizer.check(ids, self.vocab_size)?;
        let kept = ids.len().min(self.most);
        Ok(EmbeddingText { ids: ids[..kept].into(), from: 0, cut: ids.len() - kept })
    }
}
