//! Texts in, vectors out.

mod builder;
mod pooling;
mod recipe;
mod tokenizer;

pub use self::builder::{EmbeddingPipelineOptions, EmbeddingTask, read_embedding_config};
pub(crate) use self::pooling::Pool;
pub use self::pooling::Pooling;
pub use self::recipe::EmbeddingRecipe;
pub use self::tokenizer::{EmbeddingText, EmbeddingTokenizer};
use crate::error::Error;
use crate::pipeline::{Pipeline, PipelineError};

/// How texts are embedded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EmbedOptions<'a> {
    /// The name of the prompt that is put before each text, such as `query`; else the model's
    /// default one, if it has any.
    pub prompt_name: Option<&'a str>,
    /// What is put before each text instead.
    pub prompt: Option<&'a str>,
    /// How many of the first values to keep, for models that were trained for that; the vector is
    /// made of length 1 again if it was.
    pub dimensions: Option<usize>,
}

/// The vector of a text.
#[derive(Debug, Clone, PartialEq)]
pub struct TextEmbedding {
    /// `[dimensions]`.
    pub values: Vec<f32>,
    /// Tokens that were run.
    pub tokens: usize,
    /// Tokens that were cut off.
    pub cut: usize,
}

/// A model within a memory budget that makes vectors of texts: made by
/// [`pipeline`](crate::pipeline()) for an [`EmbeddingTask`].
///
/// ```no_run
/// use outsize_generate::{EmbedOptions, EmbeddingTask, cosine_similarity, pipeline};
/// use outsize_plan::Budget;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut pipe = pipeline(EmbeddingTask, "path/to/Qwen3-Embedding-8B")
///     .max_memory(Budget::parse("cpu=2GB")?)
///     .batch_size(8)
///     .build()?;
/// let query = EmbedOptions { prompt_name: Some("query"), ..EmbedOptions::default() };
/// let asked = pipe.embed(&["What is the capital of China?"], &query)?.remove(0);
/// for text in pipe.embed(&["It is Beijing.", "Gravity."], &EmbedOptions::default())? {
///     println!("{:.3}", cosine_similarity(&asked.values, &text.values));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EmbeddingPipeline {
    pipeline: Pipeline,
    tokenizer: EmbeddingTokenizer,
}

impl EmbeddingPipeline {
    /// Of a model that was opened for [hidden states](outsize_models::Logits::Hidden).
    pub fn new(pipeline: Pipeline, tokenizer: EmbeddingTokenizer) -> Self {
        Self { pipeline, tokenizer }
    }

    /// The vectors of some texts, in their order. As many run side by side as the pipeline was
    /// built for; a vector has the bits that it has alone.
    ///
    /// # Errors
    /// A prompt that the model does not have, a text that the tokenizer refuses, more dimensions
    /// than there are, and what the model or a read said.
    pub fn embed(
        &mut self,
        texts: &[&str],
        options: &EmbedOptions<'_>,
    ) -> Result<Vec<TextEmbedding>, PipelineError> {
        let prompt = self.tokenizer.prompt(options)?;
        let tokens = texts.iter().map(|text| self.tokenizer.tokens(prompt, text));
        let tokens = tokens.collect::<Result<Vec<_>, _>>()?;
        self.embed_tokens(&tokens, options.dimensions)
    }

    /// The same of texts that are tokens already.
    ///
    /// # Errors
    /// As [`embed`](Self::embed); and a text that is longer than the context.
    pub fn embed_tokens(
        &mut self,
        texts: &[EmbeddingText],
        dimensions: Option<usize>,
    ) -> Result<Vec<TextEmbedding>, PipelineError> {
        let vectors = self.pool(texts)?;
        let made = texts.iter().zip(vectors);
        let made = made.map(|(text, vector)| self.finished(text, vector, dimensions));
        Ok(made.collect::<Result<_, _>>()?)
    }

    /// The pooled hidden states of texts, which [`finished`](Self::finished) makes vectors of.
    ///
    /// # Errors
    /// A text that is longer than the context, and what the model or a read said.
    pub fn pool(&mut self, texts: &[EmbeddingText]) -> Result<Vec<Vec<f32>>, PipelineError> {
        // Texts of about the same length have little padding.
        let mut order: Vec<usize> = (0..texts.len()).collect();
        order.sort_by_key(|index| texts[*index].ids.len());
        let mut vectors = vec![Vec::new(); texts.len()];
        for beside in order.chunks(self.pipeline.cache_options().batch.max(1)) {
            let run: Vec<_> = beside.iter().map(|index| &texts[*index]).collect();
            let pooled = self.pipeline.pool(&run, self.tokenizer.recipe().pooling)?;
            beside.iter().zip(pooled).for_each(|(index, vector)| vectors[*index] = vector);
        }
        Ok(vectors)
    }

    /// The vector that is made of pooled hidden states of a text.
    ///
    /// # Errors
    /// More dimensions than there are.
    pub fn finished(
        &self,
        text: &EmbeddingText,
        pooled: Vec<f32>,
        dimensions: Option<usize>,
    ) -> Result<TextEmbedding, Error> {
        let values = shortened(pooled, dimensions, self.tokenizer.recipe().normalizes)?;
        Ok(TextEmbedding { values, tokens: text.ids.len(), cut: text.cut })
    }

    /// The model and its KV cache.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// What makes tokens of texts.
    pub fn tokenizer(&self) -> &EmbeddingTokenizer {
        &self.tokenizer
    }
}

/// The first values of a vector, of length 1 if that is wanted.
fn shortened(
    mut values: Vec<f32>,
    dimensions: Option<usize>,
    normalizes: bool,
) -> Result<Vec<f32>, Error> {
    let wanted = dimensions.unwrap_or(values.len());
    if wanted == 0 || wanted > values.len() {
        return Err(Error::EmbeddingDimensions { wanted, most: values.len() });
    }
    values.truncate(wanted);
    if normalizes {
        // As torch's `normalize`.
        let length = length(&values).max(1e-12);
        values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
    }
    Ok(values)
}

/// How much two vectors point the same way, from -1 to 1; 0 if one of them has no length. Values
/// that only one has do not count.
pub fn cosine_similarity(one: &[f32], other: &[f32]) -> f64 {
    let product: f64 = one.iter().zip(other).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    let lengths = length(one) * length(other);
    if lengths > 0.0 { product / lengths } else { 0.0 }
}

fn length(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_shortened_and_made_of_length_1_again() {
        let values = vec![3.0, 4.0, 12.0];
        assert_eq!(shortened(values.clone(), None, false).unwrap(), values);
        assert_eq!(shortened(values.clone(), Some(2), true).unwrap(), [0.6, 0.8]);
        assert_eq!(shortened(vec![0.0; 2], None, true).unwrap(), [0.0; 2]);
        assert!(shortened(values.clone(), Some(4), true).is_err());
        assert!(shortened(values, Some(0), true).is_err());
    }

    #[test]
    fn similarity_is_that_of_directions() {
        assert!((cosine_similarity(&[1.0, 1.0], &[2.0, 2.0]) - 1.0).abs() < 1e-12);
        assert!((cosine_similarity(&[1.0, 0.0], &[0.0, 3.0])).abs() < 1e-12);
        assert!((cosine_similarity(&[1.0, 0.0], &[-1.0, 0.0]) + 1.0).abs() < 1e-12);
        assert_eq!(cosine_similarity(&[0.0], &[1.0]), 0.0);
    }
}
