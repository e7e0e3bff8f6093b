//! `outsize chat`: a conversation under a budget.

use crate::args::ChatArgs;
use crate::chat_input::ChatInput;
use crate::error::Failure;
use crate::generation::following;
use crate::session::SessionNeeds;
use crate::views::memory::MemoryHeld;
use crate::views::output::{print, refuse_to_overwrite, say};
use crate::views::run::drafted;
use crate::{interrupt, session};
use outsize::checkpoint::{plain, read_text, write_file};
use outsize::generate::{
    ChatAnswer, ChatMessage, ChatOptions, ChatPart, ChatSession, Finish, GenerateError, ImageInput,
};
use outsize::plan::format_size;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// The largest file of a conversation that is read, in bytes.
const LONGEST: u64 = 16 << 20;

/// What can be said to the command rather than to the model.
const HELP: &str = "\
/image FILE   have the next message be about an image, too
/reset        begin a new conversation
/save FILE    write the conversation to a file, as JSON
/load FILE    go on from such a file
/stats        tokens, speed and memory
/help         this list
/bye          end, as Ctrl-D does
\"\"\"           begins and ends a message of several lines
Ctrl-C        ends an answer";

/// Runs the command.
pub fn chat(args: &ChatArgs) -> Result<(), Failure> {
    let mut chat = Chat::open(args)?;
    let mut input = ChatInput::new()?;
    if input.is_terminal() {
        say("/help lists commands, Ctrl-D ends");
    }
    let mut refused = 0;
    while let Some(text) = input.next()? {
        interrupt::check()?;
        let done = match text.strip_prefix('/') {
            None => chat.say(text)?,
            Some("bye" | "exit") => break,
            Some(command) => match chat.command(command) {
                Err(Failure::Usage(message) | Failure::Failed(message)) => Err(message),
                done => Ok(done?),
            },
        };
        if let Err(message) = done {
            say(format!("error: {message}"));
            refused += 1;
        }
    }
    interrupt::check()?;
    match refused {
        1.. if !input.is_terminal() => {
            let what = if refused == 1 { "message or command" } else { "messages or commands" };
            Err(Failure::Failed(format!("{refused} {what} failed, as said above")))
        }
        _ => Ok(()),
    }
}

/// A conversation, and what is asked of it.
struct Chat {
    session: ChatSession,
    options: ChatOptions,
    system: Option<ChatMessage>,
    model: PathBuf,
    last: Option<ChatAnswer>,
    /// What the next message is about.
    images: Vec<ImageInput>,
}

impl Chat {
    /// Opens the model, and begins to read.
    fn open(args: &ChatArgs) -> Result<Self, Failure> {
        let template = |folder: &Path| session::template(&args.session, folder);
        let needs = SessionNeeds { batch: 1, constrains: false, scores: false };
        let (session, options) = session::open(&args.session, needs, template)?;
        let mut chat = Self {
            session,
            options,
            system: args.system.as_ref().map(|text| ChatMessage::new("system", text)),
            model: args.session.model.model.clone(),
            last: None,
            images: args.image.iter().map(ImageInput::read).collect::<Result<_, _>>()?,
        };
        chat.begin()?;
        Ok(chat)
    }

    /// Begins a new conversation.
    fn begin(&mut self) -> Result<(), Failure> {
        Ok(self.session.set_messages(self.system.iter().cloned().collect())?)
    }

    /// Shows the answer to a message. The inner error is what is wrong with this message alone, and
    /// does not end the conversation.
    fn say(&mut self, text: String) -> Result<Result<(), String>, Failure> {
        // The first answer waits until the weights that stay are read.
        let mut progress = self.last.is_none().then(|| following(self.session.pipeline(), 1));
        let mut failure = None;
        let mut thoughts = Thoughts::default();
        let mut message = ChatMessage::new("user", text);
        // What the template writes before the text.
        message.images =
            std::mem::take(&mut self.images).into_iter().map(|image| (0, image)).collect();
        let answer = self.session.answer_message(message, &self.options, |part| {
            drop(progress.take());
            let printed = match part {
                ChatPart::Thought(text) => {
                    thoughts.show(text);
                    Ok(())
                }
                ChatPart::Answer("") | ChatPart::ToolCall(_) => Ok(()),
                ChatPart::Answer(text) => {
                    thoughts.end();
                    print(text)
                }
            };
            match printed {
                Ok(()) if interrupt::asked() => ControlFlow::Break(()),
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        drop(progress);
        thoughts.end();
        if let Some(failure) = failure {
            return Err(failure);
        }
        let answer = match answer {
            Ok(answer) => answer,
            Err(error @ GenerateError::Request(_)) => return Ok(Err(flagged(error.into()))),
            Err(error) => return Err(error.into()),
        };
        if !answer.outcome.text.is_empty() {
            print("\n")?;
        }
        let note = match answer.outcome.outcome.finish {
            Finish::Length | Finish::Context
                if answer.outcome.text.is_empty() && !answer.thought.is_empty() =>
            {
                "note: there was no room for an answer behind the thoughts: --max-new-tokens and --context give more"
            }
            Finish::Stopped if answer.outcome.text.is_empty() => {
                "note: interrupted before the answer began: the message is not part of the conversation"
            }
            Finish::Stopped => "note: interrupted: the answer so far is part of the conversation",
            Finish::Context if self.session.pipeline().can_slide() => {
                "note: the context is full: /reset begins a new conversation; --context gives more, --when-full slide forgets \
                 the oldest tokens"
            }
            Finish::Context => {
                "note: the context is full: /reset begins a new conversation; --context gives more"
            }
            _ => "",
        };
        if !note.is_empty() {
            say(note);
        }
        interrupt::forget();
        self.last = Some(answer);
        Ok(Ok(()))
    }

    fn command(&mut self, command: &str) -> Result<(), Failure> {
        let (name, argument) = command.split_once(' ').unwrap_or((command, ""));
        match (name, argument.trim()) {
            ("reset", "") => {
                self.begin()?;
                self.last = None;
                say("a new conversation");
            }
            ("image", file) if !file.is_empty() => self.images.push(ImageInput::read(file)?),
            ("save", file) if !file.is_empty() => self.save(Path::new(file))?,
            ("load", file) if !file.is_empty() => self.load(Path::new(file))?,
            ("stats", "") => self.stats(),
            ("help", "") => HELP.lines().for_each(say),
            _ => {
                let command = outsize::checkpoint::shown(command, 80);
                return Err(Failure::usage(format!("/{command} is no command; /help lists them")));
            }
        }
        Ok(())
    }

    fn save(&self, file: &Path) -> Result<(), Failure> {
        refuse_to_overwrite(&self.model, file)?;
        if file.exists() && read_conversation(file).is_err() {
            let reason = "exists and is no conversation; give another name";
            return Err(Failure::Failed(format!("{} {reason}", file.display())));
        }
        let mut text = serde_json::to_string_pretty(self.session.messages())?;
        text.push('\n');
        write_file(file, text.as_bytes())?;
        say(format!("{} messages written to {}", self.session.messages().len(), file.display()));
        if self.session.messages().iter().any(|message| !message.images.is_empty()) {
            say("note: images are not part of the file");
        }
        Ok(())
    }

    fn load(&mut self, file: &Path) -> Result<(), Failure> {
        let messages = read_conversation(file)?;
        let count = messages.len();
        self.session.set_messages(messages)?;
        say(format!("{count} messages from {}", file.display()));
        Ok(())
    }

    fn stats(&self) {
        let context = self.session.pipeline().cache_options().context;
        say(format!(
            "conversation  {} messages · {} of {context} tokens in the KV cache",
            self.session.messages().len(),
            self.session.held_tokens(),
        ));
        if let Some(answer) = &self.last {
            say(format!("last answer   {}", session::answered(answer)));
        }
        if let Some(stats) = self.session.pipeline().draft_stats() {
            say(format!("so far        {}", drafted(stats)));
        }
        let read = format_size(self.session.pipeline().stats().bytes_read);
        let held = MemoryHeld::now(self.session.pipeline().device_map());
        say(format!("so far        read {read}{held}"));
    }
}

/// What a model thinks before it answers, as it is shown: on a terminal alone, and dimmed.
#[derive(Default)]
struct Thoughts {
    begun: bool,
}

impl Thoughts {
    fn show(&mut self, text: &str) {
        let term = console::Term::stderr();
        if term.is_term() {
            let text = text.split('\n').map(plain).collect::<Vec<_>>().join("\n");
            self.begun |=
                term.write_str(&console::style(text).for_stderr().dim().to_string()).is_ok();
        }
    }

    /// Begins the line of what follows.
    fn end(&mut self) {
        if std::mem::take(&mut self.begun) {
            let _ = console::Term::stderr().write_line("");
        }
    }
}

/// The messages of a file that a chat wrote.
fn read_conversation(file: &Path) -> Result<Vec<ChatMessage>, Failure> {
    let text = read_text(file, LONGEST);
    let text =
        text.map_err(|error| Failure::Failed(format!("cannot read {}: {error}", file.display())))?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::Failed(format!(
            "{} is no conversation, a list of {{\"role\", \"content\"}}: {error}",
            file.display()
        ))
    })
}

/// The message of a failure.
fn flagged(failure: Failure) -> String {
    match failure {
        Failure::Usage(message) | Failure::Failed(message) => message,
        _ => "interrupted".to_owned(),
    }
}
