//! Keys and values of a prompt that an encoder read, for cross-attention.

use burn::tensor::Tensor;

use super::{KvCache, Part, Seen};
use crate::{Batch, CacheSpec, Error};

/// The prompt that an encoder read last.
#[derive(Debug)]
pub(super) struct Prompt {
    /// Columns.
    tokens: usize,
    /// Of each text, how many columns have no token.
    padding: Vec<usize>,
}

impl Prompt {
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    pub fn padding(&mut self) -> &mut Vec<usize> {
        &mut self.padding
    }
}

impl KvCache {
    /// Whether it holds a prompt that an encoder read.
    pub fn has_prompt(&self) -> bool {
        self.prompt.is_some()
    }

    /// Checks that it can take a prompt, and forgets all that it holds.
    pub(crate) fn begin_prompt(&mut self, spec: &CacheSpec, prompt: &Batch) -> Result<(), Error> {
        self.check_shape(spec, prompt)?;
        let capacity = self.options.prompt;
        if prompt.tokens() > capacity {
            return Err(Error::Prompt { tokens: prompt.tokens(), capacity });
        }
        self.clear();
        Ok(())
    }

    /// Keeps what a layer's cross-attention will look at: keys and values of the prompt,
    /// `[batch, tokens, key_value_heads, head_dim]` f32.
    pub(crate) fn keep_prompt(
        &mut self,
        layer: usize,
        keys: Tensor<4>,
        values: Tensor<4>,
    ) -> Result<(), Error> {
        let dtype = self.options.dtype.dtype();
        let slot = self.cross.get_mut(layer);
        let device = slot.as_ref().and_then(|slot| slot.device());
        let [keys, values] = [keys, values].map(|new| {
            let device = device.clone().unwrap_or_else(|| new.device());
            new.swap_dims(1, 2).to_device(&device).cast(dtype)
        });
        slot.and_then(|slot| slot.write(0, 0, keys, values)).ok_or(Error::CacheLost { layer })
    }

    /// Counts the prompt as held, once all layers have it.
    pub(crate) fn end_prompt(&mut self, prompt: &Batch) {
        self.padding = vec![0; prompt.rows()];
        self.prompt = Some(Prompt { tokens: prompt.tokens(), padding: prompt.padding().to_vec() });
    }

    /// What a layer's cross-attention looks at, and the padding of each text.
    pub(crate) fn see_prompt(&self, layer: usize) -> Result<(Seen, &[usize]), Error> {
        let prompt = self.prompt.as_ref().ok_or(Error::NoPrompt)?;
        let slot = self.cross.get(layer);
        let part = slot.and_then(|slot| slot.part(prompt.tokens, 0..prompt.padding.len()));
        let part: Part = part.ok_or(Error::CacheLost { layer })?;
        Ok((Seen::whole(part), &prompt.padding))
    }
}
