//! What `outsize run` generates: flags first, then the checkpoint's defaults.

use crate::args::{ChoiceArgs, EndArgs, RunArgs, TextArgs};
use crate::error::Failure;
use crate::images::PromptImages;
use crate::model;
use crate::views::output::{note_unknown, say};
use outsize::core::Error as CoreError;
use outsize::generate::{
    ChatOptions, DEFAULT_NEW_TOKENS, Error as TextError, GenerationConfig, PipelineError, Request,
    Sampling, StopStrings, TextOptions, Tokenizer,
};
use outsize::models::ModelConfig;
use outsize::plan::Error as PlanError;
use std::path::Path;

/// What to generate, and how to show it.
#[derive(Debug)]
pub struct GenerateRequest {
    /// The prompt and how tokens are sampled.
    pub request: Request,
    /// How tokens become text.
    pub text: TextOptions,
    /// Without one the text is the tokens' numbers.
    pub tokenizer: Option<Tokenizer>,
}

impl GenerateRequest {
    /// Reads the checkpoint's small files; the weights are not touched.
    pub fn new(
        args: &RunArgs,
        config: &ModelConfig,
        tokenizer: outsize::generate::Result<Tokenizer>,
        images: Option<&PromptImages>,
    ) -> Result<Self, Failure> {
        if let (Some(_), Err(missing)) = (&args.prompt, &tokenizer) {
            return Err(missing.into());
        }
        let rules = TextRules::new(&args.text, args.model.folder(), config, tokenizer.as_ref())?;
        let ids = match (&args.prompt, &args.ids, &tokenizer) {
            (Some(prompt), _, Ok(tokenizer)) => {
                let prompt = match images {
                    Some(images) => images.framed(prompt),
                    None => prompt.into(),
                };
                let ids = encoded(&prompt, args, tokenizer, config)?;
                if ids.is_empty() && images.is_none() {
                    return Err(Failure::usage("--prompt: this text has no tokens"));
                }
                ids
            }
            (_, Some(ids), _) => model::ids("--ids", ids, config)?,
            _ => return Err(Failure::usage("give --prompt, --ids or --prompts")),
        };
        let ids = match images {
            Some(images) => images.place_in(ids, tokenizer.as_ref().map_err(Failure::from)?)?,
            None => ids,
        };
        let request = rules.request(ids, None, config)?;
        Ok(Self { request, text: rules.text, tokenizer: tokenizer.ok() })
    }
}

/// How text is generated whatever the prompt: flags first, then the checkpoint's defaults.
#[derive(Debug)]
pub struct TextRules {
    generation: GenerationConfig,
    /// As the flag says.
    max_new_tokens: Option<usize>,
    eos: Vec<u32>,
    sampling: Sampling,
    /// How tokens become text.
    pub text: TextOptions,
}

impl TextRules {
    /// For the model in `folder`. That a tokenizer is missing only matters if there are texts to
    /// stop at.
    pub fn new(
        args: &TextArgs,
        folder: &Path,
        config: &ModelConfig,
        tokenizer: Result<&Tokenizer, &TextError>,
    ) -> Result<Self, Failure> {
        let generation = generation_config(args, folder)?;
        generation.check_start(config)?;
        let stop = match args.end.stop.is_empty() {
            true => generation.stop_strings.clone(),
            false => StopStrings::new(args.end.stop.iter().cloned())?,
        };
        let eos = eos(&args.end, &generation, tokenizer.ok(), config)?;
        if let (false, Err(missing)) = (stop.strings().is_empty(), tokenizer) {
            return Err(missing.into());
        }
        Ok(Self {
            max_new_tokens: args.end.max_new_tokens,
            eos,
            sampling: sampling(&args.choice, &generation),
            text: TextOptions {
                stop,
                show_special_tokens: args.show_special_tokens,
                ..TextOptions::default()
            },
            generation,
        })
    }

    /// What to generate of a prompt, which may say itself how many tokens.
    pub fn request(
        &self,
        ids: Vec<u32>,
        max_new_tokens: Option<usize>,
        config: &ModelConfig,
    ) -> Result<Request, Failure> {
        let max_new_tokens = match max_new_tokens.or(self.max_new_tokens) {
            Some(most) => most,
            None => {
                let prompt = config.context_of_prompt(ids.len());
                self.generation.new_tokens(prompt)?.unwrap_or(DEFAULT_NEW_TOKENS)
            }
        };
        let (eos, sampling) = (self.eos.clone(), self.sampling);
        Ok(Request { ids, max_new_tokens, eos, sampling })
    }

    /// The same for a chat, whose answers are as long as they like.
    pub fn chat(self) -> ChatOptions {
        let Self { generation, max_new_tokens, eos, sampling, text } = self;
        ChatOptions {
            max_new_tokens: max_new_tokens.or(generation.max_new_tokens),
            eos,
            sampling,
            text,
            ..ChatOptions::default()
        }
    }
}

/// A refusal before prompts are read, whose tokens take memory too.
pub fn without_prompts(error: PipelineError) -> Failure {
    let too_small = matches!(&error, PipelineError::Core(CoreError::Plan(PlanError::TooSmall(_))));
    match Failure::from(error) {
        Failure::Failed(message) if too_small => {
            Failure::Failed(format!("{message}; a prompt of more than a token takes more"))
        }
        failure => failure,
    }
}

/// The tokens of a prompt.
pub fn encoded(
    prompt: &str,
    args: &RunArgs,
    tokenizer: &Tokenizer,
    config: &ModelConfig,
) -> Result<Vec<u32>, Failure> {
    let ids = tokenizer.encode(prompt, !args.no_special_tokens)?;
    tokenizer.check(&ids, config.vocab_size())?;
    Ok(ids)
}

fn generation_config(args: &TextArgs, folder: &Path) -> Result<GenerationConfig, Failure> {
    let config = match &args.generation_config {
        None => GenerationConfig::open(folder)?,
        Some(none) if none.as_os_str() == "none" => GenerationConfig::without_file(folder)?,
        Some(path) => GenerationConfig::open_file(folder, path)?,
    };
    note_unknown("generation_config.json", &config.unknown_fields);
    // The text is shown as it comes, which beams do not allow.
    Ok(config.without_beams()?)
}

fn sampling(flags: &ChoiceArgs, generation: &GenerationConfig) -> Sampling {
    let default = generation.sampling(flags.seed);
    let temperature = flags.temperature.unwrap_or(default.temperature);
    let given = [
        flags.top_k.map(|_| "--top-k"),
        flags.top_p.map(|_| "--top-p"),
        flags.min_p.map(|_| "--min-p"),
    ];
    let given: Vec<_> = given.into_iter().flatten().collect();
    if temperature == 0.0 && !given.is_empty() {
        let given = given.join(", ");
        say(format!("note: {given}: no effect without a --temperature above 0"));
    }
    Sampling {
        repetition_penalty: flags.repetition_penalty.or(default.repetition_penalty),
        temperature,
        top_k: flags.top_k.or(default.top_k).filter(|k| *k > 0),
        top_p: flags.top_p.or(default.top_p),
        min_p: flags.min_p.or(default.min_p),
        seed: flags.seed,
        ..Sampling::default()
    }
}

/// The tokens that end the text.
fn eos(
    args: &EndArgs,
    generation: &GenerationConfig,
    tokenizer: Option<&Tokenizer>,
    config: &ModelConfig,
) -> Result<Vec<u32>, Failure> {
    let Some(given) = &args.eos else {
        return Ok(match args.ignore_eos {
            true => Vec::new(),
            false => generation.eos_token_id.clone(),
        });
    };
    if given == "none" {
        return Ok(Vec::new());
    }
    let token = |part: &str| {
        let part = part.trim();
        let id = match part.parse() {
            Ok(id) => Some(id),
            Err(_) => tokenizer.and_then(|tokenizer| tokenizer.token_id(part)),
        };
        id.ok_or_else(|| {
            Failure::usage(format!(
                "--eos: {part:?} is neither a token id nor a token of this model's tokenizer.json; write ids or tokens \
                 separated by commas, such as 2,32000 or </s>, or none"
            ))
        })
        .and_then(|id| model::id("--eos", id, config))
    };
    given.split(',').map(token).collect()
}
