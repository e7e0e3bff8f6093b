//! A conversation with a model that is opened as the arguments say.

use crate::args::SessionArgs;
use crate::error::Failure;
use crate::images::{self, IMAGE_TOKENS};
use crate::request::TextRules;
use crate::views::output::say;
use crate::views::run::say_planned;
use crate::{cache, model};
use outsize::generate::{
    ChatAnswer, ChatImages, ChatOptions, ChatSession, ChatTemplate, ChatTemplates,
    Error as TextError,
};
use outsize::machine::Machine;
use outsize::models::WhenFull;
use std::path::Path;

/// Tokens of the context if none are asked for, as far as the model has them.
const CONTEXT: usize = 4096;

/// What answers need memory for.
#[derive(Debug, Clone, Copy)]
pub struct SessionNeeds {
    /// Answers that grow side by side.
    pub batch: usize,
    /// Whether answers may have to be JSON.
    pub constrains: bool,
    /// Whether prompts may be scored.
    pub scores: bool,
}

/// Opens the model, places it and begins to read; and how it answers by default. `template` gives
/// that of the model in a folder.
pub fn open(
    given: &SessionArgs,
    SessionNeeds { batch, constrains, scores }: SessionNeeds,
    template: impl FnOnce(&Path) -> Result<ChatTemplate, TextError>,
) -> Result<(ChatSession, ChatOptions), Failure> {
    let machine = Machine::detect();
    let SessionArgs { model: args, text, drafts, image_tokens, mmproj, .. } = given;
    let config = model::config(args)?;
    let folder = args.folder();
    let template = template(folder)?;
    let mut opened = model::opened(args, config)?;
    let usual = CONTEXT.min(opened.config().cache().longest_context);
    let mut settings = model::settings(args, opened.config(), [usual, usual], &machine)?;
    let cache = &mut settings.workload.cache;
    cache.when_full = text.end.when_full;
    if batch > 1 {
        if cache.when_full == WhenFull::Slide {
            return Err(Failure::usage(
                "--when-full: a context slides for one text alone, without --batch",
            ));
        }
        if drafts.prompt_lookup || drafts.draft_model.is_some() {
            return Err(Failure::usage(
                "--prompt-lookup and --draft-model: tokens are guessed for one text alone, without --batch",
            ));
        }
        (cache.batch, cache.when_full) = (batch, WhenFull::Replace);
    }
    // Those of several texts are not taken.
    cache.snapshot = batch == 1 && opened.config().cache().snapshot_pays(cache);
    model::draft(drafts, folder, &mut opened, &mut settings)?;
    settings.workload.scores = scores;
    settings.workload.position = settings.workload.cache.context.div_ceil(2);
    let tokenizer = opened.load_tokenizer(folder, &mut settings)??;
    if constrains {
        settings.workload.tokenizer += tokenizer.constraint_memory(batch);
    }
    let images = chat_images(given, batch)?;
    settings.workload.images = images.as_ref().map_or(0, ChatImages::bytes);
    settings.workload.least_pass = images.as_ref().map_or(1, ChatImages::least_pass);
    let asked = image_tokens.is_some() || mmproj.is_some();
    let has_room = asked || images.is_none() || opened.check(&settings).is_ok();
    let images = images.filter(|_| has_room);
    if !has_room {
        (settings.workload.images, settings.workload.least_pass) = (0, 1);
        say(
            "note: no memory is left for images: --max-memory gives more, --image-tokens takes some for them",
        );
    }
    let rules = TextRules::new(text, folder, opened.config(), Ok(&tokenizer))?;
    let (profile, figures) = cache::figures(&machine, folder);
    settings.planning.figures = profile;
    let vocab_size = opened.config().vocab_size();
    let pipeline = opened.dispatch(&settings, |_| {})?;
    say_planned(pipeline.device_map(), pipeline.prediction(), &figures);
    let session = ChatSession::new(pipeline, tokenizer, template, vocab_size);
    let session = match images {
        Some(images) => session.with_images(images),
        None => session,
    };
    Ok((session, rules.chat()))
}

/// What sees the images of a conversation; nothing where several run side by side, or for a model
/// that sees none.
fn chat_images(args: &SessionArgs, batch: usize) -> Result<Option<ChatImages>, Failure> {
    let SessionArgs { image_tokens: tokens, mmproj, model, .. } = args;
    let asked = match (tokens, mmproj) {
        (Some(_), _) => Some("--image-tokens"),
        (None, Some(_)) => Some("--mmproj"),
        (None, None) => None,
    };
    let most = tokens.unwrap_or(IMAGE_TOKENS);
    if most == 0 || (batch > 1 && asked.is_none()) {
        return Ok(None);
    }
    if let Some(flag) = asked.filter(|_| batch > 1) {
        let what = format!("{flag}: a text with images runs alone, without --batch");
        return Err(Failure::usage(what));
    }
    let opened = images::encoder(model, mmproj.as_deref(), most).and_then(|encoder| {
        Ok(encoder.map(|encoder| ChatImages::new(encoder, most)).transpose()?)
    });
    match (opened, asked) {
        (Ok(None), Some(_)) => Err(images::sees_none()),
        // Nobody asked for images.
        (Err(Failure::Failed(reason)), None) => {
            say(format!("note: images are not seen: {reason}"));
            Ok(None)
        }
        (opened, _) => opened,
    }
}

/// The chat template that is asked for by name or file, or the model's own.
pub fn template(args: &SessionArgs, folder: &Path) -> Result<ChatTemplate, TextError> {
    let templates = ChatTemplates::open(folder)?;
    let Some(given) = &args.chat_template else {
        return templates.default_template();
    };
    let name = given.to_str().filter(|given| templates.names().any(|name| name == *given));
    match name {
        Some(name) => templates.get(name),
        None => ChatTemplates::open_file(folder, given),
    }
}

/// One line on an answer.
pub fn answered(answer: &ChatAnswer) -> String {
    let outcome = &answer.outcome.outcome;
    let decode: f64 = outcome.token_seconds.iter().sum();
    let rate = match outcome.token_seconds.len() {
        0 => String::new(),
        count => format!(" at {:.2} tokens/s", count as f64 / decode.max(1e-9)),
    };
    format!(
        "{} tokens{rate} · prompt {} tokens, {} of them kept, {:.2} s",
        outcome.tokens.len(),
        answer.prompt_tokens,
        answer.reused_tokens,
        outcome.prefill_seconds,
    )
}
