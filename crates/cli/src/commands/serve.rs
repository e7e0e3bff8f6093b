//! `outsize serve`: a model behind HTTP, under a budget.

use crate::args::ServeArgs;
use crate::embedding::OpenedEmbedding;
use crate::error::Failure;
use crate::session::SessionNeeds;
use crate::views::output::{picture, say};
use crate::{interrupt, session};
use outsize::checkpoint::shown;
use outsize::generate::{ChatTemplate, EmbeddingRecipe, Error as TextError};
use outsize_serve::{EmbeddingServerOptions, Served, ServerOptions};
use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::Path;

/// What a model without a chat template says to conversations.
const NO_TEMPLATE: &str = "{{ raise_exception('this model has no chat template: ask /v1/completions to go on with a text') }}";

/// Tokens of a text that is embedded, if nothing is said.
const EMBEDDED: usize = 512;

/// The environment's variable of the key.
const KEY: &str = "OUTSIZE_API_KEY";

/// Runs the command.
pub fn serve(args: &ServeArgs) -> Result<(), Failure> {
    let address = (args.host, args.port);
    // Before the model is read.
    let listener = TcpListener::bind(address).map_err(|error| {
        let advice = "choose another --port or --host";
        Failure::Failed(format!("cannot listen at {}:{}: {error}: {advice}", args.host, args.port))
    })?;
    if args.embeddings || EmbeddingRecipe::is_in(args.session.model.folder()) {
        return serve_embeddings(args, listener);
    }
    let template = |folder: &Path| template(args, folder);
    let needs =
        SessionNeeds { batch: args.batch, constrains: args.structured_output, scores: true };
    let (mut session, defaults) = session::open(&args.session, needs, template)?;
    let (model, api_key) = announced(args, &listener)?;
    let options = ServerOptions { model, api_key, defaults, constrains: args.structured_output };
    let stop = interrupt::flag();
    outsize_serve::serve(listener, &mut session, options, &stop, |served| match served {
        Served::Answer(answer) => say(session::answered(answer)),
        Served::Refused(reason) => say(format!("error: {reason}")),
    })?;
    interrupt::check()
}

/// Makes vectors of texts until the command is interrupted.
fn serve_embeddings(args: &ServeArgs, listener: TcpListener) -> Result<(), Failure> {
    let opened = OpenedEmbedding::new(&args.session.model, None, EMBEDDED)?;
    let longest = opened.tokenizer.most();
    let mut pipe = opened.dispatch([args.batch, longest])?;
    say(picture(pipe.pipeline().device_map()));
    let (model, api_key) = announced(args, &listener)?;
    let options = EmbeddingServerOptions { model, api_key };
    let stop = interrupt::flag();
    outsize_serve::serve_embeddings(listener, &mut pipe, options, &stop, |made| match made {
        Ok([texts, tokens]) => say(format!("{texts} texts of {tokens} tokens")),
        Err(reason) => say(format!("error: {reason}")),
    })?;
    interrupt::check()
}

/// Says where the model is to be had; gives its name and the key.
fn announced(
    args: &ServeArgs,
    listener: &TcpListener,
) -> Result<(String, Option<String>), Failure> {
    let at = listener.local_addr().map_err(outsize_serve::ServeError::from)?;
    let model = args.name.clone().unwrap_or_default();
    let api_key = args.api_key.clone().or_else(|| std::env::var(KEY).ok());
    if !at.ip().is_loopback() && api_key.is_none() {
        say("note: whoever reaches this address can use the model: --api-key asks for a key");
    }
    say(format!("{} at http://{at}/v1 · Ctrl-C ends", shown(&model, 200)));
    Ok((model, api_key))
}

/// The chat template; a model without one has one that says so.
fn template(args: &ServeArgs, folder: &Path) -> Result<ChatTemplate, TextError> {
    match session::template(&args.session, folder) {
        Err(TextError::NoChatTemplate { .. }) if args.session.chat_template.is_none() => {
            ChatTemplate::new("none", NO_TEMPLATE, BTreeMap::new())
        }
        template => template,
    }
}

/// The model's name: `org/name` as on the Hub, else that of the folder or file.
pub fn name(called: &Path) -> String {
    let text = called.to_string_lossy();
    match (called.exists(), called.file_name()) {
        (true, Some(name)) => name.to_string_lossy().into_owned(),
        _ => text.strip_prefix("hf://").unwrap_or(&text).to_owned(),
    }
}
