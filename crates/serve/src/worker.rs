//! The one thread that runs the model: a request after the other, or several side by side.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use outsize_generate::{
    ChatAnswer, ChatBatch, ChatPart, ChatPrompt, ChatSession, Finish, GenerateError,
};

use crate::error::ApiError;
use crate::job::{Answered, Event, Job, Listener};
use crate::queue::Queue;

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
    jobs: &Receiver<Vec<Job>>,
    stop: &AtomicBool,
    observe: impl FnMut(Served<'_>),
) {
    let batch = session.pipeline().cache_options().batch;
    let mut worker = Worker { queue: Queue::new(jobs), stop, observe, listeners: Vec::new() };
    while !stop.load(Ordering::Relaxed) && !worker.queue.is_closed() {
        let scored = worker.queue.scored(batch);
        if !scored.is_empty() {
            worker.answer_scored(session, scored);
        } else if batch > 1 {
            let run = |batch: &mut ChatBatch<'_>| worker.run(batch);
            if let Err(error) = session.side_by_side(run) {
                worker.fail(&error);
            }
        } else if let Some(job) = worker.queue.next(true) {
            worker.answer(session, job);
        }
    }
}

/// Sends more of an answer; breaks once nobody listens, or the server ends.
fn send(part: ChatPart<'_>, listener: &Listener, stop: &AtomicBool) -> ControlFlow<()> {
    let event = match part {
        ChatPart::Thought(text) => Event::Thought(text.to_owned()),
        ChatPart::Answer(text) => Event::Text(text.to_owned()),
        ChatPart::ToolCall(call) => Event::Call(call.clone()),
    };
    match listener.send(event) && !stop.load(Ordering::Relaxed) {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    }
}

/// What answers.
struct Worker<'a, F> {
    queue: Queue<'a>,
    stop: &'a AtomicBool,
    observe: F,
    /// Who is told of each answer side by side, by its number, and what of the prompt is sent back.
    listeners: Vec<Option<(Listener, Option<ChatPrompt>)>>,
}

impl<F: FnMut(Served<'_>)> Worker<'_, F> {
    /// Answers one request alone.
    fn answer(&mut self, session: &mut ChatSession, job: Job) {
        let Job { prompt, options, echo, listener, .. } = job;
        let echoed = echo.then(|| prompt.clone());
        let on_part = |part: ChatPart<'_>| send(part, &listener, self.stop);
        let answer = match prompt {
            ChatPrompt::Messages(messages) => session
                .set_messages(messages)
                .map_err(GenerateError::Request)
                .and_then(|()| session.reply(&options, on_part)),
            ChatPrompt::Text(text) => session.complete(&text, &options, on_part),
            ChatPrompt::Ids(ids) => session.complete_ids(ids, &options, on_part),
        };
        let answered =
            answer.map(|answer| Answered::new(answer, echoed.as_ref(), session.tokenizer()));
        self.end(answered.map_err(ApiError::from), &listener);
    }

    /// Answers requests whose prompts are scored, all at once.
    fn answer_scored(&mut self, session: &mut ChatSession, jobs: Vec<Job>) {
        let (mut texts, mut asked, mut most) = (Vec::new(), Vec::new(), 0);
        for job in jobs {
            let Job { prompt, options, listener, .. } = job;
            let ids = match &prompt {
                ChatPrompt::Ids(ids) => Ok(ids.clone()),
                ChatPrompt::Text(text) => session.tokenizer().encode(text, true),
                // No request has a conversation's prompt sent back.
                ChatPrompt::Messages(_) => continue,
            };
            let checked = ids.and_then(|ids| session.check_scored(&ids, &options).map(|()| ids));
            match checked {
                Ok(ids) => {
                    most = most.max(options.text.logprobs.unwrap_or(0));
                    asked.push((prompt, ids.first().copied(), options.text.logprobs, listener));
                    texts.push((ids, options));
                }
                Err(error) => {
                    self.end(Err(GenerateError::Request(error).into()), &listener);
                }
            }
        }
        if texts.is_empty() {
            return;
        }
        let on_part =
            |text: usize, part: &str| send(ChatPart::Answer(part), &asked[text].3, self.stop);
        let answers = session.complete_scored(&texts, most, on_part);
        match answers {
            Ok(answers) => {
                for (scored, (prompt, first, top, listener)) in answers.into_iter().zip(&asked) {
                    let tokenizer = session.tokenizer();
                    let answered = Answered::new(scored.answer, Some(prompt), tokenizer);
                    let top = top.unwrap_or(0);
                    let answered = answered.with_prompt(*first, scored.prompt, top, tokenizer);
                    self.end(Ok(answered), listener);
                }
            }
            Err(error) => {
                let error = ApiError::from(error);
                for (.., listener) in &asked {
                    self.end(Err(error.clone()), listener);
                }
            }
        }
    }

    /// Answers requests side by side, until the flag is set or one comes whose prompt is scored.
    fn run(&mut self, batch: &mut ChatBatch<'_>) -> Result<(), ApiError> {
        while !self.stop.load(Ordering::Relaxed) {
            while batch.has_room()
                && let Some(job) = self.queue.next(batch.is_idle())
            {
                self.begin(batch, job);
            }
            if batch.is_idle() {
                match self.queue.has_scored() || self.queue.is_closed() {
                    true => return Ok(()),
                    false => continue,
                }
            }
            let (listeners, stop) = (&self.listeners, self.stop);
            let ended = batch.advance(|number, part| match listeners.get(number) {
                Some(Some((listener, _))) => send(part, listener, stop),
                _ => ControlFlow::Break(()),
            })?;
            for (number, answer) in ended {
                if let Some((listener, echoed)) = self.listeners[number].take() {
                    let answered = Answered::new(answer, echoed.as_ref(), batch.tokenizer());
                    self.end(Ok(answered), &listener);
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, batch: &mut ChatBatch<'_>, job: Job) {
        let Job { prompt, options, echo, listener, .. } = job;
        match batch.begin(&prompt, &options) {
            Ok(number) => {
                let count = self.listeners.len().max(number + 1);
                self.listeners.resize_with(count, || None);
                self.listeners[number] = Some((listener, echo.then_some(prompt)));
            }
            Err(error) => self.end(Err(error.into()), &listener),
        }
    }

    /// Tells how a request ended.
    fn end(&mut self, answered: Result<Answered, ApiError>, listener: &Listener) {
        match &answered {
            Ok(answered) => (self.observe)(Served::Answer(&answered.answer)),
            Err(error) => (self.observe)(Served::Refused(&error.message)),
        }
        let finish = answered.as_ref().ok().map(|answered| answered.answer.outcome.outcome.finish);
        let event = match (answered, finish) {
            // Nobody is told that a text is whole which is not.
            (Ok(_), Some(Finish::Stopped)) => Event::Failed(ApiError::ending()),
            (Ok(_), Some(Finish::Stuck)) => {
                let message = "the text is not what its schema has it be, and no token leads there, or the schema takes too much \
                               to obey: give a simpler one";
                Event::Failed(ApiError::field("response_format", message))
            }
            (Ok(answered), _) => Event::Done(Box::new(answered)),
            (Err(error), _) => Event::Failed(error),
        };
        listener.send(event);
    }

    /// Tells all who wait for an answer side by side that there is none.
    fn fail(&mut self, error: &ApiError) {
        for (listener, _) in std::mem::take(&mut self.listeners).into_iter().flatten() {
            self.end(Err(error.clone()), &listener);
        }
    }
}
