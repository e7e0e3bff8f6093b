//! Text in, text out: a model with its tokenizer and its makers' defaults.

mod builder;

use outsize_models::ModelConfig;

pub use self::builder::TextPipelineOptions;
use crate::beam::{BeamSearch, Hypothesis, beam_search};
use crate::error::Error;
use crate::generation_config::GenerationConfig;
use crate::pipeline::{Pipeline, PipelineError};
use crate::request::{GenerateError, Outcome, Request};
use crate::sampling::Sampling;
use crate::stop::StopStrings;
use crate::text::{GrowingText, TextGeneration, TextOptions, TextOutcome, TextParts};
use crate::tokenizer::Tokenizer;

/// The most new tokens of a text where neither the caller nor the checkpoint says.
pub const DEFAULT_NEW_TOKENS: usize = 64;

/// How a text is generated. What is `None` is as generation_config.json says, or else as said here.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    /// The most tokens to generate; else 64.
    pub max_new_tokens: Option<usize>,
    /// How tokens are chosen; else the likeliest. See [`GenerationConfig::sampling`] for that of
    /// the file with another seed.
    pub sampling: Option<Sampling>,
    /// How beam search goes; with `num_beams` of 1 there is none.
    pub beams: Option<BeamSearch>,
    /// Tokens that end a text.
    pub eos: Option<Vec<u32>>,
    /// Strings that end a text; they are cut off.
    pub stop: Option<StopStrings>,
    /// Whether the prompt gets the special tokens that the model expects around a text.
    pub add_special_tokens: bool,
    /// Whether special tokens among the new ones are part of the text.
    pub show_special_tokens: bool,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: None,
            sampling: None,
            beams: None,
            eos: None,
            stop: None,
            add_special_tokens: true,
            show_special_tokens: false,
        }
    }
}

/// A sequence that a beam search found, as text.
#[derive(Debug, Clone, PartialEq)]
pub struct BeamText {
    /// The text of the new tokens, up to a stop string.
    pub text: String,
    /// The string that ended the text.
    pub stop_string: Option<String>,
    /// The tokens, their score, and why there are no more.
    pub hypothesis: Hypothesis,
}

/// The errors of a [`TextPipeline`].
pub type TextResult<T> = Result<T, GenerateError<PipelineError>>;

/// A model within a memory budget, with its tokenizer and its makers' defaults: made by
/// [`pipeline`](crate::pipeline()).
///
/// Each call begins new texts.
#[derive(Debug)]
pub struct TextPipeline {
    pipeline: Pipeline,
    tokenizer: Tokenizer,
    defaults: GenerationConfig,
    config: ModelConfig,
}

impl TextPipeline {
    /// The text that follows `prompt`, or answers it. Of a beam search it is the best sequence,
    /// without times.
    ///
    /// # Errors
    /// A prompt without tokens or too long, options out of range, more beams than the pipeline was
    /// built for, and what the model or a read said.
    pub fn generate(&mut self, prompt: &str, options: &GenerateOptions) -> TextResult<TextOutcome> {
        Ok(self.generate_batch(&[prompt], options)?.remove(0))
    }

    /// The same in parts, as they become certain: an iterator that computes when it is asked.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), and beams.
    pub fn stream(
        &mut self,
        prompt: &str,
        options: &GenerateOptions,
    ) -> TextResult<TextParts<'_, Pipeline>> {
        self.refuse_beams(options, "a search knows its text only in the end: wait for it")?;
        let request = self.request(prompt, options)?;
        self.pipeline.clear();
        TextParts::new(&mut self.pipeline, &self.tokenizer, request)
    }

    /// The texts that follow several prompts, run side by side, as many at once as the pipeline was
    /// built for. Each is what it would be alone, unless the longest prompt beside it leaves it
    /// less room in the context.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_batch(
        &mut self,
        prompts: &[impl AsRef<str>],
        options: &GenerateOptions,
    ) -> TextResult<Vec<TextOutcome>> {
        if let Some(search) = self.beams(options) {
            let best = BeamSearch { num_return_sequences: 1, ..search };
            let texts = self.search(prompts, options, best)?;
            return Ok(texts.into_iter().flatten().map(BeamText::into_outcome).collect());
        }
        let prompts: Vec<_> = prompts.iter().map(|prompt| (prompt.as_ref(), options)).collect();
        self.generate_each(&prompts)
    }

    /// The same with options of each prompt's own, such as the sampling's seed.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), and beams.
    pub fn generate_each(
        &mut self,
        prompts: &[(&str, &GenerateOptions)],
    ) -> TextResult<Vec<TextOutcome>> {
        for (_, options) in prompts {
            self.refuse_beams(options, "texts searched together share their options")?;
        }
        let mut outcomes = Vec::with_capacity(prompts.len());
        for prompts in prompts.chunks(self.pipeline.cache_options().batch) {
            let requests = prompts.iter().map(|(prompt, options)| self.request(prompt, options));
            let requests = requests.collect::<Result<Vec<_>, Error>>()?;
            self.pipeline.clear();
            let mut texts =
                TextGeneration::new(&mut self.pipeline, Some(&self.tokenizer), requests)?;
            while texts.advance()?.is_some() {}
            outcomes.extend(texts.into_outcomes());
        }
        Ok(outcomes)
    }

    /// The best sequences of a beam search for each prompt, the best first: `num_return_sequences`
    /// of them, or the few that there are.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), and sampling at a temperature above 0.
    pub fn beam_search(
        &mut self,
        prompts: &[impl AsRef<str>],
        options: &GenerateOptions,
    ) -> TextResult<Vec<Vec<BeamText>>> {
        let search = self.beams(options).or(options.beams).unwrap_or(BeamSearch::new(1));
        self.search(prompts, options, search)
    }

    fn search(
        &mut self,
        prompts: &[impl AsRef<str>],
        options: &GenerateOptions,
        search: BeamSearch,
    ) -> TextResult<Vec<Vec<BeamText>>> {
        let cache = self.pipeline.cache_options();
        let (beams, sequences) = (search.num_beams, cache.sequences());
        let texts = cache.batch.min(sequences / beams.max(1));
        if texts == 0 {
            return Err(Error::Beams { num_beams: beams, sequences }.into());
        }
        let mut found = Vec::with_capacity(prompts.len());
        for prompts in prompts.chunks(texts) {
            let requests = prompts.iter().map(|prompt| self.request(prompt.as_ref(), options));
            let requests = requests.collect::<Result<Vec<_>, Error>>()?;
            let (requests, texts): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
            let read = |text: usize, tokens: &[u32]| {
                let mut read = GrowingText::new(Some(&self.tokenizer), &texts[text]);
                tokens.iter().try_for_each(|token| read.push(*token).map(drop))?;
                Ok::<_, Error>(read)
            };
            self.pipeline.clear();
            let ends = |text: usize, tokens: &[u32]| match texts[text].stop.strings() {
                [] => Ok(false),
                _ => Ok(read(text, tokens)?.stop_string.is_some()),
            };
            let sequences = beam_search(&mut self.pipeline, &requests, &search, ends)?;
            for (text, sequences) in sequences.into_iter().enumerate() {
                let shown = |hypothesis: Hypothesis| {
                    let mut read = read(text, hypothesis.text_tokens())?;
                    read.finish()?;
                    Ok(BeamText { text: read.text, stop_string: read.stop_string, hypothesis })
                };
                found.push(sequences.into_iter().map(shown).collect::<Result<Vec<_>, Error>>()?);
            }
        }
        Ok(found)
    }

    /// What the checkpoint's makers say of generating.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.defaults
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The model: where it lives, how fast that should be, what was read.
    pub fn pipeline(&self) -> &Pipeline {
        &self.pipeline
    }

    /// The beam search that is asked for, if it is one.
    fn beams(&self, options: &GenerateOptions) -> Option<BeamSearch> {
        let beams = options.beams.or(self.defaults.beam_search());
        beams.filter(|beams| beams.num_beams > 1)
    }

    fn refuse_beams(&self, options: &GenerateOptions, reason: &'static str) -> Result<(), Error> {
        match self.beams(options) {
            Some(BeamSearch { num_beams, .. }) => Err(Error::NoBeams { num_beams, reason }),
            None => Ok(()),
        }
    }

    fn request(
        &self,
        prompt: &str,
        options: &GenerateOptions,
    ) -> Result<(Request, TextOptions), Error> {
        let ids = self.tokenizer.encode(prompt, options.add_special_tokens)?;
        self.tokenizer.check(&ids, self.config.vocab_size())?;
        if ids.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let max_new_tokens = match options.max_new_tokens {
            Some(most) => most,
            None => self
                .defaults
                .new_tokens(self.config.context_of_prompt(ids.len()))?
                .unwrap_or(DEFAULT_NEW_TOKENS),
        };
        let defaults = &self.defaults;
        let request = Request {
            ids,
            max_new_tokens,
            eos: options.eos.as_ref().unwrap_or(&defaults.eos_token_id).clone(),
            sampling: options.sampling.unwrap_or_else(|| defaults.sampling(0)),
        };
        let stop = options.stop.as_ref().unwrap_or(&defaults.stop_strings).clone();
        let show_special_tokens = options.show_special_tokens;
        Ok((request, TextOptions { stop, show_special_tokens, ..TextOptions::default() }))
    }
}

impl BeamText {
    fn into_outcome(self) -> TextOutcome {
        let Hypothesis { tokens, finish, .. } = self.hypothesis;
        let outcome = Outcome::new(tokens, finish);
        TextOutcome { text: self.text, stop_string: self.stop_string, outcome }
    }
}
