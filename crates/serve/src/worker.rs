//! The one thread that runs the model: a request after the other.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use outsize_generate::{ChatAnswer, ChatMessage, ChatOptions, ChatPart, ChatSession, Finish};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;

/// How often somebody who waits looks whether the server ends.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// What is asked of the model.
#[derive(Debug)]
pub(crate) struct Job {
    pub prompt: Prompt,
    pub options: ChatOptions,
    /// Who is told of it. Once nobody listens, the answer ends.
    pub events: UnboundedSender<Event>,
}

/// What is answered.
#[derive(Debug)]
pub(crate) enum Prompt {
    Messages(Vec<ChatMessage>),
    Text(String),
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Event {
    Thought(String),
    Text(String),
    Done(Box<ChatAnswer>),
    Failed(ApiError),
}

/// One request that was answered, for who watches.
#[derive(Debug)]
pub enum Served<'a> {
    /// With this; it may have been cut off because the client went away.
    Answer(&'a ChatAnswer),
    /// With an error.
    Refused(&'a str),
}

/// Answers requests until the flag is set.
pub(crate) fn work(
    session: &mut ChatSession,
    jobs: &Receiver<Job>,
    stop: &AtomicBool,
    mut observe: impl FnMut(Served<'_>),
) {
    while !stop.load(Ordering::Relaxed) {
        let job = match jobs.recv_timeout(LOOK) {
            Ok(job) if job.events.is_closed() => continue,
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Job { prompt, options, events } = job;
        let answered = answer(session, prompt, &options, &events, stop);
        match &answered {
            Ok(answer) => observe(Served::Answer(answer)),
            Err(error) => observe(Served::Refused(&error.message)),
        }
        let event = match answered {
            // Nobody is told that a text is whole which is not.
            Ok(answer) if answer.outcome.outcome.finish == Finish::Stopped => {
                Event::Failed(ApiError::ending())
            }
            Ok(answer) => Event::Done(Box::new(answer)),
            Err(error) => Event::Failed(error),
        };
        // Nobody may listen any more.
        let _ = events.send(event);
    }
}

fn answer(
    session: &mut ChatSession,
    prompt: Prompt,
    options: &ChatOptions,
    events: &UnboundedSender<Event>,
    stop: &AtomicBool,
) -> Result<ChatAnswer, ApiError> {
    let on_part = |part: ChatPart<'_>| {
        let event = match part {
            ChatPart::Thought(text) => Event::Thought(text.to_owned()),
            ChatPart::Answer(text) => Event::Text(text.to_owned()),
        };
        match events.send(event).is_err() || stop.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    let answer = match prompt {
        Prompt::Messages(messages) => {
            session
                .set_messages(messages)
                .map_err(|error| ApiError::field("messages", error.to_string()))?;
            session.reply(options, on_part)
        }
        Prompt::Text(text) => session.complete(&text, options, on_part),
    };
    Ok(answer?)
}
