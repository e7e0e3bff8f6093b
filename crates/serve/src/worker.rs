//! The one thread that runs the model: a request after the other, or several side by side.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use outsize_generate::{
    ChatAnswer, ChatBatch, ChatOptions, ChatPart, ChatPrompt, ChatSession, Finish, GenerateError,
    ToolCall,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::error::ApiError;

/// How often somebody who waits looks whether the server ends.
pub(crate) const LOOK: Duration = Duration::from_millis(50);

/// What is asked of the model.
#[derive(Debug)]
pub(crate) struct Job {
    pub prompt: ChatPrompt,
    pub options: ChatOptions,
    /// Who is told of it. Once nobody listens, the answer ends.
    pub events: UnboundedSender<Event>,
}

/// What becomes of a request.
#[derive(Debug)]
pub(crate) enum Event {
    Thought(String),
    Text(String),
    Call(ToolCall),
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

/// Answers requests until the flag is set: side by side if the model was opened for several texts.
pub(crate) fn work(
    session: &mut ChatSession,
    jobs: &Receiver<Job>,
    stop: &AtomicBool,
    mut observe: impl FnMut(Served<'_>),
) {
    if session.pipeline().cache_options().batch > 1 {
        let mut answers = Answers { jobs, stop, observe, listeners: Vec::new() };
        while !stop.load(Ordering::Relaxed) {
            let run = |batch: &mut ChatBatch<'_>| answers.run(batch);
            if let Err(error) = session.side_by_side(run) {
                answers.fail(&error);
            }
        }
        return;
    }
    while !stop.load(Ordering::Relaxed) {
        let job = match jobs.recv_timeout(LOOK) {
            Ok(job) if job.events.is_closed() => continue,
            Ok(job) => job,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let Job { prompt, options, events } = job;
        let answered = answer(session, prompt, &options, &events, stop);
        end(answered, &events, &mut observe);
    }
}

/// Tells how a request ended.
fn end(
    answered: Result<ChatAnswer, ApiError>,
    events: &UnboundedSender<Event>,
    observe: &mut impl FnMut(Served<'_>),
) {
    match &answered {
        Ok(answer) => observe(Served::Answer(answer)),
        Err(error) => observe(Served::Refused(&error.message)),
    }
    let event = match answered {
        // Nobody is told that a text is whole which is not.
        Ok(answer) if answer.outcome.outcome.finish == Finish::Stopped => {
            Event::Failed(ApiError::ending())
        }
        Ok(answer) if answer.outcome.outcome.finish == Finish::Stuck => {
            let message = "the text is not what its schema has it be, and no token leads there, or the schema takes too much to \
                           obey: give a simpler one";
            Event::Failed(ApiError::field("response_format", message))
        }
        Ok(answer) => Event::Done(Box::new(answer)),
        Err(error) => Event::Failed(error),
    };
    // Nobody may listen any more.
    let _ = events.send(event);
}

/// Sends more of an answer; breaks once nobody listens, or the server ends.
fn send(part: ChatPart<'_>, events: &UnboundedSender<Event>, stop: &AtomicBool) -> ControlFlow<()> {
    let event = match part {
        ChatPart::Thought(text) => Event::Thought(text.to_owned()),
        ChatPart::Answer(text) => Event::Text(text.to_owned()),
        ChatPart::ToolCall(call) => Event::Call(call.clone()),
    };
    match events.send(event).is_err() || stop.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    }
}

fn answer(
    session: &mut ChatSession,
    prompt: ChatPrompt,
    options: &ChatOptions,
    events: &UnboundedSender<Event>,
    stop: &AtomicBool,
) -> Result<ChatAnswer, ApiError> {
    let on_part = |part: ChatPart<'_>| send(part, events, stop);
    let answer = match prompt {
        ChatPrompt::Messages(messages) => {
            session.set_messages(messages).map_err(GenerateError::Request)?;
            session.reply(options, on_part)
        }
        ChatPrompt::Text(text) => session.complete(&text, options, on_part),
    };
    Ok(answer?)
}

/// Answers on their way, side by side.
struct Answers<'a, F> {
    jobs: &'a Receiver<Job>,
    stop: &'a AtomicBool,
    observe: F,
    /// Who is told of each answer, by its number.
    listeners: Vec<Option<UnboundedSender<Event>>>,
}

impl<F: FnMut(Served<'_>)> Answers<'_, F> {
    /// Answers requests until the flag is set.
    fn run(&mut self, batch: &mut ChatBatch<'_>) -> Result<(), ApiError> {
        while !self.stop.load(Ordering::Relaxed) {
            while batch.has_room()
                && let Some(job) = self.next(batch.is_idle())
            {
                self.begin(batch, job);
            }
            if batch.is_idle() {
                continue;
            }
            let (listeners, stop) = (&self.listeners, self.stop);
            let ended = batch.advance(|number, part| match listeners.get(number) {
                Some(Some(events)) => send(part, events, stop),
                _ => ControlFlow::Break(()),
            })?;
            for (number, answer) in ended {
                if let Some(events) = self.listeners[number].take() {
                    end(Ok(answer), &events, &mut self.observe);
                }
            }
        }
        Ok(())
    }

    /// The next request that somebody waits for; waits for one if there is nothing else to do.
    fn next(&self, waits: bool) -> Option<Job> {
        loop {
            let job = match waits {
                true => self.jobs.recv_timeout(LOOK).ok(),
                false => self.jobs.try_recv().ok(),
            };
            match job {
                Some(job) if job.events.is_closed() => {}
                job => return job,
            }
        }
    }

    fn begin(&mut self, batch: &mut ChatBatch<'_>, Job { prompt, options, events }: Job) {
        match batch.begin(&prompt, &options) {
            Ok(number) => {
                self.listeners.resize(self.listeners.len().max(number + 1), None);
                self.listeners[number] = Some(events);
            }
            Err(error) => end(Err(error.into()), &events, &mut self.observe),
        }
    }

    /// Tells all who wait for an answer that there is none.
    fn fail(&mut self, error: &ApiError) {
        for events in self.listeners.drain(..).flatten() {
            end(Err(error.clone()), &events, &mut self.observe);
        }
    }
}
